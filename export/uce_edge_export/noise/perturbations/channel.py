"""Gaussian dropout of the input channels of a convolution.

With alpha = p / (1 - p), every channel of the input is multiplied by one number, the same all over its map:

    y = layer(x * (1 + sqrt(alpha) * noise), W) + bias

It is what a weight posterior gives a convolution: all weights of a channel move together. An output of a 1x1 layer has
the variance of Gaussian dropout by value. A pass needs one product on the input, and no second layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import Array, evaluate
from uce_edge_export.graph.weight_layers import multiplications
from uce_edge_export.noise.uncertain import Operand, Uncertain


@dataclass(frozen=True)
class ChannelDropout:
    """Gaussian dropout of channels, for one convolution."""

    p: float
    layer: ir.Node
    """The convolution."""
    kind = PerturbationKind.CHANNEL
    repeats = True

    @property
    def _strength(self) -> np.float32:
        return np.float32((self.p / (1 - self.p)) ** 0.5)

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One for every channel of the input."""
        weight = self.layer.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        groups = self.layer.attributes["group"].as_int() if "group" in self.layer.attributes else 1
        return (weight.const_value.numpy().shape[1] * groups, *[1] * (len(shape) - 1))

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """The operands of the layer."""
        return tuple(value for value in inputs if value is not None)

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        """The layer on its input times one number a channel."""
        x, *constants = prepared
        factors = g.Add(g.Mul(normals, g.constant(self._strength)), g.constant(np.float32(1)))
        return g.copy(self.layer, [g.Mul(x, factors), *constants])[0]

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """Refused: the values of a channel move together."""
        raise UceEdgeError(
            f"Noise by channel ({node.name}) has no rule for means and variances: the values of a channel move "
            "together. Sample instead: --inference mc, or use another --sigma",
            "moments.operator",
        )

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The formula of the module."""
        x, *constants = inputs
        assert x is not None
        return np.asarray(evaluate(node, [x * (1 + self._strength * normals), *constants])[0], np.float32)

    def multiplications(self, node: ir.Node) -> int:
        """Those of the layer."""
        return multiplications(node)
