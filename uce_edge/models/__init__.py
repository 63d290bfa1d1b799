"""The model in the box: ten kinds of things in photos, trained on CIFAR-10 by this project.

`docs/model-card.md` says how it was made, what it is worth and where it fails.
"""

from pathlib import Path

from uce_edge.contract import Inference

DEFAULT = Inference.MOMENTS
"""The faster of the two files, which is not worse: see the card."""
BUNDLED = (Inference.MC, Inference.MOMENTS)


def bundled(inference: Inference | None = None) -> Path:
    """The file of a kind of inference, one of `BUNDLED`."""
    return Path(__file__).parent / f"cifar10-{inference or DEFAULT}.onnx"
