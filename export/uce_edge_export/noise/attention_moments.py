"""Moments of attention: softmax, and products of two uncertain values.

A softmax p of Gaussians with mean m and variance v is taken at a second-order mean, and linearised there:

    p = softmax(m + u (1/2 - softmax(m))),   u = v / (1 + v / 5);   w = v / (1 + p v)
    variance_i = sum_j p_i^2 ([i = j] - p_j)^2 w_j

u and w equal v where it is small, and keep mean and variance within bounds where it is not. What the shares p are of,
such as the values of attention, is averaged: if one share grows, the others shrink. With y = sum_j p_j x_j,

    variance of y = sum_j p_j^2 w_j (x_j - y)^2 + E(p_j^2) variance of x_j
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.uncertain import Operand, Uncertain, given, scalar

_DAMPING = 0.2  # of the second-order mean, fitted by eye to Monte Carlo of 2 to 197 shares, deviations up to 2


def softmax(g: Builder, node: ir.Node, x: Uncertain, _: Sequence[Operand]) -> Uncertain:
    """Shares, and p_j^2 w_j as `Uncertain.shares` along the last axis."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    rank = 1 + len(per_image_shape(given(node.inputs[0]), node.op_type))
    v = x.variance
    damped = g.Div(v, g.Add(g.Mul(v, scalar(g, _DAMPING)), scalar(g, 1)))
    first = g.copy(node, [x.mean])[0]
    p = g.copy(node, [g.Add(x.mean, g.Mul(damped, g.Sub(scalar(g, 0.5), first)))])[0]
    w = g.Div(v, g.Add(g.Mul(p, v), scalar(g, 1)))
    square = g.square(p)
    shares = g.Mul(square, w)
    # sum_j p_i^2 ([i = j] - p_j)^2 w_j = (1 - 2 p_i) p_i^2 w_i + p_i^2 sum_j p_j^2 w_j
    total = g.ReduceSum(shares, g.constant(np.array([axis])), keepdims=1)
    own = g.Mul(shares, g.Sub(scalar(g, 1), g.Add(p, p)))
    variance = g.Relu(g.Add(own, g.Mul(square, total)))
    return Uncertain(p, variance, shares=shares if axis % rank == rank - 1 else None)


def product(g: Builder, node: ir.Node, a: Operand, b: Operand) -> Uncertain:
    """A product that adds up pairs of elements, one of each operand."""

    def multiply(left: ir.Value, right: ir.Value) -> ir.Value:
        return g.copy(node, [left, right])[0]

    mean_a, mean_b = (given(x.mean if isinstance(x, Uncertain) else x) for x in (a, b))
    mean = multiply(mean_a, mean_b)
    if not isinstance(b, Uncertain):
        assert isinstance(a, Uncertain)
        if node.op_type == "MatMul" and a.shares is not None:
            return Uncertain(mean, g.Relu(_of_shares(g, a.shares, mean_b, mean)))
        return Uncertain(mean, multiply(a.variance, g.square(mean_b)))
    if not isinstance(a, Uncertain):
        return Uncertain(mean, multiply(g.square(mean_a), b.variance))
    if node.op_type == "MatMul" and a.shares is not None:
        from_shares = _of_shares(g, a.shares, mean_b, mean)
        from_values = multiply(g.Add(g.square(mean_a), a.variance), b.variance)
        return Uncertain(mean, g.Relu(g.Add(from_shares, from_values)))
    # v1 (m2^2 + v2) + m1^2 v2
    first = multiply(a.variance, g.Add(g.square(mean_b), b.variance))
    return Uncertain(mean, g.Add(first, multiply(g.square(mean_a), b.variance)))


def _of_shares(g: Builder, shares: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """sum_j p_j^2 w_j (x_j - y)^2."""
    total = g.ReduceSum(shares, g.constant(np.array([-1])), keepdims=1)
    twice = g.Mul(g.MatMul(shares, x), scalar(g, 2))
    return g.Add(g.MatMul(shares, g.square(x)), g.Mul(y, g.Sub(g.Mul(y, total), twice)))


def adds_pairs(equation: str) -> bool:
    """Whether an Einsum adds up products of two operands' elements.

    Not if it adds up one operand alone: then its products share factors.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if not arrow or "." in equation or any(len(set(labels)) < len(labels) for labels in operands):
        return False
    if len(operands) == 1:
        return True
    left, right = map(set, operands) if len(operands) == 2 else (set(), {"?"})
    return left ^ right <= set(output)
