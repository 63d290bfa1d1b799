"""The calibrated probability of a wrong label, from 1 - max p.

e = sigmoid(a + b logit(1 - max p)) with b >= 0, which is Platt scaling (1999) of the likeliest class against all
others. The prior of the fit is at the identity (a = 0, b = 1): calibrated probabilities need no map, and a hundred
images cannot improve on them. The map ranks images as the confidence does.

Files of older versions have a function of the uncertainty instead, `EntropyErrorMap`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected

if TYPE_CHECKING:
    from uce_edge.metadata import Calibration

Floats = npt.NDArray[np.float64]

EDGE = 1e-6  # the smallest distance of a probability from 0 and 1, where logarithms are infinite
_PRIOR_STD = 0.25  # of a and b. On CIFAR-10, 100 images fitted with 0.5 or 1.25 predicted new errors less well
_IDENTITY = np.array([0.0, 1.0])


@dataclass(frozen=True)
class ErrorMap:
    """The fitted parameters."""

    a: float
    b: float

    def __call__(self, confidence: npt.ArrayLike) -> Floats:
        """The probability of error at confidences."""
        return _sigmoid(_features(confidence) @ np.array([self.a, self.b]))


@dataclass(frozen=True)
class EntropyErrorMap:
    """The map of older files: sigmoid(a + b log H - c log(1 - H))."""

    a: float
    b: float
    c: float

    def __call__(self, uncertainty: npt.ArrayLike) -> Floats:
        """The probability of error at uncertainties."""
        inside = np.clip(np.asarray(uncertainty, np.float64), EDGE, 1 - EDGE)
        return _sigmoid(self.a + self.b * np.log(inside) - self.c * np.log1p(-inside))


def error_probability(calibration: "Calibration", confidence: npt.ArrayLike, uncertainty: npt.ArrayLike) -> Floats:
    """The probability of error, as the graph of a file computes it.

    Args:
        calibration: The calibration in the metadata of the file.
        confidence: The probability of the likeliest class of every image.
        uncertainty: H of every image.
    """
    if calibration.confidence_error is not None:
        return ErrorMap(*calibration.confidence_error)(confidence)
    if calibration.error is not None:
        return EntropyErrorMap(*calibration.error)(uncertainty)
    return _rest(confidence)


def fit(confidence: npt.ArrayLike, wrong: npt.ArrayLike) -> ErrorMap:
    """Fit by maximum a posteriori, with a prior around the identity.

    Args:
        confidence: The probability of the likeliest class of every calibration image.
        wrong: Whether that class was wrong.
    """
    likeliest, errors = np.asarray(confidence, np.float64), np.asarray(wrong, np.float64)
    if likeliest.ndim != 1 or likeliest.shape != errors.shape or len(likeliest) == 0:
        rule = "one confidence and one outcome per image, one image at least"
        raise UsageError(
            expected("`confidence` and `wrong`", rule, (likeliest.shape, errors.shape), "Check the data"),
            "argument.confidence",
        )
    if not (np.isfinite(likeliest).all() and likeliest.min() >= 0 and likeliest.max() <= 1):
        raise UsageError(expected("`confidence`", "between 0 and 1", "other values", "Take the largest probability"))
    features = _features(likeliest)
    best = _newton(features, errors, np.array([True, True]))
    if best[1] < 0:  # the loss is convex, so the best of the allowed points has b = 0
        best = _newton(features, errors, np.array([True, False]))
    return ErrorMap(*(float(value) for value in best))


def _rest(confidence: npt.ArrayLike) -> Floats:
    """1 - max p in float32, as in the graph; exact where it is small."""
    return (np.float32(1) - np.asarray(confidence, np.float32)).astype(np.float64)


def _features(confidence: npt.ArrayLike) -> Floats:
    inside = np.clip(_rest(confidence), EDGE, 1 - EDGE)
    return np.stack([np.ones_like(inside), np.log(inside) - np.log1p(-inside)], axis=-1)


def _sigmoid(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))


def _loss(features: Floats, errors: Floats, point: Floats) -> float:
    logits = features @ point
    prior = ((point - _IDENTITY) ** 2).sum() / (2 * _PRIOR_STD**2)
    return float(np.logaddexp(0, logits).sum() - errors @ logits + prior)


def _newton(features: Floats, errors: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Minimise over the free parameters, the others being 0."""
    point = np.where(free, _IDENTITY, 0.0)
    for _ in range(100):
        rate = _sigmoid(features @ point)
        gradient = features.T @ (rate - errors) + (point - _IDENTITY) / _PRIOR_STD**2
        curvature = (features * (rate * (1 - rate))[:, None]).T @ features + np.eye(2) / _PRIOR_STD**2
        step = np.zeros(2)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        size, before = 1.0, _loss(features, errors, point)
        while size > 1e-8 and _loss(features, errors, point - size * step) > before:
            size /= 2
        point = point - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    return point
