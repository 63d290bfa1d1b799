"""`uce-edge models`."""

import json

import typer

from uce_edge import models as box
from uce_edge.cli.messages import echo, say
from uce_edge.cli.shared_options import JsonOption
from uce_edge.contract import Inference


def models(as_json: JsonOption = False) -> None:
    """List the bundled models: their purpose, classes, size, accuracy and promised error.

    In every command, --model NAME uses one of them, and --inference chooses its file. The first one is the default.

    Example: uce-edge models

    Example: uce-edge predict photo.png --model cifar10 --inference mc
    """
    from uce_edge.models.listing import PURPOSES, bundled_models

    bundled = bundled_models()
    if as_json:
        typer.echo(json.dumps([file.as_dict() for file in bundled], indent=2, allow_nan=False))
        return
    for name in box.names():
        files = [file for file in bundled if file.name == name]
        first = files[0].metadata
        spec = first.image
        purpose = f": {PURPOSES[name]}" if name in PURPOSES else ""
        echo(f"{name}{' (default)' if name == box.DEFAULT_NAME else ''}{purpose}", bold=True)
        echo(f"  {len(first.classes)} classes: {_listed(first.classes)}")
        echo(f"  images of {spec.height} x {spec.width} x {spec.channels}")
        for file in files:
            echo(f"  --inference {file.metadata.inference:<8} {file.summary}")
    for name in box.left_out():
        echo(f"{name}: {PURPOSES[name]}", bold=True)
        echo(f"  not in this package, for its size: get {name}-{Inference.MC}.onnx from the folder uce_edge/models of")
        echo(f"  the repository, and name it with --model {name}-{Inference.MC}.onnx")
    say(f"Next: uce-edge info {box.names()[0]}")


def _listed(classes: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(classes[:most]) + (", ..." if len(classes) > most else "")
