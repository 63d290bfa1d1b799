"""Moments of any operator, from a few points.

An operator without a rule is computed at pairs of points, m + s r and m - s r, where s is the deviation of every unit
and r has signs. Half the difference of a pair is the step of the operator along r, and the mean of its square over
random signs is the variance of the linearised operator, for independent units. A few pairs give it without bias, and
with an error of its own that averages out in the layers behind it. The mean of the points is the mean.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.uncertain import Operand, Uncertain, given, refused, scalar

PAIRS = 6


def at_points(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> list[Uncertain]:
    """The moments of a node's outputs.

    Raises:
        UceEdgeError: An output is no float, such as an index or a condition.
    """
    outputs = [value for value in node.outputs if value.uses() or value.is_graph_output()] or node.outputs[:1]
    if any(value.dtype not in (None, ir.DataType.FLOAT) for value in outputs):
        raise refused(node, "its output has no mean")
    roots = {i: g.Sqrt(g.Relu(x.variance)) for i, x in enumerate(operands) if isinstance(x, Uncertain)}
    sums: list[list[ir.Value]] = [[] for _ in node.outputs]
    squares: list[list[ir.Value]] = [[] for _ in node.outputs]
    for pair in range(PAIRS):
        points: list[list[ir.Value | None]] = [[], []]
        for i, x in enumerate(operands):
            if isinstance(x, Uncertain):
                step = _signed(g, roots[i], per_image_shape(given(node.inputs[i]), node.op_type), (pair, i))
                points[0].append(g.Add(x.mean, step))
                points[1].append(g.Sub(x.mean, step))
            else:
                points[0].append(x)
                points[1].append(x)
        for k, (high, low) in enumerate(zip(*(g.copy(node, inputs) for inputs in points), strict=True)):
            if node.outputs[k] in outputs:
                sums[k].append(g.Add(high, low))
                squares[k].append(g.square(g.Sub(high, low)))
    weights = (scalar(g, 1 / (2 * PAIRS)), scalar(g, 1 / (4 * PAIRS)))
    return [
        Uncertain(*(g.Mul(g.Sum(*parts), weight) for parts, weight in zip(both, weights, strict=True)))
        if both[0]
        else Uncertain(None, None)
        for both in zip(sums, squares, strict=True)
    ]


def _signed(g: Builder, s: ir.Value, dims: tuple[int, ...], seed: tuple[int, int]) -> ir.Value:
    """The deviations with random signs, a product of one sign per axis."""
    rng = np.random.default_rng(seed)
    for axis, size in enumerate(dims):
        signs = rng.choice(np.array([-1, 1], np.float32), size)
        s = g.Mul(s, g.constant(signs.reshape(size, *[1] * (len(dims) - 1 - axis))))
    return s
