"""Is an image like those the model was calibrated on? A distance in feature space, and what it says with a proof.

Features f of the input of the last weight layer, as directions f / |f|; class means and one shared covariance S, shrunk
(Ledoit & Wolf 2004). The score of an image is its squared Mahalanobis distance to the nearest mean (Lee et al. 2018),

    d = min_c (f/|f| - m_c)' S^-1 (f/|f| - m_c)

and its novelty the conformal p-value of d among n reference images that nothing was fitted on,

    p = (1 + #{i: d_i >= d}) / (n + 1)

small for what is foreign, and 0 for what is not a number. A cutoff on p has a promise of its own: see `cutoff`.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.rejection.promises import Cutoff, NoveltyPromise

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FEWEST = 50
"""Images that means and covariance are fitted on, at least."""
_EXACT, _SPREAD = 500, 500  # reference scores that are kept: the largest ones all, and so many of the others
USUAL = 0.03
"""The level when nobody asks for one: measured in docs/novelty.md, and the same for all models.

It is not fitted to a model: choosing among levels by the reference images would cost the promise its confidence."""
_LOOSEST = 0.05  # what a default may become where the images cannot promise less
_TINY = 1e-12


class NoveltyError(UceEdgeError):
    """These images cannot tell what is foreign."""


@dataclass(frozen=True, eq=False)
class Distance:
    """The fitted distance: d = min_c |(f / |f|) W - w_c|^2, with W the whitening and w_c the whitened means."""

    whitening: Floats
    """[features, features]."""
    means: Floats
    """[classes, features]: of the classes that had images."""
    shrinkage: float
    """How far the covariance was drawn to a multiple of the identity, 0 to 1."""

    def __call__(self, features: npt.ArrayLike) -> Floats:
        """The scores of some images from their features [images, features]; not finite ones score infinity."""
        values = _directions(np.asarray(features, np.float64)) @ self.whitening
        nearest = np.full(len(values), np.inf)
        for mean in self.means:
            nearest = np.minimum(nearest, ((values - mean) ** 2).sum(axis=1))
        return np.where(np.isfinite(values).all(axis=1), nearest, np.inf)


@dataclass(frozen=True, eq=False)
class Reference:
    """The scores of images that nothing was fitted on, few enough to travel with a file.

    With s_j the kept scores, each standing for w_j images, and s = the largest float32 standing for the image itself,
    p = sum_j w_j [d <= s_j] / (n + 1). A kept score stands for itself and for those below it that were not kept, so
    that p is rounded upwards. What is NaN or infinite has p = 0.
    """

    scores: npt.NDArray[np.float32]
    """Rising; the last is the largest float32."""
    weights: npt.NDArray[np.float32]
    """How many images each stands for; whole numbers."""

    @classmethod
    def of(cls, scores: npt.ArrayLike) -> "Reference":
        """Keep the largest scores, which decide, all of them; thin out the others."""
        ordered = np.sort(np.asarray(scores, np.float32))
        n = len(ordered)
        if n == 0 or not np.isfinite(ordered).all():
            raise NoveltyError(
                "The scores of the reference images are not finite numbers, or there are none. Check the images.",
                "novelty.not-finite",
            )
        thinned = max(0, n - _EXACT)
        rest = np.linspace(0, thinned, min(_SPREAD, thinned), endpoint=False).astype(np.int64)
        kept = np.unique(np.concatenate([rest, np.arange(thinned, n)]))
        largest = np.finfo(np.float32).max
        return cls(np.append(ordered[kept], largest), np.append(np.diff(kept, prepend=-1), 1).astype(np.float32))

    @property
    def images(self) -> int:
        """How many images were scored."""
        return int(self.weights.sum()) - 1

    @property
    def share(self) -> np.float32:
        """What one image counts."""
        return np.float32(1 / (self.images + 1))

    def __call__(self, scores: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The p-values of some scores, computed in float32 as the graph does."""
        values = np.asarray(scores, np.float32)
        counted: npt.NDArray[np.float32] = (values[:, None] <= self.scores).astype(np.float32) @ self.weights
        return counted * self.share


def fit(features: npt.ArrayLike, labels: npt.ArrayLike) -> Distance:
    """Means and covariance from labelled images; no foreign image is needed.

    Args:
        features: [images, features], the input of the last weight layer.
        labels: The class of each image; a class without images is left out.
    """
    raw, classes = np.asarray(features, np.float64), np.asarray(labels, np.int64)
    if raw.ndim != 2 or classes.shape != raw.shape[:1]:
        rule = "[images, features] with one label per image"
        raise UsageError(expected("`features`", rule, (raw.shape, classes.shape), "Check the data"))
    if not np.isfinite(raw).all():
        raise NoveltyError(
            "Some features are NaN or infinite: the model is broken on these images.", "model.not-finite"
        )
    present = np.unique(classes)
    if len(raw) < FEWEST + len(present):
        raise NoveltyError(
            f"{len(raw)} images of {len(present)} classes are too few to learn what is foreign: at least "
            f"{FEWEST + len(present)} are needed, and {10 * raw.shape[1]} (ten per feature) are plenty. Give more "
            "labelled images.",
            "novelty.too-few-images",
            images=len(raw),
        )
    values = _directions(raw)
    means = np.stack([values[classes == label].mean(axis=0) for label in present])
    residuals = values - means[np.searchsorted(present, classes)]
    covariance, shrinkage = shrunk_covariance(residuals, len(raw) - len(present))
    if not np.trace(covariance) > _TINY:
        raise NoveltyError(
            "The features of these images do not vary: nothing could be foreign. Check the images.", "novelty.flat"
        )
    scales, vectors = np.linalg.eigh(covariance)
    whitening = vectors / np.sqrt(np.maximum(scales, _TINY * scales.max()))
    return Distance(whitening, means @ whitening, shrinkage)


def shrunk_covariance(residuals: Floats, freedom: int) -> tuple[Floats, float]:
    """The covariance of residuals [images, features] drawn to a multiple of the identity (Ledoit & Wolf 2004).

    Args:
        residuals: What is left when the class means are gone.
        freedom: Images less classes.

    Returns:
        The covariance, and the weight of the identity in it.
    """
    n, size = residuals.shape
    sample = residuals.T @ residuals / n
    level = np.trace(sample) / size
    distance = (sample**2).sum() / size - level**2
    # The mean squared distance of the images' own products from the sample, without holding them all.
    spread = ((residuals**2).sum(axis=1) ** 2).sum() / n - (sample**2).sum()
    weight = 1.0 if distance <= 0 else min(1.0, max(0.0, spread / (n * size) / distance))
    shrunk: Floats = (1 - weight) * sample + weight * level * np.eye(size)
    return shrunk * (n / max(freedom, 1)), float(weight)


def cutoff(images: int, level: float, confidence: float = 0.95) -> Cutoff:
    """The cutoff on the p-value that turns away at most a share `level` of images like the reference.

    Turning away what scores more than the j-th largest of n reference scores has a false-alarm rate that is distributed
    as Beta(j, n - j + 1), whatever the scores are. The largest j is taken with P(rate <= level) >= confidence, which is
    P(at least j successes in n trials of probability level). It is exact for this one cutoff.

    Args:
        images: The size of the reference.
        level: The share of familiar images that may be turned away.
        confidence: How sure that is, over the draw of the reference.
    """
    for name, value in (("level", level), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UsageError(expected(f"`{name}`", "strictly between 0 and 1", value, "For example: 0.05"))
    smallest = smallest_level(images, confidence)
    if level < smallest:
        raise NoveltyError(
            f"{images} reference images cannot promise to turn away at most {level:.2%} of familiar images with "
            f"confidence {confidence:g}: {smallest:.2%} is the least they allow. "
            f"Give {images_needed(level, confidence)} images, or a larger level.",
            "novelty.unprovable",
            images=images,
            level=level,
        )
    rank, log_tail, risk = 0, 0.0, 1 - confidence
    log_level, log_rest = math.log(level), math.log1p(-level)
    below = 0.0  # P(at most rank - 1 successes)
    while rank < images:
        ways = math.lgamma(images + 1) - math.lgamma(rank + 1) - math.lgamma(images - rank + 1)
        log_tail = ways + rank * log_level + (images - rank) * log_rest
        if below + math.exp(log_tail) > risk:
            break
        below += math.exp(log_tail)
        rank += 1
    # Halfway between two possible p-values, so that no rounding decides.
    return Cutoff((rank + 0.5) / (images + 1), level, confidence, images)


def cutoff_for(images: int, wanted: NoveltyPromise, *, grouped: bool = False) -> Cutoff:
    """The cutoff that keeps a promise, with the level that the images allow where none is asked for.

    Args:
        images: The size of the reference.
        wanted: The promise.
        grouped: Whether the images are one of each group.
    """
    if wanted.level is not None:
        return cutoff(images, wanted.level, wanted.confidence)
    smallest = smallest_level(images, wanted.confidence)
    if smallest > _LOOSEST:
        what = "groups" if grouped else "images"
        raise NoveltyError(
            f"{images} reference {what} are too few: they can only promise that at most {smallest:.1%} of familiar "
            f"images are rejected. {2 * images_needed(_LOOSEST, wanted.confidence)} calibration {what} can promise "
            f"{_LOOSEST:.0%}, and {2 * images_needed(USUAL, wanted.confidence)} can promise {USUAL:.0%}.",
            "novelty.unprovable",
            images=images,
        )
    return cutoff(images, max(USUAL, math.ceil(1000 * smallest) / 1000), wanted.confidence)


def smallest_level(images: int, confidence: float) -> float:
    """The smallest share that a reference of so many images can promise: nothing beyond its largest score."""
    return -math.expm1(math.log1p(-confidence) / max(images, 1))


def images_needed(level: float, confidence: float) -> int:
    """How many reference images a level needs."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-level) - 1e-9)


def _directions(features: Floats) -> Floats:
    """F / |f|; features that are all 0 stay 0."""
    length = np.sqrt((features**2).sum(axis=1, keepdims=True))
    directions: Floats = features / np.maximum(length, _TINY)
    return directions
