"""Attention rollout: how much of every patch reaches the class scores.

Abnar & Zuidema 2020. A block passes on half of a token and half of what its attention collects, averaged over the
heads. Followed backwards from the tokens that the scores are read from, this gives every patch a share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.errors import UsageError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.linearised_head import reduced_axes
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.sampling import Pass

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rollout:
    """The attention of a transformer."""

    attentions: tuple[ir.Value, ...]
    """[batch, tokens, tokens] each, or with heads behind the batch; in order."""
    read: Weights
    """[tokens]: the share of every token in what the class scores are read from."""

    def emit(self, g: Builder, passes: Pass, patches: int) -> tuple[ir.Value, bool]:
        """Write the shares of the last tokens.

        Args:
            g: Where the nodes go.
            passes: The classifier, written to the same builder.
            patches: How many tokens are patches; those before them are class tokens and registers.

        Returns:
            [rows, patches], and whether rows are passes times images.
        """
        share, sampled = g.constant(self.read[None, None]), False
        half, heads = g.constant(np.float32(0.5)), g.constant(np.array([1]))
        for attention in reversed(self.attentions):
            written = passes.written(attention)
            weights = written.value if len(per_image_shape(attention, "Softmax")) == 2 else None
            weights = weights or g.ReduceMean(written.value, heads, keepdims=0)
            if sampled and not written.sampled:
                weights = passes.repeated(weights)
            elif written.sampled and not sampled and share.const_value is None:
                share = passes.repeated(share)
            sampled = sampled or written.sampled
            share = g.Mul(g.Add(share, g.MatMul(share, weights)), half)
        bounds = (len(self.read) - patches, len(self.read), 2)
        shares = g.Slice(share, *(g.constant(np.array([number])) for number in bounds))
        return g.Reshape(shares, g.constant(np.array([-1, patches]))), sampled


def find(nodes: Sequence[ir.Node], patches: int) -> Rollout | None:
    """The attention between a map and the logits; None without attention.

    Args:
        nodes: From the map to the logits, in order.
        patches: The places of the map.

    Raises:
        UsageError: The attention is of another kind.
    """
    last = max((index for index, node in enumerate(nodes) if node.op_type == "Softmax"), default=None)
    if last is None:
        return None
    attentions = tuple(node.outputs[0] for node in nodes if node.op_type == "Softmax")
    shapes = [per_image_shape(value, "Softmax") for value in attentions]
    tokens = shapes[-1][-1]
    if any(len(shape) not in (2, 3) or shape[-2:] != (tokens, tokens) for shape in shapes) or tokens < patches:
        sizes = "x".join(str(size) for size in shapes[-1])
        raise _refused(f"it has attention of {sizes} weights, which is not between all of its {patches} patches")
    read = _read(nodes[last + 1 :], tokens)
    if not read.any():
        raise _refused("the tokens that its class scores are read from were not found")
    return Rollout(attentions, (read / read.sum()).astype(np.float32))


def _read(nodes: Sequence[ir.Node], tokens: int) -> Weights:
    """How often every token is read by the nodes behind the last attention."""
    found = np.zeros(tokens, np.float32)
    kept: dict[ir.Value, npt.NDArray[np.int64]] = {}  # the tokens of a value [batch, tokens, width]
    for node in nodes:
        y = node.outputs[0]
        shape = per_image_shape(y, node.op_type)
        before = [kept[value] for value in node.inputs if value is not None and value in kept]
        if not before:
            if len(shape) == 2 and shape[0] == tokens:
                kept[y] = np.arange(tokens)
            continue
        numbers = before[0]
        if node.op_type in ("Gather", "Slice"):
            numbers = _taken(node, numbers)
        if len(shape) == 2 and shape[0] == len(numbers):
            kept[y] = numbers
        elif len(numbers) == 1 or (node.op_type == "ReduceMean" and reduced_axes(node, 3) == [1]):
            found[numbers] += 1 / len(numbers)
        else:
            raise _refused(f"the operator {node.op_type} ({node.name}) mixes its tokens behind the last attention")
    return found


def _taken(node: ir.Node, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The tokens that a Gather or a Slice leaves."""
    constants = [None if value is None else value.const_value for value in node.inputs[1:]]
    values = [None if constant is None else constant.numpy() for constant in constants]
    if node.op_type == "Gather":
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if axis in (1, -2) and values[0] is not None:
            return np.atleast_1d(numbers[values[0]])
    elif len(values) >= 3 and all(value is not None and value.size == 1 for value in values):
        start, end, axis, *step = (int(value.item()) for value in values if value is not None)
        if axis in (1, -2):
            return numbers[slice(start, end, *step)]
        if axis in (2, -1):
            return numbers
    raise _refused(f"what the operator {node.op_type} ({node.name}) takes of its tokens is not a constant")


def _refused(reason: str) -> UsageError:
    return UsageError(
        f"--heatmap needs a transformer whose attention can be followed to its patches, but {reason}. Leave --heatmap "
        "out, or export a network that averages its patches.",
        "heatmap.attention",
    )
