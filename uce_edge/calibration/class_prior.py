"""Calibration for another mix of classes than that of the labelled images.

If images of one class look as before and only the shares w of the classes change, the calibrated probabilities become
p(c) w(c) / w_old(c), divided by their sum. For one pass that is a shift of every logit by log(w(c) / w_old(c)), so it
is a part of the calibration map. Where passes differ much, their average moves less than each of them; so the shift is
fitted again to images of the new mix, with this one as its prior. What depends on labels (the error map, thresholds,
sets, the monitor's reference) is fitted to the largest subset of the labelled images that has the new shares. It is a
sample of the new mix, so all promises hold.

Saerens, Latinne, Decaestecker (2002) estimate w from unlabelled images by expectation maximisation. It needs
probabilities without a bias towards any class (Alexandari et al. 2020), so the map has a fitted shift as well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LEAST_SHARE = 1e-6
"""The smallest share of a class in the correction, which is logarithmic."""
_STEPS = 10_000
_FEWEST = 20  # images of the new mix
_RARE = 20  # labelled images of a class


@dataclass(frozen=True, eq=False)
class ClassPrior:
    """Where the new shares come from: given by name, or estimated from unlabelled images."""

    named: Mapping[str, float] = field(default_factory=dict)
    """Classes without an entry divide the rest as before."""
    images: npt.NDArray[Any] | None = None

    @classmethod
    def parse(cls, text: str) -> "ClassPrior":
        """Parse `cat=0.2,dog=0.8`."""
        rule, remedy = "CLASS=SHARE pairs separated by commas", "For example: --class-prior cat=0.2,dog=0.8"
        shares: dict[str, float] = {}
        for part in text.split(","):
            name, _, share = part.rpartition("=")
            try:
                value = float(share)
            except ValueError:
                value = -1.0
            if not name.strip() or name.strip() in shares or not 0 <= value <= 1:
                raise UsageError(expected("`class_prior`", rule, text, remedy))
            shares[name.strip()] = value
        return cls(shares)

    def shares(self, classes: Sequence[str], old: Floats) -> Floats:
        """The given shares of all classes."""
        unknown = [name for name in self.named if name not in classes]
        if unknown:
            remedy = f"The classes are: {', '.join(classes)}"
            raise UsageError(expected("`class_prior`", "about classes of the model", ", ".join(unknown), remedy))
        given = np.array([self.named.get(name, 0.0) for name in classes])
        others = np.array([name not in self.named for name in classes])
        rest = 1 - given.sum()
        if rest < -1e-6 or (rest > 1e-6 and not old[others].sum() > 0):
            rule = "shares with the sum 1, or less where some classes are left out"
            raise UsageError(expected("`class_prior`", rule, given.sum(), "Change the shares"))
        if others.any() and old[others].sum() > 0:
            given[others] = max(0.0, rest) * old[others] / old[others].sum()
        new: Floats = given / given.sum()
        return new


@dataclass(frozen=True)
class Mix:
    """The classes' shares that a file was calibrated for."""

    shares: tuple[float, ...]
    old: tuple[float, ...]
    """Those of the labelled images."""
    kept: int
    """The calibration images of the new mix."""
    unlabelled: int
    """The images that the shares were estimated from; 0 if they were given."""


def estimated(
    probabilities: npt.ArrayLike, old: npt.ArrayLike, together: npt.NDArray[np.bool_] | None = None
) -> Floats:
    """The shares of the classes in unlabelled images, by expectation maximisation.

    As many imaginary images as there are classes have the old shares, so that no share becomes 0.

    Args:
        probabilities: Calibrated for the old shares [images, classes].
        old: The old shares.
        together: Classes that keep their proportions among each other; None if every class has a share of its own.
    """
    p, before = np.asarray(probabilities, np.float64), np.asarray(old, np.float64)
    if together is not None and together.any():
        group = before[together].sum()
        grouped = np.column_stack([p[:, ~together], p[:, together].sum(axis=1)])
        found, result = estimated(grouped, np.append(before[~together], group)), np.empty_like(before)
        result[~together], result[together] = found[:-1], found[-1] * before[together] / max(group, LEAST_SHARE)
        return result
    images, classes = p.shape
    shares: Floats = before
    for _ in range(_STEPS):
        weighted = p * (shares / np.maximum(before, LEAST_SHARE))
        weighted /= weighted.sum(axis=1, keepdims=True)
        last, shares = shares, (weighted.sum(axis=0) + classes * before) / (images + classes)
        if np.abs(shares - last).max() < 1e-9:
            break
    return shares


def rare(labelled: Integers) -> npt.NDArray[np.bool_]:
    """The classes whose shares are estimated together; all False if there are not two of them.

    A class with few labelled images could seem many times as frequent by chance, and the scarcest class decides how
    many images of the new mix there are. So such classes keep their proportions among each other.

    Args:
        labelled: The labelled images of every class.

    Raises:
        UsageError: All classes are rare.
    """
    few: npt.NDArray[np.bool_] = labelled < _RARE
    if few.all():
        raise UsageError(
            f"No class has {_RARE} labelled images, so that the shares of the classes cannot be estimated. Add images "
            "to --data, or give the shares of some classes: --class-prior cat=0.2",
            "calibrate.class-prior",
        )
    return few if few.sum() > 1 else np.zeros_like(few)


def log_ratio(shares: npt.ArrayLike, old: npt.ArrayLike) -> Floats:
    """The shift of the logits from the old to the new shares."""
    new, before = (np.maximum(np.asarray(values, np.float64), LEAST_SHARE) for values in (shares, old))
    ratio: Floats = np.log(new / before)
    ratio -= ratio.mean()
    return ratio


def shares_of(labels: Integers, classes: int) -> Floats:
    """The shares of the classes in labelled images."""
    shares: Floats = np.bincount(labels, minlength=classes) / len(labels)
    return shares


def subset(labels: Integers, shares: Floats, classes: Sequence[str], named: Collection[str] | None = None) -> Integers:
    """The largest random subset with these shares: the numbers of its images, rising.

    Args:
        labels: Of the images.
        shares: Of the classes.
        classes: Their names.
        named: The classes with a share of their own. The others keep their proportions, and are drawn together. None
            if every class has a share of its own.

    Raises:
        UsageError: A class has too few images.
    """
    joint = np.array([named is not None and name not in named for name in classes])
    if joint.any():
        first = int(joint.argmax())
        labels = np.where(joint[labels], first, labels)
        shares = np.where(joint, 0, shares) + np.where(np.arange(len(shares)) == first, shares[joint].sum(), 0)
    counts, wanted = np.bincount(labels, minlength=len(shares)), shares > LEAST_SHARE
    sizes = np.where(wanted, counts / np.where(wanted, shares, 1), np.inf)
    size, scarce = float(sizes.min()), int(sizes.argmin())
    if size < _FEWEST:
        name = "the other classes" if joint[scarce] else classes[scarce]
        raise UsageError(
            f"{counts[scarce]} labelled images of {name} are too few for a share of {shares[scarce]:.1%}. "
            f"Add images of {name} to --data, or give another --class-prior.",
            "calibrate.class-prior",
        )
    rng = np.random.default_rng(0)
    order = rng.permutation(len(shares))  # rare classes take turns
    # Sums are rounded, not shares: many shares of less than an image are then as frequent together as they should be.
    ends = np.round(np.cumsum(np.where(wanted, shares, 0)[order] * size)).astype(np.int64)
    sizes[order] = np.diff(ends, prepend=0)
    taken = [rng.permutation(np.flatnonzero(labels == index))[: int(many)] for index, many in enumerate(sizes)]
    return np.sort(np.concatenate(taken))
