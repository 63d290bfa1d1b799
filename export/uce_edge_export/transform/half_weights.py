"""Weights that a file stores in float16 and computes with in float32.

A weight W is stored as `W.float16`, and a Cast makes W of it, which ONNX Runtime computes once, when it loads the file.
`rounded` changes the weights; `packed` and `unpacked` do not.
"""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge_export.graph.weight_layers import weight_of

_SUFFIX = ".float16"
_SMALLEST = 1024  # elements: below that, the Cast is larger than what it saves


def rounded(model: ir.Model) -> ir.Model:
    """Round the large weights of all layers to float16."""
    for value in _large_weights(model.graph):
        weights = _array(value)
        limit = np.float32(np.finfo(np.float16).max)
        value.const_value = ir.tensor(
            np.clip(weights, -limit, limit).astype(np.float16).astype(np.float32), name=value.name
        )
    return model


def packed(model: ir.Model) -> ir.Model:
    """Store large weights in float16 where that loses nothing."""
    graph = model.graph
    for value in _large_weights(graph):
        weights, name = _array(value), str(value.name)
        with np.errstate(over="ignore"):  # what overflows is not equal
            half = weights.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), weights):
            continue
        del graph.initializers[name]
        stored = ir.val(f"{name}{_SUFFIX}", const_value=ir.tensor(half, name=f"{name}{_SUFFIX}"))
        graph.register_initializer(stored)
        cast = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT}, name=f"{name}.wide")
        wide = cast.outputs[0]
        value.replace_all_uses_with(wide)
        wide.name, wide.dtype, wide.shape = name, ir.DataType.FLOAT, ir.Shape(half.shape)
        graph.insert_before(graph[0], cast)
    return model


def unpacked(model: ir.Model) -> ir.Model:
    """Replace stored weights and their Casts by float32 weights."""
    graph = model.graph
    for cast in [node for node in graph if _is_unpacking(node)]:
        stored, wide = cast.inputs[0], cast.outputs[0]
        assert stored is not None
        name = str(wide.name)
        weights = _array(stored).astype(np.float32)
        value = ir.val(name, const_value=ir.tensor(weights, name=name))
        value.dtype = ir.DataType.FLOAT
        wide.replace_all_uses_with(value)
        graph.remove(cast, safe=True)
        del graph.initializers[str(stored.name)]
        graph.register_initializer(value)
    return model


def _is_unpacking(node: ir.Node) -> bool:
    given = node.inputs[0] if node.op_type == "Cast" else None
    return given is not None and given.const_value is not None and given.name == f"{node.outputs[0].name}{_SUFFIX}"


def _large_weights(graph: ir.Graph) -> list[ir.Value]:
    """Float32 weights of layers, each once."""
    operands = [operand[0] for node in graph if (operand := weight_of(node)) is not None]
    return [
        value
        for value in dict.fromkeys(operands)
        if value.dtype == ir.DataType.FLOAT and _array(value).size >= _SMALLEST and not value.is_graph_output()
    ]


def _array(value: ir.Value) -> npt.NDArray[np.float32]:
    assert value.const_value is not None
    array: npt.NDArray[np.float32] = value.const_value.numpy()
    return array
