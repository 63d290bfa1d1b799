"""Bring networks that were saved for training to inference form."""

import onnx

from uce_edge.errors import UceEdgeError


def leave(proto: onnx.ModelProto, notes: list[str]) -> None:
    """Freeze batch-norm and take dropout out of training mode, in place.

    Args:
        proto: The model.
        notes: Changes to batch-norm are appended; dropout has its own.
    """
    used = {name for node in proto.graph.node for name in node.input} | {value.name for value in proto.graph.output}
    frozen = []
    for node in proto.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]  # training mode: its answers would be random
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        modes = [attribute for attribute in node.attribute if attribute.name == "training_mode"]
        statistics = [name for name in node.output[1:] if name]
        if not statistics and not any(mode.i for mode in modes):
            continue
        if used.intersection(statistics):
            raise UceEdgeError(
                f"The batch-norm {node.name or node.output[0]} is in training form, and the model uses the statistics "
                "of its batch. Choose the class scores alone (--output NAME), or export the network in inference mode.",
                "source.training-form",
            )
        for mode in modes:
            node.attribute.remove(mode)
        del node.output[1:]
        frozen.append(node.name or f"before {node.output[0]}")
    if frozen:
        more = "" if len(frozen) < 4 else f" and {len(frozen) - 3} more"
        notes.append(
            f"its batch-norm was saved in training form ({', '.join(frozen[:3])}{more}): it now uses the stored mean "
            "and variance instead of those of the batch"
        )
