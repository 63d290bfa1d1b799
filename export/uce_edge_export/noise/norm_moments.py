"""Moments of batch, layer, instance and group norm.

Layer norm divides by statistics of its own n inputs. They are taken at their means,

    mu = mean of m;   s^2 = mean of (m - mu)^2 + (1 - 1/n) mean of v;   z = (m - mu) / s

and the output is linearised there, which gives the variance

    sum_j ([i = j] - (1 + z_i z_j) / n)^2 v_j / s^2

So an input that is most of the statistics, as with few features or with outliers, loses the noise that it divides out.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.uncertain import Operand, Uncertain, certain, given, scalar


def batch_norm(g: Builder, node: ir.Node, x: Uncertain, _: Sequence[Operand]) -> Uncertain:
    """Batch-norm at inference: a factor and an offset per channel."""
    scale, offset, mean, variance = (_array(node, i) for i in range(1, 5))
    factor = scale / np.sqrt(variance + _epsilon(node))
    shape = (-1, *[1] * (len(node.outputs[0].shape or ()) - 2))
    f, b = (g.constant(a.reshape(shape).astype(np.float32)) for a in (factor, offset - mean * factor))
    return Uncertain(g.Add(g.Mul(x.mean, f), b), g.Mul(x.variance, g.Mul(f, f)))


def layer_norm(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """Layer norm over the last axes."""
    dims = per_image_shape(given(node.inputs[0]), node.op_type)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    number = len(dims) + 1 - axis if axis >= 0 else -axis
    scale, *bias = certain(rest)
    return _scaled(g, *_standardised(g, x, dims, number, _epsilon(node)), given(scale), bias[0] if bias else None)


def instance_norm(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """Instance norm, which group norm is behind a Reshape."""
    dims = per_image_shape(given(node.inputs[0]), node.op_type)
    shape = g.constant(np.array([-1, *[1] * (len(dims) - 1)]))
    scale, bias = (g.Reshape(value, shape) for value in certain(rest))
    return _scaled(g, *_standardised(g, x, dims, len(dims) - 1, _epsilon(node)), scale, bias)


def _standardised(
    g: Builder, x: Uncertain, dims: tuple[int, ...], number: int, epsilon: float
) -> tuple[ir.Value, ir.Value]:
    """Moments of (x - mean) / deviation over a number of last axes."""
    share = 1 / math.prod(dims[-number:])
    axes = g.constant(np.arange(-number, 0))

    def average(value: ir.Value) -> ir.Value:
        return g.ReduceMean(value, axes, keepdims=1)

    v, noise = x.variance, average(x.variance)
    centred = g.Sub(x.mean, average(x.mean))
    square = g.Add(average(g.square(centred)), g.Mul(noise, scalar(g, 1 - share)))
    inverse = g.Reciprocal(g.Sqrt(g.Add(square, scalar(g, epsilon))))
    z = g.Mul(centred, inverse)
    zv = g.Mul(z, v)
    # v_i (1 - 2 (1 + z_i^2) / n) + (mean v + 2 z_i mean(z v) + z_i^2 mean(z^2 v)) / n
    own = g.Sub(v, g.Mul(g.Add(v, g.Mul(z, zv)), scalar(g, 2 * share)))
    others = g.Add(g.Mul(g.Add(g.Mul(z, average(g.Mul(z, zv))), g.Mul(average(zv), scalar(g, 2))), z), noise)
    variance = g.Relu(g.Add(own, g.Mul(others, scalar(g, share))))
    return z, g.Mul(variance, g.square(inverse))


def _scaled(g: Builder, mean: ir.Value, variance: ir.Value, scale: ir.Value, bias: ir.Value | None) -> Uncertain:
    mean, variance = g.Mul(mean, scale), g.Mul(variance, g.square(scale))
    return Uncertain(mean if bias is None else g.Add(mean, bias), variance)


def _epsilon(node: ir.Node) -> float:
    return node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5


def _array(node: ir.Node, index: int) -> npt.NDArray[np.float64]:
    constant = given(node.inputs[index]).const_value
    if constant is None:
        raise UceEdgeError(
            f"{node.op_type} ({node.name}) has no constant parameters; --inference mc samples it.", "moments.operator"
        )
    return constant.numpy().astype(np.float64)
