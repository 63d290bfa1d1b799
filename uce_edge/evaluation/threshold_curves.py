"""Error and coverage of thresholds on a score."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import Guarantee
from uce_edge.rejection.rule import RejectRule, within

EXAMPLE = 0.3
"""The threshold of a report if none is stored or requested."""

CONFIDENCE = 0.95
THRESHOLDS = np.round(np.linspace(0.02, 1, 50), 2)
_POINTS = 200  # the most points of a curve that a screen shows


class Origin(StrEnum):
    """The origin of a threshold."""

    ASKED = "asked"
    """The user's request."""
    STORED = "stored"
    """The rule of the file."""
    EXAMPLE = "example"
    """The default `EXAMPLE`."""


@dataclass(frozen=True)
class Operating:
    """The results of one threshold."""

    origin: Origin
    measured: Guarantee
    """Error, coverage and the bound of the error on these images."""
    errors: int
    """The number of accepted and wrong images."""
    rejected_errors: int
    """The number of rejected and wrong images."""


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Error and coverage against the threshold."""

    thresholds: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    """Of the accepted images; NaN where none is accepted."""
    error_bound: npt.NDArray[np.float64]
    """Its 95 % upper bound, for one threshold chosen before; NaN where none is accepted."""
    coverage: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The risk-coverage curve of one score."""

    coverage: npt.NDArray[np.float64]
    risk: npt.NDArray[np.float64]
    aurc: float


def operating_points(
    answers: ModelOutputs, wrong: npt.NDArray[np.bool_], requested: float | None, stored: RejectRule | None
) -> tuple[Operating, ...]:
    """The requested and the stored threshold, or an example; the first is in use."""
    chosen = [] if requested is None else [(Origin.ASKED, requested)]
    if stored is not None and stored.threshold is not None:
        chosen.append((Origin.STORED, stored.threshold))
    return tuple(_at(answers, wrong, *one) for one in chosen or [(Origin.EXAMPLE, EXAMPLE)])


def against_threshold(answers: ModelOutputs, wrong: npt.NDArray[np.bool_]) -> Thresholds:
    """Error, its bound and the coverage over a grid of thresholds."""
    points = [guarantee.error_at(answers.uncertainty, wrong, float(limit), CONFIDENCE) for limit in THRESHOLDS]
    error, bound = (
        np.array([getattr(point, name) if point.accepted else np.nan for point in points], np.float64)
        for name in ("error", "error_bound")
    )
    return Thresholds(THRESHOLDS, error, bound, np.array([point.coverage for point in points]))


def risk_curves(answers: ModelOutputs, labels: npt.NDArray[np.int64], passes: int) -> dict[str, RiskCurve]:
    """One curve per score that exists."""
    curves = {}
    for name, score in answers.scores(passes).items():
        if score is not None:
            curve = metrics.risk_coverage(answers.table, labels, score=score)
            shown = np.unique(np.linspace(0, len(curve.risk) - 1, _POINTS).round().astype(int))
            area = metrics.aurc(answers.table, labels, score=score)
            curves[name] = RiskCurve(curve.coverage[shown], curve.risk[shown], area)
    return curves


def _at(answers: ModelOutputs, wrong: npt.NDArray[np.bool_], origin: Origin, threshold: float) -> Operating:
    accepted = within(answers.uncertainty, threshold)
    measured = guarantee.error_at(answers.uncertainty, wrong, threshold, CONFIDENCE)
    return Operating(origin, measured, int((wrong & accepted).sum()), int((wrong & ~accepted).sum()))
