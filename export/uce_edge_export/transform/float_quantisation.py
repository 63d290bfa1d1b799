"""Quantised activations in float arithmetic.

ONNX Runtime takes a layer between QuantizeLinear and DequantizeLinear for one that it may quantise itself: it rounds
float weights again, and the answers change. The same steps in float arithmetic give the same numbers everywhere.
"""

import numpy as np
import onnx_ir as ir

from uce_edge_export.graph.builder import Builder
from uce_edge_export.transform.simplification import replace_value

_STEPS = {ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16}


def to_float(graph: ir.Graph, notes: list[str]) -> None:
    """Write QuantizeLinear and DequantizeLinear of activations in float.

    Args:
        graph: With constants folded and static shapes; changed in place.
        notes: Changes are appended.
    """
    count = 0
    kinds = {node: _kind(node) for node in graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    for node, kind in kinds.items():
        found = _scale_and_zero(node)
        if found is None or kind is None or kind not in _STEPS:
            continue
        g = Builder(graph.initializers)
        scale, zero = (g.constant(values, f"{node.outputs[0].name}.{i}") for i, values in enumerate(found))
        if node.op_type == "QuantizeLinear":
            limits = np.iinfo(kind.numpy())
            steps = g.Add(g.Round(g.Div(node.inputs[0], scale)), zero)
            low, high = (g.constant(np.float32(limit)) for limit in (limits.min, limits.max))
            result = g.Clip(steps, low, high)
            count += 1
        else:
            result = g.Mul(g.Sub(node.inputs[0], zero), scale)
        for new in g.nodes:
            new.outputs[0].shape, new.outputs[0].dtype = node.outputs[0].shape, ir.DataType.FLOAT
        for value in g.initializers:
            graph.register_initializer(value)
        graph.insert_before(node, g.nodes)
        result.name = node.outputs[0].name
        replace_value(graph, node.outputs[0], result)
        graph.remove(node, safe=True)
    if count:
        notes.append(
            f"it rounds activations at {count} places, which the file does in float32: the answers are those of the "
            "quantised network, the speed is not. For speed, export the float network with --precision int8"
        )


def _kind(node: ir.Node) -> ir.DataType | None:
    """The type of the steps."""
    value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    return None if value is None else value.dtype


def _scale_and_zero(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Both as float32 that broadcast to the input; None if not constant."""
    x, scale = node.inputs[:2]
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or x.shape is None or scale is None or scale.const_value is None:
        return None
    if zero is not None and zero.const_value is None:
        return None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    factors = scale.const_value.numpy().astype(np.float32)
    offsets = (
        np.zeros_like(factors) if zero is None or zero.const_value is None else zero.const_value.numpy().astype("f4")
    )
    if factors.size == 1:
        return factors.reshape(()), offsets.reshape(())
    shape = [1] * len(x.shape)
    shape[axis] = factors.size
    return factors.reshape(shape), offsets.reshape(shape)
