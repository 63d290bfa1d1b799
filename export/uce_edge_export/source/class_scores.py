"""The output of a third-party classifier, brought to logits [1, classes]."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge_export.graph.builder import Builder
from uce_edge_export.options import OutputIs
from uce_edge_export.transform import simplification

_MOVING = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}


def choose_output(proto: onnx.ModelProto, name: str | None, path: str | Path, notes: list[str]) -> None:
    """Leave a model one output, in place: the class scores.

    Args:
        proto: The model.
        name: The output, or any other value of the graph; None for the only output.
        path: Where it came from, for messages.
        notes: Changes are appended.
    """
    graph = proto.graph
    outputs = [value.name for value in graph.output]
    makers = {result: node for node in graph.node for result in node.output if result}
    if name is None and len(outputs) != 1:
        raise UceEdgeError(
            f"{path} has {len(outputs)} outputs ({', '.join(outputs)}); a classifier has one. Choose the class "
            "scores: --output NAME",
            "source.outputs",
            outputs=outputs,
        )
    if name is not None and name not in makers:
        raise UsageError(
            expected("`output`", "the name of an output", name, f"{path} has: {', '.join(outputs)}"), "source.outputs"
        )
    chosen = name or outputs[0]
    last = makers.get(chosen)
    while last is not None and last.op_type in _MOVING and last.input:
        last = makers.get(last.input[0])
    if last is not None and last.op_type == "ArgMax":
        chosen = last.input[0]
        notes.append(f"its final ArgMax was removed: the file needs the scores of all classes, {chosen}")
    if outputs != [chosen]:
        known = {value.name: value for value in (*graph.output, *graph.value_info)}
        if chosen not in known:
            inferred = onnx.shape_inference.infer_shapes(proto).graph.value_info
            known |= {value.name: value for value in inferred}
        value = onnx.ValueInfoProto()
        value.CopyFrom(known.get(chosen, onnx.ValueInfoProto(name=chosen)))
        del graph.output[:]
        graph.output.append(value)


def to_logits(
    graph: ir.Graph,
    path: str | Path,
    output_is: OutputIs,
    sums_to_one: Callable[[], bool],
    notes: list[str],
) -> tuple[OutputIs, int]:
    """Make the output logits [1, classes].

    Args:
        graph: With static shapes; changed in place.
        path: Where it came from, for messages.
        output_is: The meaning of the output, as given.
        sums_to_one: Whether the output is a distribution, measured only if the graph leaves it open.
        notes: Changes are appended.

    Returns:
        The meaning of the original's output, and the number of classes.
    """
    if graph.outputs[0].shape is None:
        sums_to_one()  # raises if the network cannot run at this size
    count = _count(graph, path)
    final = simplification.final_node(graph)
    kind = final.op_type if final is not None and output_is is not OutputIs.LOGITS else None
    if kind == "Sigmoid" and output_is is OutputIs.AUTO and count > 1:
        raise UceEdgeError(multi_label(str(path), count), "head.multi-label", outputs=count)
    meaning = output_is
    if output_is is OutputIs.AUTO:
        meaning = {"Softmax": OutputIs.PROBABILITIES, "Sigmoid": OutputIs.SIGMOID}.get(str(kind), OutputIs.LOGITS)
        if count > 1 and meaning is OutputIs.LOGITS and sums_to_one():
            meaning = OutputIs.PROBABILITIES
        elif count == 1 and meaning is OutputIs.LOGITS:
            raise UceEdgeError(
                f"{path} has one output number. If it is the logit of the second of two classes, use --output-is "
                "logits; if it is its probability, --output-is sigmoid. A network that estimates a quantity is no "
                "classifier.",
                "source.one-number",
            )
    if meaning is OutputIs.PROBABILITIES and count == 1:
        meaning = OutputIs.SIGMOID
    _undo(graph, kind, meaning, notes)
    _flatten(graph, count)
    if count == 1:
        _second_class(graph)
        notes.append("its one logit is that of the second of two classes; the logit of the first is 0")
    return meaning, max(2, count)


def multi_label(source: str, count: int) -> str:
    """The message for a Sigmoid that ends several outputs."""
    return (
        f"{source} ends in a Sigmoid: its {count} outputs are separate answers of yes or no (multi-label), and several "
        "can be right at once. A model file has one class per image. If every image has exactly one of these classes, "
        "use --output-is sigmoid"
    )


def compared(logits: npt.NDArray[np.float32], meaning: OutputIs, columns: int) -> npt.NDArray[np.float64]:
    """Logits in the form of the original's output.

    Args:
        logits: [images, classes].
        meaning: Of the original's output.
        columns: How many numbers the original has for an image.
    """
    exact = logits.astype(np.float64)
    if meaning is OutputIs.PROBABILITIES:
        shifted = np.exp(exact - exact.max(-1, keepdims=True))
        exact = shifted / shifted.sum(-1, keepdims=True)
    elif meaning is OutputIs.SIGMOID:
        exact = 1 / (1 + np.exp(-exact))
    return exact[:, -columns:]


def _count(graph: ir.Graph, path: str | Path) -> int:
    """The number of scores of an image."""
    shape = graph.outputs[0].shape
    dims = [dim for dim in (shape or ()) if isinstance(dim, int)]
    wide = [dim for dim in dims[1:] if dim != 1]
    if shape is None or len(dims) != len(shape) or len(dims) < 2 or dims[0] != 1 or len(wide) > 1:
        raise UceEdgeError(
            f"{path} has an output of shape {shape}; a classifier's is [batch, classes]. Choose another value of the "
            "graph: --output NAME",
            "source.outputs",
        )
    return wide[0] if wide else 1


def _undo(graph: ir.Graph, kind: str | None, meaning: OutputIs, notes: list[str]) -> None:
    """Turn probabilities back into logits."""
    if meaning is OutputIs.LOGITS:
        return
    wanted = "Softmax" if meaning is OutputIs.PROBABILITIES else "Sigmoid"
    if kind == wanted:
        simplification.strip_final(graph)
        notes.append(f"its final {wanted} was removed: calibration works on logits")
        return
    g = Builder()
    p = graph.outputs[0]
    smallest = g.constant(np.float32(1e-12), "uce_edge.smallest_probability")
    log = g.Log(g.Max(p, smallest))
    if meaning is OutputIs.PROBABILITIES:
        notes.append("its output is probabilities without a Softmax node: log p is used as logits")
    else:
        log = g.Sub(log, g.Log(g.Max(g.Sub(g.constant(np.float32(1), "uce_edge.one"), p), smallest)))
        notes.append("its output is probabilities without a Sigmoid node: log p / (1 - p) is used as logits")
    _extend(graph, g, log)


def _flatten(graph: ir.Graph, count: int) -> None:
    output = graph.outputs[0]
    if output.shape is not None and len(output.shape) > 2:
        g = Builder()
        _extend(graph, g, g.Reshape(output, g.constant(np.array([1, count]), "uce_edge.class_shape")))
        graph.outputs[0].shape = ir.Shape([1, count])


def _second_class(graph: ir.Graph) -> None:
    """Put a logit of 0 before the only one."""
    g = Builder()
    z = graph.outputs[0]
    none = g.Mul(z, g.constant(np.float32(0), "uce_edge.no_logit"))
    none.dtype, none.shape = ir.DataType.FLOAT, z.shape
    _extend(graph, g, g.Concat(none, z, axis=1))
    graph.outputs[0].shape = ir.Shape([1, 2])


def _extend(graph: ir.Graph, g: Builder, output: ir.Value) -> None:
    """Append the builder's nodes; their result becomes the output."""
    old = graph.outputs[0]
    for value in g.initializers:
        graph.register_initializer(value)
    graph.extend(g.nodes)
    output.name = f"{old.name}.uce_edge"
    output.dtype, output.shape = ir.DataType.FLOAT, old.shape
    graph.outputs[0] = output
