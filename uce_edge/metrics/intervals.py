"""95 % intervals of metrics and of paired differences, without resampling.

They cover the value of infinitely many images. A percentile bootstrap fails in two ways: a binned error is larger the
fewer images there are, and the resamples keep that bias; and an error that is too rare for these images is in no
resample. Every estimate therefore has the variance of its influence function, a bound of its bias, and the influence of
one unseen image.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Floats, Integers
from uce_edge.metrics.binned import bin_of, mass_bin, scored, wilson
from uce_edge.metrics.kernel import block_errors
from uce_edge.metrics.probabilities import Probabilities, inputs
from uce_edge.metrics.ranking import right_and_wrong
from uce_edge.metrics.resampling import Interval
from uce_edge.metrics.selection import uncertain_and_wrong

BINS = 15
WIDTH = 2.05
"""Half an interval in standard errors: more than 1.96, for estimated variances and skewed metrics."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric and the terms of its interval."""

    value: float
    parts: Floats
    """The influence of every image over the number of images: the variance is the sum of the squares."""
    unseen: float
    """The largest possible part of one more image."""
    bias: float = 0.0
    """The largest mean excess of the value."""

    def interval(self) -> Interval:
        """The value and its interval."""
        half = _half(self.parts, self.unseen)
        return Interval(self.value, self.value - self.bias - half, self.value + half)

    def less(self, other: "Estimate") -> Interval:
        """The difference to another model on the same images."""
        half, value = _half(self.parts - other.parts, max(self.unseen, other.unseen)), self.value - other.value
        return Interval(value, value - self.bias - half, value + other.bias + half)


def _half(parts: Floats, unseen: float) -> float:
    # One unseen image on either side, as Agresti and Coull add two to a count: without errors it is nearly 3 / n.
    return WIDTH * math.sqrt(float(parts @ parts) + 2 * unseen**2)


def interval(metric: str, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Interval | None:
    """The 95 % interval of a metric by name.

    It is for the value of infinitely many images. "mce" has none, because one sparse bin decides it.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> interval("accuracy", probabilities, labels).value
        0.75
    """
    table, truth = inputs(probabilities, labels)
    if metric in ESTIMATES:
        found = ESTIMATES[metric](table, truth).interval()
    elif metric in OTHERS:
        found = OTHERS[metric](table, truth)
    else:
        return None
    least, most = RANGE.get(metric, (0.0, 1.0))
    return Interval(found.value, max(found.low, least), min(found.high, most))


def difference(
    metric: str, probabilities: npt.ArrayLike, others: npt.ArrayLike, labels: npt.ArrayLike
) -> Interval | None:
    """The paired difference of a metric between two models.

    It has a 95 % interval. An image that is hard for both models does not widen the interval.

    Example:
        >>> difference("accuracy", [[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.1], [0.6, 0.4]], [0, 1]).value
        0.5
    """
    if metric in ESTIMATES:
        ours, theirs = (ESTIMATES[metric](*inputs(given, labels)) for given in (probabilities, others))
        return ours.less(theirs)
    first, second = (interval(metric, given, labels) for given in (probabilities, others))
    return None if first is None or second is None else _apart(first, second)


def _apart(one: Interval, other: Interval) -> Interval:
    """The unpaired interval of a difference, from both ends."""
    return Interval(one.value - other.value, one.low - other.high, one.high - other.low)


def share_difference(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> Interval:
    """The paired difference of two shares, from one flag per image."""
    return mean_difference(ours, theirs, 1.0)


def mean(values: npt.ArrayLike, largest: float) -> Interval:
    """The mean of one number per image, from 0 to `largest`."""
    found = _mean(np.asarray(values, np.float64), largest).interval()
    return Interval(found.value, max(found.low, 0.0), min(found.high, largest))


def mean_difference(ours: npt.ArrayLike, theirs: npt.ArrayLike, largest: float) -> Interval:
    """The paired difference of two means, as in `mean`."""
    return _mean(np.asarray(ours, np.float64), largest).less(_mean(np.asarray(theirs, np.float64), largest))


def separation(inside: Floats, outside: Floats) -> Estimate:
    """The AUROC of two sets of images (DeLong et al. 1988); both are in `parts`."""
    sides = []
    for values, others in ((inside, np.sort(outside)), (outside, np.sort(inside))):
        ranks = [np.searchsorted(others, values, side=side) for side in ("left", "right")]
        sides.append((ranks[0] + ranks[1]) / 2 / len(others))
    sides[0] = 1 - sides[0]  # the share of the outside that is above
    value = float(sides[1].mean())
    parts = np.concatenate([(side - value) / len(side) for side in sides])
    return Estimate(value, parts, math.hypot(1 / len(inside), 1 / len(outside)))


def accepted_at_95(inside: Floats, outside: Floats) -> Interval:
    """The FPR at 95 % of two sets of images, by Wilson and the threshold."""
    ordered, n = np.sort(inside), len(inside)
    step = WIDTH * math.sqrt(0.95 * 0.05 * n)
    # In integers, as `ood_fpr_at_95` counts: 0.95 * n can round past the image it means.
    places = [-(-95 * n // 100) - 1, math.floor(0.95 * n - step) - 1, math.ceil(0.95 * n + step)]
    limits = ordered[np.clip(places, 0, n - 1)]
    value, fewer, more = (float(np.mean(outside <= limit)) for limit in limits)
    more = 1.0 if places[2] >= n else more
    ends = wilson(np.array([value]), np.array([float(len(outside))]))
    low, high = min(float(ends[0][0]), value), max(float(ends[1][0]), value)  # to the last digit
    down, up = math.hypot(value - low, value - fewer), math.hypot(high - value, more - value)
    return Interval(value, value - down, value + up)


def _mean(values: Floats, largest: float) -> Estimate:
    value, n = float(values.mean()), len(values)
    return Estimate(value, (values - value) / n, largest / n)


def _accuracy(table: Probabilities, truth: Integers) -> Estimate:
    return _mean((table.predicted == truth).astype(np.float64), 1.0)


def _nll(table: Probabilities, truth: Integers) -> Estimate:
    surprise = np.empty(len(table))
    for rows, block in table.blocks():
        with np.errstate(divide="ignore"):
            surprise[rows] = -np.log(block[np.arange(len(block)), truth[rows]])
    if np.isinf(surprise.max()):
        remedy = "The NLL is infinite and has no interval."
        raise UsageError(expected("the probability of every true class", "above 0", 0, remedy), "metric.infinite")
    # An unseen error costs what the model expects of its errors, even if none was seen.
    cost = -math.log(max(float((1 - table.confidence).mean()), 1e-6))
    return _mean(surprise, max(float(surprise.max()), cost))


def _brier(table: Probabilities, truth: Integers) -> Estimate:
    scores = np.empty(len(table))
    for rows, block in table.blocks():
        right = block[np.arange(len(block)), truth[rows]]
        scores[rows] = np.einsum("ij,ij->i", block, block) - 2 * right + 1
    return _mean(scores, 2.0)


def _aurc(table: Probabilities, truth: Integers) -> Estimate:
    """The AURC by its influence function, with ties together."""
    score, wrong = uncertain_and_wrong(table, truth, "uncertainty")
    n = len(score)
    _, place, images = np.unique(score, return_inverse=True, return_counts=True)
    accepted = np.cumsum(images)
    risk = np.cumsum(np.bincount(place, wrong)) / accepted
    weight, lowered = (np.cumsum(values[::-1])[::-1] for values in (images / accepted, risk * images / accepted))
    value = float(images @ risk) / n
    influence = risk[place] + wrong * weight[place] - lowered[place] - value
    # An error that is more certain than all others is among the accepted at every coverage.
    return Estimate(value, influence / n, float(np.sum(1 / np.arange(1, n + 1))) / n)


def _binned(residual: Floats, cell: Integers, weight: Floats) -> Estimate:
    """Sum over cells of weight * |sum of the residuals|."""
    total, square = (np.bincount(cell, values, len(weight)) for values in (residual, residual**2))
    value, spread = float(weight @ np.abs(total)), np.sqrt(square)
    # |mean| of noise is too large by at most its deviation, and by nothing where the gap is far from 0.
    clear = np.maximum(np.abs(total) / np.where(spread > 0, spread, 1.0) - 2, 0.0)
    parts = (weight * np.sign(total))[cell] * residual - value / len(residual)
    return Estimate(value, parts, 1 / len(residual), float(weight @ (spread * np.exp(-(clear**2) / 2))))


Binning = Callable[[Floats, int], Integers]


def _flat(kind: str, binning: Binning) -> Callable[[Probabilities, Integers], Estimate]:
    def estimate(table: Probabilities, truth: Integers) -> Estimate:
        residual, score = _residual(table, truth, kind)
        return _binned(residual, binning(score, BINS), np.full(BINS, 1 / len(table)))

    return estimate


def _classwise(kind: str) -> Callable[[Probabilities, Integers], Estimate]:
    def estimate(table: Probabilities, truth: Integers) -> Estimate:
        residual, score = _residual(table, truth, kind)
        size = np.bincount(table.predicted, minlength=table.classes)
        weight = np.divide(1 / np.count_nonzero(size), size, out=np.zeros(table.classes), where=size > 0)
        return _binned(residual, table.predicted * BINS + bin_of(score, BINS), np.repeat(weight, BINS))

    return estimate


def _residual(table: Probabilities, truth: Integers, kind: str) -> tuple[Floats, Floats]:
    """Outcome less score per image, and the value to bin by."""
    if kind == "twin":
        return (table.predicted != truth) - (1 - table.confidence), table.uncertainty
    score, outcome = scored(table, truth, "confidence" if kind == "confidence" else "uncertainty")
    return outcome - score, score


def _root(kind: str, binning: Binning) -> Callable[[Probabilities, Integers], Interval]:
    def found(table: Probabilities, truth: Integers) -> Interval:
        residual, score = _residual(table, truth, kind)
        cell, n = binning(score, BINS), len(residual)
        counts = np.bincount(cell, minlength=BINS)
        full = counts > 1
        images = counts[full]
        gap, square = (np.bincount(cell, values, BINS)[full] / images for values in (residual, residual**2))
        rate = np.bincount(cell, table.predicted != truth, BINS)[full] / images
        unseen = 2 / images**2  # errors too rare to be seen
        chance, share = (square - gap**2) / (images - 1) + unseen, images / n
        value = float(share @ (gap**2 - rate * (1 - rate) / (images - 1)))
        clear = np.maximum(gap**2 - chance, 0.0)
        moved = (share @ clear**2 - (share @ clear) ** 2) / n  # by images that change bins
        variance = float(share**2 @ (4 * clear * chance + 2 * chance**2) + moved)
        half = WIDTH * math.sqrt(max(variance, 0.0))
        low = value - half - float(share @ unseen)
        return Interval(*(math.sqrt(max(0.0, end)) for end in (value, low, value + half)))

    return found


def _skce(table: Probabilities, truth: Integers) -> Estimate:
    errors = block_errors(table, truth)
    value, blocks = float(errors.mean()), len(errors)
    if blocks < 2:
        remedy = "The spread between blocks is the interval: give more images."
        raise UsageError(
            expected("the number of images", "at least 64 for an interval of skce", len(table), remedy),
            "metric.too-few-images",
        )
    centred = errors - value
    skew = abs(float(np.mean(centred**3))) / max(float(np.mean(centred**2)), np.finfo(float).tiny) ** 1.5
    # Student's quantile over the normal one, and twice the first Edgeworth term: few blocks show too little skew.
    wider = 1 + (WIDTH**2 + 1) / (4 * (blocks - 1)) + skew * (2 * WIDTH**2 + 1) / (3 * WIDTH * math.sqrt(blocks))
    return Estimate(value, centred * wider / math.sqrt(blocks * (blocks - 1)), 0.0)


def _errors(table: Probabilities, truth: Integers) -> tuple[Floats, Floats]:
    return right_and_wrong(table, truth, "uncertainty")


def _auroc(table: Probabilities, truth: Integers) -> Estimate:
    found, wrong = separation(*_errors(table, truth)), table.predicted != truth
    parts = np.empty(len(wrong))  # image by image, so that two models can be paired
    right = int(np.count_nonzero(~wrong))
    parts[~wrong], parts[wrong] = found.parts[:right], found.parts[right:]
    return replace(found, parts=parts)


ESTIMATES: dict[str, Callable[[Probabilities, Integers], Estimate]] = {
    "accuracy": _accuracy,
    "nll": _nll,
    "brier": _brier,
    "ece": _flat("confidence", bin_of),
    "adaptive_ece": _flat("confidence", mass_bin),
    "classwise_ece": _classwise("confidence"),
    "skce": _skce,
    "tuce": _flat("twin", bin_of),
    "classwise_tuce": _classwise("twin"),
    "uce": _flat("uncertainty", bin_of),
    "adaptive_uce": _flat("uncertainty", mass_bin),
    "classwise_uce": _classwise("uncertainty"),
    "aurc": _aurc,
    "auroc": _auroc,
}
OTHERS: dict[str, Callable[[Probabilities, Integers], Interval]] = {
    "debiased_ece": _root("confidence", mass_bin),
    "debiased_tuce": _root("twin", bin_of),
    "fpr_at_95": lambda table, truth: accepted_at_95(*_errors(table, truth)),
}
RANGE = {"nll": (0.0, math.inf), "brier": (0.0, 2.0), "skce": (-math.inf, math.inf)}
"""The range of a metric, where it is not 0 to 1."""
