"""Sums over inner axes that no other image changes.

ONNX Runtime sums inner axes in another order when the leading dimension is 1, and an answer must not depend on the
number of images or passes.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import per_image_shape

KINDS = {"ReduceMean", "ReduceSum"}


def copy(g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value]:
    """Copy a node; a sum over inner axes becomes a matrix product."""
    axes = _inner_axes(node)
    if axes is None:
        return g.copy(node, inputs)
    x = node.inputs[0]
    assert x is not None
    dims = (0, *per_image_shape(x, node.op_type))
    length, inner = math.prod(dims[axes[0] : axes[-1] + 1]), math.prod(dims[axes[-1] + 1 :])
    weight = 1 / length if node.op_type == "ReduceMean" else 1.0
    flat = g.Reshape(inputs[0], g.constant(np.array([-1, length, inner])))
    row = g.constant(np.full((1, length), weight, np.float32))
    shape = per_image_shape(node.outputs[0], f"{node.op_type} {node.name}")
    return [g.Reshape(g.MatMul(row, flat), g.constant(np.array([-1, *shape])))]


def _inner_axes(node: ir.Node) -> list[int] | None:
    """Neighbouring constant axes that are neither first nor last."""
    if node.op_type not in KINDS or len(node.inputs) < 2:
        return None
    x, given = node.inputs[:2]
    if x is None or x.shape is None or given is None or given.const_value is None:
        return None
    rank = len(x.shape)
    axes = sorted({int(axis) % rank for axis in given.const_value.numpy().ravel()})
    if not axes or axes[0] == 0 or axes[-1] == rank - 1 or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    return axes
