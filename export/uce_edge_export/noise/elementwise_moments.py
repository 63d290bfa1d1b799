"""Moments of operators that work element by element.

A value remembers which value it is a function of, its root. However many nodes a function takes, it is integrated once,
over its root. Values with different roots are taken for independent.
"""

from collections.abc import Sequence

import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise import rectifier_moments, sign_points
from uce_edge_export.noise.sigma_factors import Squares
from uce_edge_export.noise.uncertain import (
    Emit,
    Operand,
    Uncertain,
    deviations,
    given,
    in_units,
    refused,
    scaled,
)

_HUGE = 1e30  # a bound beyond this is none

_SMOOTH = {"Sigmoid", "Tanh", "Erf", "HardSigmoid", "HardSwish", "Gelu", "Softplus", "Softsign", "Mish", "Elu"}

_CONDITIONS = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"}
OPERATORS = _CONDITIONS | {
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "Erf", "Exp", "Neg", "Abs", "Sqrt", "Reciprocal", "Softplus",
    "Softsign", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Mish", "Gelu", "ThresholdedRelu", "Shrink", "Pow",
    "Log", "PRelu", "Sin", "Cos", "Sign", "Floor", "Ceil", "Round", "Add", "Sub", "Mul", "Div", "Max", "Min", "Where",
    "Cast",
}  # fmt: skip


def unit_for(value: ir.Value) -> float:
    """The best divisor of a variance for later nodes."""
    users = {use.node for use in value.uses()}
    # In x * sigmoid(x), the product is part of the function.
    widths = {_width_for(node) for node in users if len(users) == 1 or node.op_type not in ("Mul", "Div")}
    return widths.pop() ** -2 if len(widths) == 1 else 1.0


def _width_for(node: ir.Node) -> float:
    """The number of deviations that a node's rule takes."""
    if node.op_type == "Clip" and None not in (_bounds(node.inputs[1:]) or (None,)):
        return rectifier_moments.REACH
    if node.op_type in _SMOOTH:
        return rectifier_moments.REACH
    return rectifier_moments.WIDTH if node.op_type in ("Relu", "LeakyRelu", "Clip", "Add", "Sub") else 1.0


def apply(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
    """The moments of a node that works element by element."""
    noisy = [x for x in operands if isinstance(x, Uncertain)]
    root = noisy[0].root
    if any(x.root is not root for x in noisy):
        return _independent(g, node, operands)

    def function(value: ir.Value) -> ir.Value:
        return g.copy(node, [x.function(value) if isinstance(x, Uncertain) else x for x in operands])[0]

    def resolve() -> Uncertain:
        if node.op_type in _CONDITIONS:
            raise refused(node, "a condition that depends on noise has no mean")
        return (_known(g, node, operands) if len(noisy) == 1 else None) or integrated(g, root, function)

    keeps = len(noisy) == 1 and noisy[0].positive and node.op_type in ("Add", "Sub")
    return Uncertain(None, None, positive=keeps, root=root, function=function, resolve=resolve)


def _known(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain | None:
    """A rule without an integral for one noisy operand, if any."""
    if node.op_type in ("Add", "Sub", "Mul", "Div"):
        return _with_constant(g, node, operands)
    if node.op_type == "Where" and not isinstance(operands[0], Uncertain):
        return _chosen(g, node, operands)
    x, *constants = operands
    return _rectified(g, node, x, constants) if isinstance(x, Uncertain) else None


def _rectified(g: Builder, node: ir.Node, x: Uncertain, constants: Sequence[Operand]) -> Uncertain | None:
    """A rule for an activation with a kink, if it is one."""
    match node.op_type:
        case "Relu" if x.one_map is not None:
            return _relu_of_one_map(g, x.mean, x.one_map)
        case "Relu":
            return scaled(g, *rectifier_moments.relu(g, x.mean, deviations(g, x, rectifier_moments.WIDTH)))
        case "LeakyRelu":
            slope = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 0.01
            return scaled(g, *rectifier_moments.leaky_relu(g, x.mean, deviations(g, x, rectifier_moments.WIDTH), slope))
        case "Clip" if (bounds := _bounds(constants)) is not None:
            return scaled(g, *_clipped(g, x, *bounds))
        case "Neg":
            return Uncertain(g.Neg(x.mean), x.variance)
    return None


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


def integrated(g: Builder, x: Uncertain, function: Emit) -> Uncertain:
    """Moments of a function of a Gaussian, from three points."""
    t = deviations(g, x, rectifier_moments.REACH)
    return scaled(g, *rectifier_moments.three_points(g, x.mean, t, function))


def _with_constant(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain | None:
    """A sum, product or quotient with a certain value."""
    a, b = operands
    x, other = (a, b) if isinstance(a, Uncertain) else (b, a)
    assert isinstance(x, Uncertain)
    assert isinstance(other, ir.Value)
    if node.op_type == "Div" and x is b:
        return None
    mean = g.copy(node, [value.mean if isinstance(value, Uncertain) else value for value in operands])[0]
    if node.op_type in ("Add", "Sub"):
        # A larger operand spreads the variance, too; a constant of one element cannot.
        one_element = other.const_value is not None and other.const_value.size == 1
        value, factor = x.scaled
        return scaled(g, mean, value if one_element else g.Add(value, g.Sub(other, other)), factor)
    return Uncertain(mean, g.copy(node, [x.variance, g.Mul(other, other)])[0])


def _chosen(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
    """What a certain condition chooses."""
    condition, *values = operands
    means = [x.mean if isinstance(x, Uncertain) else given(x) for x in values]
    variances = [x.variance if isinstance(x, Uncertain) else g.Sub(given(x), given(x)) for x in values]
    assert isinstance(condition, ir.Value)
    return Uncertain(g.Where(condition, *means), g.Where(condition, *variances))


def _independent(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
    """A function of values with different roots."""
    if node.op_type in _CONDITIONS:
        raise refused(node, "a condition that depends on noise has no mean")
    if node.op_type == "Where":
        if isinstance(operands[0], Uncertain):
            raise refused(node, "its condition depends on noise")
        return _chosen(g, node, operands)
    if node.op_type not in ("Add", "Sub", "Mul", "Div"):
        return sign_points.at_points(g, node, operands)[0]
    a, b = operands
    assert isinstance(a, Uncertain)
    assert isinstance(b, Uncertain)
    if node.op_type == "Div":
        denominator = b
        b = integrated(g, b.root, lambda value: g.Reciprocal(denominator.function(value)))
    if node.op_type in ("Mul", "Div"):
        # v1 m2^2 + v2 (m1^2 + v1)
        first = g.Mul(a.variance, g.square(b.mean))
        variance = g.Add(first, g.Mul(b.variance, g.Add(g.square(a.mean), a.variance)))
        return Uncertain(g.Mul(a.mean, b.mean), variance)
    mean = g.copy(node, [a.mean, b.mean])[0]
    positive = a.positive or b.positive
    if a.scaled[1] == b.scaled[1] == 1:
        return Uncertain(mean, g.Add(a.variance, b.variance), positive=positive)
    return scaled(g, mean, g.Add(in_units(g, a), in_units(g, b)), rectifier_moments.UNIT, positive=positive)


def _bounds(constants: Sequence[Operand]) -> tuple[float | None, float | None] | None:
    """The constant bounds of a Clip, or None."""
    bounds: list[float | None] = [None, None]
    for index, value in enumerate(constants):
        if value is not None:
            if isinstance(value, Uncertain) or value.const_value is None:
                return None
            bound = float(value.const_value.numpy())
            bounds[index] = bound if abs(bound) < _HUGE else None
    return None if bounds == [None, None] else (bounds[0], bounds[1])
