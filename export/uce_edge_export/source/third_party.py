"""Read third-party ONNX classifiers for the graph pass."""

import math
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
from uce_edge._util.progress import working
from uce_edge.contract import Inference, NoiseKind
from uce_edge.errors import ModelFileError, UceEdgeError, UsageError, expected
from uce_edge.integrity.digests import of_file
from uce_edge.integrity.verification import read
from uce_edge.metadata import Hashes, ImageSpec, Metadata
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import open_session
from uce_edge_export.check.graph_reference import normalised
from uce_edge_export.check.parity_gate import TOLERANCE, ParityError, Reference
from uce_edge_export.graph.assembly import IR_VERSION, Classifier
from uce_edge_export.graph.builder import Builder
from uce_edge_export.options import ChannelOrder, Layout, Options, OutputIs
from uce_edge_export.source import class_scores, dropout_marks, opset_conversion, training_form
from uce_edge_export.transform import batch_axis, float_quantisation, simplification

_HALF_TOLERANCE = 1e-2
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_INTEGER = {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
_LARGEST = 2**31 - 2**24
"""Bytes of weights in one ONNX file: protobuf ends at 2 GB, and the noise table and the metadata need some."""
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE, None)


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
    takes_bytes: bool = False
    """Whether its input is uint8: it scales the pixels itself."""


def load(
    path: str | Path,
    *,
    layout: Layout = Layout.AUTO,
    output_is: OutputIs = OutputIs.AUTO,
    size: tuple[int, int] | None = None,
    output: str | None = None,
    options: Options = Options(),
) -> ThirdParty:
    """Read a third-party classifier.

    Args:
        path: An ONNX file with one image input and one output of class scores.
        layout: The order of the input's dimensions.
        output_is: Whether the output is before or after the softmax.
        size: Height and width, for models that leave them open.
        output: The name of the class scores, for models with several outputs.
        options: How to treat its dropout.
    """
    content = _content(Path(path))
    proto = _parsed(Path(path), content)
    try:
        prepared = _prepared(proto, path, layout, output_is, size, output, options)
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
    output: str | None,
    options: Options,
) -> ThirdParty:
    notes: list[str] = []
    class_scores.choose_output(proto, output, path, notes)
    training_form.leave(proto, notes)
    model = ir.from_proto(opset_conversion.convert(proto, path))
    model.ir_version = IR_VERSION  # before version 4, initializers that are not inputs are ignored
    common.RemoveInitializersFromInputsPass()(model)
    common.LiftConstantsToInitializersPass()(model)
    common.RemoveUnusedNodesPass()(model)
    graph = model.graph
    _refuse_operators(graph, path)
    changed = simplification.to_float32(graph, notes)
    tolerance = _HALF_TOLERANCE if changed else TOLERANCE
    if changed and not _runs(proto):  # ONNX Runtime has few operators in double and in bfloat16
        proto, tolerance = ir.to_proto(model), TOLERANCE
    simplification.strip_dropout(graph, notes, keep=options.keeps_dropout)
    channels_last, (height, width, channels) = _set_image(graph, layout, size)
    takes_bytes = graph.inputs[0].dtype is ir.DataType.UINT8
    if takes_bytes:
        graph.inputs[0].dtype = ir.DataType.FLOAT  # the values stay whole numbers
        notes.append("its input is uint8: it gets the pixels as they are, 0 to 255")
    model = simplification.for_one_image(model)
    graph = model.graph
    _refuse_nan(graph, path)
    float_quantisation.to_float(graph, notes)
    if options.keeps_dropout:
        dropout_marks.mark_dropout(graph, notes)
    simplification.fold_batch_norm(graph)
    simplification.pool_whole_maps(graph)
    original_is, classes = class_scores.to_logits(graph, path, output_is, lambda: _sums_to_one(proto, graph), notes)
    batch_axis.free_batch(graph)
    common.RemoveUnusedNodesPass()(model)
    model = simplification.infer_shapes(model)
    if options.masks:
        dropout_marks.mark_values(model.graph, options.masks)
    classifier = Classifier(model, channels_last)
    return ThirdParty(
        classifier, height, width, channels, classes, proto, original_is, tolerance, notes, takes_bytes=takes_bytes
    )


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
    scale: float | None = None,
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
        scale: Divisor of the pixels, before mean and std apply; None for 255, or 1 for a network that takes bytes.
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
    scale = scale if scale is not None else 1.0 if source.takes_bytes else 255.0
    if source.takes_bytes and (scale, *mean, *std) != (1.0, *[0.0] * len(mean), *[1.0] * len(std)):
        raise UsageError(
            f"{path} takes uint8 pixels and scales them itself: leave --scale, --mean and --std out.",
            "source.takes-bytes",
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


def check_original(source: ThirdParty, spec: ImageSpec, reference: Reference, rounding: float = TOLERANCE) -> None:
    """Reject a prepared graph that differs from the original.

    Args:
        source: The classifier.
        spec: Of its images.
        reference: The prepared graph.
        rounding: The difference of logits that rounding may make, as a share of the largest.
    """
    allowed = max(source.tolerance, rounding)
    images = np.random.default_rng(0).integers(0, 256, (1, spec.height, spec.width, spec.channels), dtype=np.uint8)
    pixels = normalised(source.classifier, spec, images)
    if source.order is ChannelOrder.BGR:
        pixels = np.flip(pixels, 3 if source.classifier.channels_last else 1)
    with working("comparing with the original"):
        theirs = run_original(source.original, pixels)
        ours = class_scores.compared(reference(images, None)[0], source.original_is, theirs.shape[1])
    scale = max(1.0, float(np.abs(theirs).max()))
    difference = float(np.abs(ours - theirs).max()) / scale
    if not difference <= allowed:
        raise ParityError(
            f"The prepared graph differs from the original by {difference:.2g} (allowed: {allowed:.2g}). "
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
        _refuse_too_large(proto, path)
        onnx.load_external_data_for_model(proto, str(path.parent))
        onnx.checker.check_model(proto)
    except UceEdgeError:
        raise
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


def _refuse_too_large(proto: onnx.ModelProto, path: Path) -> None:
    """Reject weights that do not fit into one ONNX file, before reading them."""
    size = 4 * sum(math.prod(tensor.dims) for tensor in proto.graph.initializer)
    if size > _LARGEST:
        raise UceEdgeError(
            f"{path} has {size / 1e9:.1f} GB of weights in float32. A model file is one ONNX file, which holds at most "
            "2 GB. Use a smaller network of the same kind.",
            "source.too-large",
            bytes=size,
        )


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
    if image.dtype not in (*_FLOATS, ir.DataType.UINT8):
        raise UceEdgeError(
            f"The input {image.name} is {image.dtype}; an image is float or uint8. Put a Cast before it.",
            "source.input",
        )
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
    kinds: dict[str, type] = {"tensor(float16)": np.float16, "tensor(double)": np.float64, "tensor(uint8)": np.uint8}
    kind = kinds.get(given.type, np.float32)
    pixels = pixels.clip(0, 255).round() if kind is np.uint8 else pixels
    try:
        outputs = [session.run(None, {given.name: image[None].astype(kind)})[0] for image in pixels]
    except Exception as error:  # onnxruntime raises its own unrelated classes per failure
        height, width = pixels.shape[1:3] if pixels.shape[3] in (1, 3) else pixels.shape[2:]
        raise UceEdgeError(
            f"The model cannot run on an image of {height}x{width} ({str(error).splitlines()[0]}). Check --size.",
            "source.size",
        ) from None
    return np.stack([np.asarray(output, np.float64).reshape(-1) for output in outputs])


def _runs(proto: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime has all operators in the model's types."""
    try:
        open_session(proto.SerializeToString(), Device.CPU)
    except ModelFileError:
        return False
    return True


def _sums_to_one(proto: onnx.ModelProto, graph: ir.Graph) -> bool:
    """Whether the original's output is a distribution on random pixels."""
    shape = [int(dim) for dim in (graph.inputs[0].shape or ()) if isinstance(dim, int)]
    output = run_original(proto, np.random.default_rng(0).standard_normal(shape, np.float32))
    return bool(output.min() >= 0 and abs(output.sum() - 1) < 1e-3)
