"""Mean and variance of activations instead of samples of them: what noise does to a network in a single pass.

Every unit is taken for an independent Gaussian. Then a weight layer with rate p has

    mean = layer(m, W) + bias;   variance = layer(p * m^2 + v, W^2 / (1 - p))

which is exact for the noise of that layer, and loses the correlation of units that share earlier noise. Activations are
exact for a Gaussian (ReLU, leaky ReLU, clipping) or integrated at five points (everything else that works element by
element, such as SiLU and GELU, however many nodes they are made of). The maximum of a pooling window is taken as if its
units moved together; sums, means and concatenations as if they were independent.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge_export.builder import Builder
from uce_edge_export.weights import per_image_shape

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
    """A value of which the graph knows mean and variance, and how it depends on the value it was computed from."""

    def __init__(
        self,
        mean: ir.Value | None,
        variance: ir.Value | None,
        *,
        positive: bool = False,
        halved: bool = False,
        power: "Callable[[float], ir.Value] | None" = None,
        root: "Uncertain | None" = None,
        function: Emit | None = None,
        resolve: "Callable[[], tuple[ir.Value, ir.Value]] | None" = None,
    ) -> None:
        """Describe a value.

        Args:
            mean: Its mean; None with `resolve`.
            variance: Its variance; None with `resolve`.
            positive: Whether the variance is known to be at least `TINY`.
            halved: Whether half of both is given, as `rectified` takes them.
            power: Writes p * mean^2 + variance with fewer nodes than its definition.
            root: The value that this is a function of, element by element; None for itself.
            function: That function, as nodes.
            resolve: Writes mean and variance when somebody asks for them.
        """
        self.positive = positive
        self.halved = halved
        self.power = power
        self.root = root or self
        self.function = function or (lambda x: x)
        self._moments = None if mean is None or variance is None else (mean, variance)
        self._resolve = resolve

    @property
    def mean(self) -> ir.Value:
        """The mean, written when it is first asked for."""
        assert not self.halved
        return self.given()[0]

    @property
    def variance(self) -> ir.Value:
        """The variance, written when it is first asked for."""
        assert not self.halved
        return self.given()[1]

    def given(self) -> tuple[ir.Value, ir.Value]:
        """Mean and variance, or half of both."""
        if self._moments is None:
            assert self._resolve is not None
            self._moments = self._resolve()
        return self._moments


Operand = Uncertain | ir.Value | None


def propagate(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> list[Uncertain]:
    """The outputs of a node of which at least one operand is uncertain.

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
            "or sample from a layer before it: --sample-from"
        )
    return [rule(g, node, first, operands[1:])]


class Rectified(NamedTuple):
    """What is known of max(x, 0)."""

    mean: ir.Value
    variance: ir.Value
    power: Callable[[float], ir.Value]


def rectified(g: Builder, x: Uncertain) -> Rectified:
    """Mean and variance of max(x, 0) for a Gaussian x: the rule that costs most, arranged for few nodes.

    With half the mean h, half the variance u, z = h / sqrt(u) and e = erf(z), the mean is h + w for
    w = h e + sqrt(u / pi) exp(-z^2), and the variance u (1 + e) + (h + w) (h - w), whose parts cancel little beside u.
    """
    h, u = x.given() if x.halved else (g.Mul(part, _scalar(g, 0.5)) for part in x.given())
    if not x.positive:
        u = g.Max(u, _scalar(g, TINY / 2))
    s = g.Sqrt(u)
    z = g.Div(h, s)
    e = g.Erf(z)
    density = g.Exp(g.Sub(_scalar(g, -0.5 * math.log(math.pi)), g.Mul(z, z)))
    w = g.Add(g.Mul(h, e), g.Mul(s, density))
    mean, difference, spread = g.Add(h, w), g.Sub(h, w), g.Add(u, g.Mul(u, e))

    def power(p: float) -> ir.Value:
        return g.Add(spread, g.Mul(mean, g.Add(difference, g.Mul(mean, _scalar(g, p)))))

    return Rectified(mean, g.Relu(g.Add(spread, g.Mul(mean, difference))), power)


def _unary(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    constants = certain(rest)
    if x.halved:  # which only a layer in front of nothing but a Relu is
        mean, variance, power = rectified(g, x)
        return Uncertain(mean, variance, power=power)

    def function(value: ir.Value) -> ir.Value:
        return g.copy(node, [x.function(value), *constants])[0]

    def resolve() -> tuple[ir.Value, ir.Value]:
        match node.op_type:
            case "Relu":
                return rectified(g, x)[:2]
            case "LeakyRelu":
                return _leaky(g, x, node.attributes["alpha"].as_float() if "alpha" in node.attributes else 0.01)
            case "Clip" if (bounds := _bounds(constants)) is not None:
                return _clipped(g, x, *bounds)
            case "Neg":
                return g.Neg(x.mean), x.variance
        return integrated(g, x.root, function)

    return Uncertain(None, None, root=x.root, function=function, resolve=resolve)


def _leaky(g: Builder, x: Uncertain, slope: float) -> tuple[ir.Value, ir.Value]:
    """For slope * x + (1 - slope) * max(x, 0), whose two parts have the covariance v+ + m+ (m+ - m)."""
    mean, variance, _ = rectified(g, x)
    rest = 1 - slope
    total = g.Add(g.Mul(x.mean, _scalar(g, slope)), g.Mul(mean, _scalar(g, rest)))
    covariance = g.Add(variance, g.Mul(mean, g.Sub(mean, x.mean)))
    spread = g.Add(g.Mul(x.variance, _scalar(g, slope**2)), g.Mul(variance, _scalar(g, rest**2)))
    return total, g.Relu(g.Add(spread, g.Mul(covariance, _scalar(g, 2 * slope * rest))))


def _clipped(g: Builder, x: Uncertain, low: float, high: float) -> tuple[ir.Value, ir.Value]:
    """min(max(x, low), high) = low + (x - low)+ - (x - high)+, of which a side without a bound is left out."""
    if high == math.inf:
        mean, variance, _ = rectified(g, _shifted(g, x, low))
        return g.Add(mean, _scalar(g, low)), variance
    if low == -math.inf:
        mean, variance, _ = rectified(g, Uncertain(g.Sub(_scalar(g, high), x.mean), x.variance, positive=x.positive))
        return g.Sub(_scalar(g, high), mean), variance
    below, above = (_shifted(g, x, bound) for bound in (low, high))
    (m1, v1, _), (m2, v2, _) = rectified(g, below), rectified(g, above)
    mean = g.Sub(m1, m2)
    # Of the two parts, the covariance is v2 + m2 (m2 + high - low - m1).
    shared = g.Mul(g.Mul(m2, _scalar(g, 2)), g.Sub(_scalar(g, high - low), mean))
    return g.Add(mean, _scalar(g, low)), g.Relu(g.Sub(g.Sub(v1, v2), shared))


def _shifted(g: Builder, x: Uncertain, by: float) -> Uncertain:
    return Uncertain(g.Sub(x.mean, _scalar(g, by)), x.variance, positive=x.positive)


def integrated(g: Builder, x: Uncertain, function: Emit) -> tuple[ir.Value, ir.Value]:
    """Mean and variance of a function of a Gaussian by Gauss-Hermite quadrature."""
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

            return Uncertain(None, None, root=root, function=both, resolve=lambda: integrated(g, root, both))
        return _independent(g, node, a, b)
    left, right = (x.mean if isinstance(x, Uncertain) else x for x in (a, b))
    x = a if isinstance(a, Uncertain) else b
    assert isinstance(x, Uncertain)

    def one(value: ir.Value) -> ir.Value:
        mine = x.function(value)
        return g.copy(node, [mine if x is a else left, mine if x is b else right])[0]

    def resolve() -> tuple[ir.Value, ir.Value]:
        mean = g.copy(node, [left, right])[0]
        if node.op_type in ("Add", "Sub"):
            other = right if x is a else left
            assert other is not None
            # A larger operand spreads the variance, too; a constant of one element cannot.
            one_element = other.const_value is not None and other.const_value.size == 1
            return mean, x.variance if one_element else g.Add(x.variance, g.Sub(other, other))
        if node.op_type == "Div" and x is b:
            return integrated(g, x.root, one)
        other = right if x is a else left
        assert other is not None
        return mean, g.copy(node, [x.variance, g.Mul(other, other)])[0]  # a product, or a quotient by `other`

    keeps = x.positive and node.op_type in ("Add", "Sub")
    return Uncertain(None, None, positive=keeps, root=x.root, function=one, resolve=resolve)


def _independent(g: Builder, node: ir.Node, a: Uncertain, b: Uncertain) -> Uncertain:
    mean = g.copy(node, [a.mean, b.mean])[0] if node.op_type != "Div" else None
    if node.op_type in ("Add", "Sub"):
        return Uncertain(mean, g.Add(a.variance, b.variance), positive=a.positive or b.positive)
    if node.op_type == "Mul":
        # v1 m2^2 + v2 (m1^2 + v1)
        first = g.Mul(a.variance, g.Mul(b.mean, b.mean))
        return Uncertain(mean, g.Add(first, g.Mul(b.variance, g.Add(g.Mul(a.mean, a.mean), a.variance))))
    raise UceEdgeError(f"A quotient of two noisy values ({node.name}) has no rule: --inference mc samples it.")


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
    """Batch-norm at inference is a factor and an offset per channel."""
    scale, offset, mean, variance = (_array(node, i) for i in range(1, 5))
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    factor = scale / np.sqrt(variance + epsilon)
    shape = (-1, *[1] * (len(node.outputs[0].shape or ()) - 2))
    f, b = (g.constant(a.reshape(shape).astype(np.float32)) for a in (factor, offset - mean * factor))
    return Uncertain(g.Add(g.Mul(x.mean, f), b), g.Mul(x.variance, g.Mul(f, f)))


def _averaged(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    mean, spread = (g.copy(node, [value, *certain(rest)])[0] for value in (x.mean, x.variance))
    if node.op_type == "ReduceSum":
        return Uncertain(mean, spread)
    taken = per_image_shape(_given(node.inputs[0]), node.op_type)
    if node.op_type != "AveragePool":
        left = per_image_shape(node.outputs[0], node.op_type)
        return Uncertain(mean, g.Mul(spread, _scalar(g, math.prod(left) / math.prod(taken))))
    size = math.prod(node.attributes["kernel_shape"].as_ints())
    if "count_include_pad" in node.attributes and node.attributes["count_include_pad"].as_int():
        return Uncertain(mean, g.Mul(spread, _scalar(g, 1 / size)))
    # Windows at the border may have fewer cells: their share is what a window of ones gives that counts the padding.
    ones = g.constant(np.ones((1, 1, *taken[1:]), np.float32))
    counting = dict(node.attributes) | {"count_include_pad": ir.AttrInt64("count_include_pad", 1)}
    share = g.append(ir.Node("", "AveragePool", [ones], counting.values()))[0]
    return Uncertain(mean, g.Div(spread, g.Mul(share, _scalar(g, size))))


def _largest(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    """As if the units of a window moved together: the maximum one standard deviation up, and one down."""
    s = g.Sqrt(x.variance)
    high, low = (g.copy(node, [value, *certain(rest)])[0] for value in (g.Add(x.mean, s), g.Sub(x.mean, s)))
    half = g.Mul(g.Sub(high, low), _scalar(g, 0.5))
    return Uncertain(g.Add(low, half), g.Mul(half, half))


def _padded(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    pads, *more = certain(rest)
    zero = g.constant(np.float32(0))  # what is put around is certain
    return Uncertain(g.copy(node, [x.mean, pads, *more])[0], g.copy(node, [x.variance, pads, zero, *more[1:]])[0])


def _bounds(constants: Sequence[ir.Value | None]) -> tuple[float, float] | None:
    """The bounds of a Clip, infinite where there is none; None when they are not constant, or both missing."""
    bounds = [-math.inf, math.inf]
    for index, value in enumerate(constants):
        if value is not None:
            if value.const_value is None:
                return None
            bound = float(value.const_value.numpy())
            bounds[index] = bound if abs(bound) < _HUGE else bounds[index]
    return None if bounds == [-math.inf, math.inf] else (bounds[0], bounds[1])


def certain(operands: Sequence[Operand]) -> list[ir.Value | None]:
    """The operands of a node, none of which may depend on noise."""
    if any(isinstance(x, Uncertain) for x in operands):
        raise UceEdgeError("A bias, a shape, an axis or a bound depends on noise; --inference mc samples it.")
    return list(operands)  # type: ignore[arg-type]


def _array(node: ir.Node, index: int) -> npt.NDArray[np.float64]:
    constant = _given(node.inputs[index]).const_value
    if constant is None:
        raise UceEdgeError(f"{node.op_type} ({node.name}) has no constant parameters; --inference mc samples it.")
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
