"""The graph pass: from a deterministic classifier to N Monte Carlo passes with Gaussian dropout.

The pass walks the nodes once, in order, and writes a new graph. Every value is either *shared* (it does not depend
on noise; leading dimension: batch) or *sampled* (leading dimension: samples * batch, passes outside). A weight layer
with a rate becomes

    mu = layer(x, W) + bias;   sigma = sqrt(layer(x*x, alpha * W*W));   y = mu + sigma * noise

so N enters as late as possible: all that is shared runs once per image, and so do mu and sigma of the first noisy
layer. Where a sampled value meets a shared one, the shared one is repeated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.contract import NoisyLayer
from uce_edge.errors import UceEdgeError
from uce_edge_export import noise
from uce_edge_export.builder import Builder


@dataclass(frozen=True)
class Site:
    """A weight layer that gets noise: its node, the weight's name, the rate, and its outputs per image."""

    node: ir.Node
    layer: NoisyLayer
    shape: tuple[int, ...]


def find_sites(graph: ir.Graph, rates: Mapping[str, float]) -> list[Site]:
    """The weight layers whose weight initializer has a rate, in graph order.

    Args:
        graph: The deterministic classifier.
        rates: Dropout rate by weight initializer name.
    """
    sites = []
    for node in graph:
        weight = _weight(node)
        if weight is None or weight.name is None or weight.name not in rates:
            continue
        layer = NoisyLayer(weight.name, rates[weight.name])
        sites.append(Site(node, layer, _per_image_shape(node.outputs[0], layer.name)))
    missing = sorted(set(rates) - {site.layer.name for site in sites})
    if missing:
        raise UceEdgeError(
            f"The layers {', '.join(missing)} have a dropout rate but are not in the exported graph. "
            "Are they used by the model's forward pass?"
        )
    if not sites:
        raise UceEdgeError(
            "No layer has a dropout rate: there is nothing to sample. Export with --inference deterministic."
        )
    return sites


def _weight(node: ir.Node) -> ir.Value | None:
    """The constant weight of a Conv, Gemm or MatMul node."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    weight = node.inputs[1]
    return weight if weight is not None and weight.const_value is not None else None


def _per_image_shape(value: ir.Value, where: str) -> tuple[int, ...]:
    """The shape of a value without its leading batch dimension; everything else must be known."""
    dims = value.shape.dims[1:] if value.shape is not None else (None,)
    if not all(isinstance(dim, int) for dim in dims):
        raise UceEdgeError(
            f"The output of {where} has no static shape ({value.shape}). Export with a fixed image size."
        )
    return tuple(dim for dim in dims if isinstance(dim, int))


def plan_of(sites: list[Site]) -> noise.Plan:
    """The noise plan of a model: one entry per noisy layer, in graph order."""
    return noise.Plan(tuple(math.prod(site.shape) for site in sites))


class Pass:
    """Copies a classifier into a builder, node by node, with or without noise."""

    def __init__(self, g: Builder, graph: ir.Graph, image: ir.Value, batch: ir.Value, samples: ir.Value | None) -> None:
        """Prepare.

        Args:
            g: Where the nodes go.
            graph: The deterministic classifier.
            image: What stands for the classifier's input.
            batch: int64 [1], the number of images.
            samples: int64 [1], the number of passes; None for none.
        """
        self._g = g
        self._graph = graph
        self._batch = batch
        self._samples = samples
        self._shared: dict[ir.Value, ir.Value] = {graph.inputs[0]: image}
        self._sampled: dict[ir.Value, ir.Value] = {}
        self._squares: dict[ir.Value, ir.Value] = {}
        self._repeat: ir.Value | None = None

    def run(self, sites: list[Site], noises: list[ir.Value]) -> ir.Value:
        """Write all nodes; gives the logits, sampled if there is a noisy layer."""
        by_node = {site.node: (site, eps) for site, eps in zip(sites, noises, strict=True)}
        for node in self._graph:
            if node in by_node:
                site, eps = by_node[node]
                self._sampled[node.outputs[0]] = self._noisy(site, eps)
            else:
                self._copy(node)
        output = self._graph.outputs[0]
        return self._as_sampled(output) if sites else self._shared_value(output)

    def _noisy(self, site: Site, eps: ir.Value) -> ir.Value:
        g, node = self._g, site.node
        x = node.inputs[0]
        assert x is not None
        sampled = x in self._sampled
        value = self._sampled[x] if sampled else self._shared_value(x)
        alpha = site.layer.p / (1 - site.layer.p)
        mu = self._write(node, [value, *(self._shared_value(v) if v is not None else None for v in node.inputs[1:])])[0]
        weight = _weight(node)
        assert weight is not None
        assert weight.const_value is not None
        squared = alpha * weight.const_value.numpy().astype(np.float64) ** 2
        attributes = dict(node.attributes)
        if node.op_type == "Gemm" and "alpha" in attributes:
            squared = squared * attributes.pop("alpha").as_float() ** 2
        attributes.pop("beta", None)
        if value not in self._squares:
            self._squares[value] = g.Mul(value, value)
        squares = g.constant(squared.astype(np.float32), f"{weight.name}.variance")
        variance = ir.node(node.op_type, [self._squares[value], squares])
        for attribute in attributes.values():
            variance.attributes.add(attribute)
        g.append(variance)
        # The sum of squares is never negative, but a Winograd kernel may round below 0; this Relu fuses into the Conv.
        sigma = g.Sqrt(g.Relu(variance.outputs[0]))
        if not sampled:
            mu, sigma = self._repeated(mu), self._repeated(sigma)
        eps = g.Reshape(eps, g.constant(np.array([-1, *site.shape])))
        return g.Add(mu, g.Mul(sigma, eps))

    def _copy(self, node: ir.Node) -> None:
        sampled = any(value in self._sampled for value in node.inputs if value is not None)
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            if value is None:
                inputs.append(None)
            elif sampled and self._has_batch(value):
                inputs.append(self._as_sampled(value))
            else:
                inputs.append(self._shared_value(value))
        if sampled and node.op_type == "Reshape":
            inputs[1] = self._reshape_target(node)
        target = self._sampled if sampled else self._shared
        for old, new in zip(node.outputs, self._write(node, inputs), strict=True):
            target[old] = new

    def _write(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
        copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
        self._g.append(copy)
        return list(copy.outputs)

    def _has_batch(self, value: ir.Value) -> bool:
        """Whether a value has one entry per image; constants do not."""
        return value in self._sampled or (value.const_value is None and value in self._shared)

    def _reshape_target(self, node: ir.Node) -> ir.Value:
        """The target shape of a sampled Reshape: the leading dimension is no longer the batch."""
        return self._g.constant(np.array([-1, *_per_image_shape(node.outputs[0], f"Reshape {node.name}")]))

    def _shared_value(self, value: ir.Value) -> ir.Value:
        if value not in self._shared:
            if value.const_value is None:
                raise UceEdgeError(f"The value {value.name} has no origin in the graph.")
            array: npt.NDArray[np.generic] = value.const_value.numpy()
            self._shared[value] = self._g.constant(array, value.name)
        return self._shared[value]

    def _as_sampled(self, value: ir.Value) -> ir.Value:
        if value not in self._sampled:
            self._sampled[value] = self._repeated(self._shared_value(value))
        return self._sampled[value]

    def _repeated(self, value: ir.Value) -> ir.Value:
        """[batch, ...] -> [samples * batch, ...], passes outside."""
        g = self._g
        if self._repeat is None:
            zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
            images = g.Range(zero, g.Squeeze(self._batch), one)
            shape = g.Concat(self._samples, self._batch, axis=0)
            self._repeat = g.Reshape(g.Expand(images, shape), g.constant(np.array([-1])))
        return g.Gather(value, self._repeat, axis=0)
