"""Heatmaps in the graph: which places speak for the class.

The last feature map is found in the classifier. Its product with the factors of the predicted class
(`linearised_head`), added up over the channels, gives each place's share of the class's logit: Zhou et al. 2016 for an
average and a linear layer, up to the number of places. Where attention lies behind the map, as in a transformer with a
class token, the map is how much of every patch reaches the scores (`attention_rollout`).
"""

import math
import shlex
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from uce_edge import contract
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec
from uce_edge_export.graph import attention_rollout
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.linearised_head import LinearisedHead, reduced_axes
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.sampling import Pass

_MOVED = {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class FeatureMap:
    """The last value of a classifier with places."""

    value: ir.Value
    channels: int
    """The axis of the channels."""
    height: int
    width: int
    nodes: tuple[ir.Node, ...]
    """From the map to the logits, in order."""
    behind: frozenset[ir.Value]
    """The values that depend on the map, and the map itself."""


def emit(
    g: Builder, graph: ir.Graph, spec: ImageSpec, passes: Pass, samples: ir.Value | None, class_id: ir.Value
) -> list[ir.Value]:
    """Append the heatmap of the predicted class, and its spread where it has one.

    Args:
        g: Where the nodes go.
        graph: The classifier.
        spec: The image that the file takes.
        passes: The classifier, written to the same builder.
        samples: int64 [1], the number of passes; None for a deterministic file.
        class_id: The output of that name.

    Raises:
        UsageError: The network has no map, or its head cannot be taken as linear.
    """
    found = find(graph, spec)
    size = g.constant(np.array([found.height, found.width]))
    rollout = attention_rollout.find(found.nodes, found.height * found.width)
    variance = None
    if rollout is not None:
        each, sampled = rollout.emit(g, passes, found.height * found.width)
        each = g.Reshape(each, g.Concat(g.constant(np.array([-1])), size, axis=0))
    else:
        each, sampled, variance = _activation(g, graph, passes, class_id, found, size)
    values = {contract.HEATMAP: each}
    if sampled:
        first = g.constant(np.array([0]))
        each = g.Reshape(each, g.Concat(samples, g.constant(np.array([-1])), size, axis=0))
        mean = g.ReduceMean(each, first, keepdims=0)
        spread = g.Sqrt(g.ReduceMean(g.square(g.Sub(each, mean)), first, keepdims=0))
        values = {contract.HEATMAP: mean, contract.HEATMAP_SPREAD: spread}
    elif variance is not None:
        values[contract.HEATMAP_SPREAD] = g.Sqrt(g.Max(variance, g.constant(np.float32(0))))
    for name, value in values.items():
        value.name, value.dtype = name, ir.DataType.FLOAT
        value.shape = ir.Shape(["batch", found.height, found.width])
    return list(values.values())


def _activation(
    g: Builder, graph: ir.Graph, passes: Pass, class_id: ir.Value, found: FeatureMap, size: ir.Value
) -> tuple[ir.Value, bool, ir.Value | None]:
    """Class activation [rows, height, width], whether rows are passes times images, and its variance if known."""
    head = LinearisedHead(g, passes, class_id, found.behind)
    slope = head.factors(list(found.nodes), graph.outputs[0], found.value)
    factors, written = slope.value, passes.written(found.value)
    assert factors is not None
    sampled, features = slope.sampled or written.sampled, written.value
    if sampled and not slope.sampled:
        factors = passes.repeated(factors)
    if sampled and not written.sampled:
        features = passes.repeated(features)
    channels = g.constant(np.array([found.channels]))

    def placed(products: ir.Value) -> ir.Value:
        """[rows, height, width]: the sum over the channels."""
        added = g.ReduceSum(products, channels, keepdims=0)
        return g.Reshape(added, g.Concat(g.constant(np.array([-1])), size, axis=0))

    variance = None
    if not sampled and written.variance is not None:
        variance = placed(g.Mul(written.variance(), g.square(factors)))
    return placed(g.Mul(features, factors)), sampled, variance


def find(graph: ir.Graph, spec: ImageSpec) -> FeatureMap:
    """The last value with places that all of the class scores come from.

    Args:
        graph: The classifier, with shapes.
        spec: The image, whose proportions those of a list of places are.

    Raises:
        UsageError: There is none.
    """
    nodes = list(graph)
    dependent = _dependent(nodes, {graph.inputs[0]})
    for node in reversed(nodes):
        value = node.outputs[0]
        if value not in dependent:
            continue
        places = _places(value, spec)
        if places is None:
            continue
        behind = _dependent(nodes, {value})
        after = [one for one in nodes if one is not node and one.outputs[0] in behind]
        through = (x for one in after for x in one.inputs if x in dependent)
        if graph.outputs[0] in behind and all(x in behind for x in through):
            return FeatureMap(value, *places, tuple(after), frozenset(behind))
    raise UsageError(
        "--heatmap needs a network with a feature map before its class scores, but this one has none: no value with "
        "channels, height and width leads to all of them. Leave --heatmap out.",
        "heatmap.map-missing",
    )


def several_networks(run: str = "RUN") -> UsageError:
    """The error of an ensemble.

    Args:
        run: The folder of one of its members.
    """
    return UsageError(
        "--heatmap is not built for ensembles. Leave it out, and make a second file of one member for its map: "
        f"uce-edge export {shlex.quote(run)} --heatmap",
        "heatmap.several-networks",
    )


def _dependent(nodes: list[ir.Node], found: set[ir.Value]) -> set[ir.Value]:
    """Values that depend on some, and these; shapes do not."""
    found = set(found)
    for node in nodes:
        if node.op_type not in ("Shape", "Size") and any(x in found for x in node.inputs if x is not None):
            found.update(node.outputs)
    return found


def _places(value: ir.Value, spec: ImageSpec) -> tuple[int, int, int] | None:
    """The axis of the channels, and height and width; None without places."""
    rank = 0 if value.shape is None else len(value.shape)
    if rank not in (3, 4) or value.shape is None or not all(isinstance(dim, int) for dim in value.shape.dims[1:]):
        return None
    shape = per_image_shape(value, str(value.name))
    node = value.producer()
    if rank == 4:
        last = _channels_last(value)
        height, width = shape[:2] if last else shape[1:]
        return (3 if last else 1, height, width) if height * width > 1 else None
    height = round(math.sqrt(shape[0] * spec.height / spec.width))
    moved = node is not None and node.op_type in _MOVED
    if moved or height < 1 or shape[0] == 1 or height * round(height * spec.width / spec.height) != shape[0]:
        return None
    return 2, height, shape[0] // height


def _channels_last(value: ir.Value) -> bool:
    """Whether the last axis is the channels."""
    for use in value.uses():
        if use.node.op_type == "ReduceMean":
            return reduced_axes(use.node, 4) == [1, 2]
        if use.node.op_type == "LayerNormalization":
            return True
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and "perm" in node.attributes:
        return list(node.attributes["perm"].as_ints()) == [0, 2, 3, 1]
    return node is not None and node.op_type == "LayerNormalization"
