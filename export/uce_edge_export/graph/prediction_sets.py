"""Prediction sets in the graph: the output `in_set`.

`LabelSets.contains` is the reference, bit for bit. The cumulative scores sum multiples of 2^-22 in float32, which is
exact in any order, and compare values only, so that runtimes which order equal values differently agree.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from uce_edge import contract
from uce_edge.calibration.label_sets import GRAINS, MOST_PENALTY, RANKED, LabelSets
from uce_edge.contract import IN_SET, SetScore
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Metadata
from uce_edge_export.check.parity_gate import ParityError
from uce_edge_export.graph import decision
from uce_edge_export.graph.assembly import checked
from uce_edge_export.graph.builder import Builder
from uce_edge_export.publish.draft import Draft

_CHECKED = 8  # images


def add(draft: Draft, sets: LabelSets, data: Split) -> None:
    """Add the output `in_set` to a draft, and compare it with the reference.

    Args:
        draft: The file as it ships.
        sets: The fitted sets.
        data: Images for the comparison.
    """
    draft.rewrite(*attach(draft.graph(), draft.metadata, sets))
    names = (contract.PROBABILITIES, IN_SET)
    values = draft.model.outputs(data.images[:_CHECKED], draft.model.seeds(), names)
    if not np.array_equal(values[IN_SET], sets.contains(values[contract.PROBABILITIES])):
        raise ParityError("The prediction sets of the graph differ from their reference.", "parity.sets")


def attach(model: ir.Model, metadata: Metadata, sets: LabelSets) -> tuple[ir.Model, Metadata]:
    """Add or replace the output `in_set`; gives the model and its metadata."""
    graph = model.graph
    graph.outputs[:] = [value for value in graph.outputs if value.name != IN_SET]
    checked(model)  # removes the nodes and initializers of older sets
    p = next(value for value in graph.outputs if value.name == contract.PROBABILITIES)
    g = Builder(taken=graph.initializers)
    inside = _emit(g, p, sets, len(metadata.classes))
    inside.name, inside.dtype = IN_SET, ir.DataType.BOOL
    inside.shape = ir.Shape(["batch", len(metadata.classes)])
    g.append_to(graph)
    graph.outputs.append(inside)
    others = tuple(name for name in metadata.outputs if name != IN_SET)
    return checked(model), replace(metadata, outputs=(*others, IN_SET), sets=sets)


def _emit(g: Builder, p: ir.Value, sets: LabelSets, classes: int) -> ir.Value:
    limits = g.constant(sets.initializers(classes)[contract.SET_LIMITS], contract.SET_LIMITS)
    score = g.Sub(g.constant(np.float32(1)), p) if sets.score is SetScore.LAC else _emit_sums(g, p, sets, classes)
    is_number = g.Unsqueeze(decision.is_number(g, p), g.constant(np.array([1])))
    return g.And(g.LessOrEqual(score, limits), is_number)


def _emit_sums(g: Builder, p: ir.Value, sets: LabelSets, classes: int) -> ir.Value:
    """The sum of the larger probabilities, with a penalty by rank."""
    last = g.constant(np.array([2]))
    grains = g.Floor(g.Mul(p, g.constant(np.float32(GRAINS))))
    coarse = g.Mul(grains, g.constant(np.float32(1 / GRAINS)))
    likely = coarse
    if classes > RANKED:
        top = ir.node("TopK", [coarse, g.constant(np.array([RANKED]))], {"axis": -1}, num_outputs=2)
        likely = g.append(top)[0]
    row = g.Unsqueeze(likely, g.constant(np.array([1])))
    column = g.Unsqueeze(coarse, last)
    above = g.Cast(g.Less(column, row), to=ir.DataType.FLOAT)
    total = g.ReduceSum(g.Mul(above, row), last, keepdims=0)
    if sets.score is SetScore.APS:
        return total
    rank = g.ReduceSum(g.Cast(g.LessOrEqual(column, row), to=ir.DataType.FLOAT), last, keepdims=0)
    stored = sets.initializers(classes)
    penalty, free = (g.constant(stored[name], name) for name in (contract.SET_PENALTY, contract.SET_FREE))
    behind = g.Max(g.Sub(rank, free), g.constant(np.float32(0)))
    return g.Add(total, g.Min(g.Mul(behind, penalty), g.constant(np.float32(MOST_PENALTY))))
