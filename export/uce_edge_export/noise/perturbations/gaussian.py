"""Gaussian dropout on a layer's input, equation 9.

With alpha = p / (1 - p), one standard normal per output becomes

    mu = layer(x, W) + bias;   sigma = sqrt(layer(x*x, alpha * W*W));   y = mu + sigma * noise
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
from uce_edge_export.noise.uncertain import Operand, Uncertain


@dataclass(frozen=True)
class GaussianDropout:
    """Gaussian dropout with its rate."""

    p: float
    kind = PerturbationKind.GAUSSIAN
    repeats = False

    @property
    def alpha(self) -> float:
        """The variance of the multiplicative noise that it stands for."""
        return self.p / (1 - self.p)

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One for every output."""
        return shape

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """Mean and standard deviation."""
        position = layer_moments.operand_index(node)
        x, weight = inputs[position], inputs[1 - position]
        assert x is not None
        assert weight is not None
        mu = g.copy(node, inputs)[0]
        variance = layer_moments.squared(g, node, weight, g.square(x), self.alpha)
        # The sum of squares is never negative, but a Winograd kernel may round below 0; this Relu fuses into the Conv.
        return mu, g.Sqrt(g.Relu(variance))

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        """A sample of a Gaussian."""
        mu, sigma = prepared
        return g.Add(mu, g.Mul(sigma, normals))

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """Mean layer(m, W) + bias, variance layer(p m^2 + v, W^2 / (1 - p))."""
        return layer_moments.moments(g, node, operands, self.p)

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The output plus its standard deviation times the noise."""
        squares = [None if value is None else value.astype(np.float32) ** 2 for value in inputs[:2]]
        # The node multiplies by its scale once, the variance has it squared.
        variance = np.maximum(product_scale(node) * self.alpha * evaluate(node, squares)[0], 0)
        return np.asarray(output + np.sqrt(variance) * normals, np.float32)

    def multiplications(self, node: ir.Node) -> int:
        """Those of mean and variance."""
        return 2 * multiplications(node)
