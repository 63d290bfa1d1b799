"""Values with a mean and a variance."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise import rectifier_moments
from uce_edge_export.noise.sigma_factors import Squares

TINY = 1e-12
"""A variance of 0 has no z-score."""

Emit = Callable[[ir.Value], ir.Value]


class Uncertain:
    """A value with known mean and variance, and its dependence."""

    def __init__(
        self,
        mean: "ir.Value | Callable[[], ir.Value] | None",
        variance: "ir.Value | Callable[[], ir.Value] | None",
        *,
        scaled_mean: tuple[ir.Value, float] | None = None,
        scaled: "Callable[[], tuple[ir.Value, float]] | None" = None,
        width: "Callable[[float], ir.Value] | None" = None,
        one_map: ir.Value | None = None,
        squares: "Callable[[float], Squares] | None" = None,
        shares: ir.Value | None = None,
        positive: bool = False,
        root: "Uncertain | None" = None,
        function: Emit | None = None,
        resolve: "Callable[[], Uncertain] | None" = None,
    ) -> None:
        """Describe a value.

        Args:
            mean: Its mean, or what writes it on demand; None with `resolve`.
            variance: Its variance, likewise.
            scaled_mean: Something that times a factor is the mean, for those who can put the factor elsewhere.
            scaled: Gives something that times a factor is the variance.
            width: Writes a number times the deviation, with fewer nodes than from the variance.
            one_map: One channel, times `rectifier_moments.UNIT` the variance of all channels.
            squares: Gives p * mean^2 + variance for a factored layer, with fewer nodes than from mean and variance.
            shares: For a softmax over the last axis, what `attention_moments.softmax` says of it.
            positive: Whether the variance is known to be above 0.
            root: The value that this is a function of, element by element; None for itself.
            function: That function, as nodes.
            resolve: Writes mean and variance on demand.
        """
        self.positive = positive
        self.root = root or self
        self.function = function or (lambda x: x)
        self._mean = mean
        self._variance = variance
        self._scaled_mean = scaled_mean
        self._scaled = scaled
        self._squares = squares
        self.width = width
        self.one_map = one_map
        self.shares = shares
        self._resolve = resolve

    @property
    def mean(self) -> ir.Value:
        """The mean, written on first use."""
        self._settle()
        if callable(self._mean):
            self._mean = self._mean()
        assert self._mean is not None
        return self._mean

    @property
    def scaled_mean(self) -> tuple[ir.Value, float]:
        """A value and the factor that makes it the mean."""
        self._settle()
        return self._scaled_mean or (self.mean, 1.0)

    @property
    def variance(self) -> ir.Value:
        """The variance, written on first use."""
        self._settle()
        if callable(self._variance):
            self._variance = self._variance()
        assert self._variance is not None
        return self._variance

    @property
    def scaled(self) -> tuple[ir.Value, float]:
        """A value and the factor that makes it the variance."""
        self._settle()
        return self._scaled() if self._scaled else (self.variance, 1.0)

    def squares(self, g: Builder, p: float) -> Squares:
        """P * mean^2 + variance, as a value that can be summed."""
        self._settle()
        if self._squares is not None:
            return self._squares(p)
        mean, factor = self.scaled_mean
        return Squares((self.scaled, (g.square(mean), p * factor**2)) if p else (self.scaled,))

    def _settle(self) -> None:
        if self._resolve is not None:
            known, self._resolve = self._resolve(), None
            self._mean, self._variance, self._scaled = lambda: known.mean, lambda: known.variance, lambda: known.scaled
            self._scaled_mean, self._squares = known._scaled_mean, known._squares


Operand = Uncertain | ir.Value | None


def scaled(
    g: Builder,
    mean: ir.Value,
    value: ir.Value | Callable[[], ir.Value],
    factor: float,
    mean_factor: float = 1.0,
    *,
    positive: bool = False,
    width: Callable[[float], ir.Value] | None = None,
    one_map: ir.Value | None = None,
    squares: Callable[[float], Squares] | None = None,
) -> Uncertain:
    """Describe a value: mean_factor * mean, variance factor * value.

    The latter may be written on demand. The keywords are those of `Uncertain`.
    """
    base = Uncertain(mean, value)

    def variance() -> ir.Value:
        return base.variance if factor == 1 else g.Mul(base.variance, scalar(g, factor))

    return Uncertain(
        mean if mean_factor == 1 else lambda: g.Mul(mean, scalar(g, mean_factor)), variance,
        scaled_mean=(mean, mean_factor), scaled=lambda: (base.variance, factor), positive=positive, width=width,
        one_map=one_map, squares=squares,
    )  # fmt: skip


def power(g: Builder, x: Uncertain, p: float) -> tuple[ir.Value, float]:
    """P * mean^2 + variance up to a factor for the weights."""
    value, factor = x.scaled
    mean, mean_factor = x.scaled_mean
    return (g.Add(value, g.Mul(g.square(mean), scalar(g, p * mean_factor**2 / factor))) if p else value), factor


def deviations(g: Builder, x: Uncertain, number: float) -> ir.Value:
    """Some standard deviations, above 0, for `rectifier_moments`."""
    if x.width is not None:
        return x.width(number)
    value = in_units(g, x, number**-2)
    return g.Sqrt(value if x.positive else g.Max(value, scalar(g, TINY)))


def in_units(g: Builder, x: Uncertain, unit: float = rectifier_moments.UNIT) -> ir.Value:
    """The variance divided by a number."""
    value, factor = x.scaled
    return value if factor == unit else g.Mul(value, scalar(g, factor / unit))


def certain(operands: Sequence[Operand]) -> list[ir.Value | None]:
    """The operands of a node; rejects noisy ones."""
    if any(isinstance(x, Uncertain) for x in operands):
        raise UceEdgeError(
            "A bias, a shape, an axis or a bound depends on noise; --inference mc samples it.", "moments.operator"
        )
    return list(operands)  # type: ignore[arg-type]


def refused(node: ir.Node, why: str) -> UceEdgeError:
    """The error of a node without mean and variance."""
    return UceEdgeError(
        f"The operator {node.op_type} ({node.name}) has no rule for means and variances: {why}. Sample instead: "
        "--inference mc, or sample from a layer before it: --sample-from",
        "moments.operator",
    )


def given(value: ir.Value | None) -> ir.Value:
    """A required input."""
    assert value is not None
    return value


def scalar(g: Builder, value: float) -> ir.Value:
    """A float32 constant."""
    return g.constant(np.float32(value))
