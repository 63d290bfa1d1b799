"""Fit the limits of a reject rule to guarantee images."""

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
    """The passes, seed and data of a promise, as in `ErrorPromise`."""

    samples: int
    seed: int
    data: str
    date: str
    grouped: bool


class Found(NamedTuple):
    """Limits that keep a promise, and their measured error."""

    limits: tuple[float, ...]
    known: dict[str, Any]
    """The fields of `ErrorPromise` that depend on the limits."""


def fit_rule(
    prediction: "Prediction",
    labels: npt.NDArray[np.int64],
    promise: Promise | None,
    gate: RejectRule,
    circumstances: Circumstances,
) -> RejectRule | NoGuaranteeError | None:
    """Fit the rule that keeps a promise.

    The cutoff is fixed before, so the images that pass it are independent draws, too.

    Args:
        prediction: The predictions of the final file.
        labels: The true classes.
        promise: The promise of the limits; None for no promise.
        gate: A rule with the cutoff on novelty, or without any limit.
        circumstances: The passes, seed and data of the predictions.

    Returns:
        The rule; an error if no limit keeps the promise; None without a promise and a cutoff.
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
            "images like them.",
            code="promise.out-of-distribution",
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
    """Find the loosest limits that keep a promise after the cutoff.

    Raises:
        NoGuaranteeError: The images cannot prove the promise.
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
        raise NoGuaranteeError(str(error), curve, promise.score, error.code, **error.fields) from error
    images = np.bincount(class_ids, minlength=len(targets)).tolist()
    promises = tuple(
        replace(one, images=count, coverage=one.accepted / max(1, count))
        for one, count in zip(each.promises, images, strict=True)
    )
    return Found(each.limits, _together(each, promises, promise.confidence))


def choose_score(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> RejectBy:
    """Choose the confidence if its AURC is smaller beyond chance."""

    def gain(table: Any, truth: Any) -> float:
        by_entropy, by_confidence = (metrics.aurc(table, truth, score=name) for name in ("uncertainty", "confidence"))
        return by_entropy - by_confidence

    found = metrics.bootstrap(gain, probabilities, labels)
    return RejectBy.CONFIDENCE if found.low > 0 else RejectBy.UNCERTAINTY


def _score(promise: Promise) -> RuleScore:
    return RuleScore.CONFIDENCE if promise.score is RejectBy.CONFIDENCE else RuleScore.UNCERTAINTY


def _together(found: class_limits.Found, promises: tuple[ClassPromise, ...], confidence: float) -> dict[str, Any]:
    """The promise for all classes together, which is that of the worst class."""
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
    """A guarantee among the images after the cutoff, as a share of all images."""
    return replace(found, images=images, coverage=found.accepted / images)
