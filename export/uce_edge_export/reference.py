"""A classifier graph evaluated node by node with `onnx.reference`, one image and one pass at a time.

Slow, and independent of the graph pass and of ONNX Runtime: it is what the gate compares third-party exports with.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from uce_edge.errors import UceEdgeError
from uce_edge.metadata import ImageSpec
from uce_edge_export.gate import FloatArray, Pixels, Reference
from uce_edge_export.graph import OPSET, Classifier
from uce_edge_export.sites import Site, weight_of

Array = npt.NDArray[Any]


def evaluate(node: ir.Node, inputs: list[Array | None]) -> list[Array]:
    """The outputs of one node for given inputs, of which optional ones may be None."""
    proto = ir.to_proto(node)
    for i in range(len(proto.input)):
        proto.input[i] = f"input.{i}" if i < len(inputs) and inputs[i] is not None else ""
    while proto.input and proto.input[-1] == "":
        del proto.input[-1]
    feed = {f"input.{i}": value for i, value in enumerate(inputs) if value is not None}
    try:
        return list(ReferenceEvaluator(proto, opsets={"": OPSET}).run(None, feed))
    except Exception as error:  # an operator without a reference, or shapes that do not fit
        raise UceEdgeError(
            f"The operator {node.op_type} ({node.name}) cannot be evaluated ({str(error).splitlines()[0]})."
        ) from None


def normalised(classifier: Classifier, spec: ImageSpec, images: Pixels) -> FloatArray:
    """Images as a classifier takes them: (x / scale - mean) / std, in its own layout."""
    pixels = (images.astype(np.float64) / spec.scale - np.array(spec.mean)) / np.array(spec.std)
    return np.ascontiguousarray(pixels if classifier.channels_last else pixels.transpose(0, 3, 1, 2), np.float32)


def graph_reference(classifier: Classifier, spec: ImageSpec, sites: list[Site]) -> Reference:
    """The logits of a classifier under given noise."""
    noisy = {site.node: i for i, site in enumerate(sites)}

    def one_pass(pixels: FloatArray, noises: list[FloatArray] | None) -> FloatArray:
        values: dict[ir.Value, Array] = {classifier.graph.inputs[0]: pixels}

        def operand(value: ir.Value | None) -> Array | None:
            if value is None:
                return None
            if value not in values:
                assert value.const_value is not None
                values[value] = value.const_value.numpy()
            return values[value]

        for node in classifier.graph:
            inputs = [operand(value) for value in node.inputs]
            outputs = evaluate(node, inputs)
            if noises is not None and node in noisy:
                site = sites[noisy[node]]
                eps = noises[noisy[node]].reshape(1, *site.shape)
                outputs[0] = (outputs[0] + np.sqrt(_variance(site, inputs)) * eps).astype(np.float32)
            values |= dict(zip(node.outputs, outputs, strict=True))
        return values[classifier.graph.outputs[0]]

    def logits(images: Pixels, noises: list[FloatArray] | None) -> FloatArray:
        # Alone, so that a graph that mixes the images of a batch is found out.
        alone = np.split(normalised(classifier, spec, images), len(images))
        passes = [None] if noises is None else [[values[i] for values in noises] for i in range(len(noises[0]))]
        return np.stack([np.concatenate([one_pass(image, eps) for image in alone]) for eps in passes])

    return logits


def _variance(site: Site, inputs: list[Array | None]) -> Array:
    """Alpha * layer(x^2, W^2) without bias."""
    found = weight_of(site.node)
    assert found is not None
    squares = [None if value is None else value.astype(np.float32) ** 2 for value in inputs[:2]]
    scale = 1.0
    if site.node.op_type == "Gemm":
        # The node multiplies by its `alpha` once, the variance has it squared; beta only scales the bias.
        scale = site.node.attributes["alpha"].as_float() if "alpha" in site.node.attributes else 1.0
    variance: Array = evaluate(site.node, list(squares))[0]
    return np.maximum(scale * site.layer.p / (1 - site.layer.p) * variance, 0)
