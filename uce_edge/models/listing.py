"""The bundled models with their size, accuracy and promise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uce_edge import models
from uce_edge.integrity import protobuf
from uce_edge.metadata import Metadata
from uce_edge.output.wording import at_most, percent

PURPOSES = {
    "imagenet": "photos of 1,000 kinds of things",
    "waste": "photos of waste on white, six kinds, for a sorting robot",
    "xray": "chest X-rays of children, normal or pneumonia, not for diagnosis",
    "cifar10": "tests, the paper and the smallest devices; photos of 32x32 pixels",
    "pneumonia": "tests and the smallest devices; chest X-rays of 28x28 pixels, not for diagnosis",
}


@dataclass(frozen=True)
class BundledModel:
    """A bundled model file and its metadata."""

    name: str
    path: Path
    metadata: Metadata

    @classmethod
    def read(cls, name: str, path: Path) -> "BundledModel":
        """Read the metadata without loading the model, which is fast."""
        fields = protobuf.fields(memoryview(path.read_bytes()))
        properties = dict(field.entry for field in fields if field.entry is not None)
        return cls(name, path, Metadata.from_properties(properties, str(path)))

    @property
    def accuracy(self) -> float | None:
        """The accuracy on test images, if it is stored."""
        score = self.metadata.metrics.get("accuracy")
        return None if score is None else score.value

    @property
    def summary(self) -> str:
        """Size, accuracy and promise in one line."""
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
        """Plain values for JSON."""
        metadata = self.metadata
        return {
            "name": self.name,
            "purpose": PURPOSES.get(self.name),
            "inference": metadata.inference.value,
            "default": self.path == models.bundled(),
            "file": str(self.path),
            "bytes": self.path.stat().st_size,
            "classes": list(metadata.classes),
            "image": metadata.image.to_document(),
            "samples": metadata.samples,
            "accuracy": self.accuracy,
            "promise": None if metadata.promise is None else metadata.promise.to_document(),
        }


def bundled_models() -> list[BundledModel]:
    """List all bundled model files."""
    return [
        BundledModel.read(name, models.bundled(kind, name)) for name in models.names() for kind in models.kinds(name)
    ]
