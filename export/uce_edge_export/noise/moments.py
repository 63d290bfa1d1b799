"""Mean and variance of activations in a single pass.

Every unit is taken for an independent Gaussian. Then a weight layer with rate p has

    mean = layer(m, W) + bias;   variance = layer(p * m^2 + v, W^2 / (1 - p))

which is exact for the noise of that layer, and loses the correlation of units that share earlier noise. Activations
with a kink (ReLU, leaky ReLU, clipping) have rules of their own, see `rectifier_moments`. Everything else that works
element by element, such as SiLU and GELU, however many nodes they are made of, is integrated at five points. The
maximum of a pooling window is taken as if its units moved together; sums, means and concatenations as if they were
independent.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise import rectifier_moments
from uce_edge_export.noise.sigma_factors import Squares

TINY = 1e-12  # a variance of 0 has no z-score
_HUGE = 1e30  # a bound beyond this is none

_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

# Element by element, one operand: the others, if any, are constants.
_UNARY = {
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "Erf", "Exp", "Neg", "Abs", "Sqrt", "Softplus", "Softsign", "Elu",
    "Selu", "Celu", "HardSigmoid", "HardSwish", "Mish", "Gelu", "ThresholdedRelu", "Pow", "Log", "PRelu",
}  # fmt: skip
_BINARY = {"Add", "Sub", "Mul", "Div"}
# These only move elements or choose among them: mean and variance go the same way.
_MOVING = {
    "Identity", "Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather",
    "Dropout",
}  # fmt: skip

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
        return base.variance if factor == 1 else g.Mul(base.variance, _scalar(g, factor))

    return Uncertain(
        mean if mean_factor == 1 else lambda: g.Mul(mean, _scalar(g, mean_factor)), variance,
        scaled_mean=(mean, mean_factor), scaled=lambda: (base.variance, factor), positive=positive, width=width,
        one_map=one_map, squares=squares,
    )  # fmt: skip


Operand = Uncertain | ir.Value | None


def propagate(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> list[Uncertain]:
    """The outputs of a node with an uncertain operand.

    Args:
        g: Where the nodes go.
        node: A node of the deterministic classifier that is not a weight layer.
        operands: Its inputs in the new graph.

    Raises:
        UceEdgeError: There is no rule for the operator.
    """
    kind = node.op_type
    if kind in _BINARY:
        return [_binary(g, node, operands)]
    if kind in _MOVING:
        return _moved(g, node, operands)
    rule, first = _RULES.get(kind), operands[0]
    extra = [output for output in node.outputs[1:] if output.uses()]
    if rule is None or extra or not isinstance(first, Uncertain):
        raise UceEdgeError(
            f"The operator {kind} ({node.name}) has no rule for means and variances. Sample instead: --inference mc, "
            "or sample from a layer before it: --sample-from",
            "moments.operator",
        )
    return [rule(g, node, first, operands[1:])]


def unit_for(value: ir.Value) -> float:
    """The best divisor of a variance for later nodes."""
    widths = {_width_for(use.node) for use in value.uses()}
    return widths.pop() ** -2 if len(widths) == 1 else 1.0


def _width_for(node: ir.Node) -> float:
    """The number of deviations that a node's rule takes."""
    if node.op_type == "Clip" and None not in (_bounds(node.inputs[1:]) or (None,)):
        return rectifier_moments.REACH
    return rectifier_moments.WIDTH if node.op_type in ("Relu", "LeakyRelu", "Clip", "Add", "Sub") else 1.0


def power(g: Builder, x: Uncertain, p: float) -> tuple[ir.Value, float]:
    """P * mean^2 + variance up to a factor for the weights."""
    value, factor = x.scaled
    mean, mean_factor = x.scaled_mean
    return (g.Add(value, g.Mul(g.square(mean), _scalar(g, p * mean_factor**2 / factor))) if p else value), factor


def deviations(g: Builder, x: Uncertain, number: float) -> ir.Value:
    """Some standard deviations, above 0, for `rectifier_moments`."""
    if x.width is not None:
        return x.width(number)
    value = _in_units(g, x, number**-2)
    return g.Sqrt(value if x.positive else g.Max(value, _scalar(g, TINY)))


def _in_units(g: Builder, x: Uncertain, unit: float = rectifier_moments.UNIT) -> ir.Value:
    """The variance divided by a number."""
    value, factor = x.scaled
    return value if factor == unit else g.Mul(value, _scalar(g, factor / unit))


def _unary(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    constants = certain(rest)

    def function(value: ir.Value) -> ir.Value:
        return g.copy(node, [x.function(value), *constants])[0]

    def resolve() -> Uncertain:
        match node.op_type:
            case "Relu" if x.one_map is not None:
                return _relu_of_one_map(g, x.mean, x.one_map)
            case "Relu":
                return scaled(g, *rectifier_moments.relu(g, x.mean, deviations(g, x, rectifier_moments.WIDTH)))
            case "LeakyRelu":
                slope = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 0.01
                return scaled(
                    g, *rectifier_moments.leaky_relu(g, x.mean, deviations(g, x, rectifier_moments.WIDTH), slope)
                )
            case "Clip" if (bounds := _bounds(constants)) is not None:
                return scaled(g, *_clipped(g, x, *bounds))
            case "Neg":
                return Uncertain(g.Neg(x.mean), x.variance)
        return Uncertain(*integrated(g, x.root, function))

    return Uncertain(None, None, root=x.root, function=function, resolve=resolve)


def _clipped(g: Builder, x: Uncertain, low: float | None, high: float | None) -> rectifier_moments.Bent:
    if low is not None and high is not None:
        return rectifier_moments.clip(g, x.mean, deviations(g, x, rectifier_moments.REACH), low, high)
    r = deviations(g, x, rectifier_moments.WIDTH)
    if low is not None:
        return rectifier_moments.clip_below(g, x.mean, r, low)
    assert high is not None
    return rectifier_moments.clip_above(g, x.mean, r, high)


def _relu_of_one_map(g: Builder, mean: ir.Value, one_map: ir.Value) -> Uncertain:
    """A ReLU behind channels of one variance, in their units.

    There p * mean^2 + variance is a sum over channels times one map.
    """
    r = g.Sqrt(one_map)
    in_units = rectifier_moments.relu_in_units(g, g.Div(mean, r))

    def squares(p: float) -> Squares:
        variance = (in_units.square, in_units.factor)
        return Squares((variance, (g.square(in_units.mean), p)) if p else (variance,), times=one_map)

    return scaled(g, g.Mul(in_units.mean, r), lambda: g.Mul(in_units.square, one_map), in_units.factor, squares=squares)


def integrated(g: Builder, x: Uncertain, function: Emit) -> tuple[ir.Value, ir.Value]:
    """Moments of a function of a Gaussian, by Gauss-Hermite quadrature."""
    v = x.variance if x.positive else g.Max(x.variance, g.constant(np.float32(TINY)))
    s = g.Sqrt(v)
    values = [function(g.Add(x.mean, g.Mul(s, _scalar(g, point)))) for point in _POINTS]
    mean = _weighted(g, values)
    deviations = [g.Sub(value, mean) for value in values]
    return mean, _weighted(g, [g.Mul(deviation, deviation) for deviation in deviations])


def _weighted(g: Builder, values: list[ir.Value]) -> ir.Value:
    total = g.Mul(values[0], _scalar(g, _WEIGHTS[0]))
    for value, weight in zip(values[1:], _WEIGHTS[1:], strict=True):
        total = g.Add(total, g.Mul(value, _scalar(g, weight)))
    return total


def _binary(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
    a, b = operands
    if isinstance(a, Uncertain) and isinstance(b, Uncertain):
        if a.root is b.root:
            root = a.root

            def both(value: ir.Value) -> ir.Value:
                return g.copy(node, [a.function(value), b.function(value)])[0]

            def resolved() -> Uncertain:
                return Uncertain(*integrated(g, root, both))

            return Uncertain(None, None, root=root, function=both, resolve=resolved)
        return _independent(g, node, a, b)
    left, right = (x.mean if isinstance(x, Uncertain) else x for x in (a, b))
    x = a if isinstance(a, Uncertain) else b
    assert isinstance(x, Uncertain)

    def one(value: ir.Value) -> ir.Value:
        mine = x.function(value)
        return g.copy(node, [mine if x is a else left, mine if x is b else right])[0]

    def resolve() -> Uncertain:
        other = right if x is a else left
        assert other is not None
        if node.op_type == "Div" and x is b:
            return Uncertain(*integrated(g, x.root, one))
        mean = g.copy(node, [left, right])[0]
        if node.op_type in ("Add", "Sub"):
            # A larger operand spreads the variance, too; a constant of one element cannot.
            one_element = other.const_value is not None and other.const_value.size == 1
            value, factor = x.scaled
            return scaled(g, mean, value if one_element else g.Add(value, g.Sub(other, other)), factor)
        # A product, or a quotient by `other`.
        return Uncertain(mean, g.copy(node, [x.variance, g.Mul(other, other)])[0])

    keeps = x.positive and node.op_type in ("Add", "Sub")
    return Uncertain(None, None, positive=keeps, root=x.root, function=one, resolve=resolve)


def _independent(g: Builder, node: ir.Node, a: Uncertain, b: Uncertain) -> Uncertain:
    if node.op_type == "Div":
        raise UceEdgeError(
            f"A quotient of two noisy values ({node.name}) has no rule: --inference mc samples it.", "moments.operator"
        )
    mean = g.copy(node, [a.mean, b.mean])[0]
    if node.op_type == "Mul":
        # v1 m2^2 + v2 (m1^2 + v1)
        first = g.Mul(a.variance, g.Mul(b.mean, b.mean))
        return Uncertain(mean, g.Add(first, g.Mul(b.variance, g.Add(g.Mul(a.mean, a.mean), a.variance))))
    positive = a.positive or b.positive
    if a.scaled[1] == b.scaled[1] == 1:
        return Uncertain(mean, g.Add(a.variance, b.variance), positive=positive)
    return scaled(g, mean, g.Add(_in_units(g, a), _in_units(g, b)), rectifier_moments.UNIT, positive=positive)


def _moved(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> list[Uncertain]:
    means = [x.mean if isinstance(x, Uncertain) else x for x in operands]
    # A certain part of a concatenation has no variance.
    parts = operands if node.op_type == "Concat" else operands[:1]
    variances = [_variance(g, x) for x in parts]
    variances += [] if node.op_type == "Concat" else means[1:]
    outputs = zip(g.copy(node, means), g.copy(node, variances), strict=True)
    positive = all(isinstance(x, Uncertain) and x.positive for x in parts)
    return [Uncertain(mean, variance, positive=positive) for mean, variance in outputs]


def _variance(g: Builder, x: Operand) -> ir.Value | None:
    if isinstance(x, Uncertain):
        return x.variance
    return None if x is None else g.Sub(x, x)


def _normalised(g: Builder, node: ir.Node, x: Uncertain, _: Sequence[Operand]) -> Uncertain:
    """Batch-norm at inference: a factor and an offset per channel."""
    scale, offset, mean, variance = (_array(node, i) for i in range(1, 5))
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    factor = scale / np.sqrt(variance + epsilon)
    shape = (-1, *[1] * (len(node.outputs[0].shape or ()) - 2))
    f, b = (g.constant(a.reshape(shape).astype(np.float32)) for a in (factor, offset - mean * factor))
    return Uncertain(g.Add(g.Mul(x.mean, f), b), g.Mul(x.variance, g.Mul(f, f)))


def _averaged(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    value, factor = x.scaled
    mean, spread = (g.copy(node, [part, *certain(rest)])[0] for part in (x.mean, value))
    if node.op_type == "ReduceSum":
        return scaled(g, mean, spread, factor)
    taken = per_image_shape(_given(node.inputs[0]), node.op_type)
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
    return scaled(g, mean, g.Div(spread, g.Mul(share, _scalar(g, size))), factor)


def _largest(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """Maximum of a window whose units move together."""
    s = g.Sqrt(x.variance)
    high, low = (g.copy(node, [value, *certain(rest)])[0] for value in (g.Add(x.mean, s), g.Sub(x.mean, s)))
    half = g.Mul(g.Sub(high, low), _scalar(g, 0.5))
    return Uncertain(g.Add(low, half), g.Mul(half, half))


def _padded(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    pads, *more = certain(rest)
    zero = g.constant(np.float32(0))  # what is put around is certain
    return Uncertain(g.copy(node, [x.mean, pads, *more])[0], g.copy(node, [x.variance, pads, zero, *more[1:]])[0])


def _bounds(constants: Sequence[ir.Value | None]) -> tuple[float | None, float | None] | None:
    """The constant bounds of a Clip, or None."""
    bounds: list[float | None] = [None, None]
    for index, value in enumerate(constants):
        if value is not None:
            if value.const_value is None:
                return None
            bound = float(value.const_value.numpy())
            bounds[index] = bound if abs(bound) < _HUGE else None
    return None if bounds == [None, None] else (bounds[0], bounds[1])


def certain(operands: Sequence[Operand]) -> list[ir.Value | None]:
    """The operands of a node; rejects noisy ones."""
    if any(isinstance(x, Uncertain) for x in operands):
        raise UceEdgeError(
            "A bias, a shape, an axis or a bound depends on noise; --inference mc samples it.", "moments.operator"
        )
    return list(operands)  # type: ignore[arg-type]


def _array(node: ir.Node, index: int) -> npt.NDArray[np.float64]:
    constant = _given(node.inputs[index]).const_value
    if constant is None:
        raise UceEdgeError(
            f"{node.op_type} ({node.name}) has no constant parameters; --inference mc samples it.", "moments.operator"
        )
    return constant.numpy().astype(np.float64)


def _given(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


def _scalar(g: Builder, value: float) -> ir.Value:
    return g.constant(np.float32(value))


_RULES: dict[str, Callable[[Builder, ir.Node, Uncertain, Sequence[Operand]], Uncertain]] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"), _averaged),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "ReduceMax"), _largest),
    "BatchNormalization": _normalised,
    "Pad": _padded,
}
