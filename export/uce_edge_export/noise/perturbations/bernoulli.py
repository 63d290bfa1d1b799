"""Bernoulli dropout of values or whole channels.

A value is kept when a standard normal is above the p-quantile, which happens with probability 1 - p. With k = 1 for
what is kept and 0 for what is dropped,

    dropout:        y = x * k / (1 - p)
    alpha dropout:  y = a * (x * k - ALPHA * (1 - k)) + a * ALPHA * p,    a = 1 / sqrt((1 - p) * (1 + p * ALPHA^2))

The second keeps mean 0 and variance 1 of values that have them, as those behind a SELU do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import Array
from uce_edge_export.noise.uncertain import Operand, Uncertain, power, scaled

ALPHA = 1.7580993408473766
"""Minus what a SELU gives for minus infinity."""
_CHANNEL = (PerturbationKind.BERNOULLI_CHANNEL, PerturbationKind.ALPHA_CHANNEL)
_ALPHA = (PerturbationKind.ALPHA, PerturbationKind.ALPHA_CHANNEL)


def threshold(p: float) -> np.float32:
    """A value is kept when its normal is above this."""
    return np.float32(NormalDist().inv_cdf(p))


@dataclass(frozen=True)
class BernoulliDropout:
    """Dropout of a rate, on what a node gives."""

    p: float
    kind: PerturbationKind = PerturbationKind.BERNOULLI
    repeats = False

    @property
    def _scale(self) -> float:
        """The factor of a kept value."""
        return ((1 - self.p) * (1 + self.p * ALPHA**2)) ** -0.5 if self.kind in _ALPHA else 1 / (1 - self.p)

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One for every value, or for every channel."""
        return (shape[0], *[1] * (len(shape) - 1)) if self.kind in _CHANNEL else shape

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """The masked value: the input of the mark."""
        assert inputs[0] is not None
        return (inputs[0],)

    def mask(self, g: Builder, normals: ir.Value) -> ir.Value:
        """The factor of every value: the scale, or 0."""
        kept = g.Greater(normals, g.constant(threshold(self.p)))
        return g.Where(kept, g.constant(np.float32(self._scale)), g.constant(np.float32(0)))

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        """Values times their mask, in a form that `noise_free` recognises."""
        masked = g.Mul(prepared[0], normals)
        if self.kind not in _ALPHA:
            return masked
        # ALPHA * a * (k - 1 + p), of which the mask is a * k.
        shift = g.constant(np.float32(self._scale * ALPHA * (self.p - 1)))
        return g.Add(masked, g.Add(g.Mul(normals, g.constant(np.float32(ALPHA))), shift))

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """(v + p m^2) / (1 - p) around m; scaled with alpha."""
        if self.kind in _CHANNEL:
            raise UceEdgeError(
                f"The dropout of whole channels ({node.name}) has no rule for means and variances: the values of a "
                "channel fall together. Sample instead: --inference mc, or sample from the layer before it: "
                "--sample-from",
                "moments.operator",
            )
        x = operands[0]
        assert x is not None
        mean = x.mean if isinstance(x, Uncertain) else x
        if self.kind in _ALPHA:
            moved = g.Add(mean, g.constant(np.float32(ALPHA)))
            spread = g.Mul(g.Mul(moved, moved), g.constant(np.float32(self.p)))
            if isinstance(x, Uncertain):
                spread = g.Add(x.variance, spread)
            lower = g.constant(np.float32(self._scale * (1 - self.p)))
            return scaled(g, g.Mul(mean, lower), spread, self._scale**2 * (1 - self.p))
        value, factor = power(g, x, self.p) if isinstance(x, Uncertain) else (g.square(x), self.p)
        return scaled(g, mean, value, factor / (1 - self.p))

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The formulas of the module."""
        kept = np.broadcast_to(normals > threshold(self.p), output.shape)
        if self.kind not in _ALPHA:
            return np.asarray(np.where(kept, output / (1 - self.p), 0), np.float32)
        replaced = np.where(kept, output.astype(np.float64), -ALPHA)
        return np.asarray(self._scale * (replaced + ALPHA * self.p), np.float32)

    def multiplications(self, node: ir.Node) -> int:
        """None in weight layers."""
        return 0
