"""Marks where a classifier had dropout.

A mark is an Identity with a note of what stood there. It survives whatever else is done to the graph.
"""

import fnmatch
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge_export.transform.simplification import replace_value

_NOTE = "uce_edge.dropout"
_SHOWN = 5  # names that a message lists


@dataclass(frozen=True)
class Mark:
    """Dropout that was at a place."""

    name: str
    """Of the module, the node or the value."""
    p: float
    kind: PerturbationKind = PerturbationKind.BERNOULLI
    call: int | None = None
    """Which of the calls of dropout in a forward pass it is, where it was traced from one."""


def mark(graph: ir.Graph, node: ir.Node, what: Mark) -> None:
    """Replace a node by a mark on its first input."""
    assert node.inputs[0] is not None
    old = node.outputs[0]
    fresh = _identity(node.inputs[0], what, str(old.name))
    graph.insert_before(node, fresh)
    replace_value(graph, old, fresh.outputs[0])
    graph.remove(node, safe=True)


def _identity(value: ir.Value, what: Mark, output: str) -> ir.Node:
    """A mark that passes on a value under another name."""
    node = ir.Node("", "Identity", [value], name=what.name, metadata_props={_NOTE: json.dumps(asdict(what))})
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = output, value.type, value.shape
    return node


def marks(nodes: Iterable[ir.Node]) -> dict[ir.Node, Mark]:
    """The marks among some nodes, in order."""
    notes = {node: json.loads(node.metadata_props[_NOTE]) for node in nodes if _NOTE in node.metadata_props}
    return {
        node: Mark(note["name"], note["p"], PerturbationKind(note["kind"]), note["call"])
        for node, note in notes.items()
    }


def mark_dropout(graph: ir.Graph, notes: list[str]) -> None:
    """Mark every Dropout node; remove those of ratio 0.

    Args:
        graph: A classifier with its constants folded.
        notes: Dropout without effect is appended.

    Raises:
        UsageError: There is none.
    """
    nodes = [node for node in graph if node.op_type == "Dropout"]
    if not nodes:
        raise UsageError(
            "The file has no Dropout node, so --dropout keep has nothing to keep: most exporters remove them. Mask "
            "values by name instead: --dropout 'PATTERN=0.2', or leave it out for Gaussian dropout (--p).",
            "dropout.missing",
        )
    for node in nodes:
        name = node.name or f"before {node.outputs[0].name}"
        p = _ratio(node, name)
        if p == 0:
            notes.append(f"the Dropout {name} has the ratio 0: there is nothing to keep")
            assert node.inputs[0] is not None
            replace_value(graph, node.outputs[0], node.inputs[0])
            graph.remove(node, safe=True)
        else:
            mark(graph, node, Mark(name, check_rate(p, name)))
    if not marks(graph):
        raise UsageError("All Dropout nodes of the file have the ratio 0: leave --dropout keep out.", "dropout.zero")


def _ratio(node: ir.Node, name: str) -> float:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None and given.const_value is None:
        raise UceEdgeError(
            f"The ratio of the Dropout {name} is computed by the model, so its mask cannot be drawn.",
            "dropout.computed",
        )
    if given is not None and given.const_value is not None:
        # The shortest number with this float32: 0.2, not 0.20000000298.
        return float(str(np.float32(given.const_value.numpy().reshape(-1)[0])))
    return 0.5


def check_rate(p: float, name: str) -> float:
    """Refuse a rate that leaves nothing of a value."""
    if not 0 <= p < 1:
        raise UceEdgeError(
            f"The dropout {name} has the rate {p:g}, which leaves nothing of its input. Use one below 1.",
            "dropout.rate",
        )
    return p


def mark_values(graph: ir.Graph, rules: Sequence[tuple[str, float]]) -> None:
    """Mark values by name pattern; every pattern must match.

    Args:
        graph: A classifier whose shapes are known.
        rules: Patterns with rates.
    """
    candidates = [value for node in graph if _NOTE not in node.metadata_props for value in node.outputs[:1]]
    candidates = [value for value in candidates if _can_be_masked(graph, value)]
    for pattern, rate in rules:
        if not any(fnmatch.fnmatchcase(str(value.name), pattern) for value in candidates):
            names = [str(value.name) for value in candidates]
            listed = ", ".join(names if len(names) <= _SHOWN else [*names[:_SHOWN], "...", names[-1]])
            rule = f"a pattern for a value inside the network ({listed}) with a rate"
            raise UsageError(expected("`dropout`", rule, f"{pattern}={rate:g}", "Check the name"))
    for value in candidates:
        rates = [rate for pattern, rate in rules if fnmatch.fnmatchcase(str(value.name), pattern)]
        if rates:
            _mark_value(graph, value, Mark(str(value.name), rates[-1]))


def _can_be_masked(graph: ir.Graph, value: ir.Value) -> bool:
    """Whether a value holds image data behind the input."""
    shape, image = value.shape, graph.inputs[0].shape
    if shape is None or image is None or len(shape) < 2 or shape[0] != image[0]:
        return False
    return value.dtype == ir.DataType.FLOAT and not value.is_graph_output()


def _mark_value(graph: ir.Graph, value: ir.Value, what: Mark) -> None:
    producer = value.producer()
    assert producer is not None
    uses = [(use.node, use.idx) for use in value.uses()]
    fresh = _identity(value, what, f"{value.name}.masked")
    graph.insert_after(producer, fresh)
    for node, position in uses:
        node.replace_input_with(position, fresh.outputs[0])
