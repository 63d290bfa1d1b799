"""Prediction sets on labelled images: coverage and size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uce_edge.calibration.label_sets import LabelSets
from uce_edge.metrics import Interval, Proportion, intervals
from uce_edge.metrics.class_metrics import proportions

_ENDS = (0, 1, 2, 3, 5, 10, 20, 50, 100)  # the largest size of each group


@dataclass(frozen=True)
class Covered:
    """The coverage of some images."""

    name: str
    """The class, or the sizes of the sets: 1, 4 to 5, above 100."""
    images: int
    covered: Proportion
    """The share whose set contains the true label."""
    size: float | None
    """The mean size of their sets; None without images."""


@dataclass(frozen=True, eq=False)
class Sets:
    """The results of prediction sets, beside their promise."""

    alpha: float
    """The promise: at most this share of the sets lacks the true label."""
    score: str
    by_class: bool
    """Whether it is about the images of every class."""
    covered: Proportion
    size: Interval
    """The mean number of labels."""
    classes: tuple[Covered, ...]
    """By true class, in the order of the model."""
    by_size: tuple[Covered, ...]
    """By the size of the set, for sizes that occur."""
    sizes: npt.NDArray[np.int64] = field(repr=False, metadata={"json": False})
    """The size of every set."""


def measure(
    sets: LabelSets | None,
    probabilities: npt.NDArray[np.float32],
    truth: npt.NDArray[np.int64],
    classes: Sequence[str],
) -> Sets | None:
    """Measure the sets of a file on labelled images; None without sets.

    Args:
        sets: The sets of the file.
        probabilities: Its probabilities [images, classes].
        truth: The true classes.
        classes: The names of the classes.
    """
    if sets is None:
        return None
    inside = sets.contains(probabilities)
    sizes, right = inside.sum(-1), np.take_along_axis(inside, truth[:, None], -1)[:, 0]
    group = np.searchsorted(_ENDS, sizes)
    names = [str(one) if one - last == 1 else f"{last + 1} to {one}" for last, one in pairwise((-1, *_ENDS))]
    by_size = _grouped([*names, f"above {_ENDS[-1]}"], group, right, sizes)
    return Sets(
        alpha=sets.alpha,
        score=sets.score,
        by_class=sets.by_class,
        covered=proportions(np.array([right.sum()]), np.array([len(right)]))[0],
        size=intervals.mean(sizes, largest=len(classes)),
        classes=_grouped(classes, truth, right, sizes),
        by_size=tuple(one for one in by_size if one.images),
        sizes=sizes,
    )


def _grouped(
    names: Sequence[str],
    group: npt.NDArray[np.integer],
    right: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
) -> tuple[Covered, ...]:
    images = np.bincount(group, minlength=len(names))
    labels = np.bincount(group, sizes, minlength=len(names))
    shares = proportions(np.bincount(group[right], minlength=len(names)), images)
    return tuple(
        Covered(name, count, share, float(total / count) if count else None)
        for name, count, share, total in zip(names, images.tolist(), shares, labels, strict=True)
    )
