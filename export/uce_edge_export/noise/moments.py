"""Mean and variance of activations in a single pass.

Every unit is taken for an independent Gaussian. Then a weight layer with rate p has

    mean = layer(m, W) + bias;   variance = layer(p * m^2 + v, W^2 / (1 - p))

which is exact for the noise of that layer, and loses the correlation of units that share earlier noise. Activations
with a kink (ReLU, leaky ReLU, clipping) have rules of their own, see `rectifier_moments`. Everything else that works
element by element, such as SiLU and GELU, however many nodes they are made of, is computed at three points
(`elementwise_moments`). Norms and softmax are linearised where their own statistics are expected (`norm_moments`,
`attention_moments`). The maximum of a pooling window is taken as if its units moved together; sums, means, products and
concatenations as if they were independent. Whatever else gives floats is computed at a few points (`sign_points`).

No operator is refused because its rule is rough: `check.parity_gate` compares the whole file with exact passes.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise import (
    attention_moments,
    elementwise_moments,
    grid_moments,
    norm_moments,
    pool_moments,
    sign_points,
)
from uce_edge_export.noise.grid_moments import Gridded
from uce_edge_export.noise.uncertain import Operand, Uncertain, certain

# These only move elements or choose among them: mean and variance go the same way.
_MOVING = {
    "Identity", "Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather",
    "GatherElements", "GatherND", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Dropout",
}  # fmt: skip


def propagate(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> list[Uncertain]:
    """The outputs of a node with an uncertain operand.

    Args:
        g: Where the nodes go.
        node: A node of the deterministic classifier that is not a weight layer.
        operands: Its inputs in the new graph.

    Raises:
        UceEdgeError: An output has no mean and variance.
    """
    kind = node.op_type
    known = _on_grid(g, node, operands) if any(isinstance(x, Gridded) for x in operands) else None
    if known is not None:
        return [known]
    if kind in elementwise_moments.OPERATORS:
        return [elementwise_moments.apply(g, node, operands)]
    if kind in _MOVING or (kind == "Resize" and _mode(node, "nearest") == "nearest"):
        return _moved(g, node, operands)
    if kind == "MatMul" or (kind == "Einsum" and attention_moments.adds_pairs(node.attributes["equation"].as_string())):
        return [attention_moments.product(g, node, *operands)] if len(operands) == 2 else _moved(g, node, operands)
    rule, first = _RULES.get(kind), operands[0]
    alone = not any(isinstance(x, Uncertain) for x in operands[1:])
    extra = [output for output in node.outputs[1:] if output.uses()]
    if rule is None or extra or not alone or not isinstance(first, Uncertain):
        return sign_points.at_points(g, node, operands)
    return [rule(g, node, first, operands[1:])]


def _on_grid(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain | None:
    """A large map, on the positions of its grid; None for all of it."""
    if node.op_type in elementwise_moments.OPERATORS:
        return grid_moments.element_by_element(g, node, operands, elementwise_moments.apply)
    x, *rest = operands
    if isinstance(x, Gridded) and grid_moments.pools_all(node) and x.covered == x.shape:
        return grid_moments.pooled(g, node, x, rest)
    if isinstance(x, Gridded) and node.op_type == "Pad" and grid_moments.pads_a_little(node, x):
        return grid_moments.padded(g, node, x, rest, _padded)
    return None


def _moved(g: Builder, node: ir.Node, operands: Sequence[Operand]) -> list[Uncertain]:
    joins = node.op_type == "Concat"
    parts = operands if joins else operands[:1]
    rest = [] if joins else certain(operands[1:])
    means = [x.mean if isinstance(x, Uncertain) else x for x in parts]
    # A certain part of a concatenation has no variance.
    variances = [_variance(g, x) for x in parts]
    outputs = zip(g.copy(node, [*means, *rest]), g.copy(node, [*variances, *rest]), strict=True)
    positive = all(isinstance(x, Uncertain) and x.positive for x in parts)
    return [Uncertain(mean, variance, positive=positive) for mean, variance in outputs]


def _variance(g: Builder, x: Operand) -> ir.Value | None:
    if isinstance(x, Uncertain):
        return x.variance
    return None if x is None else g.Sub(x, x)


def _padded(g: Builder, node: ir.Node, x: Uncertain, rest: Sequence[Operand]) -> Uncertain:
    pads, *more = certain(rest)
    zero = g.constant(np.float32(0))  # what is put around is certain
    return Uncertain(g.copy(node, [x.mean, pads, *more])[0], g.copy(node, [x.variance, pads, zero, *more[1:]])[0])


def _mode(node: ir.Node, default: str) -> str:
    return node.attributes["mode"].as_string() if "mode" in node.attributes else default


_RULES: dict[str, Callable[[Builder, ir.Node, Uncertain, Sequence[Operand]], Uncertain]] = {
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"), pool_moments.averaged),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "ReduceMax"), pool_moments.largest),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare"), pool_moments.sum_of_squares),
    "BatchNormalization": norm_moments.batch_norm,
    "InstanceNormalization": norm_moments.instance_norm,
    "LayerNormalization": norm_moments.layer_norm,
    "Softmax": attention_moments.softmax,
    "Pad": _padded,
}
