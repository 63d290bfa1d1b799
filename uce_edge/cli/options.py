"""Options that several commands share."""

from typing import Annotated

import typer

from uce_edge.providers import Device

DeviceOption = Annotated[Device, typer.Option(help="auto takes CUDA when it works; cuda fails rather than fall back.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DataOption = Annotated[str, typer.Option(help="The dataset: digits (embedded).")]


def quote(path: object) -> str:
    """A path as one shell word, for commands to paste."""
    import shlex

    return shlex.quote(str(path))


def say(text: str) -> None:
    """Tell a person; stdout is for data."""
    typer.echo(text, err=True)
