"""Weight layers between means and variances: what Conv, Gemm and MatMul do to squares, and to values that vary."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.builder import Builder
from uce_edge_export.factors import Factors, emit_variance
from uce_edge_export.moments import TINY, Operand, Uncertain, certain
from uce_edge_export.weights import product_scale, weight_of


def squared(g: Builder, node: ir.Node, weight: ir.Value, x: ir.Value, factor: float) -> ir.Value:
    """layer(x, factor * W^2) without a bias.

    The file holds W alone; runtimes compute what depends on constants only when they load it.

    Args:
        g: Where the nodes go.
        node: The layer in the deterministic classifier.
        weight: Its W in the new graph.
        x: What it is applied to.
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
    """Mean and variance of a layer with Gaussian dropout of the rate p; with p = 0, of one without noise.

    Args:
        g: Where the nodes go.
        node: The layer in the deterministic classifier.
        operands: Its inputs in the new graph.
        p: The rate.
        factors: What stands for the squared weights; None for themselves.
    """
    position = operand_index(node)
    x, old_x = operands[position], node.inputs[position]
    assert x is not None
    assert old_x is not None
    known = x if isinstance(x, Uncertain) else None
    mean = x.mean if isinstance(x, Uncertain) else x
    if known is None or p == 0:
        power = known.variance if known else g.Mul(g.Mul(mean, mean), g.constant(np.float32(p)))
    elif known.power is not None and all(weight_of(use.node) for use in old_x.uses()):
        power = known.power(p)
    else:
        power = g.Add(g.Mul(g.Mul(mean, mean), g.constant(np.float32(p))), known.variance)
    # What only a Relu uses is halved in the weights, as the rule of the Relu takes it.
    constant = all(value is None or value is old_x or value.const_value is not None for value in node.inputs)
    halved = constant and [use.node.op_type for use in node.outputs[0].uses()] == ["Relu"]
    inputs = certain([mean if i == position else operand for i, operand in enumerate(operands)])
    weight = inputs[1 - position]
    assert weight is not None
    if halved:
        half = g.constant(np.float32(0.5))
        inputs = [v if v is None or i == position else g.Mul(v, half) for i, v in enumerate(inputs)]
    result = g.copy(node, inputs)[0]
    factor = (0.5 if halved else 1.0) / (1 - p)
    if factors is None:
        variance = squared(g, node, weight, power, factor)
    else:
        variance = emit_variance(g, node, power, factors, factor)
    # As a Clip, the floor fuses into the Conv.
    floored = g.Clip(variance, g.constant(np.float32(TINY)), g.constant(np.float32(3e38)))
    return Uncertain(result, floored, positive=True, halved=halved)


def operand_index(node: ir.Node) -> int:
    """Which input of a weight layer it is applied to; of the first two, the other is the weight."""
    weight_and_operand = weight_of(node)
    assert weight_and_operand is not None
    return weight_and_operand[1]
