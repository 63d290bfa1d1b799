"""Factored sigma: squared weights as a product of marginals.

    W^2[o, c, k] ~ u_o q_c g_k / T^2

with u, q and g the sums of W^2 over everything but outputs, inputs and taps, and T the sum of all. It is the rank-one
tensor that minimises KL(W^2 || .): the sum of every output is kept, the variance for a given input on average. The
variance of a layer is then u_o times one map, conv_k(conv_1x1(x^2, q / T), g / T). Grouped layers factor per group.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import outputs_first, per_image_shape, product_scale, weight_of

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Factors:
    """The marginals of a layer's squared weights."""

    outputs: Array
    """u: [outputs], the sum of the squared weights of every output, times the square of what scales the product."""
    inputs: Array
    """q / T: [groups, inputs of a group]."""
    taps: Array
    """g / T: [groups, taps...]; no taps for a product of matrices."""
    trailing: int
    """How many axes of the layer's output come after that of the outputs."""
    even: bool = False
    """Whether `noise_equalisation` made all outputs equal: one map is the variance of all, and the next layer sums over
    them."""

    @property
    def groups(self) -> int:
        """Groups of inputs and outputs that do not meet."""
        return len(self.inputs)

    @property
    def squares(self) -> Array:
        """Squared weights [outputs, inputs of a group, taps...] of the factors."""
        taps = self.taps.reshape(self.groups, -1)
        outputs = self.outputs.reshape(self.groups, -1)
        product: Array = np.einsum("go,gc,gk->gock", outputs, self.inputs, taps)
        return product.reshape(len(self.outputs), self.inputs.shape[1], *self.taps.shape[1:])

    def with_shape_of(self, weights: Array) -> "Factors":
        """These outputs with the inputs and taps of other weights.

        Batch-norm that is folded into weights scales their outputs: the outputs are those of the folded weights, and
        inputs and taps those of the weights that were trained.
        """
        return replace(_of_weights(weights, self.groups, self.trailing), outputs=self.outputs)

    def multiplications(self, node: ir.Node) -> int:
        """Multiply-accumulates of the map for one image."""
        operand = weight_of(node)
        assert operand is not None
        x = node.inputs[operand[1]]
        assert x is not None
        places = math.prod(per_image_shape(node.outputs[0], node.op_type)) // len(self.outputs)
        k = int(self.taps[0].size)
        if self.groups > 1:
            over_channels = places * int(self.inputs.size) if k == 1 else math.prod(per_image_shape(x, node.op_type))
            return over_channels + places * len(self.outputs) * k
        return math.prod(per_image_shape(x, node.op_type)) + (places * k if self.moves(node) else 0)

    def moves(self, node: ir.Node) -> bool:
        """Whether the taps matter: a 1x1 layer may have strides."""
        if node.op_type != "Conv" or self.taps[0].size > 1:
            return node.op_type == "Conv"
        return any(stride != 1 for stride in _integers(node, "strides")) or _pads(node)


class Squares(NamedTuple):
    """A stand-in for x^2, as a sum: times * (factor * value + ...)."""

    parts: tuple[tuple[ir.Value, float], ...]
    """Values and their factors."""
    times: ir.Value | None = None
    """One channel; None for 1."""


def of_layer(node: ir.Node) -> Factors | None:
    """Factor a weight layer; None where that gains nothing.

    A depthwise layer is a product already, and a stack of matrices has one factorisation for each.
    """
    operand = weight_of(node)
    if operand is None or operand[0].const_value is None:
        return None
    weights, position = operand[0].const_value.numpy(), operand[1]
    if node.op_type == "Conv":
        groups = node.attributes["group"].as_int() if "group" in node.attributes else 1
        depthwise = weights.shape[0] == groups and weights.shape[1] == 1
        return None if depthwise else _of_weights(weights, groups, weights.ndim - 2)
    if weights.ndim != 2:
        return None
    factors = _of_weights(weights if outputs_first(node) else weights.T, 1, trailing=position)
    return replace(factors, outputs=factors.outputs * product_scale(node) ** 2)


def squares_like(node: ir.Node, factors: Factors) -> Array:
    """Squared weights of the factors, shaped as the node's weights."""
    squares = factors.squares / product_scale(node) ** 2
    return squares if outputs_first(node) else squares.T


def emit_map(g: Builder, node: ir.Node, squares: Squares, factors: Factors, factor: float = 1.0) -> ir.Value:
    """Factor * s for a layer without groups: one channel.

    Args:
        g: Where the nodes go.
        node: The layer in the deterministic classifier.
        squares: The stand-in for x^2.
        factors: Those of the layer.
        factor: Any number.
    """
    moves, one_tap = factors.moves(node), factors.taps.size == 1
    channel = _over_channels(g, node, squares.parts, factors, factor if one_tap else 1.0)
    if squares.times is not None:
        channel = g.Mul(channel, squares.times)
    if not moves:
        return channel
    if one_tap and not _pads(node):
        # As a convolution, tract would move the stride over the Reshape, and fail.
        return g.MaxPool(channel, kernel_shape=[1] * factors.trailing, strides=_integers(node, "strides"))
    taps = factors.taps if one_tap else factor * factors.taps
    return _convolution(g, node, channel, g.constant(taps.astype(np.float32)[:, None]))


def _over_channels(
    g: Builder, node: ir.Node, parts: Sequence[tuple[ir.Value, float]], factors: Factors, factor: float
) -> ir.Value:
    """The weighted sum over parts and channels: one channel.

    It is a product with a row, which reads its operand once. As a convolution, ONNX Runtime would write 16 channels.
    """
    operand = weight_of(node)
    assert operand is not None
    x = node.inputs[operand[1]]
    assert x is not None
    rows = [(value, (factor * part * factors.inputs).astype(np.float32)) for value, part in parts]
    if node.op_type != "Conv":
        products = [
            g.MatMul(g.constant(row), value) if operand[1] else g.MatMul(value, g.constant(row.T))
            for value, row in rows
        ]
        return functools.reduce(g.Add, products)
    channels, *places = per_image_shape(x, node.op_type)
    # A leading 0 keeps that dimension, and its name.
    flat, whole = (g.constant(np.array([0, *shape])) for shape in ((channels, math.prod(places)), (1, *places)))
    return g.Reshape(
        functools.reduce(g.Add, [g.MatMul(g.constant(row), g.Reshape(value, flat)) for value, row in rows]), whole
    )


def emit_variance(g: Builder, node: ir.Node, squares: ir.Value, factors: Factors, factor: float) -> ir.Value:
    """Factor * u_o * s for every output of a grouped layer."""
    outputs = (factor * factors.outputs).astype(np.float32)
    rank, groups = factors.trailing, factors.groups
    first = g.constant(factors.inputs.astype(np.float32).reshape(*factors.inputs.shape, *[1] * rank))
    taps = np.repeat(factors.taps, len(outputs) // groups, axis=0).astype(np.float32)
    second = g.constant((outputs.reshape(-1, *[1] * rank) * taps)[:, None])
    if taps[0].size == 1:
        return g.Conv(_convolution(g, node, squares, first, groups), second, group=groups)
    return _convolution(g, node, g.Conv(squares, first, group=groups), second, groups)


def per_output(factors: Factors, values: Array) -> Array:
    """One value per output, in the layer's output shape."""
    return values.reshape(-1, *[1] * factors.trailing)


def _convolution(g: Builder, node: ir.Node, x: ir.Value, weights: ir.Value, groups: int = 1) -> ir.Value:
    """A convolution over the same places as another one."""
    attributes = dict(node.attributes) | {"group": ir.AttrInt64("group", groups)}
    return g.append(ir.Node("", "Conv", [x, weights], attributes.values()))[0]


def _of_weights(weights: Array, groups: int, trailing: int) -> Factors:
    """Factor squared weights [outputs, inputs of a group, taps...]."""
    squares = weights.astype(np.float64) ** 2
    by_group = squares.reshape(groups, -1, *squares.shape[1:])
    taps = tuple(range(3, by_group.ndim))
    total = np.maximum(by_group.sum(axis=tuple(range(1, by_group.ndim))), np.finfo(np.float64).tiny)
    inputs = by_group.sum(axis=(1, *taps)) / total[:, None]
    places = by_group.sum(axis=(1, 2)) / total.reshape(-1, *[1] * len(taps))
    return Factors(squares.reshape(len(squares), -1).sum(axis=1), inputs, places, trailing)


def _pads(node: ir.Node) -> bool:
    """Whether a layer adds places."""
    automatic = "auto_pad" in node.attributes and node.attributes["auto_pad"].as_string() not in ("NOTSET", "VALID")
    return automatic or any(_integers(node, "pads"))


def _integers(node: ir.Node, name: str) -> list[int]:
    """An attribute, empty where it is missing."""
    return list(node.attributes[name].as_ints()) if name in node.attributes else []
