"""Metrics by class: calibration errors, confusion matrix and rates."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Floats, Integers, bin_count
from uce_edge.metrics.binned import bin_of, binned_gap, scored, wilson
from uce_edge.metrics.probabilities import Probabilities, inputs

Metric = Literal["ece", "uce"]
Grouping = Literal["predicted", "true", "kull"]


@dataclass(frozen=True, eq=False)
class Classwise:
    """A metric averaged over classes, with the value of every class."""

    value: float
    """The mean over the classes that have images."""
    empty_classes: int
    """The number of classes without images, which the mean leaves out."""
    by_class: Floats
    """The metric of each class; NaN where the class is empty."""


@dataclass(frozen=True)
class Proportion:
    """A proportion with its 95 % Wilson interval; NaN of 0 images."""

    value: float
    low: float
    high: float
    count: int
    of: int
    """The denominator."""


@dataclass(frozen=True)
class ClassRates:
    """One class against all others."""

    images: int
    """The number of images of this class."""
    predicted: int
    """The number of images with this predicted label."""
    sensitivity: Proportion
    """The share of images of this class with this predicted label (recall)."""
    specificity: Proportion
    """The share of other images with another predicted label."""
    ppv: Proportion
    """The share of images with this predicted label that are of this class (precision). It depends on prevalence."""
    npv: Proportion
    """The share of images with another predicted label that are of other classes. It depends on prevalence."""


def confusion_matrix(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Integers:
    """The number of images by true class (row) and predicted label (column).

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> confusion_matrix(probabilities, labels).tolist()
        [[2, 0], [1, 1]]
    """
    table, truth = inputs(probabilities, labels)
    cells = np.bincount(truth * table.classes + table.predicted, minlength=table.classes**2)
    return cells.reshape(table.classes, table.classes)


def class_rates(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[ClassRates, ...]:
    """Sensitivity, specificity, PPV and NPV of every class, with intervals.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> second = class_rates(probabilities, labels)[1]
        >>> second.sensitivity.value, second.ppv.value
        (0.5, 1.0)
    """
    matrix = confusion_matrix(probabilities, labels)
    images, predicted, hits = matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal()
    others, unnamed = matrix.sum() - images, matrix.sum() - predicted
    columns = [
        proportions(hits, images),
        proportions(others - predicted + hits, others),
        proportions(hits, predicted),
        proportions(unnamed - images + hits, unnamed),
    ]
    counted = zip(images.tolist(), predicted.tolist(), *columns, strict=True)
    return tuple(ClassRates(*row) for row in counted)


def proportions(count: Integers, of: Integers) -> list[Proportion]:
    """Shares with their intervals."""
    trials = np.where(of > 0, of, np.nan)
    rate = count / trials
    low, high = wilson(rate, trials)
    columns = (values.tolist() for values in (rate, low, high, count, of))
    return [Proportion(*row) for row in zip(*columns, strict=True)]


def classwise_ece(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15, by: Grouping = "predicted"
) -> float:
    """cECE: the mean ECE of the classes.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(classwise_ece(probabilities, labels), 3)
        0.3
    """
    return classwise(probabilities, labels, metric="ece", bins=bins, by=by).value


def classwise_uce(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    bins: int = 15,
    by: Literal["predicted", "true"] = "predicted",
) -> float:
    """cUCE: the mean UCE of the classes.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(classwise_uce(probabilities, labels), 3)
        0.644
    """
    return classwise(probabilities, labels, metric="uce", bins=bins, by=by).value


def classwise(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    metric: Metric,
    bins: int = 15,
    by: Grouping = "predicted",
) -> Classwise:
    """A metric by class, and its mean over the classes with images.

    Args:
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        metric: "ece" or "uce".
        bins: The number of equal-width bins.
        by: The images of a class are those "predicted" as it or those whose "true" label it is. "kull"
            takes all images and scores each class's own probability against "is it this class?"
            (one-vs-rest, ECE only), so no class is ever empty.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> classwise(probabilities, labels, metric="ece").by_class.round(3).tolist()
        [0.3, 0.3]
    """
    if metric not in ("ece", "uce"):
        raise UsageError(expected("metric", '"ece" or "uce"', metric, "Choose one of them."))
    groupings = ("predicted", "true", "kull") if metric == "ece" else ("predicted", "true")
    if by not in groupings:
        rule = f"one of {', '.join(groupings)} for {metric}"
        raise UsageError(expected("by", rule, by, "The one-vs-rest form kull exists for ece only."))
    bin_count(bins)
    table, truth = inputs(probabilities, labels)
    if by == "kull":
        by_class = _one_vs_rest(table, truth, bins)
    else:
        score, outcome = scored(table, truth, "confidence" if metric == "ece" else "uncertainty")
        group = table.predicted if by == "predicted" else truth
        by_class = _grouped(score, outcome, group, table.classes, bins)
    return Classwise(float(np.nanmean(by_class)), int(np.isnan(by_class).sum()), by_class)


def _grouped(score: Floats, outcome: Floats, group: Integers, groups: int, bins: int) -> Floats:
    """The sum over bins of |B|/n * |mean outcome - mean score|; NaN if empty."""
    gap = binned_gap(score, outcome, group * bins + bin_of(score, bins), groups * bins)
    size = np.bincount(group, minlength=groups)
    result = np.full(groups, np.nan)
    np.divide(gap.reshape(groups, bins).sum(axis=1), size, out=result, where=size > 0)
    return result


def _one_vs_rest(table: Probabilities, truth: Integers, bins: int) -> Floats:
    gap = np.zeros(table.classes * bins)
    for rows, block in table.blocks():
        score = np.minimum(block, 1.0)
        cell = bin_of(score, bins)
        cell += np.arange(table.classes) * bins
        hits = cell[np.arange(len(block)), truth[rows]]
        gap += np.bincount(hits, minlength=gap.size)
        gap -= np.bincount(cell.ravel(), weights=score.ravel(), minlength=gap.size)
    by_class: Floats = np.abs(gap).reshape(table.classes, bins).sum(axis=1) / len(table)
    return by_class
