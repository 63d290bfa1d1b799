"""Run a Bayesian image classifier from one ONNX file."""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

__version__ = "0.4.0"

if TYPE_CHECKING:
    from uce_edge.contract import Inference, Method
    from uce_edge.datasets.sources import SkippedImagesWarning
    from uce_edge.errors import (
        DeviceWarning,
        ImageError,
        IntegrityError,
        IntegrityWarning,
        MissingPartError,
        ModelFileError,
        TelemetryWarning,
        UceEdgeError,
        UceEdgeWarning,
        UsageError,
    )
    from uce_edge.metadata import ImageSpec, Metadata
    from uce_edge.models import load
    from uce_edge.monitor.monitor import Monitor
    from uce_edge.output.dataframe import to_pandas
    from uce_edge.rejection.guarantee import NoGuaranteeError
    from uce_edge.rejection.promises import Promise
    from uce_edge.rejection.rule import Decision, Reason, RejectRule
    from uce_edge.runtime.answers import Answer
    from uce_edge.runtime.device_choice import Device
    from uce_edge.runtime.model import GuaranteeWarning, Model, SamplesWarning
    from uce_edge.runtime.prediction import ImagePrediction, Prediction

__all__ = [
    "Answer",
    "Decision",
    "Device",
    "DeviceWarning",
    "GuaranteeWarning",
    "ImageError",
    "ImagePrediction",
    "ImageSpec",
    "Inference",
    "IntegrityError",
    "IntegrityWarning",
    "Metadata",
    "Method",
    "MissingPartError",
    "Model",
    "ModelFileError",
    "Monitor",
    "NoGuaranteeError",
    "Prediction",
    "Promise",
    "Reason",
    "RejectRule",
    "SamplesWarning",
    "SkippedImagesWarning",
    "TelemetryWarning",
    "UceEdgeError",
    "UceEdgeWarning",
    "UsageError",
    "__version__",
    "load",
    "to_pandas",
]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge.runtime.answers": ("Answer",),
        "uce_edge.rejection.guarantee": ("NoGuaranteeError",),
        "uce_edge.rejection.promises": ("Promise",),
        "uce_edge.contract": ("Inference", "Method"),
        "uce_edge.datasets.sources": ("SkippedImagesWarning",),
        "uce_edge.errors": (
            "DeviceWarning",
            "ImageError",
            "IntegrityError",
            "IntegrityWarning",
            "MissingPartError",
            "ModelFileError",
            "TelemetryWarning",
            "UceEdgeError",
            "UceEdgeWarning",
            "UsageError",
        ),
        "uce_edge.output.dataframe": ("to_pandas",),
        "uce_edge.metadata": ("ImageSpec", "Metadata"),
        "uce_edge.runtime.model": ("GuaranteeWarning", "Model", "SamplesWarning"),
        "uce_edge.models": ("load",),
        "uce_edge.monitor.monitor": ("Monitor",),
        "uce_edge.runtime.prediction": ("ImagePrediction", "Prediction"),
        "uce_edge.rejection.rule": ("Decision", "Reason", "RejectRule"),
        "uce_edge.runtime.device_choice": ("Device",),
    },
)
