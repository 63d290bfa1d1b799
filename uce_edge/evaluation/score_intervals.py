"""Every metric with its interval and its calibrated twin."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge._util.progress import progress
from uce_edge.errors import UsageError

Metric = Callable[..., float]
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
    "tuce": metrics.tuce,
    "debiased_tuce": metrics.debiased_tuce,
    "classwise_tuce": metrics.classwise_tuce,
    "uce": metrics.uce,
    "adaptive_uce": metrics.adaptive_uce,
    "classwise_uce": metrics.classwise_uce,
    "aurc": metrics.aurc,
    "auroc": metrics.auroc,
    "fpr_at_95": metrics.fpr_at_95,
}
"""The metrics of an evaluation, in the order of the tables."""

_SPARSE = "One sparse bin decides it, so it has no interval."


@dataclass(frozen=True)
class Score:
    """One metric; undefined values are None, for the reason `why`."""

    value: float | None
    low: float | None = None
    """The lower end of the 95 % interval, for the value of infinitely many images."""
    high: float | None = None
    """The upper end."""
    twin: float | None = None
    """The mean score of a perfectly calibrated model with the same probabilities."""
    twin_spread: float | None = None
    """The standard deviation of the twin's score over redrawn labels."""
    why: str | None = None
    """Why a value is missing."""

    @property
    def difference(self) -> float | None:
        """The value less the twin's; for UCE, neither sign means calibrated."""
        return None if self.value is None or self.twin is None else self.value - self.twin


def measure(
    table: metrics.Probabilities, labels: npt.NDArray[np.int64], resamples: int, seed: int = 0
) -> dict[str, Score]:
    """Compute all of `METRICS`.

    Args:
        table: The probabilities.
        labels: The true classes.
        resamples: The number of redraws of the twin's labels.
        seed: The seed of the redraws.
    """
    measured = {}
    with progress("measuring", len(METRICS)) as advance:
        for name, metric in METRICS.items():
            measured[name] = _score(name, metric, table, labels, resamples, seed)
            advance(1)
    return measured


def _score(
    name: str,
    metric: Metric,
    table: metrics.Probabilities,
    labels: npt.NDArray[np.int64],
    resamples: int,
    seed: int,
) -> Score:
    try:
        value = metric(table, labels)
    except UsageError as error:
        return Score(None, why=str(error))
    if math.isinf(value):
        return Score(None, why="It is infinite: the true class of an image was given probability 0.")
    low = high = twin = spread = why = None
    try:
        interval = metrics.interval(name, table, labels)
        low, high, why = (interval.low, interval.high, None) if interval else (None, None, _SPARSE)
    except UsageError as error:
        why = str(error)
    try:
        calibrated = metrics.calibrated_twin(metric, table, resamples=max(2, resamples), seed=seed)
        twin, spread = calibrated.value, calibrated.spread
    except UsageError:
        why = f"{why or ''} With redrawn labels it can be undefined, so it has no twin.".strip()
    return Score(value, low, high, twin, spread, why)
