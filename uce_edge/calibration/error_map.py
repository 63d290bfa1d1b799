"""The probability of a wrong label as a monotone function of the uncertainty: what UCE wants the entropy to be.

e(H) = sigmoid(a + b log H - c log(1 - H)) with b, c >= 0, the family of beta calibration (Kull et al. 2017). The
identity is in it (a = 0, b = c = 1), and so is every power law at small H.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected

Floats = npt.NDArray[np.float64]

EDGE = 1e-6  # H is kept this far from 0 and 1, where the logarithms end
_PRIOR_STD = 1.25  # weak, around the identity: without an error among the images the likelihood alone would promise 0
_IDENTITY = np.array([0.0, 1.0, 1.0])


@dataclass(frozen=True)
class ErrorMap:
    """The fitted parameters."""

    a: float
    b: float
    c: float

    def __call__(self, uncertainty: npt.ArrayLike) -> Floats:
        """The probability of error at some uncertainties."""
        logits: Floats = _features(np.asarray(uncertainty, np.float64)) @ np.array([self.a, self.b, self.c])
        return 1 / (1 + np.exp(-logits))


def fit(uncertainty: npt.ArrayLike, wrong: npt.ArrayLike) -> ErrorMap:
    """Maximum likelihood, with a weak prior around the identity.

    Args:
        uncertainty: H of every calibration image.
        wrong: Whether its label was wrong.
    """
    h, errors = np.asarray(uncertainty, np.float64), np.asarray(wrong, np.float64)
    if h.ndim != 1 or h.shape != errors.shape or len(h) == 0:
        rule = "one uncertainty and one outcome per image, one image at least"
        raise UsageError(expected("`uncertainty` and `wrong`", rule, (h.shape, errors.shape), "Check the data"))
    if not (np.isfinite(h).all() and h.min() >= 0 and h.max() <= 1):
        raise UsageError(expected("`uncertainty`", "between 0 and 1", "other values", "Take the model's output"))
    features = _features(h)
    # Convex, so the best point with b, c >= 0 is the best of the points with some of them held at 0.
    points = [_newton(features, errors, np.array([True, *free])) for free in product((True, False), repeat=2)]
    best = min((point for point in points if point[1:].min() >= 0), key=lambda point: _loss(features, errors, point))
    return ErrorMap(*(float(value) for value in best))


def _features(h: Floats) -> Floats:
    inside = np.clip(h, EDGE, 1 - EDGE)
    return np.stack([np.ones_like(inside), np.log(inside), -np.log1p(-inside)], axis=-1)


def _loss(features: Floats, errors: Floats, point: Floats) -> float:
    logits = features @ point
    prior = ((point - _IDENTITY) ** 2).sum() / (2 * _PRIOR_STD**2)
    return float(np.logaddexp(0, logits).sum() - errors @ logits + prior)


def _newton(features: Floats, errors: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """The minimum over the free parameters, the others being 0; steps are halved until they help."""
    point = np.where(free, _IDENTITY, 0.0)
    for _ in range(100):
        rate = 1 / (1 + np.exp(-(features @ point)))
        gradient = features.T @ (rate - errors) + (point - _IDENTITY) / _PRIOR_STD**2
        curvature = (features * (rate * (1 - rate))[:, None]).T @ features + np.eye(3) / _PRIOR_STD**2
        step = np.zeros(3)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        size, before = 1.0, _loss(features, errors, point)
        while size > 1e-8 and _loss(features, errors, point - size * step) > before:
            size /= 2
        point = point - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    return point
