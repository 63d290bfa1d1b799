"""The interface of a kind of noise."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import Array
from uce_edge_export.noise.uncertain import Operand, Uncertain


class Perturbation(Protocol):
    """A kind of noise at one node of a classifier.

    A sampled node is written in two steps. `prepare` writes what the noise will act on: where the node's inputs do not
    depend on noise yet, that runs once per image, and only its results are repeated for the passes. `perturb` makes
    samples of them.
    """

    @property
    def kind(self) -> PerturbationKind | str:
        """The kind in the metadata of a file."""
        ...

    @property
    def p(self) -> float:
        """Its rate."""
        ...

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one image's standard normals in one pass."""
        ...

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        """Write what the noise acts on.

        Args:
            g: Where the nodes go.
            node: The node in the deterministic classifier.
            inputs: Its inputs in the new graph.

        Returns:
            Values with the node's leading dimension, or constants. The noise has the shape of the first, or of one
            value for each of its channels.
        """
        ...

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        """Write a sample of the node's output, given standard normals.

        Both have the leading dimension samples * batch. Where `prepared` runs once per image and the node does not
        repeat, they are normals [samples, 1, ...] and values [batch, ...], which broadcast.
        """
        ...

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        """Write mean and variance of the node's output."""
        ...

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        """The same sample in numpy, computed independently.

        Args:
            node: The node.
            inputs: Its inputs for one image.
            output: Its output without noise.
            normals: Standard normals [1, ...], of the shape that `normals` gives.
        """
        ...

    @property
    def repeats(self) -> bool:
        """Whether the node itself runs in every pass, as it does behind its noise."""
        ...

    def multiplications(self, node: ir.Node) -> int:
        """Multiply-accumulates of the noisy node for one image."""
        ...


@runtime_checkable
class Masking(Protocol):
    """Noise as masks, computed once per pass for all images."""

    def mask(self, g: Builder, normals: ir.Value) -> ir.Value:
        """Write the masks that `perturb` takes instead of normals."""
        ...
