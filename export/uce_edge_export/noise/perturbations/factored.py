"""Gaussian dropout with the variance of factored squared weights.

With the factors u, q and g of `sigma_factors.Factors`, one map serves all outputs:

    s = conv_k(conv_1x1(x*x, q), g);   sigma_o = sqrt(alpha * u_o) * sqrt(s);   y = mu + sigma * noise
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import Array, evaluate
from uce_edge_export.graph.weight_layers import multiplications, product_scale
from uce_edge_export.noise import layer_moments
from uce_edge_export.noise import sigma_factors as factoring
from uce_edge_export.noise.perturbations.gaussian import GaussianDropout
from uce_edge_export.noise.sigma_factors import Factors, Squares
from uce_edge_export.noise.uncertain import Operand, Uncertain


@dataclass(frozen=True, eq=False)
class FactoredDropout(GaussianDropout):
    """Gaussian dropout with its rate and its layer's factors."""

    factors: Factors
    kind = PerturbationKind.FACTORED

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """Mean, and standard deviation up to a factor per output."""
        x = inputs[layer_moments.operand_index(node)]
        assert x is not None
        mu = g.copy(node, inputs)[0]
        if self.factors.groups == 1:
            spread = factoring.emit_map(g, node, Squares(((g.square(x), 1.0),)), self.factors, self._common)
        else:
            spread = factoring.emit_variance(g, node, g.square(x), self.factors, self.alpha)
        # A Winograd kernel may round below 0; this Relu fuses into the Conv, if there is one.
        return mu, g.Sqrt(g.Relu(spread))

    @property
    def _common(self) -> float:
        """The common factor of all outputs, if they are even."""
        return self.alpha * float(self.factors.outputs[0]) if self.factors.even else 1.0

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        """A sample of a Gaussian."""
        mu, root = prepared
        if self.factors.groups == 1 and not self.factors.even:
            scale = np.sqrt(self.alpha * self.factors.outputs).astype(np.float32)
            normals = g.Mul(normals, g.constant(factoring.per_output(self.factors, scale)))
        return g.Add(mu, g.Mul(normals, root))

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """layer(m, W) + bias and u_o / (1 - p) * s."""
        return layer_moments.moments(g, node, operands, self.p, self.factors)

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The same with the factors' product as squared weights."""
        position = layer_moments.operand_index(node)
        x = inputs[position]
        assert x is not None
        operands: list[Array | None] = [factoring.squares_like(node, self.factors).astype(np.float32)]
        operands.insert(position, x.astype(np.float32) ** 2)
        # The node multiplies by its scale once, the variance has it squared.
        variance = product_scale(node) * evaluate(node, operands)[0]
        return np.asarray(output + np.sqrt(np.maximum(self.alpha * variance, 0)) * normals, np.float32)

    def multiplications(self, node: ir.Node) -> int:
        """Those of the mean, and of the map."""
        return multiplications(node) + self.factors.multiplications(node)
