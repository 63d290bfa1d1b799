"""Laplace approximation of the posterior of a network's last layer.

The trained layer gives the logits z = W f, where f is its input with a 1 appended for the bias. The curvature of the
log-likelihood at the trained W is the generalised Gauss-Newton matrix. Its Kronecker-factored form (Ritter et al. 2018;
Daxberger et al. 2021) has one factor for the inputs and one for the classes,

    A = sum_i f_i f_i' = U diag(L) U'        B = mean_i (diag(p_i) - p_i p_i') = V diag(M) V'

and with a Gaussian prior of precision lambda the weights have the precision A x B + lambda I. So the logits of an
image are Gaussian around the trained ones, with the covariance

    V diag(v) V'        v_j = sum_i (U'f)_i^2 / (L_i M_j + lambda)

A common shift of all logits changes neither B nor the softmax. V leaves that direction out and has one column less than
there are classes. A draw of the logits is z + V (sqrt(v) * normals).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge.calibration.maps import fit_map
from uce_edge.calibration.optimise import newton
from uce_edge.contract import Method
from uce_edge.errors import UceEdgeError, UsageError, expected

Floats = npt.NDArray[np.float64]

DRAWS = 100
"""The default number of draws; each costs a product of two small matrices."""
_FLAT = 1e-12  # less curvature per image is rounding
_SPREADS = (1.0, 1e-4)  # the ends of the search: variance of the logits over draws, relative to that over classes
_STEPS = 15  # values of the prior precision to try


class LaplaceError(UceEdgeError):
    """These images cannot fit a posterior."""


@dataclass(frozen=True, eq=False)
class Curvature:
    """The eigenvectors and eigenvalues of both factors."""

    directions: Floats
    """U [features + 1, features + 1]; its last row belongs to the bias."""
    scales: Floats
    """L [features + 1]."""
    class_directions: Floats
    """V [classes, classes - 1]."""
    class_scales: Floats
    """M [classes - 1]."""

    @property
    def products(self) -> Floats:
        """The eigenvalues of A x B, [features + 1, classes - 1]."""
        return np.outer(self.scales, self.class_scales)

    def squares(self, features: npt.ArrayLike) -> Floats:
        """(U'f)^2 [images, features + 1] of features [images, features]."""
        values = np.asarray(features, np.float64)
        squares: Floats = (values @ self.directions[:-1] + self.directions[-1]) ** 2
        return squares


@dataclass(frozen=True, eq=False)
class Laplace:
    """The posterior."""

    curvature: Curvature
    precision: float
    """Of the prior: lambda."""

    @property
    def shares(self) -> Floats:
        """The weights of the squares in v: 1 / (L_i M_j + lambda)."""
        return 1 / (self.curvature.products + self.precision)

    def variances(self, features: npt.ArrayLike) -> Floats:
        """The variances v [images, classes - 1]."""
        return self.curvature.squares(features) @ self.shares

    def covariance(self, features: npt.ArrayLike) -> Floats:
        """The covariance of the logits, [images, classes, classes]."""
        v = self.curvature.class_directions
        covariance: Floats = np.einsum("cj,nj,dj->ncd", v, self.variances(features), v)
        return covariance

    def draw(self, logits: npt.ArrayLike, features: npt.ArrayLike, normals: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Draw logits [draws, images, classes].

        Args:
            logits: The trained network's logits, [images, classes].
            features: [images, features].
            normals: [draws, classes - 1]; all images share them.
        """
        moved = np.sqrt(self.variances(features)) * np.asarray(normals, np.float64)[:, None]
        return (np.asarray(logits, np.float64) + moved @ self.curvature.class_directions.T).astype(np.float32)


def curvature(features: npt.ArrayLike, logits: npt.ArrayLike, images: int | None = None) -> Curvature:
    """Compute both factors, without labels.

    Args:
        features: The input of the last layer, [images, features].
        logits: Its output, [images, classes].
        images: The number of training images, if these are only some of them.
    """
    raw, scores = np.asarray(features, np.float64), np.asarray(logits, np.float64)
    if raw.ndim != 2 or scores.ndim != 2 or len(raw) != len(scores):
        rule = "[images, features], with logits [images, classes]"
        raise UsageError(expected("`features`", rule, (raw.shape, scores.shape), "Check the data"))
    n, classes = scores.shape
    if n < classes:
        raise LaplaceError(
            f"{n} images are too few for a posterior of {classes} classes: at least {classes} are needed. Give more "
            "images.",
            "posterior.too-few-images",
            images=n,
        )
    if not (np.isfinite(raw).all() and np.isfinite(scores).all()):
        raise LaplaceError(
            "Some features or logits are NaN or infinite: the model is broken on these images.", "model.not-finite"
        )
    with_bias = np.concatenate([raw, np.ones((n, 1))], axis=1)
    scales, directions = np.linalg.eigh(with_bias.T @ with_bias * ((images or n) / n))
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    of_classes = np.diag(p.mean(axis=0)) - p.T @ p / n
    # A shift of all logits becomes the eigenvector of the largest eigenvalue, which comes last and is left out.
    above_all = 1 + np.trace(of_classes)
    class_scales, class_directions = np.linalg.eigh(of_classes + above_all / classes)
    found = Curvature(directions, np.maximum(scales, 0), class_directions[:, :-1], np.maximum(class_scales[:-1], 0))
    if not found.class_scales.max() > _FLAT:
        raise LaplaceError(
            f"The network is certain of all {n} images, so no posterior can be fitted to them: their curvature is 0. "
            "Give less certain images, or use it without draws: --inference deterministic",
            "posterior.flat",
        )
    return found


def by_marginal_likelihood(found: Curvature, weights: npt.ArrayLike) -> float:
    """The prior precision of the largest marginal likelihood.

    With P weights, log p(images | lambda) is, up to what does not depend on lambda,
    (P log lambda - lambda |W|^2 - sum_ij log(L_i M_j + lambda)) / 2: concave in log lambda.

    Args:
        found: The curvature at the trained weights.
        weights: W with the bias, of any shape.
    """
    size = float((np.asarray(weights, np.float64) ** 2).sum())
    if not 0 < size < math.inf:
        raise LaplaceError(
            "The weights of the last layer are all 0, or not finite: train the network first.", "model.untrained"
        )
    products = found.products

    def loss(log_precision: float) -> tuple[float, float, float]:
        precision = math.exp(log_precision)
        share = products / (products + precision)  # the weight of the images, against the prior, in every direction
        value = precision * size + np.log1p(products / precision).sum()
        return value / 2, (precision * size - share.sum()) / 2, (precision * size + (share * (1 - share)).sum()) / 2

    return math.exp(newton(loss, 0.0))


@dataclass(frozen=True)
class Tried:
    """The held-out NLL of one prior precision."""

    precision: float
    nll: float
    """With draws, at the best temperature."""
    nll_without: float
    """Without draws, at the best temperature."""


class Trial:
    """Held-out images to compare prior precisions.

    Each precision gets its best temperature, so that the comparison does not depend on the temperature.
    """

    def __init__(
        self,
        found: Curvature,
        features: npt.ArrayLike,
        logits: npt.ArrayLike,
        labels: npt.ArrayLike,
        normals: npt.ArrayLike,
    ) -> None:
        """Store the images.

        Args:
            found: The curvature of other images.
            features: The features of these images, [images, features].
            logits: Their logits, without draws.
            labels: Their classes.
            normals: The draws, as in `Laplace.draw`.
        """
        self._found, self._features, self._labels, self._normals = found, features, labels, normals
        self._logits = np.asarray(logits, np.float64)
        self._without = fit_map(Method.TEMPERATURE, self._logits[None], labels).outcome.nll_after

    def __call__(self, precision: float) -> Tried:
        """Try one precision."""
        drawn = Laplace(self._found, precision).draw(self._logits, self._features, self._normals)
        return Tried(precision, fit_map(Method.TEMPERATURE, drawn, self._labels).outcome.nll_after, self._without)

    def grid(self) -> list[float]:
        """Precisions from a large to a negligible variance of the draws."""
        classes: int = self._logits.shape[-1]
        spread = float((self._logits - self._logits.mean(axis=1, keepdims=True)).var()) or 1.0
        squares = self._found.squares(self._features).mean(axis=0)

        def variance(log_precision: float) -> float:
            """The mean variance of a logit over the draws."""
            return float(np.sum(squares @ (1 / (self._found.products + math.exp(log_precision))))) / classes

        low, high = (_where(variance, spread * share) for share in _SPREADS)
        return [math.exp(low + (high - low) * step / (_STEPS - 1)) for step in range(_STEPS)]


def by_held_out_nll(trial: Trial) -> Tried:
    """The prior precision with the best held-out NLL."""
    return min(map(trial, trial.grid()), key=lambda tried: tried.nll)


def _where(falling: Callable[[float], float], level: float) -> float:
    """The crossing of a falling function and a level, by bisection."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > level else (low, middle)
    return (low + high) / 2
