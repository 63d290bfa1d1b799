"""Gaussian dropout with one draw for every channel of a convolution.

A channel's variance is the mean of the exact one over the map, up to its border, and its noise is the same everywhere:

    m_c = sum(x_c * x_c) / (outputs of a channel * strides);   sigma_o = sqrt(alpha * sum_c m_c sum_k W_ock * W_ock)
    y = mu + sigma * noise

So a pass needs one more sum over the layer's input and one more addition to its output, and no second layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import Array
from uce_edge_export.graph.weight_layers import multiplications, per_image_shape
from uce_edge_export.noise.perturbations.gaussian import GaussianDropout
from uce_edge_export.noise.uncertain import Operand, Uncertain


@dataclass(frozen=True)
class ChannelDropout(GaussianDropout):
    """Gaussian dropout of a convolution, drawn by channel."""

    p: float
    kind = PerturbationKind.CHANNEL

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One for every channel."""
        return (shape[0], *[1] * (len(shape) - 1))

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """Mean, and one standard deviation for every channel."""
        x = inputs[0]
        assert x is not None
        mu = g.copy(node, inputs)[0]
        power, groups = self._power(node), _groups(node)
        axes = g.constant(np.arange(2, power.ndim))
        squares = g.ReduceSumSquare(x, axes, keepdims=1)
        if power.shape[1] == 1 and len(power) == groups:  # one input for every output
            return mu, g.Sqrt(g.Mul(squares, g.constant(np.moveaxis(power, 0, 1)[0])))
        return mu, g.Sqrt(g.Conv(squares, g.constant(power), group=groups))

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """Refused: the values of a channel move together."""
        raise UceEdgeError(
            f"Noise by channel ({node.name}) has no rule for means and variances: the values of a channel move "
            "together. Sample instead: --inference mc, or use another --sigma",
            "moments.operator",
        )

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The formula of the module."""
        x, power, groups = inputs[0], self._power(node), _groups(node)
        assert x is not None
        squares = np.square(x.astype(np.float64)).reshape(len(x), groups, -1, math.prod(x.shape[2:])).sum(-1)
        by_group = power.reshape(groups, -1, power.shape[1]).astype(np.float64)
        variance = np.einsum("bgc,goc->bgo", squares, by_group).reshape(len(x), -1, *[1] * (x.ndim - 2))
        return np.asarray(output + np.sqrt(variance) * normals, np.float32)

    def multiplications(self, node: ir.Node) -> int:
        """Those of the mean, and one for each pair of channels."""
        return multiplications(node) + self._power(node).size

    def _power(self, node: ir.Node) -> Array:
        """Alpha W^2 summed over taps, over outputs of a channel times strides: [outputs, inputs of a group, 1...]."""
        weight = node.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        squares = np.square(weight.const_value.numpy().astype(np.float64))
        strides = node.attributes["strides"].as_ints() if "strides" in node.attributes else [1]
        places = math.prod(per_image_shape(node.outputs[0], "a noisy layer")[1:]) * math.prod(strides)
        taps = tuple(range(2, squares.ndim))
        return np.asarray(self.alpha * squares.sum(axis=taps, keepdims=True) / places, np.float32)


def _groups(node: ir.Node) -> int:
    return node.attributes["group"].as_int() if "group" in node.attributes else 1
