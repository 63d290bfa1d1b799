"""The head of a network as a linear function of its feature map.

Between the map and the logits, a node is replaced by the linear function that gives the same output for this image: a
weight layer by its weights, an activation f by the factor f(x) / x, a gate or a norm by its present value. The factors
of one class are carried backwards from its logit to the map; up to constants, their product with the map is the logit.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.errors import UsageError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import outputs_first, per_image_shape, product_scale, weight_of
from uce_edge_export.noise.sampling import Pass

_SAME = {"Identity", "Dropout", "Cast"}
_RESHAPED = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
# f(0) = 0 for all of them, so that f(x) / x is a factor.
_ACTIVATIONS = {
    "Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "HardSwish", "Elu", "Selu", "Celu", "Gelu", "Mish", "Swish",
    "Tanh", "Softsign", "Erf",
}  # fmt: skip


@dataclass(frozen=True)
class Slope:
    """The factors of a value of the head, for the logit of one class."""

    value: ir.Value | None
    """[rows, ...]; None for 1 at the class and 0 elsewhere."""
    sampled: bool = False
    """Whether rows are passes times images; otherwise images."""
    broadcast: bool = False
    """Whether some dimensions may have size 1 for equal factors."""


class LinearisedHead:
    """Carries the factors of a class from its logit to the map."""

    def __init__(self, g: Builder, passes: Pass, class_id: ir.Value, behind: Collection[ir.Value]) -> None:
        """Prepare.

        Args:
            g: Where the nodes go.
            passes: The classifier, written to the same builder.
            class_id: int32 [batch], the class of every image.
            behind: The values of the classifier that depend on the map, and the map itself.
        """
        self._g, self._passes, self._class_id, self._behind = g, passes, class_id, behind
        self._slopes: dict[ir.Value, Slope] = {}

    def factors(self, nodes: list[ir.Node], logits: ir.Value, feature_map: ir.Value) -> Slope:
        """The factors of the map.

        Args:
            nodes: From the map to the logits, in order.
            logits: The output of the last one.
            feature_map: The input of the first one.

        Raises:
            UsageError: A node has no such factors.
        """
        self._slopes = {logits: Slope(None)}
        for node in reversed(nodes):
            slope = self._slopes.pop(node.outputs[0], None)
            if slope is not None:
                self._carry(node, slope)
        return self._full(feature_map, self._slopes[feature_map])

    def _carry(self, node: ir.Node, slope: Slope) -> None:
        """Add the factors of a node's inputs."""
        y, x = node.outputs[0], _given(node.inputs[0])
        if node.op_type in _SAME:
            self._add(x, slope)
        elif node.op_type in _RESHAPED:
            self._add(x, slope if slope.value is None else self._reshaped(x, self._spread(y, slope)))
        elif node.op_type == "Transpose":
            self._transpose(node, x, self._full(y, slope))
        elif weight_of(node) is not None:
            self._weigh(node, slope)
        elif node.op_type in ("GlobalAveragePool", "ReduceMean", "AveragePool"):
            self._average(node, x, self._full(y, slope))
        elif node.op_type in ("Add", "Sub"):
            self._distribute(node, slope)
        elif node.op_type in ("Mul", "Div"):
            self._scale(node, self._full(y, slope))
        elif node.op_type == "BatchNormalization":
            self._add(x, self._times_constant(self._full(y, slope), self._g.constant(_batch_scale(node))))
        elif node.op_type == "LayerNormalization":
            self._normalise(node, x, self._spread(y, slope))
        elif node.op_type in _ACTIVATIONS or (node.op_type == "Clip" and _holds_zero(node)):
            self._activate(node, x, self._full(y, slope))
        else:
            raise nonlinear(node)

    def _add(self, value: ir.Value, slope: Slope) -> None:
        old = self._slopes.get(value)
        if old is None:
            self._slopes[value] = slope
            return
        first, second, sampled = self._aligned(self._full(value, old), self._full(value, slope))
        self._slopes[value] = Slope(self._g.Add(first, second), sampled, old.broadcast and slope.broadcast)

    def _aligned(self, a: Slope, b: Slope) -> tuple[ir.Value, ir.Value, bool]:
        """Two operands with the same rows."""
        assert a.value is not None
        assert b.value is not None
        if a.sampled == b.sampled:
            return a.value, b.value, a.sampled
        repeated = self._passes.repeated
        return (a.value, repeated(b.value), True) if a.sampled else (repeated(a.value), b.value, True)

    def _times(self, slope: Slope, other: ir.Value, *, sampled: bool = False) -> Slope:
        first, second, both = self._aligned(slope, Slope(other, sampled))
        return Slope(self._g.Mul(first, second), both, slope.broadcast)

    def _full(self, value: ir.Value, slope: Slope) -> Slope:
        """Factors as a value: the class becomes ones and zeros."""
        if slope.value is not None:
            return slope
        g, shape = self._g, per_image_shape(value, str(value.name))
        classes = g.constant(np.arange(math.prod(shape), dtype=np.int32))
        hot = g.Equal(g.Unsqueeze(self._class_id, g.constant(np.array([1]))), classes)
        return self._reshaped(value, Slope(g.Cast(hot, to=ir.DataType.FLOAT)))

    def _spread(self, value: ir.Value, slope: Slope) -> Slope:
        """Factors in the full shape of their value."""
        if slope.value is not None and not slope.broadcast:
            return slope
        ones = np.ones((1, *per_image_shape(value, str(value.name))), np.float32)
        whole = self._times_constant(self._full(value, slope), self._g.constant(ones))
        return Slope(whole.value, whole.sampled)

    def _times_constant(self, slope: Slope, constant: ir.Value) -> Slope:
        assert slope.value is not None
        return Slope(self._g.Mul(slope.value, constant), slope.sampled, slope.broadcast)

    def _reshaped(self, value: ir.Value, slope: Slope) -> Slope:
        assert slope.value is not None
        shape = self._g.constant(np.array([-1, *per_image_shape(value, str(value.name))]))
        return Slope(self._g.Reshape(slope.value, shape), slope.sampled)

    def _written(self, value: ir.Value) -> tuple[ir.Value, bool]:
        written = self._passes.written(value)
        return written.value, written.sampled

    def _transpose(self, node: ir.Node, x: ir.Value, slope: Slope) -> None:
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else ()
        if not order or order[0] != 0:
            raise nonlinear(node)
        assert slope.value is not None
        back = [int(axis) for axis in np.argsort(order)]
        self._add(x, Slope(self._g.Transpose(slope.value, perm=back), slope.sampled, slope.broadcast))

    def _weigh(self, node: ir.Node, slope: Slope) -> None:
        """Factors through a weight layer: those of its outputs times the weights."""
        g, operand = self._g, weight_of(node)
        assert operand is not None
        constant, position = operand
        x, y, first = _given(node.inputs[position]), node.outputs[0], outputs_first(node)
        before, after = (per_image_shape(value, node.op_type) for value in (x, y))
        if position == 1 or (node.op_type == "Conv" and not _is_product(node, before, after)):
            raise nonlinear(node)
        weight, scale = self._written(constant)[0], product_scale(node)
        if slope.value is None and math.prod(after) == max(after):  # the weights of the class alone
            rows = g.Gather(weight, self._class_id, axis=0 if first else 1)
            result = self._reshaped(x, Slope(rows if first else g.Transpose(rows, perm=[1, 0])))
        else:
            whole = self._spread(y, slope)
            assert whole.value is not None
            matrix = weight if first else g.Transpose(weight, perm=[1, 0])
            if node.op_type == "Conv":
                matrix = g.Reshape(weight, g.constant(np.array([after[0], -1])))
                whole = Slope(g.Reshape(whole.value, g.constant(np.array([-1, after[0]]))), whole.sampled)
            result = self._reshaped(x, Slope(g.MatMul(whole.value, matrix), whole.sampled))
        self._add(x, result if scale == 1 else self._times_constant(result, g.constant(np.float32(scale))))

    def _average(self, node: ir.Node, x: ir.Value, slope: Slope) -> None:
        """Factors through an average over places: all places have the same."""
        g, y = self._g, node.outputs[0]
        before, after = (per_image_shape(value, node.op_type) for value in (x, y))
        kept = [before[0], *[1] * (len(before) - 1)]
        if node.op_type == "ReduceMean":
            axes = reduced_axes(node, len(before) + 1)
            kept = [1 if axis in axes else size for axis, size in enumerate(before, start=1)]
        elif node.op_type == "AveragePool":
            kernel = tuple(node.attributes["kernel_shape"].as_ints())
            if kernel == (1,) * (len(before) - 1) and before == after:
                kept = list(before)
            elif kernel != before[1:] or set(after[1:]) != {1}:
                raise nonlinear(node)
        whole = self._spread(y, slope)
        assert whole.value is not None
        shaped = g.Reshape(whole.value, g.constant(np.array([-1, *kept])))
        share = g.constant(np.float32(math.prod(kept) / math.prod(before)))
        self._add(x, Slope(g.Mul(shaped, share), whole.sampled, broadcast=True))

    def _distribute(self, node: ir.Node, slope: Slope) -> None:
        """Factors through a sum or a difference; constants have none."""
        for index, value in enumerate(node.inputs[:2]):
            if value not in self._behind:
                continue
            part = slope
            if index == 1 and node.op_type == "Sub":
                part = self._times_constant(self._full(node.outputs[0], slope), self._g.constant(np.float32(-1)))
            self._add(_given(value), self._summed(_given(value), node.outputs[0], part))

    def _summed(self, x: ir.Value, y: ir.Value, slope: Slope) -> Slope:
        """Factors of an operand that was broadcast: the sum over its copies."""
        small, large = per_image_shape(x, str(x.name)), per_image_shape(y, str(y.name))
        if small == large:
            return slope
        if len(small) != len(large):
            raise nonlinear(_given(y).producer())
        axes = [axis + 1 for axis, (one, many) in enumerate(zip(small, large, strict=True)) if one != many]
        whole = self._spread(y, slope)
        assert whole.value is not None
        return Slope(self._g.ReduceSum(whole.value, self._g.constant(np.array(axes)), keepdims=1), whole.sampled)

    def _scale(self, node: ir.Node, slope: Slope) -> None:
        """Factors through a product or a quotient: the other operand."""
        a, b = (_given(value) for value in node.inputs[:2])
        if node.op_type == "Div" or b not in self._behind:
            x, other = a, b
        elif a not in self._behind:
            x, other = b, a
        else:  # a gate is computed from what it multiplies
            gates = [other in self._descendants(one) for one, other in ((a, b), (b, a))]
            if gates[0] == gates[1]:
                raise nonlinear(node)
            x, other = (a, b) if gates[0] else (b, a)
        if x not in self._behind:
            raise nonlinear(node)
        value, sampled = self._written(other)
        if node.op_type == "Div":
            value = self._g.Reciprocal(value)
        if other in self._behind:
            slope = self._times(slope, value, sampled=sampled)
        else:
            slope = self._times_constant(slope, value)
        self._add(x, self._summed(x, node.outputs[0], slope))

    def _descendants(self, value: ir.Value) -> set[ir.Value]:
        found, open_values = {value}, [value]
        while open_values:
            for use in open_values.pop().uses():
                fresh = [output for output in use.node.outputs if output not in found]
                found.update(fresh)
                open_values += fresh
        return found

    def _activate(self, node: ir.Node, x: ir.Value, slope: Slope) -> None:
        """Factors through f: f(x) / x, and 0 at 0."""
        g, written = self._g, self._passes.written(x)
        value, sampled = self._written(node.outputs[0])
        if written.variance is not None or sampled != written.sampled:  # f of the mean, not the mean of f
            others = [None if other is None else self._written(other)[0] for other in node.inputs[1:]]
            value, sampled = g.copy(node, [written.value, *others])[0], written.sampled
        zero = g.Equal(written.value, g.constant(np.float32(0)))
        ratio = g.Div(value, g.Where(zero, g.constant(np.float32(1)), written.value))
        self._add(x, self._times(slope, ratio, sampled=sampled))

    def _normalise(self, node: ir.Node, x: ir.Value, slope: Slope) -> None:
        """Factors through a layer norm with the deviation that it has."""
        g, axis = self._g, node.attributes["axis"].as_int() if "axis" in node.attributes else -1
        if axis not in (-1, len(per_image_shape(x, node.op_type))):
            raise nonlinear(node)
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        value, sampled = self._written(x)
        last = g.constant(np.array([-1]))
        centred = g.Sub(value, g.ReduceMean(value, last, keepdims=1))
        variance = g.Add(g.ReduceMean(g.square(centred), last, keepdims=1), g.constant(np.float32(epsilon)))
        weighed = self._times_constant(slope, self._written(_given(node.inputs[1]))[0])
        scaled = self._times(weighed, g.Reciprocal(g.Sqrt(variance)), sampled=sampled)
        assert scaled.value is not None
        self._add(x, Slope(g.Sub(scaled.value, g.ReduceMean(scaled.value, last, keepdims=1)), scaled.sampled))


def nonlinear(node: ir.Node | None) -> UsageError:
    """The error of a node without factors."""
    assert node is not None
    reason = f"the operator {node.op_type} ({node.name}) lies between them"
    if node.op_type in ("Gather", "Slice"):
        reason = f"{node.op_type} ({node.name}) takes one part of the map, such as a class token"
    return UsageError(
        "--heatmap needs a head that can be taken as linear, from the last feature map to the class scores, but "
        f"{reason}. Leave --heatmap out, or export a network that averages its last feature map.",
        "heatmap.head",
        operator=node.op_type,
    )


def reduced_axes(node: ir.Node, rank: int) -> list[int]:
    """The axes of a reduction, counted from the front."""
    axes: list[int] = []
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    elif len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].const_value is not None:
        axes = [int(axis) for axis in node.inputs[1].const_value.numpy().ravel()]
    axes = sorted(axis % rank for axis in axes)
    if not axes or axes[0] == 0:
        raise nonlinear(node)
    return axes


def _batch_scale(node: ir.Node) -> npt.NDArray[np.float32]:
    """The factor of every channel, [channels, 1, ...]."""
    constants = [_given(node.inputs[index]).const_value for index in (1, 4)]
    if constants[0] is None or constants[1] is None:
        raise nonlinear(node)
    gamma, variance = (constant.numpy().astype(np.float64) for constant in constants if constant is not None)
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    places = len(per_image_shape(node.outputs[0], node.op_type)) - 1
    return (gamma / np.sqrt(variance + epsilon)).astype(np.float32).reshape(-1, *(1,) * places)


def _is_product(node: ir.Node, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a convolution takes all places at once."""
    grouped = "group" in node.attributes and node.attributes["group"].as_int() != 1
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    return not grouped and tuple(weight.const_value.shape[2:]) == before[1:] and set(after[1:]) == {1}


def _holds_zero(node: ir.Node) -> bool:
    """Whether a Clip leaves 0 as it is."""
    bounds = [None if value is None else value.const_value for value in node.inputs[1:3]]
    low, high = (cast(float, bound.numpy().item()) if bound is not None else 0.0 for bound in [*bounds, None, None][:2])
    return low <= 0 <= high


def _given(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
