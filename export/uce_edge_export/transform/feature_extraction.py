"""Noise-free features of images, computed by ONNX Runtime."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge import contract
from uce_edge._util.progress import progress
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import open_session
from uce_edge_export.graph.builder import Builder
from uce_edge_export.transform.noise_free import Features, find_features
from uce_edge_export.transform.simplification import infer_shapes

_AT_ONCE = 32  # images, at most
_PIXELS = 2**18  # of one call, at most: the values of a network at 224 x 224 take 30 MB per image

FloatArray = npt.NDArray[np.float32]
Emit = Callable[[Builder, list[Features]], list[ir.Value]]
Shape = Sequence[str | None]
_ROWS: Shape = ("batch", None)


def probe(
    model: ir.Model,
    images: npt.NDArray[Any],
    emit: Emit,
    shape: Shape = _ROWS,
    *,
    layers: Sequence[int] = (),
    logits: bool = False,
) -> list[FloatArray]:
    """Compute results from features once; see `feature_session`."""
    return feature_session(model, emit, shape, layers=layers, logits=logits)(images)


def feature_session(
    model: ir.Model,
    emit: Emit,
    shape: Shape = _ROWS,
    *,
    layers: Sequence[int] = (),
    logits: bool = False,
) -> Callable[[npt.NDArray[Any]], list[FloatArray]]:
    """Open the part of a contract model that computes features.

    Args:
        model: The model; it is left as it is.
        emit: Computes the results from the features of every member, with one entry per image.
        shape: The shape of each result.
        layers: The layers whose inputs are the features, as in `find_features`.
        logits: Whether the logits [1, images, classes] follow the results, for a model that takes an image alone.

    Returns:
        A function that computes the results of some images.
    """
    copy = infer_shapes(model)
    graph = copy.graph
    operands = find_features(graph, layers)
    for name in [name for name in graph.initializers if name.startswith("novelty.")]:
        graph.initializers[name].name = f"{name}.old"
    g = Builder(taken=graph.initializers)
    results = [g.Identity(value) for value in emit(g, operands)]
    for number, result in enumerate(results):
        result.name, result.dtype, result.shape = f"result.{number}", ir.DataType.FLOAT, ir.Shape(shape)
    g.append_to(graph)
    graph.outputs[:] = [*results, *(value for value in graph.outputs if logits and value.name == contract.LOGITS)]
    for value in [value for value in graph.inputs if value.name != contract.IMAGE]:
        graph.inputs.remove(value)
    from uce_edge_export.graph.assembly import checked  # which imports this module for the decision

    session = open_session(ir.to_proto(checked(copy)).SerializeToString(), Device.CPU, spin=False)

    def run(images: npt.NDArray[Any]) -> list[FloatArray]:
        step = max(1, min(_AT_ONCE, _PIXELS // (images.shape[1] * images.shape[2])))
        found = []
        with progress("reading features", len(images), unit="images") as advance:
            for start in range(0, len(images), step):
                found.append(session.run(None, {contract.IMAGE: images[start : start + step]}))
                advance(min(step, len(images) - start))
        parts = zip(*found, strict=True)
        return [np.concatenate(values, axis=int(number >= len(results))) for number, values in enumerate(parts)]

    return run


def emit_all_features(g: Builder, operands: Sequence[Features]) -> list[ir.Value]:
    """Those of every member."""
    return [emit_features(g, operand) for operand in operands]


def emit_features(g: Builder, operand: Features) -> ir.Value:
    """[batch, features]: the mean over positions, where there are any."""
    x = operand.value
    assert x.shape is not None
    rank = len(x.shape)
    if x.dtype != ir.DataType.FLOAT:
        x = g.Cast(x, to=ir.DataType.FLOAT)
    if rank > 2 and operand.last:  # positions come last: the order of their sum is then that of one image alone
        x = g.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)])
    return x if rank == 2 else g.ReduceMean(x, g.constant(np.arange(2, rank)), keepdims=0)
