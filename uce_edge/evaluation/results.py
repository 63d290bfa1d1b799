"""The result of an evaluation, for tables, JSON and the report."""

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.evaluation.class_results import Classes
from uce_edge.evaluation.latency import Latency
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.evaluation.ood import OutOfDistribution
from uce_edge.evaluation.rejection_results import Gated, Kept, KeptClass
from uce_edge.evaluation.score_intervals import Score
from uce_edge.evaluation.set_results import Sets
from uce_edge.evaluation.shift import Shift
from uce_edge.evaluation.threshold_curves import Operating, RiskCurve, Thresholds
from uce_edge.metadata import Metadata
from uce_edge.metrics import CalibrationTest, ReliabilityCurve
from uce_edge.runtime.prediction import ImagePrediction


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram, with the curve of a perfectly calibrated model."""

    curve: ReliabilityCurve
    twin: npt.NDArray[np.float64]
    """The expected outcome of each bin; for H, unlike the confidence, it is not the score itself."""
    test: CalibrationTest
    """Whether chance explains the distances between the two."""


@dataclass(frozen=True, eq=False)
class Example:
    """One image to look at."""

    index: int
    """Its index in the data, from 0."""
    name: str | None
    """Its name, such as its file's name; None if unknown."""
    label: str
    truth: str
    confidence: float
    uncertainty: float
    pixels: npt.NDArray[Any] = dataclasses.field(repr=False, metadata={"json": False})
    mapped: ImagePrediction | None = dataclasses.field(default=None, repr=False, metadata={"json": False})
    """Its prediction, if the file shows where it looked."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of one model file on labelled images."""

    model: str
    """The file's name."""
    model_sha256: str
    """Of the whole file."""
    data: str
    """The name of the images."""
    part: str
    """Their part of the dataset, such as "test images"."""
    images: int
    samples: int
    seed: int
    provider: str
    metrics: dict[str, Score]
    """By name, as in `score_intervals.METRICS`."""
    unpredicted_classes: int
    """The number of classes that were never predicted, which the classwise means leave out."""
    classes: Classes
    """Confusion and rates by class."""
    rejection: tuple[Operating, ...]
    """The threshold in use is the first."""
    thresholds: Thresholds
    risk_coverage: dict[str, RiskCurve]
    """By score: uncertainty, confidence, model_uncertainty."""
    reliability: dict[str, Reliability]
    """By score: confidence, uncertainty."""
    gated: Gated | None
    """The results with the cutoff on novelty; None for a file without one."""
    kept: Kept | None
    """The results of the stored rule; None for a file without a promised error."""
    kept_classes: tuple[KeptClass, ...]
    """The same by predicted class, for a file with a limit for each; else empty."""
    sets: Sets | None
    """The prediction sets; None for a file without them."""
    ood: tuple[OutOfDistribution, ...]
    """One for every set of out-of-distribution images."""
    shift: Shift | None
    latency: Latency | None
    most_uncertain: tuple[Example, ...]
    confidently_wrong: tuple[Example, ...]
    notes: tuple[str, ...]
    """Caveats of the numbers."""
    metadata: Metadata = dataclasses.field(repr=False, metadata={"json": False})
    answers: ModelOutputs = dataclasses.field(repr=False, metadata={"json": False})
    """The outputs for every image, for comparisons with another model."""
    truth: npt.NDArray[np.int64] = dataclasses.field(repr=False, metadata={"json": False})
    """The true class of every image."""

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON, without pixels, outputs and metadata.

        Undefined numbers are None.
        """
        document: dict[str, Any] = plain(self)
        for name, score in self.metrics.items():
            document["metrics"][name]["difference"] = score.difference
        document["rejection"] = [point.pop("measured") | point for point in document["rejection"]]
        return document


def plain(value: Any) -> Any:
    """Convert records, arrays and enums to JSON values.

    A field's metadata `json` is its key, or False to leave it out. Undefined numbers are None.
    """
    if dataclasses.is_dataclass(value):
        keys = {field.name: field.metadata.get("json", field.name) for field in dataclasses.fields(value)}
        return {key: plain(getattr(value, name)) for name, key in keys.items() if key}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Enum):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
