"""Assemble a contract file: image in, calibrated distribution out."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind, Posterior
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export.graph import head, heatmap
from uce_edge_export.graph.builder import OPSET, Builder
from uce_edge_export.graph.weight_layers import largest_state, layer_number, nodes_from, per_image_shape, weight_layers
from uce_edge_export.noise import noise_table, sampling
from uce_edge_export.noise.perturbations import Masking
from uce_edge_export.noise.sites import Site
from uce_edge_export.transform import noise_equalisation

IR_VERSION = 9


@dataclass(frozen=True)
class Classifier:
    """A deterministic classifier graph: images to logits [batch, classes]."""

    model: ir.Model
    channels_last: bool = False
    """Whether the graph takes [batch, height, width, channels]; otherwise channels come first."""

    @property
    def graph(self) -> ir.Graph:
        """The nodes."""
        return self.model.graph


def contract_model(
    classifier: Classifier,
    sites: list[Site],
    metadata: Metadata,
    *,
    expand_early: bool = False,
    sample_from: str | None = None,
    with_heatmap: bool = False,
) -> tuple[ir.Model, Metadata]:
    """Build the contract model of a deterministic classifier.

    Args:
        classifier: The network without noise.
        sites: Its noisy layers; none for deterministic inference.
        metadata: Of the file.
        expand_early: Repeat the image N times at once, for runtimes that cannot broadcast later.
        sample_from: For moments, the weight layer from which on values are drawn, as in `sites.layer_number`; None for
            the last one.
        with_heatmap: Add the optional outputs of `heatmap`.

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
        passes = sampling.Pass(g, classifier.graph, batch, None)
        logits, costs = passes.run(pixels, [], None)
        logits = g.Unsqueeze(logits, g.constant(np.array([0])))
    else:
        seeds = ir.val(contract.SEEDS, ir.DataType.INT32, ("samples",))
        samples = g.Shape(seeds, start=0, end=1)
        sampled_from = variance_scale = None
        if metadata.inference is Inference.MOMENTS:
            layers = list(weight_layers(classifier.graph))
            start = len(layers) - 1 if sample_from is None else layer_number(classifier.graph, sample_from)
            # A mask is no weight layer: it is drawn when the layer that takes it is.
            behind = nodes_from(classifier.graph, start)
            sampled_from = {*layers[start:], *(site.node for site in sites if site.node in behind)}
            scale = metadata.calibration.parameters.get("variance_scale", [1.0])
            variance_scale = g.constant(np.asarray(scale, np.float32), contract.VARIANCE_SCALE)
        random = sampling.random_parts(classifier.graph, sites, sampled_from)
        once: set[ir.Node | ir.Value] = set()
        if metadata.noise is not NoiseKind.RANDN:
            once = {site.node for site in sites if isinstance(site.perturbation, Masking)}
        if metadata.noise is not NoiseKind.RANDN and not expand_early:
            once |= sampling.first_noise(classifier.graph, sites, sampled_from)
        source, extra = _noise_source(g, metadata.noise, seeds, batch, random, once)
        inputs += [seeds, *extra]
        evened, weights = noise_equalisation.even(classifier.graph, sites)
        passes = sampling.Pass(g, classifier.graph, batch, samples, sampled_from, variance_scale, seeds, weights)
        logits, costs = passes.run(pixels, evened, source, once, expand_early=expand_early)
        logits = g.Reshape(logits, g.Concat(samples, g.constant(np.array([-1, classes])), axis=0))
    outputs = head.emit(g, logits, samples, classes, metadata.calibration)
    drawn: list[ir.Value] = []
    if with_heatmap:
        (class_id,) = (value for value in outputs if value.name == contract.CLASS_ID)
        drawn = heatmap.emit(g, classifier.graph, spec, passes, samples, class_id)
    metadata = replace(
        metadata,
        outputs=tuple(str(value.name) for value in drawn),
        minor=contract.MINOR,
        noise=metadata.noise.written,
        posterior=metadata.posterior or (Posterior.DROPOUT if sites else Posterior.NONE),
        layers=tuple(site.layer for site in sites),
        costs=replace(costs, bytes_per_pass=sampling.COPIES * largest_state(classifier.graph)),
    )
    return finish(g, inputs, [*outputs, *drawn], metadata), metadata


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
        metadata_props=replace(metadata, digests=None).to_properties(),  # those of another graph, if any
    )
    return checked(model)


def checked(model: ir.Model) -> ir.Model:
    """Remove unused nodes, name the others, and run ONNX's checker."""
    for tidy in (common.RemoveUnusedNodesPass(), common.NameFixPass(), common.CheckerPass(full_check=True)):
        tidy(model)
    return model


def _noise_source(
    g: Builder,
    kind: NoiseKind,
    seeds: ir.Value,
    batch: ir.Value,
    random: sampling.RandomParts,
    once: Collection[ir.Node | ir.Value],
) -> tuple[sampling.Noise, list[ir.Value]]:
    """The noise of some layers, and its graph inputs."""
    if kind is NoiseKind.RANDN:
        shapes = dict(random)
        return lambda key, mu: g.RandomNormalLike(_emit_like(g, key, mu, shapes[key]), dtype=1), []
    sizes = [math.prod(shape) for _, shape in random]
    extra: list[ir.Value] = []
    if kind.replays:
        repeated = [key not in once for key, _ in random]
        flat = noise_table.emit(g, seeds, batch, noise_table.Plan(tuple(sizes)), repeated)
    else:
        extra = [ir.val(f"noise.{i}", ir.DataType.FLOAT, ("samples", size)) for i, size in enumerate(sizes)]
        flat = [
            value if key in once else noise_table.emit_repeat(g, value, batch, size)
            for (key, _), value, size in zip(random, extra, sizes, strict=True)
        ]
    shaped = {
        key: g.Reshape(value, g.constant(np.array([-1, *shape])))
        for (key, shape), value in zip(random, flat, strict=True)
    }
    for key, shape in random:
        leading = "samples" if key in once else sampling.PASSES
        shaped[key].type, shaped[key].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([leading, *shape])
    return lambda key, _: shaped[key], extra


def _emit_like(g: Builder, key: ir.Node | ir.Value, mu: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """A value with the shape of another's normals."""
    values = [key] if isinstance(key, ir.Value) else [key.outputs[0], *key.inputs[:1]]
    whole = next(dims for value in values if value is not None and _holds(dims := _dims(value), shape))
    axes = [axis + 1 for axis, (one, many) in enumerate(zip(shape, whole, strict=True)) if one != many]
    if not axes:
        return mu
    bounds = (np.zeros(len(axes), np.int64), np.ones(len(axes), np.int64), np.array(axes))
    return g.Slice(mu, *map(g.constant, bounds))


def _dims(value: ir.Value) -> tuple[int, ...]:
    return per_image_shape(value, "a noisy layer")


def _holds(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether normals have the shape of a value, or 1 in some dimensions."""
    return len(dims) == len(shape) and all(one in (1, many) for one, many in zip(shape, dims, strict=True))


def _emit_normalisation(g: Builder, image: ir.Value, spec: ImageSpec, channels_last: bool) -> ir.Value:
    """(x / scale - mean) / std as Mul and Add, channels first."""
    mean, std = np.asarray(spec.mean, np.float64), np.asarray(spec.std, np.float64)
    factor, offset = 1 / (spec.scale * std), -mean / std
    x = g.Cast(image, to=ir.DataType.FLOAT) if spec.dtype == "uint8" else image
    x = g.Add(g.Mul(x, g.constant(factor.astype(np.float32))), g.constant(offset.astype(np.float32)))
    return x if channels_last else g.Transpose(x, perm=[0, 3, 1, 2])
