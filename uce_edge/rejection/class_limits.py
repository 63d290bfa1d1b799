"""Find one limit per predicted class, so that every class keeps its promised error.

The guarantee images with one predicted label are independent draws from all images with this label, so
`guarantee.find` holds for each class by itself. With K classes, each is tested at the risk (1 - confidence) / K, so all
promises hold together with the confidence (Bonferroni). K counts the classes with enough images to prove their error.
Predicted labels alone decide that; no true label is used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Integers
from uce_edge.rejection import guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import ClassPromise

_LISTED = 5  # classes in a sentence


class Found(NamedTuple):
    """One limit and promise per class."""

    limits: tuple[float, ...]
    """In the order of the classes; a limit below 0 rejects every image of the class."""
    promises: tuple[ClassPromise, ...]
    """In the same order."""
    tested: int
    """The number of classes that share the risk."""


def find(
    uncertainty: npt.ArrayLike,
    wrong: npt.ArrayLike,
    class_ids: npt.ArrayLike,
    targets: Sequence[float],
    confidence: float,
    classes: Sequence[str],
) -> Found:
    """Find the loosest limit for every class that keeps its error.

    Args:
        uncertainty: H of each image of the guarantee set, in [0, 1].
        wrong: Whether its predicted label is wrong.
        class_ids: Its predicted label.
        targets: The promised error of the accepted images with each label, by class.
        confidence: The probability, over the draw of the guarantee set, that all promises hold.
        classes: The names of the classes.

    Returns:
        A limit per class. A class without a proof rejects every image.

    Raises:
        NoGuaranteeError: No class has a proof. The curve of the error is about all classes together.
    """
    found = search(uncertainty, wrong, class_ids, targets, confidence)
    if any(limit >= 0 for limit in found.limits):
        return found
    flags, given = np.asarray(wrong, np.bool_), np.asarray(class_ids, np.int64)
    shown = sorted(range(len(targets)), key=lambda index: (-found.promises[index].images, index))[:_LISTED]
    listed = ", ".join(
        f"{classes[index]} ({found.promises[index].images} images, {int(flags[given == index].sum())} wrong, for "
        f"{targets[index]})"
        for index in shown
    )
    more = "" if len(shown) == len(targets) else ", ..."
    raise NoGuaranteeError(
        f"No class can be promised its error, all together with confidence {confidence}: {listed}{more}. Give more "
        "guarantee images, larger targets or a better model. For one error of all classes together, give one number.",
        guarantee.curve(uncertainty, flags, confidence, above=0.999 * min(targets)),
    )


def search(
    uncertainty: npt.ArrayLike,
    wrong: npt.ArrayLike,
    class_ids: npt.ArrayLike,
    targets: Sequence[float],
    confidence: float,
) -> Found:
    """As `find`, but without an error if no class has a proof."""
    values, flags = np.asarray(uncertainty, np.float32), np.asarray(wrong, np.bool_)
    given: Integers = np.asarray(class_ids, np.int64)
    if given.shape != flags.shape or ((given < 0) | (given >= len(targets))).any():
        rule = f"one class of {len(targets)} per image"
        raise UsageError(expected("`class_ids`", rule, list(given.shape), "Give the labels as a model predicts them"))
    images = np.bincount(given, minlength=len(targets)).tolist()
    needed = [guarantee.images_needed(target, confidence) for target in targets]
    possible = [index for index in range(len(targets)) if images[index] >= needed[index]]
    each = 1 - (1 - confidence) / max(1, len(possible))
    limits = [-1.0] * len(targets)
    promises = [ClassPromise(target, 1.0, None, 0.0, 0, count) for target, count in zip(targets, images, strict=True)]
    for index in possible:
        rows = given == index
        one = guarantee.search(values[rows], flags[rows], targets[index], each)
        if one is not None:
            limits[index] = one.threshold
            promises[index] = ClassPromise(
                targets[index], one.error_bound, one.error, one.coverage, one.accepted, one.images
            )
    return Found(tuple(limits), tuple(promises), len(possible))
