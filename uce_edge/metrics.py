"""Calibration metrics of a classifier: ECE, UCE, their classwise means, NLL and accuracy.

Probabilities come as (images, classes). They are read in blocks of rows, so a memory-mapped
1,000,000 x 1,000 array is checked and scored without a float64 copy of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.generic]
Metric = Literal["ece", "uce"]
Grouping = Literal["predicted", "true", "kull"]

BLOCK_ELEMENTS = 2**18  # 2 MiB of float64: one block and its temporaries stay near the processor
SUM_TOLERANCE = 1e-3  # passes a float16 softmax, refuses logits
SOFTMAX = "If these are logits, pass their softmax."


@dataclass(frozen=True, eq=False)
class Classwise:
    """A metric averaged over classes, with what the average hides."""

    value: float
    """The mean over the classes that have images."""
    empty_classes: int
    """How many classes have no image and are left out of the mean."""
    per_class: Floats
    """The metric of each class; NaN where the class is empty."""


def normalized_entropy(probabilities: npt.ArrayLike) -> Floats:
    """The uncertainty H in [0, 1]: the entropy over the last axis, divided by log(classes)."""
    table = _table(probabilities, leading_axes=True)
    entropy = np.empty(len(table))
    for rows, block in _blocks(table):
        entropy[rows] = _entropy(block)
    return entropy.reshape(np.shape(probabilities)[:-1])


def ece(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error: the mean gap between accuracy and confidence over bins of confidence."""
    return _over_all(probabilities, labels, "ece", bins)


def uce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Expected uncertainty calibration error: the mean gap between top-1 error and H over bins of H.

    It is not 0 at perfect calibration: a fair coin has H = 1 and an error of 0.5.
    """
    return _over_all(probabilities, labels, "uce", bins)


def classwise_ece(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15, by: Grouping = "predicted"
) -> float:
    """cECE: the mean of the classes' ECE; `classwise` also tells how many classes are empty."""
    return classwise(probabilities, labels, metric="ece", bins=bins, by=by).value


def classwise_uce(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    bins: int = 15,
    by: Literal["predicted", "true"] = "predicted",
) -> float:
    """cUCE: the mean of the classes' UCE; `classwise` also tells how many classes are empty."""
    return classwise(probabilities, labels, metric="uce", bins=bins, by=by).value


def classwise(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    metric: Metric,
    bins: int = 15,
    by: Grouping = "predicted",
) -> Classwise:
    """The metric class by class, and its mean over the classes that have images.

    Args:
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        metric: "ece" or "uce".
        bins: The number of equal-width bins.
        by: The images of a class are those "predicted" as it or those whose "true" label it is. "kull"
            takes all images and scores each class's own probability against "is it this class?"
            (one-vs-rest, ECE only), so no class is ever empty.
    """
    if metric not in ("ece", "uce"):
        raise UsageError(expected("metric", '"ece" or "uce"', metric, "Choose one of them."))
    groupings = ("predicted", "true", "kull") if metric == "ece" else ("predicted", "true")
    if by not in groupings:
        rule = f"one of {', '.join(groupings)} for {metric}"
        raise UsageError(expected("by", rule, by, "The one-vs-rest form kull exists for ece only."))
    table, truth = _inputs(probabilities, labels, bins)
    if by == "kull":
        per_class = _one_vs_rest(table, truth, bins)
    else:
        score, outcome, predicted = _reduce(table, truth, metric)
        group = predicted if by == "predicted" else truth
        per_class = _binned_gap(score, outcome, group, table.shape[1], bins)
    return Classwise(float(np.nanmean(per_class)), int(np.isnan(per_class).sum()), per_class)


def nll(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Negative log-likelihood per image, in nats; infinite when a true class was given probability 0."""
    table, truth = _inputs(probabilities, labels)
    total = 0.0
    for rows, block in _blocks(table):
        with np.errstate(divide="ignore"):  # log(0) is the honest answer here, not an accident
            total -= float(np.log(block[np.arange(len(block)), truth[rows]]).sum())
    return total / len(table)


def accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The share of images whose most probable class is the true one; the first class wins a tie."""
    table, truth = _inputs(probabilities, labels)
    right = sum(np.count_nonzero(block.argmax(axis=1) == truth[rows]) for rows, block in _blocks(table))
    return right / len(table)


def _over_all(probabilities: npt.ArrayLike, labels: npt.ArrayLike, metric: Metric, bins: int) -> float:
    table, truth = _inputs(probabilities, labels, bins)
    score, outcome, _ = _reduce(table, truth, metric)
    return float(_binned_gap(score, outcome, np.zeros_like(truth), 1, bins)[0])


def _reduce(table: Numbers, truth: Integers, metric: Metric) -> tuple[Floats, Floats, Integers]:
    """One pass: per image its score (confidence or H), the outcome to match (hit or error), its class."""
    score = np.empty(len(table))
    predicted = np.empty(len(table), dtype=np.int64)
    for rows, block in _blocks(table):
        predicted[rows] = block.argmax(axis=1)
        score[rows] = np.minimum(block.max(axis=1), 1.0) if metric == "ece" else _entropy(block)
    outcome = (predicted == truth) if metric == "ece" else (predicted != truth)
    return score, outcome.astype(np.float64), predicted


def _entropy(block: Floats) -> Floats:
    # The floor only touches terms that are 0 or vanish beside the others: 0 log 0 counts as 0.
    logs = np.log(np.maximum(block, np.finfo(np.float64).tiny))
    nats = np.einsum("ij,ij->i", block, logs)
    entropy: Floats = np.clip(0.0 - nats / np.log(block.shape[1]), 0.0, 1.0)
    return entropy


def _bin(values: Floats, bins: int) -> Integers:
    """The bin (lo, hi] of each value; 0 falls in the first. Compared with the edges, so exact on them."""
    upper = np.arange(1, bins + 1) / bins
    return np.searchsorted(upper, values, side="left").astype(np.int64, copy=False)


def _binned_gap(score: Floats, outcome: Floats, group: Integers, groups: int, bins: int) -> Floats:
    """Per group: sum over bins of |B|/n * |mean outcome - mean score|; NaN for a group without images."""
    cell = group * bins + _bin(score, bins)
    # |B| * |mean - mean| is the absolute sum of the differences: the counts cancel.
    gap = np.abs(np.bincount(cell, weights=outcome - score, minlength=groups * bins))
    size = np.bincount(group, minlength=groups)
    result = np.full(groups, np.nan)
    np.divide(gap.reshape(groups, bins).sum(axis=1), size, out=result, where=size > 0)
    return result


def _one_vs_rest(table: Numbers, truth: Integers, bins: int) -> Floats:
    count, classes = table.shape
    gap = np.zeros(classes * bins)
    for rows, block in _blocks(table):
        score = np.minimum(block, 1.0)
        cell = np.arange(classes) * bins + _bin(score, bins)
        hits = cell[np.arange(len(block)), truth[rows]]
        gap += np.bincount(hits, minlength=gap.size)
        gap -= np.bincount(cell.ravel(), weights=score.ravel(), minlength=gap.size)
    per_class: Floats = np.abs(gap).reshape(classes, bins).sum(axis=1) / count
    return per_class


def _blocks(table: Numbers) -> Iterator[tuple[slice, Floats]]:
    """The rows in checked float64 blocks, each with its place in the table."""
    step = max(1, BLOCK_ELEMENTS // table.shape[1])
    for start in range(0, len(table), step):
        rows = slice(start, min(start + step, len(table)))
        block = np.asarray(table[rows], dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf fail the comparison below
            sums = block.sum(axis=1)
            sound = bool(block.min() >= 0) and bool((np.abs(sums - 1) <= SUM_TOLERANCE).all())
        if not sound:
            raise UsageError(_fault(block, sums, start))
        yield rows, block


def _fault(block: Floats, sums: Floats, start: int) -> str:
    """Name the first entry, or else the first row, that cannot be a probability."""
    for bad, rule, remedy in (
        (~np.isfinite(block), "finite", "Look for an overflow in the model or its softmax."),
        (block < 0, "at least 0", SOFTMAX),
    ):
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            name = f"probabilities[{start + row}, {column}]"
            return expected(name, rule, float(block[row, column]), remedy)
    row = int(np.argmax(np.abs(sums - 1) > SUM_TOLERANCE))
    name = f"the sum of probabilities[{start + row}]"
    return expected(name, f"1 within {SUM_TOLERANCE}", float(sums[row]), SOFTMAX)


def _array(name: str, value: npt.ArrayLike, kinds: str, rule: str, remedy: str) -> Numbers:
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise UsageError(expected(name, "a rectangular array", type(value).__name__, remedy)) from error
    if array.dtype.kind not in kinds:
        raise UsageError(expected(name, f"an array of {rule}", str(array.dtype), remedy))
    return array


def _table(probabilities: npt.ArrayLike, *, leading_axes: bool = False) -> Numbers:
    remedy = "Give one row per image; a binary classifier gives [1 - p, p]."
    array = _array("probabilities", probabilities, "biuf", "real numbers", remedy)
    if leading_axes and array.ndim and array.size:
        array = array.reshape(-1, array.shape[-1])
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        rule = "(images, classes) with at least one image and two classes"
        raise UsageError(expected("the shape of probabilities", rule, array.shape, remedy))
    return array


def _inputs(probabilities: npt.ArrayLike, labels: npt.ArrayLike, bins: int = 1) -> tuple[Numbers, Integers]:
    """All that can be checked before the long pass over the probabilities."""
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise UsageError(expected("bins", "an integer of at least 1", bins, "15 is the usual choice."))
    table, remedy = _table(probabilities), "Give the true class of each image as an index."
    truth = _array("labels", labels, "iu", "integers", remedy).astype(np.int64, copy=False)
    if truth.shape != table.shape[:1]:
        raise UsageError(expected("the shape of labels", f"({len(table)},)", truth.shape, remedy))
    outside = (truth < 0) | (truth >= table.shape[1])
    if outside.any():
        at = int(np.argmax(outside))
        rule = f"from 0 to {table.shape[1] - 1}"
        raise UsageError(expected(f"labels[{at}]", rule, int(truth[at]), remedy))
    return table, truth
