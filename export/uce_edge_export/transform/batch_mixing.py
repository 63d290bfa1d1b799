"""Find nodes that mix images behind noise."""

import onnx_ir as ir

from uce_edge.errors import UceEdgeError

# These read the leading dimension as something else than "one entry per image", or have none.
_NEVER = {"LSTM", "GRU", "RNN", "NonZero", "Unique", "Compress", "NonMaxSuppression", "If", "Loop", "Scan"}
_AXIS_DEFAULT = {
    "Concat": None, "Split": 0, "Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Softmax": -1, "LogSoftmax": -1,
    "Hardmax": -1, "ArgMax": 0, "ArgMin": 0, "TopK": -1, "CumSum": None, "Flatten": 1, "LayerNormalization": -1,
}  # fmt: skip
_AXES_INPUT = {"Squeeze": 1, "Unsqueeze": 1, "Slice": 3}


def refuse_batch_mixing(node: ir.Node) -> None:
    """Reject a node behind noise that mixes the leading dimension.

    Raises:
        UceEdgeError: Naming the operator and the node.
    """
    if node.op_type in _NEVER:
        raise UceEdgeError(
            f"The operator {node.op_type} ({node.name}) behind a noisy layer cannot be sampled. "
            "Choose layers after it with --noisy.",
            "graph.operator",
        )
    if works_across_images(node):
        raise UceEdgeError(
            f"{node.op_type} ({node.name}) behind a noisy layer works across the images of a batch. "
            "Choose layers after it with --noisy, or write the model batch-first.",
            "graph.batch-mixing",
        )


def works_across_images(node: ir.Node) -> bool:
    """Whether a node uses or moves the leading dimension."""
    if node.op_type == "Transpose":
        return "perm" not in node.attributes or node.attributes["perm"].as_ints()[0] != 0
    if node.op_type == "Gemm":
        return "transA" in node.attributes and bool(node.attributes["transA"].as_int())
    if node.op_type == "MatMul":  # of a matrix on the right, the rows are added up
        return _rank(node.inputs[1]) == 2 and node.inputs[1] is not None and node.inputs[1].const_value is None
    if node.op_type == "Einsum":
        return not _keeps_images(node)
    rank = _rank(node.inputs[0])
    axes = _axes(node)
    return axes is not None and any(axis in (0, -rank) for axis in axes)


def _keeps_images(node: ir.Node) -> bool:
    """Whether an Einsum has the images first in all it takes and gives."""
    equation = node.attributes["equation"].as_string().replace(" ", "").replace("...", "@")
    inputs, arrow, output = equation.partition("->")
    labels = list(zip(inputs.split(","), node.inputs, strict=True))
    varying = [(label, value) for label, value in labels if value is not None and value.const_value is None]
    fixed = [label for label, value in labels if value is not None and value.const_value is not None]
    images = output[:1]
    if images == "@":  # which is as many dimensions in every operand
        fixed = [label for label in fixed if label[:1] != images]
        first = len({_rank(value) - len(label) for label, value in varying}) == 1
    else:
        first = bool(arrow and images)
    return first and all(label[:1] == images for label, _ in varying) and not any(images in label for label in fixed)


def _axes(node: ir.Node) -> list[int] | None:
    """The constant axes of a node; None otherwise."""
    if node.op_type in _AXIS_DEFAULT:
        default = _AXIS_DEFAULT[node.op_type]
        if "axis" in node.attributes:
            default = node.attributes["axis"].as_int()
        return None if default is None else [default]
    position = 1 if node.op_type.startswith("Reduce") else _AXES_INPUT.get(node.op_type)
    if position is None:
        return None
    if len(node.inputs) <= position or node.inputs[position] is None:
        return [0]  # no axes given: all of them
    return _constant(node.inputs[position])


def _constant(value: ir.Value | None) -> list[int] | None:
    if value is None or value.const_value is None:
        return None
    return [int(axis) for axis in value.const_value.numpy().ravel()]


def _rank(value: ir.Value | None) -> int:
    return len(value.shape) if value is not None and value.shape is not None else 99
