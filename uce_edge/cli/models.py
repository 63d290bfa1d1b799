"""`uce-edge models`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from uce_edge import models as box
from uce_edge.cli.messages import echo, say
from uce_edge.cli.shared_options import JsonOption

if TYPE_CHECKING:
    from uce_edge.metadata import Metadata


def models(as_json: JsonOption = False) -> None:
    """List the bundled models: their classes, size, accuracy and promised error.

    In every command, --model NAME uses one of them, and --inference chooses its file. The first one is the default.

    Example: uce-edge models

    Example: uce-edge predict photo.png --model cifar10 --inference mc
    """
    there = [
        _Boxed.of(name, path) for name in box.names() for path in (box.bundled(kind, name) for kind in box.kinds(name))
    ]
    if as_json:
        typer.echo(json.dumps([boxed.as_dict() for boxed in there], indent=2, allow_nan=False))
        return
    for name in box.names():
        files = [boxed for boxed in there if boxed.name == name]
        first = files[0].metadata
        spec = first.image
        echo(f"{name}{' (default)' if name == box.DEFAULT_NAME else ''}", bold=True)
        echo(f"  {len(first.classes)} classes: {_listed(first.classes)}")
        echo(f"  images of {spec.height} x {spec.width} x {spec.channels}")
        for boxed in files:
            echo(f"  --inference {boxed.metadata.inference:<8} {boxed.told}")
    say(f"Next: uce-edge info {box.names()[0]}")


@dataclass(frozen=True)
class _Boxed:
    """A bundled file, and what it says of itself."""

    name: str
    path: Path
    metadata: "Metadata"

    @classmethod
    def of(cls, name: str, path: Path) -> "_Boxed":
        """Read it without loading it: the list is there at once."""
        from uce_edge.integrity import protobuf
        from uce_edge.metadata import Metadata

        fields = protobuf.fields(memoryview(path.read_bytes()))
        properties = dict(field.entry for field in fields if field.entry is not None)
        return cls(name, path, Metadata.from_properties(properties, str(path)))

    @property
    def accuracy(self) -> float | None:
        score = self.metadata.metrics.get("accuracy")
        return None if score is None else score.value

    @property
    def told(self) -> str:
        """Size, accuracy and promise in a line."""
        from uce_edge.output.wording import at_most, percent

        parts = [f"{self.path.stat().st_size / 1e6:.1f} MB"]
        if self.accuracy is not None:
            parts.append(f"accuracy {percent(self.accuracy)} on test images")
        promised = self.metadata.promise
        if promised is None:
            parts.append("no promise")
        else:
            bound = promised.error_bound if promised.target_error is None else promised.target_error
            parts.append(
                f"--reject auto accepts {percent(promised.coverage)} of held-out images, at most {at_most(bound)} "
                f"of them wrong ({percent(promised.confidence, 0)} confidence)"
            )
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """As --json prints it."""
        metadata = self.metadata
        return {
            "name": self.name,
            "inference": metadata.inference.value,
            "default": self.path == box.bundled(),
            "file": str(self.path),
            "bytes": self.path.stat().st_size,
            "classes": list(metadata.classes),
            "image": metadata.image.to_document(),
            "samples": metadata.samples,
            "accuracy": self.accuracy,
            "promise": None if metadata.promise is None else metadata.promise.to_document(),
        }


def _listed(classes: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(classes[:most]) + (", ..." if len(classes) > most else "")
