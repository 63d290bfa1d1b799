"""What a threshold on the uncertainty lets through: the error, the coverage, and how bad the error can really be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.evaluation.model_outputs import Answers
from uce_edge.rejection import guarantee
from uce_edge.rejection.description import accepted_by
from uce_edge.rejection.promises import Guarantee
from uce_edge.rejection.rule import RejectRule, is_out_of_distribution, within

EXAMPLE = 0.3
"""The threshold that is shown when none is stored and none was asked for."""

CONFIDENCE = 0.95
THRESHOLDS = np.round(np.linspace(0.02, 1, 50), 2)
_POINTS = 200  # of a curve: a screen shows no more


class Origin(StrEnum):
    """Where a threshold comes from."""

    ASKED = "asked"
    """The user named it."""
    STORED = "stored"
    """The file carries it, with a promise."""
    EXAMPLE = "example"
    """Nobody chose it: it only shows what a threshold does."""


@dataclass(frozen=True)
class Operating:
    """One threshold on these images."""

    origin: Origin
    measured: Guarantee
    """Error, coverage and the bound of the error, measured on these images."""
    errors: int
    """Accepted and wrong."""
    rejected_errors: int
    """Rejected, and rightly so: they would have been wrong."""


@dataclass(frozen=True)
class Gated:
    """The rule in use together with the cutoff on novelty, on these images."""

    accepts: str
    """What the limits of the rule accept, in words."""
    cutoff: float
    """Images whose novelty is at most this are out of distribution."""
    own_rejected: float
    """The share of the own images that is rejected as out of distribution."""
    level: float
    """What the file promises of that share."""
    coverage: float
    """The share of the own images that is accepted."""
    error: float | None
    """Of these; None when there are none."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What the stored rule of a file accepts of these images, beside what it promises."""

    accepts: str
    """What the limits of the rule accept, in words."""
    target_error: float
    """The promise: the error of the accepted images is at most this."""
    confidence: float
    """With which it was promised."""
    coverage: float
    error: float | None
    """Of the accepted images; None when there are none."""
    error_bound: float
    """Its 95 % upper bound on these images."""
    accepted: npt.NDArray[np.bool_] = field(repr=False, metadata={"json": False})
    """Which images these are."""


@dataclass(frozen=True)
class KeptClass:
    """What a file with a threshold for every class accepts of the images that it labels as one, beside its promise."""

    label: str
    threshold: float
    """Of the uncertainty; below 0, nothing is accepted."""
    target_error: float | None
    """The promise; None for a class that nothing is promised of, because nothing is accepted."""
    images: int
    """What has this label."""
    accepted: int
    error: float | None
    """Of the accepted images; None when there are none."""
    error_bound: float
    """Its 95 % upper bound on these images, of this class alone."""


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Error and coverage against the threshold."""

    thresholds: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    """Of the accepted images; NaN where none is accepted."""
    error_bound: npt.NDArray[np.float64]
    """Its 95 % upper bound, for one threshold that was fixed beforehand; NaN where none is accepted."""
    coverage: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The risk-coverage curve of one score."""

    coverage: npt.NDArray[np.float64]
    risk: npt.NDArray[np.float64]
    aurc: float


def operating_points(
    answers: Answers, wrong: npt.NDArray[np.bool_], asked: float | None, stored: RejectRule | None
) -> tuple[Operating, ...]:
    """The thresholds on the uncertainty, the one in use first: the asked one, then the stored one, else an example."""
    chosen: list[tuple[Origin, float]] = [] if asked is None else [(Origin.ASKED, asked)]
    if stored is not None and stored.threshold is not None:
        chosen.append((Origin.STORED, stored.threshold))
    return tuple(_at(answers, wrong, *one) for one in chosen or [(Origin.EXAMPLE, EXAMPLE)])


def gate_of(stored: RejectRule | None, asked: float | None) -> RejectRule | None:
    """The rule in use in a file that has a cutoff on novelty; None for one without."""
    if stored is None or stored.cutoff is None:
        return None
    if asked is None and stored.limits is not None:
        return stored
    return stored.with_threshold(EXAMPLE if asked is None else asked)


def gated(answers: Answers, wrong: npt.NDArray[np.bool_], gate: RejectRule | None) -> Gated | None:
    """What the rule does to the own images; None without a cutoff on novelty."""
    if gate is None or gate.cutoff is None or gate.gate is None or answers.novelty is None:
        return None
    accepted = gate.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    return Gated(
        accepts=accepted_by(gate),
        cutoff=gate.cutoff,
        own_rejected=float(is_out_of_distribution(answers.novelty, gate.cutoff).mean()),
        level=gate.gate.level,
        coverage=float(accepted.mean()),
        error=float(wrong[accepted].mean()) if accepted.any() else None,
    )


def kept(answers: Answers, wrong: npt.NDArray[np.bool_], stored: RejectRule | None) -> Kept | None:
    """What `--reject auto` accepts; None for a file that promises no error."""
    if stored is None or stored.promise is None or stored.promise.target_error is None:
        return None
    accepted = stored.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    count, errors = int(accepted.sum()), int((wrong & accepted).sum())
    return Kept(
        accepts=accepted_by(stored),
        target_error=stored.promise.target_error,
        confidence=stored.promise.confidence,
        coverage=float(accepted.mean()),
        error=errors / count if count else None,
        error_bound=guarantee.upper_bound(errors, count, CONFIDENCE),
        accepted=accepted,
    )


def kept_classes(
    answers: Answers, wrong: npt.NDArray[np.bool_], classes: Sequence[str], stored: RejectRule | None
) -> tuple[KeptClass, ...]:
    """What `--reject auto` accepts of every label; nothing for a file with one limit for all."""
    if stored is None or stored.limits is None or stored.promise is None or not stored.by_class:
        return ()
    accepted = stored.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    labels, rows = answers.probabilities.argmax(-1), []
    each = zip(classes, stored.limits, stored.promise.classes, strict=True)
    for index, (name, limit, promised) in enumerate(each):
        among = wrong[accepted & (labels == index)]
        count, errors = len(among), int(among.sum())
        rows.append(
            KeptClass(
                label=name,
                threshold=limit,
                target_error=promised.target_error if limit >= 0 else None,
                images=int((labels == index).sum()),
                accepted=count,
                error=errors / count if count else None,
                error_bound=guarantee.upper_bound(errors, count, CONFIDENCE),
            )
        )
    return tuple(rows)


def against_threshold(answers: Answers, wrong: npt.NDArray[np.bool_]) -> Thresholds:
    """Error, its bound and the coverage over a grid of thresholds."""
    points = [guarantee.error_at(answers.uncertainty, wrong, float(limit), CONFIDENCE) for limit in THRESHOLDS]
    error, bound = (
        np.array([getattr(point, name) if point.accepted else np.nan for point in points], np.float64)
        for name in ("error", "error_bound")
    )
    return Thresholds(THRESHOLDS, error, bound, np.array([point.coverage for point in points]))


def risk_curves(answers: Answers, labels: npt.NDArray[np.int64], passes: int) -> dict[str, RiskCurve]:
    """One curve per score that exists."""
    curves = {}
    for name, score in answers.scores(passes).items():
        if score is not None:
            curve = metrics.risk_coverage(answers.table, labels, score=score)
            shown = np.unique(np.linspace(0, len(curve.risk) - 1, _POINTS).round().astype(int))
            area = metrics.aurc(answers.table, labels, score=score)
            curves[name] = RiskCurve(curve.coverage[shown], curve.risk[shown], area)
    return curves


def _at(answers: Answers, wrong: npt.NDArray[np.bool_], origin: Origin, threshold: float) -> Operating:
    accepted = within(answers.uncertainty, threshold)
    measured = guarantee.error_at(answers.uncertainty, wrong, threshold, CONFIDENCE)
    return Operating(origin, measured, int((wrong & accepted).sum()), int((wrong & ~accepted).sum()))
