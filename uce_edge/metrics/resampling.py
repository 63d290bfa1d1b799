"""Resampling: the calibrated twin and the bootstrap."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import whole
from uce_edge.metrics.probabilities import BLOCK_ELEMENTS, Probabilities, inputs

Scalar = Callable[..., float]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Twin:
    """A metric of a perfectly calibrated model with the same probabilities."""

    value: float
    """The mean over the resamples."""
    spread: float
    """The standard deviation of one resample."""


@dataclass(frozen=True)
class Interval:
    """A metric and its bootstrap interval."""

    value: float
    """The metric of the images themselves."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end."""


def calibrated_twin(
    metric: Scalar, probabilities: npt.ArrayLike, *, resamples: int = 100, seed: int = 0, **options: Any
) -> Twin:
    """The metric of a perfectly calibrated twin.

    Its labels are drawn from the probabilities.

    Args:
        metric: A function of this module that returns one number, such as `uce`. It receives a
            `Probabilities`, which numpy reads as an array.
        probabilities: One row per image, one column per class.
        resamples: The number of draws; each takes one or two bytes per image.
        seed: The same seed draws the same labels.
        **options: Passed to the metric, such as `bins`.

    Example:
        >>> from uce_edge.metrics import ece
        >>> probabilities = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]]
        >>> calibrated_twin(ece, probabilities, seed=1).value > 0
        True
    """
    rng, table = _prepared(resamples, seed), Probabilities.of(probabilities)
    labels = _draw(table, resamples, rng)
    values = [_value(metric, table, drawn, options, turn) for turn, drawn in enumerate(labels)]
    return Twin(float(np.mean(values)), float(np.std(values, ddof=1)))


def bootstrap(
    metric: Scalar,
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    **options: Any,
) -> Interval:
    """The metric with its bootstrap interval.

    The interval contains the middle `level` of the resamples. It is shifted so that their mean is the value, because a
    metric with a floor, such as `ece`, is larger in resamples than on the images themselves.

    Args:
        metric: As in `calibrated_twin`.
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        level: The share of the resamples inside the interval.
        resamples: How often the images are drawn.
        seed: The same seed draws the same images.
        **options: Passed to the metric, such as `bins`. A `score` per image is resampled with the images.

    Example:
        >>> from uce_edge.metrics import accuracy
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> bootstrap(accuracy, probabilities, labels).value
        0.75
    """
    table, truth = inputs(probabilities, labels)
    own = options.get("score", "")

    def redrawn(rows: Rows, turn: int) -> float:
        drawn = options if isinstance(own, str) else options | {"score": np.asarray(own)[rows]}
        return _value(metric, table.take(rows), truth[rows], drawn, turn)

    value = _value(metric, table, truth, options)
    return _resampled(value, redrawn, len(table), level, resamples, seed)


def _resampled(
    value: float,
    redrawn: Callable[[Rows, int], float],
    images: int,
    level: float,
    resamples: int,
    seed: int,
    kept: float | None = None,
) -> Interval:
    """The interval of a value that a function computes from drawn rows.

    The shift does not exclude the number `kept` if the unshifted interval contains it.
    """
    rng = _prepared(resamples, seed)
    if not (isinstance(level, float) and 0 < level < 1):
        raise UsageError(expected("level", "a number between 0 and 1", level, "0.95 is the usual choice."))
    # Sorted, a memory-mapped table is read forwards; metrics do not mind.
    draws = np.array([redrawn(np.sort(rng.integers(images, size=images)), turn) for turn in range(resamples)])
    draws.sort()
    # A metric with a floor, such as `ece`, is larger in every resample: the interval is moved back by that much.
    bias = float(np.mean(draws)) - value if np.isfinite([value, *draws]).all() else 0.0
    # Rounded outwards to a resample, which also keeps an infinite NLL from becoming NaN.
    tail = (1 - level) / 2 * (resamples - 1)
    low, high = float(draws[int(tail)]), float(draws[-1 - int(tail)])
    if kept is not None and low <= kept <= high:
        return Interval(value, min(low - bias, kept), max(high - bias, kept))
    return Interval(value, low - bias, high - bias)


def bootstrap_difference(
    metric: Scalar,
    probabilities: npt.ArrayLike,
    others: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    **options: Any,
) -> Interval:
    """The paired difference of a metric between two models.

    Both models get the same resampled images, so an image that is hard for both does not widen the interval. The
    interval contains 0 whenever the middle of the resamples does, because many resamples may lack the few images that
    make the difference. It works for any function, but keeps the bias of binned errors and ignores errors that are too
    rare for these images. For metrics by name, `difference` corrects both.

    Args:
        metric: As in `calibrated_twin`.
        probabilities: Those of the first model, one row per image, one column per class.
        others: Those of the second model.
        labels: The true class of each image.
        level: The share of the resamples inside the interval.
        resamples: How often the images are drawn.
        seed: The same seed draws the same images.
        **options: Passed to the metric, such as `bins`.

    Example:
        >>> from uce_edge.metrics import accuracy
        >>> bootstrap_difference(accuracy, [[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.1], [0.6, 0.4]], [0, 1]).value
        0.5
    """
    table, truth = inputs(probabilities, labels)
    other, _ = inputs(others, labels)

    def difference(rows: Rows, turn: int) -> float:
        ours, theirs = (_value(metric, given.take(rows), truth[rows], options, turn) for given in (table, other))
        return ours - theirs

    value = _value(metric, table, truth, options) - _value(metric, other, truth, options)
    return _resampled(value, difference, len(table), level, resamples, seed, kept=0.0)


def _prepared(resamples: int, seed: int) -> "np.random.Generator":
    whole("resamples", resamples, 2, "A few hundred are usual.")
    return np.random.default_rng(whole("seed", seed, 0, "The same seed gives the same result."))


def _value(
    metric: Scalar, table: Probabilities, truth: npt.NDArray[Any], options: dict[str, Any], turn: int | None = None
) -> float:
    try:
        value = metric(table, truth, **options)
    except UsageError as error:
        if turn is None:
            raise
        remedy = f"Resample {turn} says: {error}"
        raise UsageError(expected("metric", "defined for every resample", _name(metric), remedy)) from error
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or np.isnan(value):
        rule = "a function that returns one number"
        raise UsageError(expected("metric", rule, _name(metric), f"It returned {value!r}."))
    return float(value)


def _name(metric: Scalar) -> str:
    return getattr(metric, "__name__", repr(metric))


def _draw(table: Probabilities, resamples: int, rng: "np.random.Generator") -> npt.NDArray[Any]:
    """Draw labels (resamples, images) from the probabilities by the inverse CDF."""
    classes = table.classes
    labels = np.empty((resamples, len(table)), dtype=np.min_scalar_type(classes - 1))
    for rows, block in table.blocks(max(1, BLOCK_ELEMENTS // max(classes, resamples))):
        # All rows on one sorted line, row r on (r, r + 1], so that one search serves them all.
        row = np.arange(len(block))[:, None]
        line = block.cumsum(axis=1)
        line /= line[:, -1:]
        line += row
        # The ceiling keeps a draw in its row when the sum is rounded.
        draws = np.minimum(rng.random((len(block), resamples)), 1 - 2.0**-32) + row
        labels[:, rows] = (np.searchsorted(line.ravel(), draws, side="right") - row * classes).T
    return labels
