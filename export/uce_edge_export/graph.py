"""Assembling a file that fulfils the model contract: image in, calibrated distribution out."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export import gaussian, head, noise
from uce_edge_export.builder import Builder
from uce_edge_export.sites import Site

OPSET = 18
IR_VERSION = 9


@dataclass(frozen=True)
class Classifier:
    """A deterministic classifier as a graph: one float input of images, one output [batch, classes] of logits."""

    model: ir.Model
    channels_last: bool = False
    """Whether the graph takes [batch, height, width, channels]; otherwise channels come first."""

    @property
    def graph(self) -> ir.Graph:
        """The nodes."""
        return self.model.graph


def contract_model(
    classifier: Classifier, sites: list[Site], metadata: Metadata, *, expand_early: bool = False
) -> tuple[ir.Model, Metadata]:
    """Build the contract model of a deterministic classifier.

    Args:
        classifier: The network without noise.
        sites: Its noisy layers; none for deterministic inference.
        metadata: What the file says of itself.
        expand_early: Repeat the image N times at once, for runtimes that cannot broadcast later.

    Returns:
        The model, and its metadata with noisy layers and costs filled in.
    """
    g = Builder()
    spec = metadata.image
    dtype = ir.DataType.UINT8 if spec.dtype == "uint8" else ir.DataType.FLOAT
    image = ir.val(contract.IMAGE, dtype, ("batch", spec.height, spec.width, spec.channels))
    inputs = [image]
    batch = g.Shape(image, start=0, end=1)
    pixels = _emit_normalisation(g, image, spec, classifier.channels_last)
    classes = len(metadata.classes)
    if metadata.inference is Inference.DETERMINISTIC:
        samples = None
        logits, costs = gaussian.Pass(g, classifier.graph, batch, None).run(pixels, [], None)
        logits = g.Unsqueeze(logits, g.constant(np.array([0])))
    else:
        seeds = ir.val(contract.SEEDS, ir.DataType.INT32, ("samples",))
        samples = g.Shape(seeds, start=0, end=1)
        source, extra = _noise_source(g, metadata.noise, seeds, batch, sites)
        inputs += [seeds, *extra]
        passes = gaussian.Pass(g, classifier.graph, batch, samples)
        logits, costs = passes.run(pixels, sites, source, expand_early=expand_early)
        logits = g.Reshape(logits, g.Concat(samples, g.constant(np.array([-1, classes])), axis=0))
    outputs = head.emit(g, logits, samples, classes, metadata.calibration)
    metadata = replace(
        metadata,
        layers=tuple(site.layer for site in sites),
        costs={"macs_once": costs.once, "macs_per_pass": costs.per_pass},
    )
    return finish(g, inputs, outputs, metadata), metadata


def finish(g: Builder, inputs: list[ir.Value], outputs: list[ir.Value], metadata: Metadata) -> ir.Model:
    """Make a checked model of what a builder holds."""
    graph = ir.Graph(
        inputs, outputs, nodes=g.nodes, initializers=g.initializers, opset_imports={"": OPSET}, name="uce_edge"
    )
    model = ir.Model(
        graph,
        ir_version=IR_VERSION,
        producer_name="uce-edge",
        producer_version=metadata.tools.get("uce_edge", ""),
        metadata_props=metadata.to_properties(),
    )
    return checked(model)


def checked(model: ir.Model) -> ir.Model:
    """The model without unused nodes and with unique names, after ONNX's own checker."""
    for tidy in (common.RemoveUnusedNodesPass(), common.NameFixPass(), common.CheckerPass(full_check=True)):
        tidy(model)
    return model


def _noise_source(
    g: Builder, kind: NoiseKind, seeds: ir.Value, batch: ir.Value, sites: list[Site]
) -> tuple[gaussian.Noise, list[ir.Value]]:
    """The layers' noise, and the graph inputs it needs beyond the contract's."""
    if kind is NoiseKind.RANDN:
        return lambda _, mu: g.RandomNormalLike(mu, dtype=1), []
    extra: list[ir.Value] = []
    if kind is NoiseKind.TABLE:
        flat = noise.emit(g, seeds, batch, noise.Plan(tuple(site.size for site in sites)))
    else:
        extra = [ir.val(f"noise.{i}", ir.DataType.FLOAT, ("samples", site.size)) for i, site in enumerate(sites)]
        flat = [noise.emit_repeat(g, value, batch, site.size) for value, site in zip(extra, sites, strict=True)]
    by_node: dict[Any, ir.Value] = {site.node: value for site, value in zip(sites, flat, strict=True)}
    return lambda site, _: g.Reshape(by_node[site.node], g.constant(np.array([-1, *site.shape]))), extra


def _emit_normalisation(g: Builder, image: ir.Value, spec: ImageSpec, channels_last: bool) -> ir.Value:
    """(x / scale - mean) / std as one multiply and one add, then channels first."""
    mean, std = np.asarray(spec.mean, np.float64), np.asarray(spec.std, np.float64)
    factor, offset = 1 / (spec.scale * std), -mean / std
    x = g.Cast(image, to=ir.DataType.FLOAT) if spec.dtype == "uint8" else image
    x = g.Add(g.Mul(x, g.constant(factor.astype(np.float32))), g.constant(offset.astype(np.float32)))
    return x if channels_last else g.Transpose(x, perm=[0, 3, 1, 2])
