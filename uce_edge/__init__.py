"""Calibrated uncertainty for the edge: run a Bayesian image classifier from one ONNX file."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uce_edge.answers import Answer as Answer
    from uce_edge.model import Model as Model
    from uce_edge.prediction import Decision as Decision
    from uce_edge.prediction import Prediction as Prediction

__all__ = ["Answer", "Decision", "Model", "Prediction", "__version__"]

_HOMES = {
    "Answer": "uce_edge.answers",
    "Decision": "uce_edge.prediction",
    "Model": "uce_edge.model",
    "Prediction": "uce_edge.prediction",
}


def __getattr__(name: str) -> Any:
    """Import the public classes on first use, so that `uce-edge --version` stays instant."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
