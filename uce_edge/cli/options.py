"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.errors import UsageError, expected
from uce_edge.providers import Device

if TYPE_CHECKING:
    from uce_edge.calibration.guarantee import Guarantee

DeviceOption = Annotated[
    Device, typer.Option(help="auto takes CUDA when it works; the others fail rather than fall back.")
]
ThreadsOption = Annotated[int | None, typer.Option(help="Threads of ONNX Runtime; default: all cores.")]
MemoryOption = Annotated[
    int | None, typer.Option(help="Megabytes, about, for the images and passes that run at once; default: 256.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DataOption = Annotated[
    str,
    typer.Option(help="digits, cifar10, cifar100, svhn, (fashion-)mnist, a folder of classes, or an .npz file."),
]
RootOption = Annotated[Path | None, typer.Option(help="Where public datasets lie; default: $UCE_EDGE_DATA.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Fetch a public dataset that is not there.")]
SizeOption = Annotated[str | None, typer.Option(help="HEIGHTxWIDTH for the images of a folder; default: 32x32.")]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """HEIGHTxWIDTH as two numbers."""
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) > 0 and int(width) > 0):
        raise UsageError(expected("`size`", "HEIGHTxWIDTH", text, "For example: --size 224x224"))
    return int(height), int(width)


def describe(found: "Guarantee") -> str:
    """What a threshold lets through, or what is promised of it, as a sentence."""
    from uce_edge.report.words import at_most, percent

    start = f"Rejecting above {found.threshold:.4g} accepts"
    if found.error is None:
        return f"{start} none of {found.images:,} held-out images."
    bound = found.error_bound if found.target_error is None else found.target_error
    return (
        f"{start} {percent(found.coverage)} of the images, of which at most {at_most(bound)} are wrong, with "
        f"{percent(found.confidence, 0)} confidence ({found.accepted:,} of {found.images:,} held-out images, "
        f"{percent(found.error, 2)} wrong)."
    )


def quote(path: object) -> str:
    """A path as one shell word, for commands to paste."""
    import shlex

    return shlex.quote(str(path))


def say(text: str) -> None:
    """Tell a person; stdout is for data."""
    typer.echo(text, err=True)
