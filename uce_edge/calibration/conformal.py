"""Fit prediction sets to guarantee images: split conformal prediction.

For a new image like the guarantee images, the probability that its set contains the true label is at least 1 - alpha.
The probability is over the draw of the guarantee images and of the new image. It needs no assumption on the model.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge._util.printable import shown
from uce_edge.calibration.label_sets import RANKED, LabelSets, SetPromise, scores
from uce_edge.contract import SetScore
from uce_edge.errors import UceEdgeError, UsageError, argument

if TYPE_CHECKING:
    from uce_edge.rejection.fitting import Circumstances

__all__ = ["Penalty", "check_possible", "choose_penalty", "fit", "images_needed", "limit_of", "limits"]

_PENALTIES = (2**-10, 2**-7, 2**-5, 2**-3, 2**-1)
_NAMED = 5

Table = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Penalty(NamedTuple):
    """The penalty of RAPS, and the ranks without one."""

    penalty: float = 0.0
    free: int = 0


def images_needed(alpha: float) -> int:
    """The fewest images that can fit a limit: 1 / alpha - 1."""
    return math.ceil(1 / _exact(alpha)) - 1


def check_possible(
    labels: npt.NDArray[np.integer], promise: SetPromise, classes: Sequence[str], *, halved: bool = False
) -> None:
    """Refuse images that are too few for finite limits.

    Args:
        labels: The true classes of the guarantee images, one image of each group.
        promise: The requested sets.
        classes: The names of all classes.
        halved: Whether the images are half of what the user gave.
    """
    needed = images_needed(promise.alpha)
    option, half = (
        argument("sets", promise.alpha),
        " in the half of the images that fits nothing else" if halved else "",
    )
    if not promise.by_class:
        if len(labels) < needed:
            raise UsageError(
                f"{option} needs {needed:,} images{half}, and there are {len(labels):,}. Give more images, or a larger "
                "share.",
                "sets.few",
            )
        return
    counts = np.bincount(labels, minlength=len(classes))
    few = [f"{shown(name)} ({count})" for name, count in zip(classes, counts.tolist(), strict=True) if count < needed]
    if few:
        listed = ", ".join(few[:_NAMED]) + (f" and {len(few) - _NAMED:,} more" if len(few) > _NAMED else "")
        raise UsageError(
            f"{option} for every class needs {needed:,} images of each{half}, and there are too few of these: "
            f"{listed}. Give more images or a larger share, or leave {argument('sets_by')} out for one limit.",
            "sets.few",
        )


def limit_of(own: npt.NDArray[np.float32], alpha: float) -> np.float32:
    """The ceil((n + 1)(1 - alpha))-th smallest score; infinite if there are too few."""
    rank = len(own) + 1 - math.floor((len(own) + 1) * _exact(alpha))
    if rank > len(own):
        return np.float32(np.inf)
    ordered = np.sort(np.where(np.isnan(own), np.float32(np.inf), own))
    return np.float32(ordered[rank - 1])


def choose_penalty(probabilities: Table, labels: Labels, promise: SetPromise) -> Penalty:
    """The penalty of RAPS with the smallest sets.

    Args:
        probabilities: Of other images than those that fit the limits, such as those of the calibration map.
        labels: Their true classes.
        promise: The requested sets.
    """
    if promise.score is not SetScore.RAPS:
        return Penalty()
    own = np.take_along_axis(probabilities, labels[:, None], -1)
    ranks = (probabilities > own).sum(-1).astype(np.float32) + 1
    free = limit_of(ranks, promise.alpha)
    tried = [Penalty(size, int(min(float(free), RANKED))) for size in _PENALTIES]
    sizes = [_contained(probabilities, labels, promise, penalty).sum(-1).mean() for penalty in tried]
    return tried[int(np.argmin(sizes))]


def fit(
    probabilities: Table,
    labels: Labels,
    promise: SetPromise,
    classes: Sequence[str],
    circumstances: "Circumstances",
    penalty: Penalty = Penalty(),
) -> LabelSets:
    """Fit the limits of prediction sets.

    Args:
        probabilities: Those of the final file [images, classes], for images that nothing was fitted on.
        labels: The true classes.
        promise: The requested sets.
        classes: The names of all classes.
        circumstances: The passes, seed and data of the probabilities.
        penalty: That of RAPS, chosen on other images.

    Raises:
        UceEdgeError: There are too few images, or the numbers of too many are not finite.
    """
    check_possible(labels, promise, classes)
    found = limits(probabilities, labels, promise, penalty)
    if not np.isfinite(found).all():
        bad = int(np.isnan(probabilities).any(-1).sum())
        raise UceEdgeError(
            f"No finite limit keeps the promise of the prediction sets: {bad:,} of {len(labels):,} held-out images "
            "have probabilities that are not numbers. Export the model again with --precision fp32.",
            "sets.not-finite",
        )
    inside = scores(probabilities, promise.score, *penalty) <= found
    return LabelSets(
        alpha=promise.alpha,
        score=promise.score,
        limits=tuple(float(str(limit)) for limit in found),
        images=len(labels),
        coverage=float(np.take_along_axis(inside, labels[:, None], -1).mean()),
        size=round(float(inside.sum(-1).mean()), 6),
        penalty=penalty.penalty,
        free=penalty.free,
        **vars(circumstances),
    )


def limits(probabilities: Table, labels: Labels, promise: SetPromise, penalty: Penalty) -> npt.NDArray[np.float32]:
    """One limit for all labels, or one for each; infinite where there are too few images."""
    scored = scores(probabilities, promise.score, *penalty)
    own = np.take_along_axis(scored, labels[:, None], -1)[:, 0]
    if not promise.by_class:
        return np.array([limit_of(own, promise.alpha)])
    return np.array([limit_of(own[labels == label], promise.alpha) for label in range(probabilities.shape[1])])


def _contained(probabilities: Table, labels: Labels, promise: SetPromise, penalty: Penalty) -> npt.NDArray[np.bool_]:
    found = limits(probabilities, labels, promise, penalty)
    return np.asarray(scores(probabilities, promise.score, *penalty) <= found)


def _exact(alpha: float) -> Fraction:
    """The decimal that was written: 0.05 is 1/20, which the float is not."""
    return Fraction(str(alpha))
