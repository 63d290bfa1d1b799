"""One node of a graph, computed in numpy by `onnx.reference`."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import OPSET

Array = npt.NDArray[Any]


def evaluate(node: ir.Node, inputs: Sequence[Array | None]) -> list[Array]:
    """Evaluate one node; optional inputs may be None."""
    proto = ir.to_proto(node)
    for i in range(len(proto.input)):
        proto.input[i] = f"input.{i}" if i < len(inputs) and inputs[i] is not None else ""
    while proto.input and proto.input[-1] == "":
        del proto.input[-1]
    feed = {f"input.{i}": value for i, value in enumerate(inputs) if value is not None}
    try:
        return list(ReferenceEvaluator(proto, opsets={"": OPSET}).run(None, feed))
    except Exception as error:  # an operator without a reference, or shapes that do not fit
        raise UceEdgeError(
            f"The operator {node.op_type} ({node.name}) cannot be evaluated ({str(error).splitlines()[0]}).",
            "graph.operator",
        ) from None
