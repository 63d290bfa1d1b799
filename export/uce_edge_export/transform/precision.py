"""Lower precision of the network; noise and head stay float32.

float16 is for graphics cards: every value between the pixels and the logits, and the weights. int8 is for processors:
inputs and weights of the weight layers, mean and variance alike, by ONNX Runtime's static quantisation. The sums over
channels of factored sigma are cheap, and stay in float32. Weights in float16 alone halve a file and change no speed.
"""

import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from uce_edge import contract
from uce_edge._util.progress import progress, working
from uce_edge.contract import Inference, Precision
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import Metadata
from uce_edge.runtime.providers import onnxruntime
from uce_edge_export import quiet_logs
from uce_edge_export.check import quality
from uce_edge_export.check.quality import Judgement
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import weight_of
from uce_edge_export.publish.draft import Draft
from uce_edge_export.transform import half_weights
from uce_edge_export.transform.simplification import infer_shapes

_RANGES = 128  # images that show the range of every value
_BLOCK = 8


def refuse(precision: Precision, inference: Inference, labelled: bool) -> None:
    """Reject options that exclude each other."""
    if precision is Precision.FP16 and inference is Inference.MOMENTS:
        raise UsageError(
            "Variances of moments are too small for float16: use --precision fp16 with --inference mc, or int8.",
            "precision.moments",
        )
    if precision is Precision.INT8 and not labelled:
        raise UsageError(
            "int8 needs images to find the range of every value: export a trained run, or a file with --data FOLDER.",
            "export.needs-data",
        )


def reduce(draft: Draft, data: Split | None) -> Judgement | None:
    """Reduce a float32 draft to the precision of its metadata.

    Args:
        draft: The file.
        data: Labelled images: to find ranges, and to judge the result; None where there are none.

    Returns:
        The change of quality, if there are images.

    Raises:
        QualityError: It cost too much.
    """
    before = None if data is None else quality.answers(draft, data, Precision.FP32)
    if draft.metadata.precision is Precision.FP16_WEIGHTS:
        model = half_weights.rounded(draft.graph())
    else:
        model = infer_shapes(draft.graph())  # for the types of all values
        _multiply_weights(model.graph)
        if draft.metadata.precision is Precision.FP16:
            _to_float16(model.graph)
        else:
            assert data is not None
            model = _to_int8(model, draft.metadata, data.at_most(_RANGES).images)
    draft.rewrite(model)
    if data is None or before is None:
        return None
    form = draft.metadata.precision
    return quality.judge(before, quality.answers(draft, data, form), data, form, "Export with --precision fp32.")


def _multiply_weights(graph: ir.Graph) -> None:
    """Fold products of constants, such as squared weights."""
    for node in list(graph):
        constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
        if node.op_type == "Mul" and len(constants) == 2:
            product = constants[0].numpy() * constants[1].numpy()
            weight = ir.val(node.outputs[0].name, const_value=ir.tensor(product))
            weight.dtype = ir.DataType.FLOAT
            node.outputs[0].replace_all_uses_with(weight)
            graph.remove(node, safe=True)
            graph.register_initializer(weight)
    _drop_unused(graph)  # the factors of the products, which ONNX Runtime would report on stderr


def _drop_unused(graph: ir.Graph) -> None:
    """Remove the constants that no node takes."""
    for value in [value for value in graph.initializers.values() if not value.uses()]:
        del graph.initializers[str(value.name)]


def _to_float16(graph: ir.Graph) -> None:
    """Cast what flows between the pixels and the logits."""
    network = _network(graph)
    narrow = {value for node in network for value in node.outputs if value.dtype == ir.DataType.FLOAT}
    casts: dict[ir.Value, ir.Value] = {}
    for node in network:
        g = Builder(graph.initializers)
        for i, value in enumerate(node.inputs):
            if value is None or value in narrow or value.dtype != ir.DataType.FLOAT:
                continue
            if node.op_type == "Resize" and i > 0:  # its scales are float32 by definition
                continue
            if value.const_value is not None:
                casts.setdefault(value, _half(graph, value))
            elif value not in casts:
                casts[value] = g.Cast(value, to=ir.DataType.FLOAT16)
            node.replace_input_with(i, casts[value])
        graph.insert_before(node, g.nodes)
    for output in narrow:
        output.dtype = ir.DataType.FLOAT16
        outside = [use for use in output.uses() if use.node not in network]
        if outside:
            g = Builder()
            wide = g.Cast(output, to=ir.DataType.FLOAT)
            producer = output.producer()
            assert producer is not None
            graph.insert_after(producer, g.nodes)
            for use in outside:
                use.node.replace_input_with(use.idx, wide)
    _drop_unused(graph)


def _half(graph: ir.Graph, value: ir.Value) -> ir.Value:
    assert value.const_value is not None
    limit = np.float32(np.finfo(np.float16).max)
    narrow = np.clip(value.const_value.numpy(), -limit, limit).astype(np.float16)
    half = ir.val(f"{value.name}.half_precision", const_value=ir.tensor(narrow))
    graph.register_initializer(half)
    return half


def _network(graph: ir.Graph) -> dict[ir.Node, None]:
    """Nodes from the first weight layer to the logits."""
    (logits,) = (value for value in graph.outputs if value.name == contract.LOGITS)
    leading: set[ir.Value | None] = {logits}
    for node in reversed(graph):
        if leading.intersection(node.outputs) and node.op_type not in ("Shape", "Size"):
            leading.update(node.inputs)
    seen: set[ir.Value | None] = {value for value in graph.inputs if value.name == contract.IMAGE}
    block: dict[ir.Node, None] = {}
    for node in graph:
        if node.op_type in ("Shape", "Size") or not seen.intersection(node.inputs):
            continue
        seen.update(node.outputs)
        if leading.intersection(node.outputs) and logits not in node.outputs and (block or weight_of(node)):
            block[node] = None
    return block


def _to_int8(model: ir.Model, metadata: Metadata, images: npt.NDArray[Any]) -> ir.Model:
    """Quantise the weight layers of a graph.

    Weights get 7 bits: processors without VNNI add pairs of 8-bit products in 16 bits, which overflow in silence.
    """
    onnxruntime()  # before its parts: it comes without telemetry that way
    from onnxruntime import quantization

    feeds: list[dict[str, npt.NDArray[Any]]] = [
        {contract.IMAGE: images[start : start + _BLOCK]} for start in range(0, len(images), _BLOCK)
    ]
    if metadata.inference is not Inference.DETERMINISTIC:
        for number, feed in enumerate(feeds):
            feed[contract.SEEDS] = np.arange(4 * number, 4 * number + 4, dtype=np.int32)

    class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            return next(counted, None)

    layers = [node for node in _network(model.graph) if (weight_of(node) or (None, 1))[1] == 0]
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_logs.errors_only(),  # it advises what was done already
        working("quantising"),
        closing(_counted(feeds)) as counted,
    ):
        path = Path(folder) / "int8.onnx"
        quantization.quantize_static(
            ir.to_proto(model),
            path,
            Images(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=sorted({node.op_type for node in layers}),
            nodes_to_quantize=[node.name for node in layers],
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return ir.from_proto(onnx.load(path))


def _counted(feeds: Sequence[dict[str, npt.NDArray[Any]]]) -> Generator[dict[str, npt.NDArray[Any]]]:
    """Report every feed as soon as the next one is requested."""
    with progress("finding ranges", sum(len(feed[contract.IMAGE]) for feed in feeds), unit="images") as advance:
        for feed in feeds:
            yield feed
            advance(len(feed[contract.IMAGE]))
