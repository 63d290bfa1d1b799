"""Check a graph against the metadata of its file."""

from typing import Any

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind, Per
from uce_edge.errors import ModelFileError
from uce_edge.metadata import Metadata

_TYPES = {"uint8": "tensor(uint8)", "float32": "tensor(float)", "int32": "tensor(int32)", "bool": "tensor(bool)"}
"""ONNX Runtime's names."""


def check(session: Any, metadata: Metadata, source: str) -> None:
    """Reject a graph that does not match its metadata.

    Unknown outputs are ignored.

    Args:
        session: From `open_session`.
        metadata: The metadata of the file.
        source: The file's name, for the message.
    """
    if metadata.noise is NoiseKind.INPUT:
        raise ModelFileError(
            f"{source} takes its noise as graph inputs, for experiments with onnxruntime itself. "
            "Export a model to predict with: uce-edge export --noise table",
            "model.noise-inputs",
        )
    inputs = {value.name: value for value in session.get_inputs()}
    found = {value.name: value for value in session.get_outputs()}
    outputs = contract.outputs_of(metadata.outputs, metadata.contract)
    required = {contract.IMAGE} | ({contract.SEEDS} if metadata.takes_seeds else set())
    if inputs.keys() != required or not {output.name for output in outputs} <= found.keys():
        raise ModelFileError(
            f"{source} has inputs {sorted(inputs)} and outputs {sorted(found)}, which is not contract "
            f"{metadata.contract}. Export it again: uce-edge export",
            "model.graph",
        )
    spec, pixels = metadata.image, inputs[contract.IMAGE]
    promised = {contract.IMAGE: [_TYPES.get(spec.dtype), spec.height, spec.width, spec.channels]}
    actual = {contract.IMAGE: [pixels.type, *pixels.shape[1:]]}
    for output in outputs:
        last = slice(-1, None) if output.by_class else slice(0)
        promised[output.name] = [_TYPES[output.dtype], *[len(metadata.classes)][last]]
        actual[output.name] = [found[output.name].type, *found[output.name].shape[last]]
        if output.per is Per.PASS and metadata.inference is Inference.DETERMINISTIC:
            promised[output.name].append(metadata.members)
            actual[output.name].append(found[output.name].shape[0])
    for name, values in promised.items():
        if values != actual[name]:
            raise ModelFileError(
                f"{source} is damaged: its metadata promises {values} of `{name}` (type; height, width, channels or "
                f"classes, members), and its graph has {actual[name]}. Export it again: uce-edge export",
                "model.graph",
            )
