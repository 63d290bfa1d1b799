"""Minimise smooth functions: Newton's method, L-BFGS and Adam."""

import math
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from uce_edge.metrics.argument_checks import Floats

_ROUNDING = 1e-14  # of a value: smaller differences are noise of its sum
_DECREASE, _CURVATURE = 1e-4, 0.9  # of the Wolfe conditions (Nocedal & Wright, 3.1)


def newton(function: Callable[[float], tuple[float, float, float]], start: float) -> float:
    """Minimise a function of one number.

    A step is at most 1, goes downhill where the curvature is not positive, and is halved until the value falls.

    Args:
        function: Returns value, slope and curvature.
        start: The first point.
    """
    point = start
    value, slope, curvature = function(point)
    for _ in range(100):
        step = -slope / curvature if curvature > 0 else -math.copysign(1.0, slope)
        step = min(max(step, -1.0), 1.0)
        if abs(step) < 1e-6:  # the error after a step is about its square
            return point + step
        trial = function(point + step)
        while not trial[0] <= value + _ROUNDING * abs(value):
            step /= 2
            if abs(step) < 1e-9:
                return point
            trial = function(point + step)
        point += step
        value, slope, curvature = trial
    return point


def lbfgs(function: Callable[[Floats], tuple[float, Floats]], start: Floats, steps: int = 200) -> Floats:
    """Minimise a function by L-BFGS (Nocedal & Wright, algorithm 7.5).

    Args:
        function: Returns value and gradient.
        start: The first point.
        steps: The most steps.
    """
    point = start.copy()
    value, gradient = function(point)
    pairs: deque[tuple[Floats, Floats, float]] = deque(maxlen=30)
    for _ in range(steps):
        if np.abs(gradient).max() < 1e-9:
            break
        direction = -_times_inverse_hessian(gradient, pairs)
        length = 1.0 if pairs else min(1.0, 1 / float(np.abs(gradient).sum()))
        step = _line_search(function, point, value, float(gradient @ direction), direction, length)
        if step is None:
            break
        length, new_value, new_gradient = step
        moved, turned = length * direction, new_gradient - gradient
        point = point + moved
        pairs.append((moved, turned, float(moved @ turned)))
        settled = abs(new_value - value) <= _ROUNDING * abs(value)
        value, gradient = new_value, new_gradient
        if settled:
            break
    return point


def _times_inverse_hessian(gradient: Floats, pairs: "deque[tuple[Floats, Floats, float]]") -> Floats:
    """The two-loop recursion over the last steps and gradient changes."""
    result, shares = gradient.copy(), []
    for moved, turned, product in reversed(pairs):
        shares.append(float(moved @ result) / product)
        result -= shares[-1] * turned
    if pairs:
        _, turned, product = pairs[-1]
        result *= product / float(turned @ turned)
    for (moved, turned, product), share in zip(pairs, reversed(shares), strict=True):
        result += (share - float(turned @ result) / product) * moved
    return result


def _line_search(
    function: Callable[[Floats], tuple[float, Floats]],
    point: Floats,
    value: float,
    slope: float,
    direction: Floats,
    length: float,
) -> tuple[float, float, Floats] | None:
    """A step that meets the Wolfe conditions; None if rounding hides it.

    The curvature condition gives every pair of L-BFGS a positive product.
    """
    low, low_value, low_slope = 0.0, value, slope
    high = high_value = math.inf
    for _ in range(40):
        new_value, gradient = function(point + length * direction)
        new_slope = float(gradient @ direction)
        if not new_value <= value + _DECREASE * length * slope + _ROUNDING * abs(value):
            high, high_value = length, new_value
        elif new_slope < _CURVATURE * slope:
            low, low_value, low_slope = length, new_value, new_slope
        else:
            return length, new_value, gradient
        if high == math.inf:
            # The zero of the linearly extrapolated slope, at least twice and at most ten times the length.
            reach = slope / (slope - new_slope) if new_slope > slope else math.inf
            length *= min(max(reach, 2.0), 10.0)
        else:
            # The minimum of a parabola, away from the ends.
            width = high - low
            bend = high_value - low_value - low_slope * width
            share = -low_slope * width / (2 * bend) if 0 < bend < math.inf else 0.5
            length = low + min(max(share, 0.1), 0.9) * width
    return None


class Adam:
    """Adam (Kingma & Ba, 2015) with weight decay in the gradient."""

    def __init__(self, parameters: dict[str, Floats], rate: float, decay: Mapping[str, float]) -> None:
        """Store the parameters, which every step changes in place.

        Args:
            parameters: By name.
            rate: The learning rate.
            decay: The weight decay of some of them.
        """
        self._parameters, self._rate, self._decay = parameters, rate, decay
        self._means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._squares = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._steps = 0

    def step(self, gradients: Mapping[str, Floats]) -> None:
        """Move against the gradients."""
        self._steps += 1
        for name, value in self._parameters.items():
            gradient = gradients[name] + self._decay.get(name, 0.0) * value
            mean, square = self._means[name], self._squares[name]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            root = np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8
            self._parameters[name] -= self._rate / (1 - 0.9**self._steps) * mean / root
