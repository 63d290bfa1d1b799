"""The result of an evaluation, as values: what the tables, the JSON and the report are made of."""

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.evaluation.class_results import Classes
from uce_edge.evaluation.latency import Latency
from uce_edge.evaluation.model_outputs import Answers
from uce_edge.evaluation.ood import OutOfDistribution
from uce_edge.evaluation.rejection_results import Gated, Kept, KeptClass, Operating, RiskCurve, Thresholds
from uce_edge.evaluation.score_intervals import Score
from uce_edge.evaluation.shift import Shift
from uce_edge.metadata import Metadata
from uce_edge.metrics import CalibrationTest, ReliabilityCurve


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram, and where a perfectly calibrated model would be in it."""

    curve: ReliabilityCurve
    twin: npt.NDArray[np.float64]
    """Per bin the outcome that the probabilities promise: of H, unlike of the confidence, not the score itself."""
    test: CalibrationTest
    """Whether chance explains the distances between the two."""


@dataclass(frozen=True, eq=False)
class Example:
    """One image worth looking at."""

    index: int
    """Its place in the data, from 0."""
    name: str | None
    """What it is called, such as its file's name; None when nobody said."""
    label: str
    truth: str
    confidence: float
    uncertainty: float
    pixels: npt.NDArray[Any] = dataclasses.field(repr=False, metadata={"json": False})


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How one model file did on one set of labelled images."""

    model: str
    """The file's name."""
    model_sha256: str
    """Of the whole file."""
    data: str
    """What the images are called."""
    part: str
    """Which of them they are, such as "test images"."""
    images: int
    samples: int
    seed: int
    provider: str
    metrics: dict[str, Score]
    """By name, as in `score_intervals.METRICS`."""
    unpredicted_classes: int
    """Classes that no image was predicted as; the classwise means leave them out."""
    classes: Classes
    """Confusion and rates, class by class."""
    rejection: tuple[Operating, ...]
    """The threshold in use comes first."""
    thresholds: Thresholds
    risk_coverage: dict[str, RiskCurve]
    """By score: uncertainty, confidence, model_uncertainty."""
    reliability: dict[str, Reliability]
    """Of confidence and of uncertainty."""
    gated: Gated | None
    """What the cutoff on novelty changes; None for a file without one."""
    kept: Kept | None
    """What the stored rule accepts, beside what it promises; None for a file that promises no error."""
    kept_classes: tuple[KeptClass, ...]
    """The same for every label, of a file with a limit for each; otherwise nothing."""
    ood: tuple[OutOfDistribution, ...]
    """One for every set of foreign images."""
    shift: Shift | None
    latency: Latency | None
    most_uncertain: tuple[Example, ...]
    confidently_wrong: tuple[Example, ...]
    notes: tuple[str, ...]
    """What a reader must know before believing the numbers."""
    metadata: Metadata = dataclasses.field(repr=False, metadata={"json": False})
    answers: Answers = dataclasses.field(repr=False, metadata={"json": False})
    """What the model said of every image, for comparisons with another one."""
    truth: npt.NDArray[np.int64] = dataclasses.field(repr=False, metadata={"json": False})
    """The true class of every image."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: undefined numbers are None; pixels, single answers and metadata are left out."""
        document: dict[str, Any] = plain(self)
        for name, score in self.metrics.items():
            document["metrics"][name]["difference"] = score.difference
        document["rejection"] = [point.pop("measured") | point for point in document["rejection"]]
        return document


def plain(value: Any) -> Any:
    """Records, arrays and enums as what JSON knows; an undefined number is None, and what is marked so is left out."""
    if dataclasses.is_dataclass(value):
        shown = [field.name for field in dataclasses.fields(value) if field.metadata.get("json", True)]
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Enum):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
