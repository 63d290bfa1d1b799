"""The tolerance of the parity gate for quantised networks.

A quantised network rounds every activation to a step. Two programs that add up in another order round some values to
neighbouring steps, and the answers then differ by whole steps. So the gate allows as much as the network itself moves
when a few of its values are rounded to the neighbouring step.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from uce_edge.metadata import ImageSpec
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.check.parity_gate import TOLERANCE, Pixels
from uce_edge_export.graph.assembly import Classifier
from uce_edge_export.graph.node_evaluator import Array

SHARE = 1e-3
"""Of the values of a layer that are moved by one step; at least one is."""
_TRIALS = 3
_MARGIN = 2.0


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference of logits."""

    of_unit_scale: float = TOLERANCE
    """On logits of unit scale."""
    of_largest: float = TOLERANCE
    """As a share of the largest |logit|, at least 1."""


def tolerance(classifier: Classifier, spec: ImageSpec, images: Pixels) -> Tolerance:
    """Measure how far single steps move the logits.

    Args:
        classifier: The network without noise.
        spec: Of its images.
        images: At least one image; the first is used.
    """
    if all(node.op_type != "Round" for node in classifier.graph):
        return Tolerance()
    rng = np.random.default_rng(0)

    def moved(node: ir.Node, output: Array) -> Array:
        if node.op_type != "Round":
            return output
        steps = output.copy()
        chosen = rng.choice(steps.size, max(1, int(SHARE * steps.size)), replace=False)
        steps.reshape(-1)[chosen] += rng.choice([-1.0, 1.0], len(chosen)).astype(np.float32)
        return steps

    one = images[:1]
    plain = graph_reference(classifier, spec, [])(one, None)
    jittered = graph_reference(classifier, spec, [], moved)
    difference = _MARGIN * max(float(np.abs(jittered(one, None) - plain).max()) for _ in range(_TRIALS))
    return Tolerance(
        TOLERANCE + difference / max(float(plain.std()), 1e-6),
        TOLERANCE + difference / max(1.0, float(np.abs(plain).max())),
    )
