"""Binned calibration errors of the confidence and of the uncertainty."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Floats, Integers, bin_count, choice
from uce_edge.metrics.probabilities import Probabilities, inputs

Kind = Literal["confidence", "uncertainty"]

NORMAL_95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """A reliability diagram over equal-width bins; NaN for an empty bin."""

    edges: Floats
    """The bins' bounds, one more than there are bins; a bin is (lo, hi], and 0 is in the first."""
    counts: Integers
    """The images in each bin."""
    mean_score: Floats
    """Their mean confidence, or mean uncertainty."""
    mean_outcome: Floats
    """Their accuracy, or error rate."""
    low: Floats
    """The lower end of the outcome's 95 % Wilson interval."""
    high: Floats
    """The upper end."""


def ece(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error.

    It is the mean gap between accuracy and confidence over bins of the confidence.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(ece(probabilities, labels), 3)
        0.3
    """
    return _equal_width(probabilities, labels, "confidence", bins)


def uce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Expected uncertainty calibration error.

    It is the mean gap between the top-1 error and H over bins of H. It is not 0 at perfect calibration: a fair coin has
    H = 1 and an error of 0.5.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(uce(probabilities, labels), 3)
        0.525
    """
    return _equal_width(probabilities, labels, "uncertainty", bins)


def adaptive_ece(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """ECE over bins of equal mass, as far as ties allow.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(adaptive_ece(probabilities, labels, bins=2), 3)
        0.15
    """
    return _equal_mass(probabilities, labels, "confidence", bins)


def adaptive_uce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """UCE over bins of equal mass, as far as ties allow.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(adaptive_uce(probabilities, labels, bins=2), 3)
        0.511
    """
    return _equal_mass(probabilities, labels, "uncertainty", bins)


def mce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Maximum calibration error: the largest gap of a bin.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(mce(probabilities, labels), 3)
        0.6
    """
    curve = reliability_curve(probabilities, labels, bins=bins)
    return float(np.nanmax(np.abs(curve.mean_outcome - curve.mean_score)))


def debiased_ece(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Debiased L2 calibration error of the top label.

    The bins have equal mass (Kumar et al. 2019, Def. 5.2). The part that is due to chance is subtracted from each
    squared gap. A bin with one image, which ties can cause, gives no estimate of that part and counts as 0, as in the
    authors' code.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(debiased_ece(probabilities, labels, bins=2), 3)
        0.0
    """
    table, truth = inputs(probabilities, labels)
    if len(table) < 2 * bin_count(bins):
        remedy = "The correction needs two images per bin: give more images or fewer bins."
        raise UsageError(
            expected("the number of images", f"at least {2 * bins} for {bins} bins", len(table), remedy),
            "metric.too-few-images",
        )
    score, outcome = scored(table, truth, "confidence")
    return debiased(score, outcome, mass_bin(score, bins), bins)


def reliability_curve(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15, kind: Kind = "confidence"
) -> ReliabilityCurve:
    """The data of a reliability diagram.

    Args:
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        bins: The number of equal-width bins.
        kind: "confidence" (against accuracy) or "uncertainty" (H against the error rate).

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> reliability_curve(probabilities, labels, bins=2).counts.tolist()
        [0, 4]
    """
    bin_count(bins)
    choice("kind", kind, ("confidence", "uncertainty"), "Choose one of them.")
    score, outcome = scored(*inputs(probabilities, labels), kind)
    counts, mean_score, rate = _means(score, outcome, bin_of(score, bins), bins)
    n = np.where(counts, counts, np.nan)
    return ReliabilityCurve(np.arange(bins + 1) / bins, counts, mean_score, rate, *wilson(rate, n))


def wilson(rate: Floats, images: Floats) -> tuple[Floats, Floats]:
    """Wilson's 95 % interval of a proportion.

    It stays inside [0, 1] and covers where all images are right or all are wrong.
    """
    z2 = NORMAL_95**2
    centre = (rate + z2 / (2 * images)) / (1 + z2 / images)
    half = NORMAL_95 * np.sqrt(rate * (1 - rate) / images + z2 / (4 * images**2)) / (1 + z2 / images)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def scored(table: Probabilities, truth: Integers, kind: Kind) -> tuple[Floats, Floats]:
    """The score (confidence or H) and the outcome (hit or error) per image."""
    if kind == "confidence":
        return table.confidence, (table.predicted == truth).astype(np.float64)
    return table.uncertainty, (table.predicted != truth).astype(np.float64)


def bin_of(values: Floats, bins: int) -> Integers:
    """The bin (lo, hi] of each value, exact on the edges; 0 is in the first."""
    upper = np.arange(1, bins + 1) / bins
    return np.searchsorted(upper, values, side="left").astype(np.int64, copy=False)


def binned_gap(score: Floats, outcome: Floats, cell: Integers, cells: int) -> Floats:
    """|B| * |mean outcome - mean score| of each cell."""
    gap: Floats = np.abs(np.bincount(cell, weights=outcome - score, minlength=cells))
    return gap


def debiased(score: Floats, outcome: Floats, cell: Integers, cells: int) -> float:
    """The root mean squared gap, less the part that is due to chance."""
    counts, expected_rate, rate = _means(score, outcome, cell, cells)
    full = counts > 1
    n, gap, rate = counts[full], (rate - expected_rate)[full], rate[full]
    square = (n / len(score)) @ (gap**2 - rate * (1 - rate) / (n - 1))
    return math.sqrt(max(0.0, float(square)))


def mass_bin(values: Floats, bins: int) -> Integers:
    """The bin of equal mass of each value; equal values share the lowest."""
    last = -(-len(values) * np.arange(1, bins + 1) // bins) - 1  # the last image of each equal share
    return np.searchsorted(np.sort(values)[last], values, side="left").astype(np.int64, copy=False)


def _equal_width(probabilities: npt.ArrayLike, labels: npt.ArrayLike, kind: Kind, bins: int) -> float:
    bin_count(bins)
    score, outcome = scored(*inputs(probabilities, labels), kind)
    return float(binned_gap(score, outcome, bin_of(score, bins), bins).sum() / len(score))


def _equal_mass(probabilities: npt.ArrayLike, labels: npt.ArrayLike, kind: Kind, bins: int) -> float:
    bin_count(bins)
    score, outcome = scored(*inputs(probabilities, labels), kind)
    return float(binned_gap(score, outcome, mass_bin(score, bins), bins).sum() / len(score))


def _means(score: Floats, outcome: Floats, cell: Integers, cells: int) -> tuple[Integers, Floats, Floats]:
    """Count, mean score and mean outcome of each cell; NaN means if empty."""
    counts = np.bincount(cell, minlength=cells)
    n = np.where(counts, counts, np.nan)
    means = (np.bincount(cell, weights=values, minlength=cells) / n for values in (score, outcome))
    mean_score, mean_outcome = means
    return counts, mean_score, mean_outcome
