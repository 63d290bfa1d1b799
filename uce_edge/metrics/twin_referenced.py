"""Calibration errors of the uncertainty, relative to the calibrated twin.

UCE compares the error with an entropy, so an overconfident model can have a smaller UCE than a calibrated model. Here
every bin of the uncertainty H is compared with the expected error of the probabilities, 1 - max p. The mean of these
errors is 0 for a calibrated model.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from uce_edge.metrics.argument_checks import Floats, Integers, bin_count, choice, whole
from uce_edge.metrics.binned import Kind, bin_of, binned_gap, debiased
from uce_edge.metrics.probabilities import BLOCK_ELEMENTS, Probabilities, inputs

CHANCE = 0.03
"""The largest probability of flagging a calibrated model."""
LEAST = 1e-6
"""The smallest expected error; smaller ones count as this."""


class Calibration(StrEnum):
    """The errors of a model, compared with the expected errors."""

    CONSISTENT = "consistent"
    """No significant difference; with few images only large ones are significant."""
    OVERCONFIDENT = "overconfident"
    """More errors than expected."""
    UNDERCONFIDENT = "underconfident"
    """Fewer errors than expected."""
    UNEVEN = "uneven"
    """About as many as expected in total, too many in some bins and too few in others."""


@dataclass(frozen=True)
class CalibrationTest:
    """A two-sided test of "labels follow the probabilities"."""

    verdict: Calibration
    p_value: float
    """The probability of a deviation as large as this one, for a calibrated model."""
    error: float
    """The observed top-1 error."""
    expected: float
    """The expected error of the probabilities."""

    @property
    def flagged(self) -> bool:
        """Whether the deviation is significant."""
        return self.verdict is not Calibration.CONSISTENT


def tuce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """T-UCE: the mean gap of observed and expected error over bins of H.

    The expected error of an image is 1 - max p. It is ECE over bins of the uncertainty instead of the confidence.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(tuce(probabilities, labels), 3)
        0.3
    """
    bin_count(bins)
    table, truth = inputs(probabilities, labels)
    cell = bin_of(table.uncertainty, bins)
    return float(binned_gap(1 - table.confidence, _wrong(table, truth), cell, bins).sum() / len(table))


def debiased_tuce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """The root mean squared gap of T-UCE, less the part due to chance.

    Bins with one image count as 0, as in `debiased_ece`.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(debiased_tuce(probabilities, labels, bins=2), 3)
        0.0
    """
    bin_count(bins)
    table, truth = inputs(probabilities, labels)
    return debiased(1 - table.confidence, _wrong(table, truth), bin_of(table.uncertainty, bins), bins)


def classwise_tuce(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    bins: int = 15,
    by: Literal["predicted", "true"] = "predicted",
) -> float:
    """cT-UCE: the mean T-UCE of the classes with images.

    By "predicted" class it is T-UCE among the images with this predicted label. By "true" class it compares the
    misclassified images of the class with their expected number, bin by bin, per image of the class. (1 - max p is not
    the expected error there: given the true label, even a calibrated model has another error rate.)

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(classwise_tuce(probabilities, labels), 3)
        0.3
    """
    choice("by", by, ("predicted", "true"), "Choose one of them.")
    bin_count(bins)
    table, truth = inputs(probabilities, labels)
    group = table.predicted if by == "predicted" else truth
    gap = classwise_gaps(table, truth, bins, by).sum(axis=1)
    size = np.bincount(group, minlength=table.classes)
    return float(np.mean(gap[size > 0] / size[size > 0]))


def classwise_gaps(table: Probabilities, truth: Integers, bins: int, by: str) -> Floats:
    """|errors - expected errors| per class and bin of H."""
    cell = bin_of(table.uncertainty, bins)
    if by == "predicted":
        cells = table.predicted * bins + cell
        gap = binned_gap(1 - table.confidence, _wrong(table, truth), cells, table.classes * bins)
        return gap.reshape(table.classes, bins)
    missed = np.zeros((bins, table.classes))
    for rows, block in table.blocks():
        residual = -block
        residual[np.arange(len(block)), truth[rows]] += 1
        residual[np.arange(len(block)), table.predicted[rows]] = 0  # a predicted label is not missed
        order = np.argsort(cell[rows], kind="stable")
        there, first = np.unique(cell[rows][order], return_index=True)
        missed[there] += np.add.reduceat(residual[order], first, axis=0)
    return np.abs(missed).T


def calibration_test(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    kind: Kind = "uncertainty",
    bins: int = 15,
    resamples: int = 499,
    seed: int = 0,
) -> CalibrationTest:
    """Test whether the top-1 errors follow the probabilities.

    Three statistics are computed for the images and for redrawn errors: the distance of the number of errors from its
    expectation, the same with a larger weight of unexpected errors, and the sum over bins of the squared distances in
    units of their variance. The smallest of the p-values is compared with that of the redraws, which gives a valid
    p-value of all three together.

    Args:
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        kind: Bins of the "uncertainty" or of the "confidence".
        bins: The number of equal-width bins.
        resamples: The number of redraws of errors from the probabilities.
        seed: The same seed draws the same errors.

    Example:
        >>> sure = [[0.99, 0.01]] * 100
        >>> calibration_test(sure, [0] * 80 + [1] * 20).verdict.value
        'overconfident'
    """
    bin_count(bins)
    choice("kind", kind, ("confidence", "uncertainty"), "Choose one of them.")
    whole("resamples", resamples, 2, "A few hundred are usual.")
    rng = np.random.default_rng(whole("seed", seed, 0, "The same seed gives the same result."))
    table, truth = inputs(probabilities, labels)
    cell = bin_of(table.uncertainty if kind == "uncertainty" else table.confidence, bins)
    expected, wrong = 1 - table.confidence, _wrong(table, truth)
    # The score test of a temperature, exact for two classes: unexpected errors have a larger weight.
    weight = np.log((1 - expected) / np.maximum(expected, LEAST)).clip(min=0.0)
    counted, weighed = _redrawn(expected, weight, cell, bins, resamples, rng)
    counted = np.vstack([np.bincount(cell, wrong, bins), counted])
    variance = np.bincount(cell, expected * (1 - expected), bins)
    distance = counted - np.bincount(cell, expected, bins)
    total, tempered = distance.sum(axis=1), np.append(weight @ wrong, weighed) - weight @ expected
    # The floor: one error in a bin with a tiny expected error is not significant.
    squares = (distance**2 / np.maximum(variance, 0.1)).sum(axis=1)
    share = np.stack([_share_above(values) for values in (np.abs(total), np.abs(tempered), squares)])
    least = share.min(axis=0)
    p_value = float(np.mean(least <= least[0]))
    verdict = Calibration.CONSISTENT
    if p_value <= CHANCE:
        # Unexpected errors with an ordinary total are uneven, too.
        one_way = share[:2, 0].min() <= CHANCE and total[0] * tempered[0] > 0 and share[0, 0] < 0.5
        directed = Calibration.OVERCONFIDENT if total[0] > 0 else Calibration.UNDERCONFIDENT
        verdict = directed if one_way else Calibration.UNEVEN
    return CalibrationTest(verdict, p_value, float(wrong.mean()), float(expected.mean()))


def _wrong(table: Probabilities, truth: Integers) -> Floats:
    return np.asarray(table.predicted != truth, np.float64)


def _redrawn(
    expected: Floats, weight: Floats, cell: Integers, bins: int, resamples: int, rng: "np.random.Generator"
) -> tuple[Floats, Floats]:
    """Redraw the errors of a calibrated model: counts by bin, and total weights."""
    sums = np.zeros((resamples, bins + 1))
    step = max(1, BLOCK_ELEMENTS // resamples)
    for start in range(0, len(cell), step):
        rows = slice(start, start + step)
        drawn = rng.random((resamples, len(cell[rows])), dtype=np.float32) < expected[rows].astype(np.float32)
        sums += drawn.astype(np.float64) @ np.column_stack([np.eye(bins)[cell[rows]], weight[rows]])
    return sums[:, :bins], sums[:, bins]


def _share_above(values: Floats) -> Floats:
    """For each value, the share of values at least as large."""
    # Rounded, so that sums of the same counts in another order are ties.
    values = np.round(values, 9)
    share: Floats = (len(values) - np.searchsorted(np.sort(values), values, side="left")) / len(values)
    return share
