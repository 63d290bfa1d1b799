"""What a kind of noise must know."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import Array
from uce_edge_export.noise.moments import Operand, Uncertain


class Perturbation(Protocol):
    """A kind of noise with its parameters, at one node of a deterministic classifier.

    A sampled node is written in two steps. `prepare` writes what the noise will act on: where the node's inputs do not
    depend on noise yet, that runs once per image, and only its results are repeated for the passes. `perturb` makes
    samples of them.
    """

    @property
    def kind(self) -> PerturbationKind | str:
        """What the metadata of a file calls it."""
        ...

    @property
    def p(self) -> float:
        """Its rate."""
        ...

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the standard normals that one image takes in one pass, for a node with this output shape."""
        ...

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """Write what the noise acts on.

        Args:
            g: Where the nodes go.
            node: The node in the deterministic classifier.
            inputs: Its inputs in the new graph.

        Returns:
            Values with the node's leading dimension, of which the first has the shape of its output.
        """
        ...

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        """Write a sample of the node's output from what was prepared, and standard normals [samples * batch, ...]."""
        ...

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """Write mean and variance of the node's output, for operands of which some may be uncertain."""
        ...

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The same sample in numpy, by other means than `prepare` and `perturb`.

        Args:
            node: The node.
            inputs: Its inputs for one image.
            output: Its output without noise.
            normals: Standard normals [1, ...], of the shape that `normals` gives.
        """
        ...

    def multiplications(self, node: ir.Node) -> int:
        """Multiply-accumulates of the node with its noise, for one image, in `prepare` or in `moments`."""
        ...


@runtime_checkable
class Masking(Protocol):
    """A perturbation whose normals become masks, which are made once for a pass and then repeated for its images."""

    def mask(self, g: Builder, normals: ir.Value) -> ir.Value:
        """Write what `perturb` takes in the place of the normals [samples, ...]."""
        ...
