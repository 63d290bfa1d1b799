"""Fit the limits of a reject rule to labelled predictions that nothing else was fitted on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import RuleScore
from uce_edge.rejection import class_limits, guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import ClassPromise, ErrorPromise, Guarantee, Promise, RejectBy
from uce_edge.rejection.rule import RejectRule, is_out_of_distribution

if TYPE_CHECKING:
    from uce_edge.runtime.prediction import Prediction


@dataclass(frozen=True)
class Circumstances:
    """What a promise was measured with; the fields are those of `ErrorPromise`."""

    samples: int
    seed: int
    data: str
    date: str
    grouped: bool


class Found(NamedTuple):
    """Limits that keep a promise, and what is known of them."""

    limits: tuple[float, ...]
    known: dict[str, Any]
    """The fields of `ErrorPromise` that the limits decide."""


def fit_rule(
    prediction: "Prediction",
    labels: npt.NDArray[np.int64],
    promise: Promise | None,
    gate: RejectRule,
    circumstances: Circumstances,
) -> RejectRule | NoGuaranteeError | None:
    """The rule that keeps a promise.

    The cutoff is fixed before, so the images that pass it are independent draws, too.

    Args:
        prediction: The answers of the file as it ships.
        labels: The true classes.
        promise: What the limits must keep; None when nothing is promised.
        gate: A rule with the cutoff on novelty, or without any limit.
        circumstances: What the answers were made with.

    Returns:
        The rule, why there is none, or None when nothing was to be decided.
    """
    if promise is None:
        return gate if gate.decides else None
    wrong = prediction.class_ids != labels
    passed = np.ones(len(wrong), np.bool_)
    if gate.cutoff is not None:
        assert prediction.novelty is not None
        passed = ~is_out_of_distribution(prediction.novelty, gate.cutoff)
    if not passed.any():
        return NoGuaranteeError(
            f"All {len(wrong)} guarantee images are out of distribution for the calibration images. Calibrate on "
            "images like them."
        )
    rule = replace(gate, score=_score(promise))
    scores = rule.scores(prediction.uncertainty, prediction.probabilities)
    try:
        found = find_limits(scores, wrong, prediction.class_ids, promise, prediction.classes, passed)
    except NoGuaranteeError as error:
        return error
    return replace(rule, limits=found.limits, promise=ErrorPromise(**found.known, **vars(circumstances)))


def find_limits(
    scores: npt.NDArray[np.float32],
    wrong: npt.NDArray[np.bool_],
    class_ids: npt.NDArray[Any],
    promise: Promise,
    classes: Sequence[str],
    passed: npt.NDArray[np.bool_] | None = None,
) -> Found:
    """The loosest limits that keep a promise among the images that passed the cutoff.

    Raises:
        NoGuaranteeError: The images cannot prove it.
    """
    passed = np.ones(len(wrong), np.bool_) if passed is None else passed
    targets = promise.targets(classes)
    try:
        if not targets:
            found = guarantee.find(scores[passed], wrong[passed], promise.target_error, promise.confidence)
            known = _of_all(found, len(wrong)).to_document()
            return Found((known.pop("threshold"),), known)
        each = class_limits.find(scores[passed], wrong[passed], class_ids[passed], targets, promise.confidence, classes)
    except NoGuaranteeError as error:
        curve = tuple(_of_all(row, len(wrong)) for row in error.curve)
        raise NoGuaranteeError(str(error), curve, promise.score) from error
    images = np.bincount(class_ids, minlength=len(targets)).tolist()
    promises = tuple(
        replace(one, images=count, coverage=one.accepted / max(1, count))
        for one, count in zip(each.promises, images, strict=True)
    )
    return Found(each.limits, _together(each, promises, promise.confidence))


def choose_score(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> RejectBy:
    """The confidence, if its risk-coverage curve has the smaller area with 95 % confidence; else the uncertainty."""

    def gain(table: Any, truth: Any) -> float:
        by_entropy, by_confidence = (metrics.aurc(table, truth, score=name) for name in ("uncertainty", "confidence"))
        return by_entropy - by_confidence

    found = metrics.bootstrap(gain, probabilities, labels)
    return RejectBy.CONFIDENCE if found.low > 0 else RejectBy.UNCERTAINTY


def _score(promise: Promise) -> RuleScore:
    return RuleScore.CONFIDENCE if promise.score is RejectBy.CONFIDENCE else RuleScore.UNCERTAINTY


def _together(found: class_limits.Found, promises: tuple[ClassPromise, ...], confidence: float) -> dict[str, Any]:
    """What follows for all accepted images together: no more of them are wrong than of the worst class."""
    promised = [one for one, limit in zip(promises, found.limits, strict=True) if limit >= 0]
    accepted, images = sum(one.accepted for one in promises), sum(one.images for one in promises)
    wrong = sum(round((one.error or 0) * one.accepted) for one in promises)
    return {
        "target_error": max(one.target_error for one in promised),
        "confidence": confidence,
        "error_bound": max(one.error_bound for one in promised),
        "error": wrong / accepted if accepted else None,
        "coverage": accepted / images,
        "accepted": accepted,
        "images": images,
        "classes": promises,
        "tested": found.tested,
    }


def _of_all(found: Guarantee, images: int) -> Guarantee:
    """What was found among the images that passed the cutoff, as a share of all."""
    return replace(found, images=images, coverage=found.accepted / images)
