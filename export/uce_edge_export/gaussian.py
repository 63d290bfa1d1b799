"""The graph pass: from a deterministic classifier to N Monte Carlo passes with Gaussian dropout.

The pass walks the nodes once, in order, and writes a new graph. Every value is *plain* (a constant or a shape),
*shared* (it does not depend on noise; leading dimension: batch) or *sampled* (leading dimension: samples * batch,
passes outside). A weight layer with a rate becomes

    mu = layer(x, W) + bias;   sigma = sqrt(layer(x*x, alpha * W*W));   y = mu + sigma * noise

so N enters as late as possible: all that is shared runs once per image, and so do mu and sigma of the first noisy
layer. Where a sampled value meets a shared one, the shared one is repeated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge_export.axes import refuse_batch_mixing
from uce_edge_export.builder import Builder
from uce_edge_export.sites import Site, multiplications, per_image_shape, weight_of

Noise = Callable[[Site, ir.Value], ir.Value]
"""Given a layer and its sampled mean, the noise of the same shape as graph nodes."""


class _Kind(Enum):
    PLAIN = auto()
    SHARED = auto()
    SAMPLED = auto()


@dataclass(frozen=True)
class Costs:
    """Multiply-accumulates for one image."""

    once: int
    """What runs once per image, whatever N is."""
    per_pass: int
    """What every pass adds."""


class Pass:
    """Copies a classifier into a builder, node by node, with or without noise."""

    def __init__(self, g: Builder, graph: ir.Graph, batch: ir.Value, samples: ir.Value | None) -> None:
        """Prepare.

        Args:
            g: Where the nodes go.
            graph: The deterministic classifier.
            batch: int64 [1], the number of images.
            samples: int64 [1], the number of passes; None for none.
        """
        self._g = g
        self._graph = graph
        self._batch = batch
        self._samples = samples
        self._values: dict[ir.Value, ir.Value] = {}
        self._kinds: dict[ir.Value, _Kind] = {}
        self._repeats: dict[ir.Value, ir.Value] = {}
        self._squares: dict[ir.Value, ir.Value] = {}
        self._repeat: ir.Value | None = None
        self._once = 0
        self._per_pass = 0

    def run(
        self, image: ir.Value, sites: Sequence[Site], noise: Noise | None, *, expand_early: bool = False
    ) -> tuple[ir.Value, Costs]:
        """Write all nodes.

        Args:
            image: What stands for the classifier's input.
            sites: The noisy layers.
            noise: Where their noise comes from.
            expand_early: Repeat the image N times at once, for runtimes that cannot broadcast later.

        Returns:
            The logits, sampled if there is a noisy layer, and what they cost.
        """
        start = self._graph.inputs[0]
        self._set(start, image, _Kind.SHARED)
        if expand_early and sites:
            self._set(start, self._repeated(image), _Kind.SAMPLED)
        noisy = {site.node: site for site in sites}
        for node in self._graph:
            if node in noisy:
                assert noise is not None
                self._set(node.outputs[0], self._noisy(noisy[node], noise), _Kind.SAMPLED)
            else:
                self._copy(node)
        output = self._graph.outputs[0]
        logits = self._sampled(output) if sites else self._value(output)
        return logits, Costs(self._once, self._per_pass)

    def _noisy(self, site: Site, noise: Noise) -> ir.Value:
        g, node = self._g, site.node
        found = weight_of(node)
        assert found is not None
        weight, position = found
        assert weight.const_value is not None
        x = node.inputs[position]
        assert x is not None
        value, sampled = self._value(x), self._kind(x) is _Kind.SAMPLED
        inputs = [None if i is None else self._value(i) for i in node.inputs]
        mu = self._write(node, inputs)[0]
        squared = site.layer.p / (1 - site.layer.p) * weight.const_value.numpy().astype(np.float64) ** 2
        attributes = dict(node.attributes)
        if node.op_type == "Gemm":  # scale * x W + beta * bias: the variance has scale^2 and no bias
            squared = squared * (attributes.pop("alpha").as_float() ** 2 if "alpha" in attributes else 1)
            attributes.pop("beta", None)
        if value not in self._squares:
            self._squares[value] = g.Mul(value, value)
        operands = [g.constant(squared.astype(np.float32), f"{weight.name}.variance")]
        operands.insert(position, self._squares[value])
        variance = g.append(ir.Node("", node.op_type, operands, attributes.values()))[0]
        # The sum of squares is never negative, but a Winograd kernel may round below 0; this Relu fuses into the Conv.
        sigma = g.Sqrt(g.Relu(variance))
        if not sampled:
            mu, sigma = self._repeated(mu), self._repeated(sigma)
        self._count(node, sampled, times=2)
        return g.Add(mu, g.Mul(sigma, noise(site, mu)))

    def _copy(self, node: ir.Node) -> None:
        given = [value for value in node.inputs if value is not None]
        kinds = {self._kind(value) for value in given}
        kind = _Kind.SAMPLED if _Kind.SAMPLED in kinds else _Kind.SHARED if _Kind.SHARED in kinds else _Kind.PLAIN
        inputs = [
            None if value is None else self._sampled(value) if kind is _Kind.SAMPLED else self._value(value)
            for value in node.inputs
        ]
        if node.op_type in ("Shape", "Size"):
            kind = _Kind.PLAIN
        elif kind is _Kind.SAMPLED:
            refuse_batch_mixing(node)
            # A target shape that was computed from the image still says "batch"; only its other dimensions hold.
            if node.op_type == "Reshape":
                inputs[1] = self._target(node, -1)
            elif node.op_type == "Expand":
                inputs[1] = self._target(node, 1)
        for old, new in zip(node.outputs, self._sum_inner_axes(node, inputs) or self._write(node, inputs), strict=True):
            self._set(old, new, kind)
        self._count(node, kind is _Kind.SAMPLED)

    def _sum_inner_axes(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value] | None:
        """A sum or mean over axes that are not the last as a product with a constant row; None for other nodes.

        ONNX Runtime sums inner axes in another order when the leading dimension is 1, and an answer must not depend
        on the number of images or passes.
        """
        if node.op_type not in ("ReduceMean", "ReduceSum") or len(node.inputs) < 2:
            return None
        x, given = node.inputs[:2]
        if x is None or x.shape is None or given is None or given.const_value is None:
            return None
        rank = len(x.shape)
        axes = sorted({int(axis) % rank for axis in given.const_value.numpy().ravel()})
        if not axes or axes[0] == 0 or axes[-1] == rank - 1 or axes != list(range(axes[0], axes[-1] + 1)):
            return None
        g, dims = self._g, (0, *per_image_shape(x, node.op_type))
        length, inner = math.prod(dims[axes[0] : axes[-1] + 1]), math.prod(dims[axes[-1] + 1 :])
        weight = 1 / length if node.op_type == "ReduceMean" else 1.0
        flat = g.Reshape(inputs[0], g.constant(np.array([-1, length, inner])))
        row = g.constant(np.full((1, length), weight, np.float32))
        return [g.Reshape(g.MatMul(row, flat), self._target(node, -1))]

    def _target(self, node: ir.Node, leading: int) -> ir.Value:
        shape = per_image_shape(node.outputs[0], f"{node.op_type} {node.name}")
        return self._g.constant(np.array([leading, *shape]))

    def _count(self, node: ir.Node, sampled: bool, times: int = 1) -> None:
        if sampled:
            self._per_pass += times * multiplications(node)
        else:
            self._once += times * multiplications(node)

    def _write(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
        attributes = node.attributes.values()
        return self._g.append(ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs)))

    def _set(self, old: ir.Value, new: ir.Value, kind: _Kind) -> None:
        self._values[old] = new
        self._kinds[old] = kind

    def _kind(self, value: ir.Value) -> _Kind:
        return self._kinds.get(value, _Kind.PLAIN)

    def _value(self, value: ir.Value) -> ir.Value:
        if value not in self._values:
            if value.const_value is None:
                raise UceEdgeError(f"The value {value.name} has no origin in the graph: the model is damaged.")
            self._values[value] = self._g.constant(value.const_value.numpy(), value.name)
        return self._values[value]

    def _sampled(self, value: ir.Value) -> ir.Value:
        """A value as an operand of a sampled node: shared ones are repeated, plain ones have no batch."""
        new = self._value(value)
        return self._repeated(new) if self._kind(value) is _Kind.SHARED else new

    def _repeated(self, value: ir.Value) -> ir.Value:
        """[batch, ...] -> [samples * batch, ...], passes outside."""
        g = self._g
        if self._repeat is None:
            zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
            images = g.Range(zero, g.Squeeze(self._batch), one)
            shape = g.Concat(self._samples, self._batch, axis=0)
            self._repeat = g.Reshape(g.Expand(images, shape), g.constant(np.array([-1])))
        if value not in self._repeats:
            self._repeats[value] = g.Gather(value, self._repeat, axis=0)
        return self._repeats[value]
