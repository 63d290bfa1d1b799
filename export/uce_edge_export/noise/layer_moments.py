"""Weight layers on means and variances."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import product_scale, weight_of
from uce_edge_export.noise import grid_layers
from uce_edge_export.noise.elementwise_moments import unit_for
from uce_edge_export.noise.grid_layers import GridLayer
from uce_edge_export.noise.rectifier_moments import UNIT
from uce_edge_export.noise.sigma_factors import Factors, Squares, emit_map, emit_variance, per_output
from uce_edge_export.noise.uncertain import TINY, Operand, Uncertain, certain, power, scaled


def squared(g: Builder, node: ir.Node, weight: ir.Value, x: ir.Value, factor: float) -> ir.Value:
    """layer(x, factor * W^2) without a bias.

    The file holds W alone; runtimes compute what depends on constants only when they load it.

    Args:
        g: Where the nodes go.
        node: The layer in the deterministic classifier.
        weight: Its W in the new graph.
        x: The input of the layer.
        factor: Any number.
    """
    attributes = dict(node.attributes)
    if node.op_type == "Gemm":  # scale * x W + beta * bias: the variance has scale^2 and no bias
        factor *= product_scale(node) ** 2
        attributes = {name: value for name, value in attributes.items() if name not in ("alpha", "beta")}
    operands = [g.Mul(g.Mul(weight, weight), g.constant(np.float32(factor)))]
    operands.insert(operand_index(node), x)
    return g.append(ir.Node("", node.op_type, operands, attributes.values()))[0]


def moments(
    g: Builder, node: ir.Node, operands: Sequence[Operand], p: float = 0.0, factors: Factors | None = None
) -> Uncertain:
    """Moments of a layer with Gaussian dropout of rate p.

    Args:
        g: Where the nodes go.
        node: The layer in the deterministic classifier.
        operands: Its inputs in the new graph.
        p: The rate.
        factors: Of the squared weights; None for the squared weights themselves.
    """
    position = operand_index(node)
    x = operands[position]
    assert x is not None
    layer = grid_layers.on_grid(g, node, x)
    if layer is not None:
        return _on_grid(g, node, layer, operands, p, factors)
    mean, mean_factor = x.scaled_mean if isinstance(x, Uncertain) else (x, 1.0)
    inputs = certain([mean if i == position else operand for i, operand in enumerate(operands)])
    weight = inputs[1 - position]
    assert weight is not None
    unit = unit_for(node.outputs[0])
    if mean_factor != 1:
        assert weight.const_value is not None
        weight = g.constant(weight.const_value.numpy() * np.float32(mean_factor), weight.name)
        inputs[1 - position] = weight
    result = g.copy(node, inputs)[0]
    if factors is not None and factors.groups == 1:
        parts = x.squares(g, p) if isinstance(x, Uncertain) else Squares(((g.square(x), p),))
        common = _common(factors, 1 / (unit * (1 - p)), unit)
        one_map = emit_map(g, node, parts, factors, common)
        return _of_one_map(g, result, one_map, factors, 1 / (unit * (1 - p)), unit)
    squares, factor = power(g, x, p) if isinstance(x, Uncertain) else (g.square(x), p)
    factor /= unit * (1 - p)
    if factors is None:
        variance = squared(g, node, weight, squares, factor / mean_factor**2)
    else:
        variance = emit_variance(g, node, squares, factors, factor)
    return scaled(g, result, _floored(g, variance), unit, positive=True)


def _on_grid(
    g: Builder, node: ir.Node, layer: GridLayer, operands: Sequence[Operand], p: float, factors: Factors | None
) -> Uncertain:
    """The same on the positions of a grid."""
    _, weight, *biases = operands
    bias = certain(biases)[0] if biases else None
    assert isinstance(weight, ir.Value)
    unit = unit_for(node.outputs[0])
    factor = 1 / (unit * (1 - p))
    mean = layer.mean(weight, bias)
    if factors is not None and factors.groups == 1:
        one_map = layer.map(factors, p, _common(factors, factor, unit))
        return layer.whole(_of_one_map(g, mean, one_map, factors, factor, unit), weight, bias)
    variance = layer.variance(weight, p, factor, factors)
    return layer.whole(scaled(g, mean, _floored(g, variance), unit, positive=True), weight, bias)


def _common(factors: Factors, factor: float, unit: float) -> float:
    """The factor of the map that makes it the variance of all channels, if they are even."""
    return float(factors.outputs[0]) * factor * unit / UNIT if factors.even else 1.0


def _of_one_map(
    g: Builder, mean: ir.Value, one_map: ir.Value, factors: Factors, factor: float, unit: float
) -> Uncertain:
    """A value with the variance unit * factor * u_o * s."""
    common = _common(factors, factor, unit)
    shared = _floored(g, one_map)
    outputs = np.maximum(factor / common * factors.outputs, TINY)

    def times_map(values: npt.NDArray[np.float64], one_map: ir.Value) -> ir.Value:
        return g.Mul(one_map, g.constant(per_output(factors, values.astype(np.float32))))

    def width(number: float) -> ir.Value:
        return times_map(number * np.sqrt(outputs * unit), g.Sqrt(shared))

    even = shared if factors.even else None
    return scaled(g, mean, lambda: times_map(outputs, shared), unit, positive=True, width=width, one_map=even)


def _floored(g: Builder, variance: ir.Value) -> ir.Value:
    """At least TINY; as a Clip, it fuses into a Conv."""
    return g.Clip(variance, g.constant(np.float32(TINY)), g.constant(np.float32(3e38)))


def operand_index(node: ir.Node) -> int:
    """The index of the input that is not the weight."""
    weight_and_operand = weight_of(node)
    assert weight_and_operand is not None
    return weight_and_operand[1]
