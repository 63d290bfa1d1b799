"""Assembling a file that fulfils the model contract: image in, calibrated distribution out."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from uce_edge import contract
from uce_edge.contract import ImageSpec, Inference, Metadata
from uce_edge_export import gaussian, head, noise
from uce_edge_export.builder import Builder

OPSET = 18
IR_VERSION = 9


def contract_model(twin: ir.Model, sites: list[gaussian.Site], metadata: Metadata) -> tuple[ir.Model, Metadata]:
    """Build the contract model of a deterministic classifier.

    Args:
        twin: A classifier with one float input [batch, channels, height, width] and one output of logits.
        sites: Its noisy layers; none for deterministic inference.
        metadata: What the file says of itself.

    Returns:
        The model, and its metadata with the noisy layers filled in.
    """
    metadata = replace(metadata, layers=tuple(site.layer for site in sites))
    g = Builder()
    spec = metadata.image
    dtype = ir.DataType.UINT8 if spec.dtype == "uint8" else ir.DataType.FLOAT
    image = ir.val(contract.IMAGE, dtype, ("batch", spec.height, spec.width, spec.channels))
    inputs = [image]
    batch = g.Shape(image, start=0, end=1)
    pixels = _emit_normalisation(g, image, spec)
    last = g.constant(np.array([-1, len(metadata.classes)]))
    if metadata.inference is Inference.DETERMINISTIC:
        samples = None
        logits = gaussian.Pass(g, twin.graph, pixels, batch, None).run([], [])
        logits = g.Unsqueeze(logits, g.constant(np.array([0])))
    else:
        seeds = ir.val(contract.SEEDS, ir.DataType.INT32, ("samples",))
        inputs.append(seeds)
        samples = g.Shape(seeds, start=0, end=1)
        noises = noise.emit(g, seeds, batch, gaussian.plan_of(sites))
        logits = gaussian.Pass(g, twin.graph, pixels, batch, samples).run(sites, noises)
        logits = g.Reshape(logits, g.Concat(samples, last, axis=0))
    outputs = head.emit(g, logits, samples, len(metadata.classes), metadata.calibration)
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=g.nodes,
        initializers=g.initializers,
        opset_imports={"": OPSET},
        name="uce_edge",
    )
    model = ir.Model(
        graph,
        ir_version=IR_VERSION,
        producer_name="uce-edge",
        producer_version=metadata.tools.get("uce_edge", ""),
        metadata_props=metadata.to_properties(),
    )
    common.RemoveUnusedNodesPass()(model)
    common.NameFixPass()(model)
    common.CheckerPass(full_check=True)(model)
    return model, metadata


def _emit_normalisation(g: Builder, image: ir.Value, spec: ImageSpec) -> ir.Value:
    """(x / scale - mean) / std as one multiply and one add, then channels first."""
    mean, std = np.asarray(spec.mean, np.float64), np.asarray(spec.std, np.float64)
    factor, offset = 1 / (spec.scale * std), -mean / std
    x = g.Cast(image, to=ir.DataType.FLOAT) if spec.dtype == "uint8" else image
    x = g.Add(g.Mul(x, g.constant(factor.astype(np.float32))), g.constant(offset.astype(np.float32)))
    return g.Transpose(x, perm=[0, 3, 1, 2])
