"""Read third-party ONNX classifiers for the graph pass."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind
from uce_edge.errors import ModelFileError, UceEdgeError, UsageError, expected
from uce_edge.integrity.digests import of_file
from uce_edge.integrity.verification import read
from uce_edge.metadata import Hashes, ImageSpec, Metadata
from uce_edge.runtime.providers import Device, open_session
from uce_edge_export.check.graph_reference import normalised
from uce_edge_export.check.parity_gate import TOLERANCE, ParityError, Reference, softmax
from uce_edge_export.graph.assembly import IR_VERSION, Classifier
from uce_edge_export.graph.builder import Builder
from uce_edge_export.options import ChannelOrder, Layout, Options, OutputIs
from uce_edge_export.source import dropout_marks, opset_conversion
from uce_edge_export.transform import batch_axis, simplification

_HALF_TOLERANCE = 1e-2
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_INTEGER = {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}


@dataclass(frozen=True)
class ThirdParty:
    """A third-party classifier, made ready."""

    classifier: Classifier
    height: int
    width: int
    channels: int
    classes: int
    original: onnx.ModelProto
    """The model as it was, with dropout off."""
    original_is: OutputIs
    """The meaning of the original's output."""
    tolerance: float = TOLERANCE
    """How far the original may be from the prepared graph: one in half precision has rounded more."""
    notes: list[str] = field(default_factory=list)
    """Changes to the network, for the user."""
    order: ChannelOrder = ChannelOrder.RGB
    """Of the channels that the original takes; the classifier takes red, green, blue."""
    sha256: str | None = None
    """Of the file that was read."""


def load(
    path: str | Path,
    *,
    layout: Layout = Layout.AUTO,
    output_is: OutputIs = OutputIs.AUTO,
    size: tuple[int, int] | None = None,
    options: Options = Options(),
) -> ThirdParty:
    """Read a third-party classifier.

    Args:
        path: An ONNX file with one image input and one output of class scores.
        layout: The order of the input's dimensions.
        output_is: Whether the output is before or after the softmax.
        size: Height and width, for models that leave them open.
        options: How to treat its dropout.
    """
    content = _content(Path(path))
    proto = _parsed(Path(path), content)
    try:
        prepared = _prepared(proto, path, layout, output_is, size, options)
    except UceEdgeError:
        raise
    except Exception as error:  # onnx and onnx-ir raise what their code runs into on a graph that contradicts itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelFileError(
            f"{path} has a graph that cannot be prepared ({reason}). Export it again.", "source.unprepared"
        ) from None
    return replace(prepared, sha256=of_file(content))


def _prepared(
    proto: onnx.ModelProto,
    path: str | Path,
    layout: Layout,
    output_is: OutputIs,
    size: tuple[int, int] | None,
    options: Options,
) -> ThirdParty:
    notes: list[str] = []
    model = ir.from_proto(opset_conversion.convert(proto, path))
    model.ir_version = IR_VERSION  # before version 4, initializers that are not inputs are ignored
    common.RemoveInitializersFromInputsPass()(model)
    common.LiftConstantsToInitializersPass()(model)
    graph = model.graph
    _refuse_operators(graph, path)
    tolerance = _HALF_TOLERANCE if simplification.to_float32(graph, notes) else TOLERANCE
    simplification.strip_dropout(graph, notes, keep=options.keeps_dropout)
    for node in proto.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]  # training mode: what it says would be random
    channels_last, (height, width, channels) = _set_image(graph, layout, size)
    model = simplification.for_one_image(model)
    graph = model.graph
    _refuse_nan(graph, path)
    if options.keeps_dropout:
        dropout_marks.mark_dropout(graph, notes)
    simplification.fold_batch_norm(graph)
    softmax = simplification.strip_softmax(graph) if output_is is not OutputIs.LOGITS else False
    original_is = output_is
    if output_is is OutputIs.AUTO:
        original_is = OutputIs.PROBABILITIES if softmax or _sums_to_one(proto, graph) else OutputIs.LOGITS
    if softmax:
        notes.append("its final Softmax was removed: calibration works on logits")
    elif original_is is OutputIs.PROBABILITIES:
        _append_log(graph)
        notes.append("its output is probabilities without a Softmax node: log p is used as logits")
    classes = _flatten_output(graph, path)
    batch_axis.free_batch(graph)
    common.RemoveUnusedNodesPass()(model)
    model = simplification.infer_shapes(model)
    if options.masks:
        dropout_marks.mark_values(model.graph, options.masks)
    classifier = Classifier(model, channels_last)
    return ThirdParty(classifier, height, width, channels, classes, proto, original_is, tolerance, notes)


def take_bgr(source: ThirdParty) -> ThirdParty:
    """Let a BGR network take RGB images.

    Its graph is changed in place: it begins with a node that turns the order round.
    """
    if source.channels != 3:
        raise UsageError(expected("`channels`", "rgb for a network that takes gray images", "bgr", "Leave it out"))
    graph = source.classifier.graph
    image = graph.inputs[0]
    g = Builder(graph.initializers)
    order = g.constant(np.array([2, 1, 0]), "uce_edge.channel_order")
    turned = g.Gather(image, order, axis=3 if source.classifier.channels_last else 1)
    turned.name, turned.type, turned.shape = "uce_edge.bgr", image.type, image.shape
    image.replace_all_uses_with(turned)
    g.nodes[0].replace_input_with(0, image)
    graph.register_initializer(order)
    graph.insert_before(graph[0], g.nodes)
    return replace(source, order=ChannelOrder.BGR)


def metadata(
    source: ThirdParty,
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    scale: float = 255.0,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    samples: int = 25,
    inference: Inference = Inference.MC,
    noise: NoiseKind = NoiseKind.TABLE,
) -> Metadata:
    """The metadata of a third-party classifier's file.

    Args:
        source: The classifier.
        path: Where it came from.
        classes: Class names; None for numbers.
        scale: Divisor of the pixels, before mean and std apply.
        mean: One value, or one per channel.
        std: One value, or one per channel.
        samples: The default number of passes.
        inference: The kind of graph.
        noise: Where the noise comes from.
    """
    names = tuple(classes) if classes is not None else tuple(str(i) for i in range(source.classes))
    if len(names) != source.classes:
        raise UsageError(
            expected("`classes`", f"{source.classes} names, one per output of the model", len(names), "Check --classes")
        )
    for argument, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, source.channels) or not all(np.isfinite(values)):
            raise UsageError(
                expected(
                    f"`{argument}`", f"one number or {source.channels}", list(values), f"For example: --{argument} 0.5"
                )
            )
    if not 0 < scale < np.inf or not all(value > 0 for value in std):
        raise UsageError(
            expected("`scale` and `std`", "positive", (scale, *std), "For example: --scale 255 --std 0.25"),
            "argument.scale",
        )
    contract.pass_seeds(samples, 0)
    return Metadata(
        classes=names,
        image=ImageSpec(source.height, source.width, source.channels, scale=scale, mean=tuple(mean), std=tuple(std)),
        inference=inference,
        noise=noise,
        architecture=f"imported from {Path(path).name}",
        samples=1 if inference is Inference.DETERMINISTIC else samples,
        hashes=Hashes(source=source.sha256),
    )


def check_original(source: ThirdParty, spec: ImageSpec, reference: Reference) -> None:
    """Reject a prepared graph that differs from the original."""
    images = np.random.default_rng(0).integers(0, 256, (1, spec.height, spec.width, spec.channels), dtype=np.uint8)
    pixels = normalised(source.classifier, spec, images)
    if source.order is ChannelOrder.BGR:
        pixels = np.flip(pixels, 3 if source.classifier.channels_last else 1)
    theirs = run_original(source.original, pixels)
    logits = reference(images, None)[0]
    ours = softmax(logits) if source.original_is is OutputIs.PROBABILITIES else logits.astype(np.float64)
    scale = max(1.0, float(np.abs(theirs).max()))
    difference = float(np.abs(ours - theirs).max()) / scale
    if not difference <= source.tolerance:
        raise ParityError(
            f"The prepared graph differs from the original by {difference:.2g} (allowed: {source.tolerance:g}). "
            "Is --output-is right? Nothing was written.",
            "parity.original",
        )


def _content(path: Path) -> bytes:
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        raise ModelFileError(f"There is no file {path}. Check the path given to --from.", "source.missing")
    return read(path)


def _parsed(path: Path, content: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.load_model_from_string(content)
        onnx.load_external_data_for_model(proto, str(path.parent))
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ModelFileError(
            f"{path} is not a valid ONNX model ({str(error).splitlines()[0]}).", "source.invalid"
        ) from None
    except Exception as error:  # protobuf has a class of its own, external data raises several
        raise ModelFileError(
            f"{path} cannot be read as an ONNX model ({str(error).splitlines()[0]}).", "source.unreadable"
        ) from None
    if any(entry.key == contract.KEY for entry in proto.metadata_props):
        raise UsageError(
            f"{path} is a uce-edge model already. To calibrate it on new images: uce-edge calibrate {path}",
            "source.finished",
        )
    return proto


def _refuse_operators(graph: ir.Graph, path: str | Path) -> None:
    for node in graph.all_nodes():
        where = f"{path} has the operator {node.op_type} ({node.name or 'unnamed'})"
        if node.domain not in ("", "ai.onnx"):
            raise UceEdgeError(
                f"{where} of the domain {node.domain}, which only some runtimes know. Export it without.",
                "source.operator",
            )
        if node.op_type in _RANDOM:
            raise UceEdgeError(
                f"{where}, which is random already: its noise could not be replayed. Export it without.",
                "source.operator",
            )
        if node.op_type in _INTEGER:
            raise UceEdgeError(
                f"{where}: integer arithmetic has no variance branch. Use the float or the QDQ model.",
                "source.operator",
            )
        if node.op_type in ("If", "Loop", "Scan"):
            raise UceEdgeError(
                f"{where}: control flow cannot be sampled in a batch. Export a plain forward pass.", "source.operator"
            )


def _refuse_nan(graph: ir.Graph, path: str | Path) -> None:
    for name, value in graph.initializers.items():
        if not value.uses():
            continue
        array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
        if array.dtype.kind == "f" and not np.isfinite(array.astype(np.float32)).all():
            raise UceEdgeError(
                f"{path} has weights that are NaN or infinite (first in {name}). Use a sound model.",
                "source.not-finite",
            )


def _set_image(graph: ir.Graph, layout: Layout, size: tuple[int, int] | None) -> tuple[bool, tuple[int, int, int]]:
    """Fix the image input: batch of 1, static size."""
    if len(graph.inputs) != 1:
        names = ", ".join(str(value.name) for value in graph.inputs)
        raise UceEdgeError(
            f"The model has {len(graph.inputs)} inputs ({names}); one image input is needed.", "source.inputs"
        )
    image = graph.inputs[0]
    dims = [dim if isinstance(dim, int) and dim > 0 else None for dim in (image.shape or ())]
    if len(dims) != 4:
        raise UceEdgeError(
            f"The input {image.name} has shape {image.shape}; an image input has four dimensions.", "source.input"
        )
    if image.dtype not in (ir.DataType.FLOAT, None):
        raise UceEdgeError(f"The input {image.name} is {image.dtype}; a float image input is needed.", "source.input")
    if layout is Layout.AUTO:
        layout = Layout.NHWC if dims[3] in (1, 3) and dims[1] not in (1, 3) else Layout.NCHW
    channels_last = layout is Layout.NHWC
    height, width, channels = dims[1:] if channels_last else (dims[2], dims[3], dims[1])
    if size is not None:
        if any(known not in (None, given) for known, given in zip((height, width), size, strict=True)):
            raise UsageError(expected("`size`", f"{height}x{width}, as the model fixes it", size, "Leave --size out"))
        height, width = size
    if height is None or width is None:
        raise UsageError(
            f"The model leaves the image size open ({image.shape}). Give it: --size HEIGHTxWIDTH", "source.size-open"
        )
    if channels not in (1, 3):
        raise UceEdgeError(
            f"The input {image.name} has {channels} channels; gray (1) or RGB (3) is needed. See --layout.",
            "source.input",
        )
    image.shape = ir.Shape([1, height, width, channels] if channels_last else [1, channels, height, width])
    return channels_last, (height, width, channels)


def run_original(proto: onnx.ModelProto, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Run the original on normalised images, one at a time."""
    session = open_session(proto.SerializeToString(), Device.CPU)
    given = session.get_inputs()[0]
    kind = np.float16 if "float16" in given.type else np.float32
    try:
        outputs = [session.run(None, {given.name: image[None].astype(kind)})[0] for image in pixels]
    except Exception as error:  # onnxruntime raises its own unrelated classes per failure
        height, width = pixels.shape[1:3] if pixels.shape[3] in (1, 3) else pixels.shape[2:]
        raise UceEdgeError(
            f"The model cannot run on an image of {height}x{width} ({str(error).splitlines()[0]}). Check --size.",
            "source.size",
        ) from None
    return np.stack([np.asarray(output, np.float64).reshape(-1) for output in outputs])


def _sums_to_one(proto: onnx.ModelProto, graph: ir.Graph) -> bool:
    """Whether the original's output is a distribution on random pixels."""
    shape = [int(dim) for dim in (graph.inputs[0].shape or ()) if isinstance(dim, int)]
    output = run_original(proto, np.random.default_rng(0).standard_normal(shape, np.float32))
    return bool(output.min() >= 0 and abs(output.sum() - 1) < 1e-3)


def _append_log(graph: ir.Graph) -> None:
    g = Builder()
    old = graph.outputs[0]
    _extend(graph, g, g.Log(g.Max(old, g.constant(np.float32(1e-12), "uce_edge.smallest_probability"))))


def _flatten_output(graph: ir.Graph, path: str | Path) -> int:
    """Make the output [1, classes]; gives the number of classes."""
    if len(graph.outputs) != 1:
        names = ", ".join(str(value.name) for value in graph.outputs)
        raise UceEdgeError(
            f"{path} has {len(graph.outputs)} outputs ({names}); a classifier has one.", "source.outputs"
        )
    output = graph.outputs[0]
    dims = [dim for dim in (output.shape or ()) if isinstance(dim, int)]
    if output.shape is None or len(dims) != len(output.shape) or len(dims) < 2 or dims[0] != 1:
        raise UceEdgeError(
            f"{path} has an output of shape {output.shape}; a classifier's is [batch, classes].", "source.outputs"
        )
    wide = [dim for dim in dims[1:] if dim != 1]
    if len(wide) != 1:
        raise UceEdgeError(
            f"{path} has an output of shape {dims}; a classifier's is [batch, classes] with at least 2 classes.",
            "source.outputs",
        )
    if len(dims) > 2:
        g = Builder()
        _extend(graph, g, g.Reshape(output, g.constant(np.array([1, wide[0]]), "uce_edge.class_shape")))
        graph.outputs[0].shape = ir.Shape([1, wide[0]])
    return wide[0]


def _extend(graph: ir.Graph, g: Builder, output: ir.Value) -> None:
    """Append the builder's nodes; their result becomes the output."""
    old = graph.outputs[0]
    for value in g.initializers:
        graph.register_initializer(value)
    graph.extend(g.nodes)
    output.name = f"{old.name}.uce_edge"
    output.dtype, output.shape = ir.DataType.FLOAT, old.shape
    graph.outputs[0] = output
