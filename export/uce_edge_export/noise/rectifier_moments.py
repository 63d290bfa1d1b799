"""Moments of ReLU, leaky ReLU and clipping, in few nodes.

A Gaussian of mean m and deviation s is taken for a uniform distribution of half-width r = WIDTH * s around m. The share
of it that is positive is q = min(max((1 + m / r) / 2, 0), 1). Then max(x, 0) has

    mean = max(m, r q^2);   variance = s^2 q (1 + q) / 2

The mean is that of the uniform distribution, the variance is a fit. WIDTH keeps the largest error of the mean small.
Against the integral over a Gaussian, the mean is off by 0.0261 s at most, at the kink, and the variance by 0.0760 s^2,
about 1.7 s from it. There is no exponential and no error function, and r q serves both.

Between two bounds, as at a ReLU6, that would take twice the nodes. There, and for every other function f that works
element by element, such as SiLU and GELU, the Gaussian is taken for three points, m - t, m and m + t, with
t = REACH * s, of which the outer ones have the probability w = OUTER. With lo, mid and hi for what f makes of them,

    mean = w (lo + hi) + (1 - 2 w) mid;   variance = s^2 ((hi - lo) / 2t)^2

At a single kink, this mean is off by 0.0396 s at most, and this variance by 0.1334 s^2, about 1.4 s from it. Where the
noise is larger than the distance of the bounds, both stay within what the bounds allow. A smooth function is off by
less the smaller s: at a SiLU, by 0.0044 s and 0.027 s^2 at s = 0.5, by 0.0134 s and 0.066 s^2 at s = 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder

WIDTH = 1.7
"""Half-width of the uniform distribution, in standard deviations."""
UNIT = 1 / WIDTH**2
"""A half-width is the root of a variance that was divided by this."""
REACH = 1.4
"""How far the outer ones of three points are from the mean, in standard deviations."""
OUTER = 0.26
"""The probability of each of these."""


class Bent(NamedTuple):
    """Mean and variance of a function with a kink."""

    mean: ir.Value
    """The mean, divided by `mean_factor`."""
    square: ir.Value
    """The variance, divided by `factor`."""
    factor: float
    mean_factor: float = 1.0


class _Part(NamedTuple):
    """Mean of max(x, 0), positive share q, and r q."""

    mean: ir.Value
    share: ir.Value
    reach: ir.Value


def relu(g: Builder, m: ir.Value, r: ir.Value) -> Bent:
    """max(x, 0).

    Args:
        g: Where the nodes go.
        m: The mean of x.
        r: Its half-width, above 0.
    """
    part = _positive(g, m, r)
    return Bent(part.mean, _spread(g, part.reach, r), UNIT / 2)


def relu_in_units(g: Builder, m: ir.Value) -> Bent:
    """max(x, 0) for an x with the half-width 1."""
    share = _share(g, m)
    squared = g.Mul(share, share)
    return Bent(g.Max(m, squared), g.Add(share, squared), UNIT / 2)


def leaky_relu(g: Builder, m: ir.Value, r: ir.Value, slope: float) -> Bent:
    """Slope * x + (1 - slope) * max(x, 0).

    The covariance of x and max(x, 0) is s^2 times the probability of a positive x (Stein's lemma), for which q stands.
    """
    part, rest = _positive(g, m, r), 1 - slope
    mean = g.Add(g.Mul(m, _scalar(g, slope)), g.Mul(part.mean, _scalar(g, rest)))
    linear, squared = 2 * slope * rest + rest**2 / 2, rest**2 / 2
    bent = g.Mul(part.share, g.Add(g.Mul(part.reach, _scalar(g, squared)), g.Mul(r, _scalar(g, linear))))
    square = g.Mul(r, g.Add(bent, g.Mul(r, _scalar(g, slope**2))))
    # Between 0 and 1, no term is negative; elsewhere their sum is not, up to rounding.
    return Bent(mean, square if 0 <= slope <= 1 else g.Relu(square), UNIT)


def clip_below(g: Builder, m: ir.Value, r: ir.Value, low: float) -> Bent:
    """max(x, low), with the half-width r of x."""
    mean, square, factor, _ = relu(g, _plus(g, m, -low), r)
    return Bent(_plus(g, mean, low), square, factor)


def clip_above(g: Builder, m: ir.Value, r: ir.Value, high: float) -> Bent:
    """min(x, high), with the half-width r of x."""
    mean, square, factor, _ = relu(g, g.Sub(_scalar(g, high), m), r)
    return Bent(g.Sub(_scalar(g, high), mean), square, factor)


def clip(g: Builder, m: ir.Value, t: ir.Value, low: float, high: float) -> Bent:
    """Moments of min(max(x, low), high)."""
    bounds = _scalar(g, low), _scalar(g, high)
    return three_points(g, m, t, lambda x: g.Clip(x, *bounds))


def three_points(g: Builder, m: ir.Value, t: ir.Value, function: Callable[[ir.Value], ir.Value]) -> Bent:
    """Moments of a function from three points, t apart."""
    lo, mid, hi = (function(point) for point in (g.Sub(m, t), m, g.Add(m, t)))
    between = g.Sub(hi, lo)
    mean = g.Add(g.Add(lo, hi), g.Mul(mid, _scalar(g, (1 - 2 * OUTER) / OUTER)))
    return Bent(mean, g.Mul(between, between), (2 * REACH) ** -2, OUTER)


def _positive(g: Builder, m: ir.Value, r: ir.Value) -> _Part:
    share = _share(g, g.Div(m, r))
    reach = g.Mul(r, share)
    return _Part(g.Max(m, g.Mul(reach, share)), share, reach)


def _share(g: Builder, in_units: ir.Value) -> ir.Value:
    """The positive share q of x."""
    return g.HardSigmoid(in_units, alpha=0.5, beta=0.5)


def _spread(g: Builder, reach: ir.Value, r: ir.Value) -> ir.Value:
    """r^2 q (1 + q)."""
    return g.Mul(reach, g.Add(reach, r))


def _plus(g: Builder, x: ir.Value, by: float) -> ir.Value:
    return x if by == 0 else g.Add(x, _scalar(g, by))


def _scalar(g: Builder, value: float) -> ir.Value:
    return g.constant(np.float32(value))
