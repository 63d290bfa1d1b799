"""The effect of a stored reject rule on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.evaluation.threshold_curves import CONFIDENCE, EXAMPLE
from uce_edge.rejection import guarantee
from uce_edge.rejection.description import accepted_by
from uce_edge.rejection.rule import RejectRule, is_out_of_distribution


@dataclass(frozen=True)
class Gated:
    """The results of the rule in use, for a file with a cutoff on novelty."""

    accepts: str
    """The limits of the rule in words."""
    cutoff: float
    """Images whose novelty is at most this are out of distribution."""
    own_rejected: float
    """The share of the in-distribution images that is rejected as out of distribution."""
    level: float
    """The promised bound of that share."""
    coverage: float
    """The share of the in-distribution images that is accepted."""
    error: float | None
    """The error of the accepted images; None if there are none."""


@dataclass(frozen=True, eq=False)
class Kept:
    """The results of the stored rule, beside its promise."""

    accepts: str
    """The limits of the rule in words."""
    target_error: float
    """The promise: the error of the accepted images is at most this."""
    confidence: float
    """The confidence of the promise."""
    coverage: float
    error: float | None
    """The error of the accepted images; None if there are none."""
    error_bound: float
    """Its 95 % upper bound on these images."""
    accepted: npt.NDArray[np.bool_] = field(repr=False, metadata={"json": False})
    """Whether each image is accepted."""


@dataclass(frozen=True)
class KeptClass:
    """The results of the limit of one predicted class, beside its promise."""

    label: str
    threshold: float
    """The limit on the uncertainty; below 0, every image is rejected."""
    target_error: float | None
    """The promise; None for a class without accepted images."""
    images: int
    """The number of images with this predicted label."""
    accepted: int
    error: float | None
    """The error of the accepted images; None if there are none."""
    error_bound: float
    """Its 95 % upper bound on these images, for this class alone."""


def gate_of(stored: RejectRule | None, requested: float | None) -> RejectRule | None:
    """The rule in use for a file with a cutoff on novelty; else None."""
    if stored is None or stored.cutoff is None:
        return None
    if requested is None and stored.limits is not None:
        return stored
    return stored.with_threshold(EXAMPLE if requested is None else requested)


def gated(answers: ModelOutputs, wrong: npt.NDArray[np.bool_], gate: RejectRule | None) -> Gated | None:
    """The results of the rule in use; None without a cutoff on novelty."""
    if gate is None or gate.cutoff is None or gate.gate is None or answers.novelty is None:
        return None
    accepted = gate.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    return Gated(
        accepts=accepted_by(gate),
        cutoff=gate.cutoff,
        own_rejected=float(is_out_of_distribution(answers.novelty, gate.cutoff).mean()),
        level=gate.gate.level,
        coverage=float(accepted.mean()),
        error=_error(wrong[accepted])[0],
    )


def kept(answers: ModelOutputs, wrong: npt.NDArray[np.bool_], stored: RejectRule | None) -> Kept | None:
    """The results of `--reject auto`; None for a file without a promised error."""
    if stored is None or stored.promise is None or stored.promise.target_error is None:
        return None
    accepted = stored.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    error, bound = _error(wrong[accepted])
    return Kept(
        accepts=accepted_by(stored),
        target_error=stored.promise.target_error,
        confidence=stored.promise.confidence,
        coverage=float(accepted.mean()),
        error=error,
        error_bound=bound,
        accepted=accepted,
    )


def kept_classes(
    answers: ModelOutputs, wrong: npt.NDArray[np.bool_], classes: Sequence[str], stored: RejectRule | None
) -> tuple[KeptClass, ...]:
    """The results of `--reject auto` by predicted class; empty for a single limit."""
    if stored is None or stored.limits is None or stored.promise is None or not stored.by_class:
        return ()
    accepted = stored.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    labels, rows = answers.probabilities.argmax(-1), []
    each = zip(classes, stored.limits, stored.promise.classes, strict=True)
    for index, (name, limit, promised) in enumerate(each):
        among = wrong[accepted & (labels == index)]
        error, bound = _error(among)
        rows.append(
            KeptClass(
                label=name,
                threshold=limit,
                target_error=promised.target_error if limit >= 0 else None,
                images=int((labels == index).sum()),
                accepted=len(among),
                error=error,
                error_bound=bound,
            )
        )
    return tuple(rows)


def _error(wrong: npt.NDArray[np.bool_]) -> tuple[float | None, float]:
    """The error of accepted images, and its upper bound."""
    count, errors = len(wrong), int(wrong.sum())
    return errors / count if count else None, guarantee.upper_bound(errors, count, CONFIDENCE)
