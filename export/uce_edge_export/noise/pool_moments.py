"""Moments of sums, means and maxima over positions."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise import inner_sums
from uce_edge_export.noise.uncertain import TINY, Operand, Uncertain, certain, given, scalar, scaled


def averaged(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """A sum or mean of independent units."""
    value, factor = x.scaled
    mean, spread = (inner_sums.copy(g, node, [part, *certain(rest)])[0] for part in (x.mean, value))
    if node.op_type == "ReduceSum":
        return scaled(g, mean, spread, factor)
    taken = per_image_shape(given(node.inputs[0]), node.op_type)
    if node.op_type != "AveragePool":
        left = per_image_shape(node.outputs[0], node.op_type)
        return scaled(g, mean, spread, factor * math.prod(left) / math.prod(taken))
    size = math.prod(node.attributes["kernel_shape"].as_ints())
    if "count_include_pad" in node.attributes and node.attributes["count_include_pad"].as_int():
        return scaled(g, mean, spread, factor / size)
    # Windows at the border may have fewer cells: their share is what a window of ones gives that counts the padding.
    ones = g.constant(np.ones((1, 1, *taken[1:]), np.float32))
    counting = dict(node.attributes) | {"count_include_pad": ir.AttrInt64("count_include_pad", 1)}
    share = g.append(ir.Node("", "AveragePool", [ones], counting.values()))[0]
    return scaled(g, mean, g.Div(spread, g.Mul(share, scalar(g, size))), factor)


def largest(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """Maximum of a window whose units move together."""
    s = g.Sqrt(x.variance)
    high, low = (g.copy(node, [value, *certain(rest)])[0] for value in (g.Add(x.mean, s), g.Sub(x.mean, s)))
    half = g.Mul(g.Sub(high, low), scalar(g, 0.5))
    return Uncertain(g.Add(low, half), g.Mul(half, half))


def sum_of_squares(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """A sum of squares, or its root: the length of a vector.

    The square of a Gaussian has the mean m^2 + v and the variance 4 m^2 v + 2 v^2; the root is linearised.
    """
    keep = dict(node.attributes).values()

    def total(value: ir.Value) -> ir.Value:
        return g.append(ir.Node("", "ReduceSum", [value, *certain(rest)], keep))[0]

    m2, v = g.square(x.mean), x.variance
    mean = total(g.Add(m2, v))
    variance = total(g.Mul(g.Mul(v, scalar(g, 2)), g.Add(g.Add(m2, m2), v)))
    if node.op_type == "ReduceSumSquare":
        return Uncertain(mean, variance)
    spread = g.Div(variance, g.Mul(g.Max(mean, scalar(g, TINY)), scalar(g, 4)))
    return Uncertain(g.Sqrt(mean), spread)
