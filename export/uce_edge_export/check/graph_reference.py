"""Evaluate a classifier graph node by node with `onnx.reference`.

Slow, and independent of the graph pass and of ONNX Runtime: it is what the gate compares third-party exports with.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from uce_edge.metadata import ImageSpec
from uce_edge_export.check.parity_gate import FloatArray, Pixels, Reference
from uce_edge_export.graph.assembly import Classifier
from uce_edge_export.graph.node_evaluator import Array, evaluate
from uce_edge_export.noise.sites import Site


def normalised(classifier: Classifier, spec: ImageSpec, images: Pixels) -> FloatArray:
    """Normalise images: (x / scale - mean) / std, in the network's layout."""
    pixels = (images.astype(np.float64) / spec.scale - np.array(spec.mean)) / np.array(spec.std)
    return np.ascontiguousarray(pixels if classifier.channels_last else pixels.transpose(0, 3, 1, 2), np.float32)


def graph_reference(
    classifier: Classifier,
    spec: ImageSpec,
    sites: list[Site],
    change: Callable[[ir.Node, Array], Array] | None = None,
) -> Reference:
    """The logits of a classifier under given noise.

    Args:
        classifier: The network.
        spec: Of its images.
        sites: Its noisy layers.
        change: Applied to the first output of every node; None for no change.
    """
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
                normals = noises[noisy[node]].reshape(1, *site.normals)
                outputs[0] = site.perturbation.reference(node, inputs, outputs[0], normals)
            if change is not None:
                outputs[0] = change(node, outputs[0])
            values |= dict(zip(node.outputs, outputs, strict=True))
        return values[classifier.graph.outputs[0]]

    def logits(images: Pixels, noises: list[FloatArray] | None) -> FloatArray:
        # Alone, so that a graph that mixes the images of a batch is found out.
        alone = np.split(normalised(classifier, spec, images), len(images))
        passes = [None] if noises is None else [[values[i] for values in noises] for i in range(len(noises[0]))]
        return np.stack([np.concatenate([one_pass(image, eps) for image in alone]) for eps in passes])

    return logits
