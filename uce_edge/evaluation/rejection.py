"""What a threshold on the uncertainty lets through: the error, the coverage, and how bad the error can really be."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from uce_edge import contract, metrics
from uce_edge.calibration import guarantee
from uce_edge.calibration.promises import Guarantee, StoredRule, StoredThreshold
from uce_edge.evaluation.answers import Answers
from uce_edge.metadata import Metadata
from uce_edge.prediction import Limits

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
    promised: StoredThreshold | None = None
    """What the file promises for a stored threshold."""


@dataclass(frozen=True)
class Gated:
    """The threshold in use and the gate against foreign images together, on these images."""

    threshold: float | None
    """Of the uncertainty; None where the file rejects by the confidence, or every class has a threshold of its own."""
    cutoff: float
    """Images whose novelty is at most this are foreign."""
    foreign: float
    """The share of the own images that is turned away as foreign."""
    level: float
    """What the file promises of that share."""
    coverage: float
    """The share of the own images that both let through."""
    error: float | None
    """Of these; None when there are none."""
    doubt: float | None = None
    """What 1 - confidence is compared with, where the file rejects by the confidence."""
    per_class: bool = False
    """Whether every class has a threshold of its own."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What the stored rule of a file accepts of these images, beside what it promises."""

    target_error: float
    """The promise: the error of the accepted images is at most this."""
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
    answers: Answers, wrong: npt.NDArray[np.bool_], asked: float | None, stored: StoredThreshold | None
) -> tuple[Operating, ...]:
    """The thresholds that matter, the one in use first: the asked one, then the stored one, else an example."""
    chosen: list[tuple[Origin, float, StoredThreshold | None]] = []
    if asked is not None:
        chosen.append((Origin.ASKED, asked, None))
    if stored is not None:
        chosen.append((Origin.STORED, stored.threshold, stored))
    return tuple(_at(answers, wrong, *one) for one in chosen or [(Origin.EXAMPLE, EXAMPLE, None)])


def gate_of(metadata: Metadata, point: Operating) -> Limits | None:
    """What is compared in a file that can tell what is foreign; of a stored threshold, the rule has its own."""
    rule = metadata.rule
    if rule is None:
        return None
    if (metadata.doubt or metadata.per_class) is not None and point.origin is not Origin.ASKED:
        return Limits.stored(metadata)
    threshold = point.measured.threshold
    if point.origin is Origin.STORED and rule.uncertain is not None:
        threshold = rule.uncertain.threshold
    return Limits(threshold, rule.foreign.cutoff)


def gated(answers: Answers, wrong: npt.NDArray[np.bool_], gate: Limits | None, rule: StoredRule | None) -> Gated | None:
    """What threshold and gate do to the own images; None for a file that cannot tell what is foreign."""
    if rule is None or gate is None or gate.cutoff is None or answers.novelty is None:
        return None
    accepted = gate.accept(answers.uncertainty, answers.novelty, answers.probabilities)
    return Gated(
        threshold=gate.threshold,
        doubt=gate.doubt,
        per_class=gate.per_class is not None,
        cutoff=gate.cutoff,
        foreign=float(contract.is_foreign(answers.novelty, gate.cutoff).mean()),
        level=rule.foreign.level,
        coverage=float(accepted.mean()),
        error=float(wrong[accepted].mean()) if accepted.any() else None,
    )


def kept(answers: Answers, wrong: npt.NDArray[np.bool_], metadata: Metadata) -> Kept | None:
    """What `--reject auto` accepts; None for a file that promises no error."""
    stored = metadata.promised
    if stored is None or stored.target_error is None:
        return None
    accepted = Limits.stored(metadata).accept(answers.uncertainty, answers.novelty, answers.probabilities)
    count, errors = int(accepted.sum()), int((wrong & accepted).sum())
    return Kept(
        target_error=stored.target_error,
        coverage=float(accepted.mean()),
        error=errors / count if count else None,
        error_bound=guarantee.upper_bound(errors, count, CONFIDENCE),
        accepted=accepted,
    )


def kept_classes(answers: Answers, wrong: npt.NDArray[np.bool_], metadata: Metadata) -> tuple[KeptClass, ...]:
    """What `--reject auto` accepts of every label; nothing for a file with one threshold for all."""
    stored = metadata.per_class
    if stored is None:
        return ()
    accepted = Limits.stored(metadata).accept(answers.uncertainty, answers.novelty, answers.probabilities)
    labels, rows = answers.probabilities.argmax(-1), []
    for index, (name, limit) in enumerate(zip(metadata.classes, stored.limits, strict=True)):
        among = wrong[accepted & (labels == index)]
        count, errors = len(among), int(among.sum())
        rows.append(
            KeptClass(
                label=name,
                threshold=limit.threshold,
                target_error=limit.target_error if limit.is_promised else None,
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


def _at(
    answers: Answers, wrong: npt.NDArray[np.bool_], origin: Origin, threshold: float, promised: StoredThreshold | None
) -> Operating:
    accepted = contract.accepts(answers.uncertainty, threshold)
    measured = guarantee.error_at(answers.uncertainty, wrong, threshold, CONFIDENCE)
    return Operating(origin, measured, int((wrong & accepted).sum()), int((wrong & ~accepted).sum()), promised)
