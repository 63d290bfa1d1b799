"""The reject rule in the graph: the output `decision`."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from uce_edge import contract
from uce_edge.contract import DECISION
from uce_edge.metadata import Metadata
from uce_edge.rejection.rule import Code, RejectRule
from uce_edge_export.graph.builder import Builder

PREFIX = "decision."
"""Of the names of all initializers of the rule."""
_UNCERTAIN = f"{PREFIX}uncertain"


def emit(g: Builder, uncertainty: ir.Value, p: ir.Value, class_id: ir.Value, classes: int) -> ir.Value:
    """1 where the score exceeds its limit or is NaN."""
    values = RejectRule().initializers(classes)
    inverse = g.Sub(g.constant(np.float32(1)), g.ReduceMax(p, g.constant(np.array([-1])), keepdims=0))
    by_confidence = g.constant(values[contract.BY_CONFIDENCE], contract.BY_CONFIDENCE)
    score = g.Where(by_confidence, inverse, uncertainty)
    limit = g.Gather(g.constant(values[contract.LIMITS], contract.LIMITS), class_id, axis=0)
    # A runtime may clip an uncertainty of NaN to 0 or 1; the probabilities stay NaN.
    return _rejected(g, g.And(g.LessOrEqual(score, limit), is_number(g, p)))


def is_number(g: Builder, p: ir.Value) -> ir.Value:
    """Whether no probability of an image is NaN, by their sum."""
    zero, total = g.constant(np.float32(0)), g.ReduceSum(p, g.constant(np.array([-1])), keepdims=0)
    return g.And(g.Less(zero, total), g.Greater(total, zero))


def attach_novelty(graph: ir.Graph, g: Builder, novelty: ir.Value) -> None:
    """Also reject by novelty; the caller appends the nodes."""
    index, uncertain = _output(graph)
    uncertain.name = _UNCERTAIN
    cutoff = g.constant(RejectRule().initializers(1)[contract.CUTOFF], contract.CUTOFF)
    outside = g.Mul(_rejected(g, g.Less(cutoff, novelty)), g.constant(np.int32(Code.OUT_OF_DISTRIBUTION)))
    graph.outputs[index] = describe_output(g.Add(uncertain, outside))


def detach_novelty(graph: ir.Graph) -> None:
    """Undo `attach_novelty`; unused nodes stay."""
    index, decision = _output(graph)
    node = decision.producer()
    assert node is not None
    if node.op_type == "Add":
        decision.name = f"{DECISION}.old"
        uncertain = node.inputs[0]
        assert uncertain is not None
        graph.outputs[index] = describe_output(uncertain)


def upgrade(model: ir.Model, metadata: Metadata) -> tuple[ir.Model, Metadata]:
    """Convert a graph of contract 1 to contract 2."""
    graph = model.graph
    outputs = {str(value.name): value for value in graph.outputs}
    if DECISION not in outputs:
        g = Builder(taken=graph.initializers)
        uncertainty, p, class_id = (
            outputs[name] for name in (contract.UNCERTAINTY, contract.PROBABILITIES, contract.CLASS_ID)
        )
        decision = describe_output(emit(g, uncertainty, p, class_id, len(metadata.classes)))
        graph.outputs.insert(len(contract.outputs_of((), version=1)), decision)
        if contract.NOVELTY in outputs:
            attach_novelty(graph, g, outputs[contract.NOVELTY])
        g.append_to(graph)
    return model, replace(metadata, contract=contract.VERSION, minor=contract.MINOR)


def stored(content: bytes, metadata: Metadata) -> bytes:
    """Store the rule and the prediction sets in the initializers of a file."""
    model, classes = onnx.ModelProto.FromString(content), len(metadata.classes)
    values = (metadata.rule or RejectRule()).initializers(classes)
    if metadata.sets is not None:
        values |= metadata.sets.initializers(classes)
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    return bytes(model.SerializeToString())


def describe_output(decision: ir.Value) -> ir.Value:
    """Set the name and the type of the output."""
    decision.name, decision.shape, decision.dtype = DECISION, ir.Shape(["batch"]), ir.DataType.INT32
    return decision


def _rejected(g: Builder, accepted: ir.Value) -> ir.Value:
    """1 - accepted, as int32. A comparison with NaN is false, but for Greater in OpenVINO and Less in MNN."""
    return g.Sub(g.constant(np.int32(1)), g.Cast(accepted, to=ir.DataType.INT32))


def _output(graph: ir.Graph) -> tuple[int, ir.Value]:
    return next((index, value) for index, value in enumerate(graph.outputs) if value.name == DECISION)
