"""Kinds of noise: what each writes into a graph, and the same in numpy.

The graph pass (`sampling`) asks a perturbation for nodes and knows none of its formulas. A new kind is a module here,
a line in `of`, and a name in `contract.PerturbationKind`.
"""

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError, expected
from uce_edge.metadata import NoisyLayer
from uce_edge_export.perturbations.base import Perturbation
from uce_edge_export.perturbations.gaussian import GaussianDropout

__all__ = ["GaussianDropout", "Perturbation", "of"]


def of(layer: NoisyLayer) -> Perturbation:
    """The noise that a model's metadata describes."""
    match layer.kind:
        case PerturbationKind.GAUSSIAN | None:  # files that name no kind are older than the second one
            return GaussianDropout(layer.p)
    raise UceEdgeError(
        expected(
            f"the kind of {layer.name}",
            f"one of {', '.join(PerturbationKind)}",
            layer.kind,
            "A newer version of uce-edge may know it.",
        )
    )
