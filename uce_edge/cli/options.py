"""Options that several commands share."""

from typing import Annotated

import typer

from uce_edge.providers import Device

DeviceOption = Annotated[Device, typer.Option(help="auto takes CUDA when it works; cuda fails rather than fall back.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DataOption = Annotated[str, typer.Option(help="The dataset: digits (embedded).")]


def say(text: str) -> None:
    """Tell a person; stdout is for data."""
    typer.echo(text, err=True)
