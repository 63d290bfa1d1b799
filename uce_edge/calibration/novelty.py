"""Out-of-distribution detection by a distance in feature space.

The features f are the input of the last weight layer, as directions f / |f|, with class means and one shared, shrunk
covariance S (Ledoit & Wolf 2004). The score is the squared Mahalanobis distance to the nearest mean (Lee et al. 2018),

    d = min_c (f/|f| - m_c)' S^-1 (f/|f| - m_c)

and the novelty is the conformal p-value of d among n held-out reference images,

    p = (1 + #{i: d_i >= d}) / (n + 1)

which is small for out-of-distribution images, and 0 for NaN. A cutoff on p has a promise: see `cutoff`.

Means of a few images each are mostly noise: then all classes share one mean. Of many features, only the directions of
the largest variances have variances of their own; the others share their mean variance.
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
"""The smallest number of images for means and covariance."""
_PER_CLASS = 10  # images, on average: with fewer, one mean for all classes is better; measured in docs/novelty.md
MOST_FEATURES = 4096
"""The fit takes memory and time that grow with their square and cube."""
RANK = 512
"""Directions with a variance of their own, at most."""
_EXACT, _SPREAD = 500, 500  # stored reference scores: the largest ones, and so many of the others
LEVEL = 0.03
"""The default level of all models, measured in docs/novelty.md.

It is not fitted to a model: choosing among levels by the reference images would cost the promise its confidence."""
_LOOSEST = 0.05  # the largest default level, for few images
_TINY = 1e-12


class NoveltyError(UceEdgeError):
    """These images cannot fit out-of-distribution detection."""


@dataclass(frozen=True, eq=False)
class Subspace:
    """Scales inside of a subspace P, and the variance outside of it."""

    centre: Floats
    """The mean m of all images, [features]."""
    scales: Floats
    """One over the standard deviation of each, [rank]."""
    rest: float
    """One over the variance of all other directions."""


@dataclass(frozen=True, eq=False)
class Distance:
    """The distance d = min_c |(f / |f|) W - w_c|^2.

    With a subspace, y = (f / |f| - m) P and d = min_c |y scales - w_c|^2 + |f / |f| - m - y P'|^2 rest.
    """

    whitening: Floats
    """W [features, features]; or P [features, rank], exact in float16."""
    means: Floats
    """The whitened means w [means, rank] of the classes with images, or one; of a subspace, exact in float16."""
    shrinkage: float
    """The weight of the identity in the covariance, 0 to 1."""
    subspace: Subspace | None = None

    @property
    def multiplications(self) -> int:
        """Of one image."""
        return self.means.size + self.whitening.size * (1 if self.subspace is None else 2)

    def __call__(self, features: npt.ArrayLike) -> Floats:
        """The scores of features [images, features]; infinity if not finite."""
        values, outside = _directions(np.asarray(features, np.float64)), np.float64(0)
        if self.subspace is None:
            values = values @ self.whitening
        else:
            centred = values - self.subspace.centre
            values = centred @ self.whitening
            outside = ((centred - values @ self.whitening.T) ** 2).sum(axis=1) * self.subspace.rest
            values = values * self.subspace.scales
        nearest = np.full(len(values), np.inf)
        for mean in self.means:
            nearest = np.minimum(nearest, ((values - mean) ** 2).sum(axis=1))
        return np.where(np.isfinite(values).all(axis=1), nearest + outside, np.inf)


@dataclass(frozen=True, eq=False)
class Reference:
    """A sample of the scores of held-out images, which a file stores.

    With s_j the stored scores, each representing w_j images, and the largest float32 representing the image itself,
    p = sum_j w_j [d <= s_j] / (n + 1). A stored score represents itself and the omitted scores below it, so that p is
    rounded up. NaN and infinity have p = 0.
    """

    scores: npt.NDArray[np.float32]
    """Ascending; the last is the largest float32."""
    weights: npt.NDArray[np.float32]
    """The number of images that each represents."""

    @classmethod
    def of(cls, scores: npt.ArrayLike) -> "Reference":
        """Store all of the largest scores, and a sample of the others."""
        ordered = np.sort(np.asarray(scores, np.float32))
        n = len(ordered)
        if n == 0 or not np.isfinite(ordered).all():
            raise NoveltyError(
                "The scores of the reference images are not finite numbers, or there are none. Check the images.",
                "novelty.not-finite",
            )
        thinned = max(0, n - _EXACT)
        rest = np.linspace(0, thinned, min(_SPREAD, thinned), endpoint=False).astype(np.int64)
        stored = np.unique(np.concatenate([rest, np.arange(thinned, n)]))
        largest = np.finfo(np.float32).max
        return cls(np.append(ordered[stored], largest), np.append(np.diff(stored, prepend=-1), 1).astype(np.float32))

    @property
    def images(self) -> int:
        """The number of reference images."""
        return int(self.weights.sum()) - 1

    @property
    def share(self) -> np.float32:
        """The weight of one image."""
        return np.float32(1 / (self.images + 1))

    def __call__(self, scores: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The p-values of scores, in float32 as in the graph."""
        values = np.asarray(scores, np.float32)
        counted: npt.NDArray[np.float32] = (values[:, None] <= self.scores).astype(np.float32) @ self.weights
        return counted * self.share


def fit(features: npt.ArrayLike, labels: npt.ArrayLike) -> Distance:
    """Fit means and covariance to labelled in-distribution images.

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
    if len(raw) < _PER_CLASS * len(np.unique(classes)):
        classes = np.zeros_like(classes)
    present = np.unique(classes)
    if len(raw) < FEWEST + len(present):
        raise NoveltyError(
            f"{len(raw)} images are too few for out-of-distribution detection: at least "
            f"{FEWEST + len(present)} are needed, and {10 * raw.shape[1]} (ten per feature) are enough. Give more "
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
            "The features of these images do not vary, so no distance can be fitted. Check the images.", "novelty.flat"
        )
    variances, vectors = np.linalg.eigh(covariance)
    variances = np.maximum(variances, _TINY * variances.max())
    if len(variances) > RANK:
        return _low_rank(variances, vectors, values.mean(axis=0), means, shrinkage)
    whitening = vectors / np.sqrt(variances)
    return Distance(whitening, means @ whitening, shrinkage)


def _low_rank(variances: Floats, vectors: Floats, centre: Floats, means: Floats, shrinkage: float) -> Distance:
    """The distance in the subspace of the largest variances; both in rising order."""
    directions, scales = _half(vectors[:, -RANK:]), 1 / np.sqrt(variances[-RANK:])
    subspace = Subspace(centre, scales, 1 / float(variances[:-RANK].mean()))
    return Distance(directions, _half((means - centre) @ directions * scales), shrinkage, subspace)


def _half(values: Floats) -> Floats:
    """Round to float16, as a file stores them."""
    with np.errstate(over="ignore"):  # an infinite number fails the comparison with the graph
        return values.astype(np.float16).astype(np.float64)


def shrunk_covariance(residuals: Floats, freedom: int) -> tuple[Floats, float]:
    """The shrunk covariance of residuals (Ledoit & Wolf 2004).

    Args:
        residuals: Features less class means, [images, features].
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
    """The cutoff that rejects at most a share `level` of in-distribution images.

    Rejecting scores above the j-th largest of n reference scores has a false-alarm rate with the distribution
    Beta(j, n - j + 1), for any distribution of the scores. The result is the largest j with
    P(rate <= level) >= confidence, which is P(at least j successes in n trials of probability level). It is exact.

    Args:
        images: The size of the reference.
        level: The largest share of rejected in-distribution images.
        confidence: The probability of that, over the draw of the reference.
    """
    for name, value in (("level", level), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UsageError(expected(f"`{name}`", "strictly between 0 and 1", value, "For example: 0.05"))
    smallest = smallest_level(images, confidence)
    if level < smallest:
        raise NoveltyError(
            f"{images} reference images cannot promise to reject at most {level:.2%} of in-distribution images with "
            f"confidence {confidence:g}: {smallest:.2%} is the smallest share. "
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


def cutoff_for(images: int, promise: NoveltyPromise, *, grouped: bool = False) -> Cutoff:
    """The cutoff that keeps a promise, by default at level `LEVEL`.

    Args:
        images: The size of the reference.
        promise: The promise; without a level, few images have a larger one than `LEVEL`.
        grouped: Whether the images are one of each group.
    """
    if promise.level is not None:
        return cutoff(images, promise.level, promise.confidence)
    smallest = smallest_level(images, promise.confidence)
    if smallest > _LOOSEST:
        what = "groups" if grouped else "images"
        raise NoveltyError(
            f"{images} reference {what} are too few: they can only promise that at most {smallest:.1%} of "
            f"in-distribution images are rejected. {2 * images_needed(_LOOSEST, promise.confidence)} calibration "
            f"{what} can promise {_LOOSEST:.0%}, and {2 * images_needed(LEVEL, promise.confidence)} can promise "
            f"{LEVEL:.0%}.",
            "novelty.unprovable",
            images=images,
        )
    return cutoff(images, max(LEVEL, math.ceil(1000 * smallest) / 1000), promise.confidence)


def smallest_level(images: int, confidence: float) -> float:
    """The smallest level that a reference of so many images can promise."""
    return -math.expm1(math.log1p(-confidence) / max(images, 1))


def images_needed(level: float, confidence: float) -> int:
    """The number of reference images that a level needs."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-level) - 1e-9)


def _directions(features: Floats) -> Floats:
    """F / |f|; features that are all 0 stay 0."""
    length = np.sqrt((features**2).sum(axis=1, keepdims=True))
    directions: Floats = features / np.maximum(length, _TINY)
    return directions
