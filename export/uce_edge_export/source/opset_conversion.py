"""Convert any recent opset to `OPSET`."""

from pathlib import Path
from typing import Any

import onnx
from onnx import defs, inliner

from uce_edge.errors import UceEdgeError, expected
from uce_edge_export.graph.builder import OPSET

_OPSETS = range(7, 24)
_NEWER = "uce_edge.newer"
_SAME = "uce_edge.same"
_WITHOUT_ADAPTER = {"ConstantOfShape", "GlobalMaxPool"}
"""Operators that mean the same in later opsets, which onnx's converter does not know."""


def convert(proto: onnx.ModelProto, path: str | Path) -> onnx.ModelProto:
    """Bring a model to opset `builder.OPSET`.

    Args:
        proto: The model, which stays as it is.
        path: Where it came from, for messages.
    """
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset not in _OPSETS:
        again = f"Export the original again with opset {OPSET}"
        raise UceEdgeError(
            expected(f"{path}", f"of ONNX opset {_OPSETS[0]} to {_OPSETS[-1]}", opset, again), "source.opset"
        )
    try:
        # The converter loses local functions, so they are inlined before.
        proto = inliner.inline_local_functions(proto) if proto.functions else proto
        if opset > OPSET:
            proto = _without_newer_operators(proto, opset)
        return proto if opset == OPSET else _converted(proto)
    except Exception as error:
        raise UceEdgeError(
            f"{path} (opset {opset}) cannot be brought to opset {OPSET}: {str(error).splitlines()[0]} "
            f"Export the original again with opset {OPSET}.",
            "source.opset",
        ) from None


def _without_newer_operators(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Expand operators that are newer than `OPSET`."""
    if not any(_is_newer(node, opset) for node in proto.graph.node):
        return proto
    proto = onnx.shape_inference.infer_shapes(proto)  # what an operator is made of depends on types
    graph = proto.graph
    types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    for number, node in enumerate(graph.node):
        if not _is_newer(node, opset):
            continue
        schema: Any = defs.get_schema(node.op_type, opset, "")
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        body = schema.get_context_dependent_function(node.SerializeToString(), given)
        function = onnx.FunctionProto.FromString(body)
        function.domain, function.name = _NEWER, f"{node.op_type}_{number}"
        for entry in function.opset_import:  # only what has the model's is inlined; what they are made of is plain
            entry.version = opset
        proto.functions.append(function)
        node.domain, node.op_type = function.domain, function.name
    proto.opset_import.append(onnx.helper.make_opsetid(_NEWER, 1))
    return inliner.inline_local_functions(proto)


def _is_newer(node: onnx.NodeProto, opset: int) -> bool:
    """Whether an operator is newer than `OPSET` and expandable."""
    if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type, opset, ""):
        return False
    schema: Any = defs.get_schema(node.op_type, opset, "")
    # GroupNormalization has one scale for a channel, not for a group, since opset 21.
    other = node.op_type == "GroupNormalization" and schema.since_version > OPSET
    return schema.has_context_dependent_function and (other or not defs.has(node.op_type, OPSET, ""))


def _converted(proto: onnx.ModelProto) -> onnx.ModelProto:
    hidden = onnx.ModelProto()
    hidden.CopyFrom(proto)
    for node in hidden.graph.node:
        if node.op_type in _WITHOUT_ADAPTER and not node.domain:
            node.domain = _SAME  # of other domains the converter leaves everything as it is
    hidden.opset_import.append(onnx.helper.make_opsetid(_SAME, 1))
    done = onnx.version_converter.convert_version(hidden, OPSET)
    for node in done.graph.node:
        if node.domain == _SAME:
            node.domain = ""
    return done
