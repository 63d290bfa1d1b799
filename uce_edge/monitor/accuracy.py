"""The accuracy of the last answers, estimated without labels.

The model file counts errors of held-out images by uncertainty. The estimate weights these error rates with the
uncertainties of the window, so it holds while images of equal uncertainty are wrong as often as then. The interval has
two parts: the labels of the window are random given their rates, and so are the rates, which come from a finite number
of held-out images.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from uce_edge.contract import UNCERTAINTY
from uce_edge.metrics.binned import wilson
from uce_edge.monitor.state import KINDS, Outcomes, Window
from uce_edge.rejection.promises import STEPS
from uce_edge.rejection.rule import REASONS, Code, RejectRule, within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uce_edge.metadata import Metadata

_BINS = 20  # each has about a twentieth of the held-out errors
_UNDECIDED = KINDS - 1  # an answer without a decision

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def outcomes_of(metadata: "Metadata") -> Outcomes | None:
    """Read the counts of a model file; None if it has none."""
    counted, rule = metadata.held_out, metadata.rule
    if counted is None:
        return None
    steps = _merged(np.array(counted.errors), np.array(counted.accepted), _limits(rule))

    def by_bin(counts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(np.diff(np.array(counts)[steps], prepend=0).tolist())

    covered = None if counted.covered is None or metadata.sets is None else by_bin(counted.covered)
    level = None if rule is None or rule.gate is None else rule.gate.level
    return Outcomes(tuple(steps.tolist()), by_bin(counted.accepted), by_bin(counted.errors), covered, level)


@dataclass(frozen=True)
class Interval:
    """An estimated share."""

    value: float
    low: float
    """The lower end of the 95 % interval."""
    high: float


@dataclass(frozen=True)
class Estimate:
    """The accuracy of the last answers, estimated without labels."""

    images: int
    """The answers in the window."""
    accuracy: Interval
    accepted: int
    """How many of them were accepted."""
    accepted_error: Interval | None
    """The share of wrong labels among these; None without accepted answers."""
    coverage: Interval | None
    """The share of prediction sets with the true label; None for a file without counts of it."""
    doubts: tuple[str, ...]
    """Why the estimate must not be believed; empty if nothing is known against it."""

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        of_all = f"{_share(self.accuracy)} of the labels are right"
        parts = [f"Estimate without labels for the last {self.images:,} images: {of_all}"]
        if self.accepted_error is not None:
            parts.append(f"of the {self.accepted:,} accepted, {_share(self.accepted_error)} are wrong")
        if self.coverage is not None:
            parts.append(f"{_share(self.coverage)} of the sets contain the true label")
        doubts = "".join(f" {doubt}" for doubt in self.doubts)
        return "; ".join(parts) + "." + (f" DO NOT BELIEVE this estimate.{doubts}" if doubts else "")


class RunningWindow:
    """A window while it runs: counts of its answers by decision and bin."""

    def __init__(self, window: Window) -> None:
        """Continue from a stored window."""
        self._outcomes, self._size, self._answers = window.outcomes, window.size, deque(window.answers)
        self._edges = np.array(window.outcomes.steps[:-1], np.float64) / STEPS
        bins = len(window.outcomes.steps)
        codes = np.bincount(np.array(window.answers, np.int64), minlength=bins * KINDS)
        self._counts: Integers = codes.reshape(bins, KINDS)

    def add(self, answer: "Mapping[str, Any]") -> None:
        """Add an answer by its keys in JSON; the oldest one leaves a full window."""
        place = int((~within(answer[UNCERTAINTY], self._edges)).sum())
        if len(self._answers) >= self._size:
            self._counts[divmod(self._answers.popleft(), KINDS)] -= 1
        kind = _kind(answer)
        self._answers.append(place * KINDS + kind)
        self._counts[place, kind] += 1

    def window(self) -> Window:
        """The window to store."""
        return Window(self._outcomes, self._size, tuple(self._answers))

    def estimate(self, alpha: float, *, alarm: bool) -> Estimate | None:
        """The estimate for the window; None for an empty one.

        Args:
            alpha: The level at which the share of images that the gate rejects is tested.
            alarm: Whether the drift alarm was raised.
        """
        counts, known = self._counts.sum(axis=1), self._outcomes
        if not counts.sum():
            return None
        accepted = self._counts[:, Code.ACCEPT]
        error = estimated(counts, known.images, known.errors)
        return Estimate(
            images=int(counts.sum()),
            accuracy=Interval(1 - error.value, 1 - error.high, 1 - error.low),
            accepted=int(accepted.sum()),
            accepted_error=estimated(accepted, known.images, known.errors) if accepted.any() else None,
            coverage=None if known.covered is None else estimated(counts, known.images, known.covered),
            doubts=tuple(self._doubts(alpha, alarm)),
        )

    def _doubts(self, alpha: float, alarm: bool) -> "list[str]":
        doubts = ["The alarm was raised: it holds for images like those of the calibration only."] if alarm else []
        level = self._outcomes.level
        decided = int(self._counts[:, :_UNDECIDED].sum())
        outside = int(self._counts[:, (Code.OUT_OF_DISTRIBUTION, Code.BOTH)].sum())
        if level is not None and decided and binomial_tail(outside, decided, level) < alpha:
            doubts.append(
                f"{outside / decided:.1%} of these images are rejected as out of distribution, and at most {level:.1%} "
                "of the images like those of the calibration are."
            )
        return doubts


def estimated(window: npt.ArrayLike, images: npt.ArrayLike, hits: npt.ArrayLike) -> Interval:
    """The expected share of hits in a window, by post-stratification, with a Wilson interval.

    Args:
        window: Its images in every bin.
        images: The held-out images in every bin, at least 1.
        hits: How many of these are hits.
    """
    here, m, k = (np.asarray(values, np.float64) for values in (window, images, hits))
    n = here.sum()
    weights = here / n
    rate = (k + 0.5) / (m + 1)  # never 0 or 1, so that a bin without an error is not taken for certain
    variance = float((weights * rate * (1 - rate) * (1 / n + weights / m)).sum())
    mean = float(weights @ rate)
    effective = mean * (1 - mean) / variance
    value = float(weights @ (k / m))
    (low,), (high,) = wilson(np.array([value]), np.array([effective]))
    return Interval(value, min(value, float(low)), max(value, float(high)))


def binomial_tail(hits: int, images: int, rate: float) -> float:
    """The probability of at least so many hits."""
    if hits <= images * rate:
        return 1.0
    logs = math.lgamma(images + 1) - math.lgamma(hits + 1) - math.lgamma(images - hits + 1)
    term = math.exp(logs + hits * math.log(rate) + (images - hits) * math.log1p(-rate))
    total = term
    for count in range(hits, images):  # the terms fall at least geometrically above the mean
        term *= (images - count) / (count + 1) * rate / (1 - rate)
        total += term
        if term <= 1e-12 * total:  # also where both underflow to 0
            break
    return min(1.0, total)


def _kind(answer: "Mapping[str, Any]") -> int:
    match answer.get("decision"):
        case "accept":
            return Code.ACCEPT
        case "reject" if answer.get("reason") in REASONS[1:]:
            return REASONS.index(answer["reason"])
        case _:
            return _UNDECIDED


def _limits(rule: RejectRule | None) -> list[int]:
    """The steps around its threshold: few bins then hold both accepted and rejected images."""
    threshold = None if rule is None else rule.threshold
    return [] if threshold is None or threshold < 0 else [math.floor(threshold * STEPS), math.ceil(threshold * STEPS)]


def _merged(errors: Integers, accepted: Integers, limits: list[int]) -> Integers:
    """The last steps of the bins: about equally many errors in each, and an image at least."""
    wanted = errors[-1] * np.arange(1, _BINS) / _BINS
    steps = np.unique([*np.searchsorted(errors, wanted), *limits, STEPS])
    counts, first = np.unique(accepted[steps], return_index=True)
    rising = steps[first[counts > 0]]
    rising[-1] = STEPS
    return rising


def _share(interval: Interval) -> str:
    from uce_edge.output.wording import percent, percentage

    return f"{percent(interval.value)} ({percentage(interval.low)} to {percentage(interval.high)})"
