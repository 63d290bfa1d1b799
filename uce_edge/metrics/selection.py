"""Selective prediction: the error after rejecting uncertain images."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge.metrics.argument_checks import Booleans, Floats, choice, vector
from uce_edge.metrics.probabilities import inputs


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Coverage and error rate of the images with scores up to a threshold."""

    coverage: Floats
    """The share of accepted images."""
    risk: Floats
    """The top-1 error rate among them; NaN where none is accepted."""
    thresholds: Floats
    """The largest accepted score."""


def risk_coverage(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, score: npt.ArrayLike = "uncertainty"
) -> RiskCoverage:
    """The risk-coverage curve, with one point per distinct score.

    Args:
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        score: "uncertainty" (H), "confidence" (1 - max p), or one number per image, larger for a less certain image.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> risk_coverage(probabilities, labels).risk.tolist()
        [0.0, 0.0, 0.0, 0.25]
    """
    ranks, wrong = uncertain_and_wrong(probabilities, labels, score)
    return _accepted(ranks, wrong, np.unique(ranks))


def aurc(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, score: npt.ArrayLike = "uncertainty") -> float:
    """The area under the risk-coverage curve.

    It is the mean over the images of the risk at their score: without ties, the mean risk of the k most certain images,
    k = 1..n. `score` is as in `risk_coverage`.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> aurc(probabilities, labels)
        0.0625
    """
    curve = risk_coverage(probabilities, labels, score=score)
    return float(np.diff(curve.coverage, prepend=0.0) @ curve.risk)


def error_at(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    thresholds: npt.ArrayLike,
    score: npt.ArrayLike = "uncertainty",
) -> RiskCoverage:
    """The error rate and the coverage at thresholds, such as H_max.

    `score` is as in `risk_coverage`.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> error_at(probabilities, labels, thresholds=[0.5, 0.9]).coverage.tolist()
        [0.25, 0.75]
    """
    limits = vector("thresholds", thresholds, "Give a list of thresholds, such as values of H_max.")
    return _accepted(*uncertain_and_wrong(probabilities, labels, score), limits)


def uncertain_and_wrong(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, score: npt.ArrayLike
) -> tuple[Floats, Booleans]:
    """The score of each image, and whether its top-1 label is wrong."""
    if isinstance(score, str):
        choice("score", score, ("uncertainty", "confidence"), "Or give one number per image.")
    table, truth = inputs(probabilities, labels)
    if not isinstance(score, str):
        ranks = vector("score", score, "Give one number per image, larger when less certain.", len(table))
    else:
        ranks = table.uncertainty if score == "uncertainty" else 1.0 - table.confidence
    return ranks, table.predicted != truth


def _accepted(score: Floats, wrong: Booleans, thresholds: Floats) -> RiskCoverage:
    order = np.argsort(score)
    count = np.searchsorted(score[order], thresholds, side="right")
    errors = np.concatenate(([0], np.cumsum(wrong[order])))[count]
    risk = errors / np.where(count, count, np.nan)
    return RiskCoverage(count / len(score), risk, thresholds)
