"""The model in the box: ten kinds of things in photos, trained on CIFAR-10 by this project.

`docs/model-card.md` says how it was made, what it is worth and where it fails.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.contract import Inference
from uce_edge.errors import UsageError, expected

if TYPE_CHECKING:
    from uce_edge.model import Model
    from uce_edge.providers import Device

__all__ = ["BUNDLED", "DEFAULT", "bundled", "load"]

DEFAULT = Inference.MOMENTS
"""The faster of the two files, which is not worse: see the card."""
BUNDLED = (Inference.MC, Inference.MOMENTS)


def bundled(inference: Inference | None = None) -> Path:
    """The file of a kind of inference, one of `BUNDLED`."""
    if inference is not None and inference not in BUNDLED:
        rule = f"one of {', '.join(BUNDLED)} for the bundled model"
        raise UsageError(expected("`inference`", rule, str(inference), "Leave it out for the default"))
    return Path(__file__).parent / f"cifar10-{inference or DEFAULT}.onnx"


def load(
    model: "str | Path | None" = None,
    device: "Device | str" = "auto",
    *,
    threads: int | None = None,
    max_memory: int | None = None,
    verify: bool = True,
) -> "Model":
    """Load a model file, or the model in the box.

    Args:
        model: A path; or a kind of inference ("moments", "mc") for the bundled file of that kind; None for the default.
        device: Where to run it, as in `Model`.
        threads: As in `Model`.
        max_memory: As in `Model`.
        verify: As in `Model`.

    Example:
        >>> import uce_edge
        >>> uce_edge.load().classes[:3]
        ('airplane', 'automobile', 'bird')
    """
    from uce_edge.model import Model

    kind = Inference(model) if isinstance(model, str) and model in list(Inference) else None
    path = bundled(kind) if model is None or kind is not None else Path(model)
    return Model(path, device, threads=threads, max_memory=max_memory, verify=verify)
