"""Every metric with the interval that chance gives it, and with the value of a perfectly calibrated twin."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.errors import UsageError
from uce_edge.progress import progress

Metric = Callable[..., float]
Rows = npt.NDArray[np.int64]
TwoSets = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""A score of the own images, and of foreign ones."""

METRICS: dict[str, Metric] = {
    "accuracy": metrics.accuracy,
    "nll": metrics.nll,
    "brier": metrics.brier,
    "ece": metrics.ece,
    "adaptive_ece": metrics.adaptive_ece,
    "mce": metrics.mce,
    "debiased_ece": metrics.debiased_ece,
    "classwise_ece": metrics.classwise_ece,
    "skce": metrics.skce,
    "uce": metrics.uce,
    "adaptive_uce": metrics.adaptive_uce,
    "classwise_uce": metrics.classwise_uce,
    "aurc": metrics.aurc,
    "auroc": metrics.auroc,
    "fpr_at_95": metrics.fpr_at_95,
}
"""What is measured on labelled images, in the order of the tables."""

LEVEL = 0.95

_RANGE = {"nll": (0.0, math.inf), "brier": (0.0, 2.0), "skce": (-math.inf, math.inf)}


@dataclass(frozen=True)
class Score:
    """One metric; what is undefined is None, and `why` says so."""

    value: float | None
    low: float | None = None
    """The lower end of the 95 % bootstrap interval."""
    high: float | None = None
    """The upper end."""
    twin: float | None = None
    """What a perfectly calibrated model with the same probabilities scores on average."""
    twin_spread: float | None = None
    """The standard deviation of the twin's score over redrawn labels."""
    why: str | None = None
    """Why something is missing."""

    @property
    def difference(self) -> float | None:
        """The value less the twin's: what is left to calibrate."""
        return None if self.value is None or self.twin is None else self.value - self.twin

    @property
    def above_twin(self) -> bool | None:
        """Whether the value is larger than chance lets a perfectly calibrated model score."""
        if self.difference is None or self.twin_spread is None:
            return None
        return self.difference > 2 * self.twin_spread


def measure(
    table: metrics.Probabilities, labels: npt.NDArray[np.int64], resamples: int, seed: int = 0
) -> dict[str, Score]:
    """All of `METRICS`.

    Args:
        table: The probabilities.
        labels: The true classes.
        resamples: How often the images are redrawn for an interval; the twin's labels half as often.
        seed: Of the redraws.
    """
    measured = {}
    with progress("measuring", len(METRICS)) as advance:
        for name, metric in METRICS.items():
            measured[name] = _score(metric, table, labels, resamples, seed, *_RANGE.get(name, (0.0, 1.0)))
            advance(1)
    return measured


def separation(
    metric: Metric, inside: npt.NDArray[np.float64], outside: npt.NDArray[np.float64], resamples: int, seed: int = 0
) -> Score:
    """A metric of two sets of images, such as `ood_auroc`; both are redrawn for its interval."""
    draws = [
        metric(inside[own], outside[foreign]) for own, foreign in _drawn(len(inside), len(outside), resamples, seed)
    ]
    value = metric(inside, outside)
    return Score(value, *_middle(draws))


def separation_difference(
    metric: Metric, ranked: TwoSets, other: TwoSets, resamples: int, seed: int = 0
) -> metrics.Interval:
    """A metric of two sets of images for one model less that for another; images are drawn for both together."""
    draws = [
        metric(ranked[0][own], ranked[1][foreign]) - metric(other[0][own], other[1][foreign])
        for own, foreign in _drawn(len(ranked[0]), len(ranked[1]), resamples, seed)
    ]
    return metrics.Interval(metric(*ranked) - metric(*other), *_middle(draws))


def _drawn(inside: int, outside: int, resamples: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Rows of both sets, drawn again and again with replacement."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield rng.integers(inside, size=inside), rng.integers(outside, size=outside)


def _middle(draws: Sequence[float]) -> tuple[float, float]:
    """The ends of what holds 95 % of the draws."""
    ordered, tail = sorted(draws), int((1 - LEVEL) / 2 * (len(draws) - 1))
    return ordered[tail], ordered[-1 - tail]


def _score(
    metric: Metric,
    table: metrics.Probabilities,
    labels: npt.NDArray[np.int64],
    resamples: int,
    seed: int,
    least: float,
    most: float,
) -> Score:
    try:
        value = metric(table, labels)
    except UsageError as error:
        return Score(None, why=str(error))
    if math.isinf(value):
        return Score(None, why="It is infinite: the true class of an image was given probability 0.")
    low = high = twin = spread = why = None
    try:
        interval = metrics.bootstrap(metric, table, labels, level=LEVEL, resamples=resamples, seed=seed)
        # The bootstrap's correction can move an end past what the metric can be.
        low, high = max(interval.low, least), min(interval.high, most)
    except UsageError:
        why = "With other images of the same kind it can be undefined, so it has no interval."
    try:
        calibrated = metrics.calibrated_twin(metric, table, resamples=max(2, resamples // 2), seed=seed)
        twin, spread = calibrated.value, calibrated.spread
    except UsageError:
        why = f"{why or ''} With redrawn labels it can be undefined, so it has no twin.".strip()
    return Score(value, low, high, twin, spread, why)
