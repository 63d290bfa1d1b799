"""Third-party ONNX classifiers: what they said without noise they still say, and what cannot be sampled is refused."""

import importlib.util
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from uce_edge import cli
from uce_edge.contract import ImageSpec, Inference, NoiseKind
from uce_edge.errors import ModelFileError, UceEdgeError, UsageError
from uce_edge.model import Model
from uce_edge_export import foreign
from uce_edge_export.choices import Expand, Layout, OutputIs
from uce_edge_export.export import Exported, Options, export_foreign
from uce_edge_export.reference import graph_reference
from uce_edge_export.sites import sites_by_rule

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
IR_VERSION = 10


class Net:
    """A graph in the making: every call appends a node and gives the name of its output."""

    def __init__(self, opset: int = 18, dtype: type = np.float32) -> None:
        self.opset, self.dtype = opset, dtype
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def append(*inputs: str, outputs: int = 1, **attributes: object) -> str:
            names = [f"v{len(self.nodes)}.{i}" for i in range(outputs)]
            self.nodes.append(helper.make_node(op_type, inputs, names, name=f"{op_type}{len(self.nodes)}", **attributes))
            return names[0]

        return append

    def constant(self, array: object, name: str | None = None) -> str:
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, name: str | None = None) -> str:
        values = self.rng.standard_normal(shape) * (2 / np.prod(shape[1:] or shape)) ** 0.5
        return self.constant(values.astype(self.dtype), name)

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, group: int = 1, **attributes: object) -> str:
        if not {"pads", "auto_pad"} & set(attributes):
            attributes["pads"] = [kernel // 2] * 4
        operands = self.weight(outputs, inputs // group, kernel, kernel), self.weight(outputs)
        return self.Conv(x, *operands, group=group, **attributes)

    def norm(self, x: str, channels: int) -> str:
        scale, variance = (self.constant(self.rng.uniform(0.5, 2, channels).astype(np.float32)) for _ in range(2))
        return self.BatchNormalization(x, scale, self.weight(channels), self.weight(channels), variance, epsilon=1e-3)

    def stem(self, x: str = "image", channels: int = 3) -> str:
        return self.Relu(self.conv(x, channels, 6))

    def pool(self, x: str) -> str:
        return self.Flatten(self.GlobalAveragePool(x))

    def head(self, x: str, inputs: int = 6) -> str:
        return self.Gemm(self.pool(x), self.weight(inputs, 4), self.weight(4))

    def model(self, *outputs: str, shape: tuple = ("n", 3, 8, 8), extra: tuple[str, ...] = ()) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [helper.make_tensor_value_info(name, kind, shape) for name in ("image", *extra)]
        results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", inputs, results, self.initializers)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.acme", 1)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        )


def simple(net: Net, shape: tuple = ("n", 3, 8, 8)) -> onnx.ModelProto:
    return net.model(net.head(net.Relu(net.conv(net.stem(), 6, 6))), shape=shape)


def truth(proto: onnx.ModelProto, images: np.ndarray, spec: ImageSpec, nhwc: bool = False) -> np.ndarray:
    """What the original says of images, by ONNX Runtime alone."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    pixels = (images / spec.scale - np.array(spec.mean)) / np.array(spec.std)
    pixels = (pixels if nhwc else pixels.transpose(0, 3, 1, 2)).astype("f2" if "16" in given.type else "f4")
    return np.stack([np.ravel(session.run(None, {given.name: one[None]})[0]) for one in pixels]).astype(np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def export(
    proto: onnx.ModelProto, folder: Path, p: tuple[str, ...] = ("0.2",), options: Options = Options(), **how: object
) -> tuple[foreign.Foreign, Exported]:
    source = folder / "source" / "net.onnx"
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(proto.SerializeToString())
    found = foreign.load(source, **{key: how.pop(key) for key in ("layout", "output_is", "size") if key in how})
    colour = {"mean": MEAN, "std": STD} if found.channels == 3 else {"mean": (0.5,), "std": (0.25,)}
    metadata = foreign.metadata(found, source, **(colour | how))
    return found, export_foreign(found, metadata, folder / "out" / "m.onnx", list(p), options)


def reproduces(proto: onnx.ModelProto, folder: Path, tolerance: float = 1e-5, **how: object) -> foreign.Foreign:
    """Without noise to the rounding error; with noise that is nearly none, to what is left of it."""
    found, done = export(proto, folder, inference=Inference.DETERMINISTIC, **how)
    spec = done.metadata.image
    images = np.random.default_rng(3).integers(0, 256, (3, spec.height, spec.width, spec.channels), dtype=np.uint8)
    theirs = truth(proto, images, spec, found.classifier.channels_last)
    ours = Model(done.path, "cpu").logits(images)[0]
    reference = graph_reference(found.classifier, spec, [])(images, None)[0]
    assert np.allclose(ours, reference, atol=1e-5 * max(1, np.abs(reference).max()))
    is_probability = found.original_is is OutputIs.PROBABILITIES
    assert np.allclose(softmax(ours) if is_probability else ours, theirs, atol=tolerance * max(1, np.abs(theirs).max()))
    _, done = export(proto, folder, ("1e-8",), samples=64, **how)
    assert done.parity.largest_difference < 1e-4
    model = Model(done.path, "cpu")
    wanted = theirs if is_probability else softmax(theirs)
    assert np.allclose(model.predict(images).probabilities, wanted, atol=2 * tolerance)
    return found


# What a layer, a weight or an output may look like: x is [n, 6, 8, 8], the result [n, 4].

def _left(net: Net, x: str) -> str:
    flat = net.Reshape(x, net.constant([0, 6, -1]))
    return net.ReduceMean(net.MatMul(net.weight(4, 6), flat), net.constant([2]), keepdims=0)


def _dequantized(net: Net, x: str) -> str:
    weight = net.constant(net.rng.integers(-128, 128, (6, 6, 3, 3)).astype(np.int8))
    zeros = net.constant(net.rng.integers(-3, 4, 6).astype(np.int8))
    scales = net.constant(net.rng.uniform(0.001, 0.004, 6).astype(np.float32))
    return net.head(net.Relu(net.Conv(x, net.DequantizeLinear(weight, scales, zeros, axis=0))))


def _qdq(net: Net, x: str) -> str:
    scale, zero = net.constant(np.float32(2**-6)), net.constant(np.uint8(0))
    return _dequantized(net, net.DequantizeLinear(net.QuantizeLinear(x, scale, zero), scale, zero))


def _dynamic_flatten(net: Net, x: str) -> str:
    """How torch's old exporter writes x.view(x.size(0), -1)."""
    x = net.GlobalAveragePool(net.conv(x, 6, 6))
    size = net.Unsqueeze(net.Gather(net.Shape(x), net.constant(np.int64(0)), axis=0), net.constant([0]))
    return net.Gemm(net.Reshape(x, net.Concat(size, net.constant([-1]), axis=0)), net.weight(6, 4))


def _class_token(net: Net, x: str) -> str:
    """How a vision transformer prepends a learned token to every image."""
    tokens = net.Transpose(net.Reshape(net.conv(x, 6, 6), net.constant([0, 6, -1])), perm=[0, 2, 1])
    size = net.Slice(net.Shape(tokens), net.constant([0]), net.constant([1]))
    token = net.Expand(net.weight(1, 1, 6), net.Concat(size, net.constant([1, 6]), axis=0))
    joined = net.MatMul(net.Softmax(net.Concat(token, tokens, token, axis=1), axis=1), net.weight(6, 6))
    return net.MatMul(net.Gather(joined, net.constant(np.int64(0)), axis=1), net.weight(6, 4))


def _resized(net: Net, x: str) -> str:
    larger = net.Resize(net.conv(x, 6, 6), "", "", net.constant([1, 6, 5, 11]), mode="nearest")
    return net.head(net.conv(larger, 6, 6))


def _normalised_sigmoid(net: Net, x: str) -> str:
    y = net.Sigmoid(net.head(net.conv(x, 6, 6)))
    return net.Div(y, net.ReduceSum(y, net.constant([1]), keepdims=1))


def _shared_norm(net: Net, x: str) -> str:
    y = net.conv(x, 6, 6)
    return net.head(net.Add(net.norm(y, 6), y))


def _half_weight(net: Net, x: str) -> str:
    weight = net.constant(net.rng.normal(0, 0.2, (6, 6, 3, 3)).astype(np.float16))
    return net.head(net.Conv(x, net.Cast(weight, to=TensorProto.FLOAT)))


CASES: dict[str, Callable[[Net, str], str]] = {
    "same_upper": lambda net, x: net.head(net.conv(x, 6, 6, auto_pad="SAME_UPPER", strides=[2, 2])),
    "same_lower": lambda net, x: net.head(net.conv(x, 6, 6, 2, auto_pad="SAME_LOWER", strides=[1, 3])),
    "valid": lambda net, x: net.head(net.conv(x, 6, 6, auto_pad="VALID")),
    "uneven pads": lambda net, x: net.head(net.conv(x, 6, 6, pads=[0, 1, 2, 3])),
    "grouped": lambda net, x: net.head(net.conv(x, 6, 6, group=3)),
    "depthwise": lambda net, x: net.head(net.conv(x, 6, 12, group=6), 12),
    "dilated": lambda net, x: net.head(net.conv(x, 6, 6, dilations=[2, 1], pads=[2, 1, 2, 1])),
    "strided": lambda net, x: net.head(net.conv(x, 6, 6, strides=[2, 3])),
    "gemm transB": lambda net, x: net.Gemm(net.pool(x), net.weight(4, 6), net.weight(4), transB=1),
    "gemm alpha beta": lambda net, x: net.Gemm(net.pool(x), net.weight(6, 4), net.weight(4), alpha=0.3, beta=2.5),
    "gemm without bias": lambda net, x: net.Gemm(net.pool(x), net.weight(4, 6), transB=1, alpha=-2.0),
    "matmul and add": lambda net, x: net.Add(net.MatMul(net.pool(x), net.weight(6, 4)), net.weight(4)),
    "weight on the left": _left,
    "batch-norm after conv": lambda net, x: net.head(net.norm(net.conv(x, 6, 6), 6)),
    "batch-norm after conv without bias": lambda net, x: net.head(net.norm(net.Conv(x, net.weight(6, 6, 3, 3)), 6)),
    "batch-norm after gemm": lambda net, x: net.norm(net.head(x), 4),
    "batch-norm after gemm transB": lambda net, x: net.norm(net.Gemm(net.pool(x), net.weight(4, 6), transB=1), 4),
    "batch-norm after scaled gemm": lambda net, x: net.norm(net.Gemm(net.pool(x), net.weight(6, 4), alpha=2.0), 4),
    "batch-norm that cannot be folded": lambda net, x: net.head(net.conv(net.norm(x, 6), 6, 6)),
    "batch-norm of a shared value": _shared_norm,
    "identity weight": lambda net, x: net.head(net.Conv(x, net.Identity(net.weight(6, 6, 3, 3)))),
    "transposed weight": lambda net, x: net.MatMul(net.pool(x), net.Transpose(net.weight(4, 6), perm=[1, 0])),
    "half weight": _half_weight,
    "dequantized weight": _dequantized,
    "quantized activations": _qdq,
    "shape computed at run time": _dynamic_flatten,
    "class token": _class_token,
    "resized to sizes": _resized,
    "baked batch": lambda net, x: net.MatMul(net.Reshape(x, net.constant([1, 384])), net.weight(384, 4)),
    "softmax": lambda net, x: net.Softmax(net.head(x)),
    "softmax and reshape": lambda net, x: net.Reshape(net.Softmax(net.head(x), axis=1), net.constant([1, 4])),
    "softmax of a map": lambda net, x: net.Softmax(net.GlobalAveragePool(net.conv(x, 6, 4)), axis=1),
    "logits as a map": lambda net, x: net.GlobalAveragePool(net.conv(x, 6, 4)),
    "probabilities without softmax": _normalised_sigmoid,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_without_noise_a_classifier_says_what_it_said(case: str, tmp_path: Path) -> None:
    net = Net()
    reproduces(net.model(CASES[case](net, net.stem())), tmp_path)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18, 19, 21, 23])
def test_opsets(opset: int, tmp_path: Path) -> None:
    reproduces(simple(Net(opset)), tmp_path)


@pytest.mark.parametrize("shape", [("n", 4), ("n", 4, 1, 1)])
def test_softmax_of_old_opsets_flattens(shape: tuple, tmp_path: Path) -> None:
    net = Net(9)
    scores = net.head(net.stem()) if len(shape) == 2 else net.GlobalAveragePool(net.conv(net.stem(), 6, 4))
    found = reproduces(net.model(net.Softmax(scores)), tmp_path)
    assert found.original_is is OutputIs.PROBABILITIES
    assert any("Softmax was removed" in note for note in found.notes)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 3, 8, 8), None), ((-1, 3, 8, 8), None), (("n", 3, 8, 8), (8, 8)), (("n", 3, "h", "w"), (9, 13)),
     ((-1, 3, -1, -1), (8, 9)), ((None, 3, None, None), (8, 9)), ((1, "c", 8, 8), None)],
)  # fmt: skip
def test_open_and_fixed_sizes(shape: tuple, size: tuple[int, int] | None, tmp_path: Path) -> None:
    proto = simple(Net(), shape)
    if "c" in shape:
        with pytest.raises(UceEdgeError, match="None channels"):
            export(proto, tmp_path)
        return
    found = reproduces(proto, tmp_path, size=size)
    assert (found.height, found.width) == (size or (8, 8))


def test_channels_last_and_gray(tmp_path: Path) -> None:
    net = Net()
    x = net.Transpose("image", perm=[0, 3, 1, 2])
    proto = net.model(net.head(net.stem(x)), shape=("n", 8, 10, 3))
    assert reproduces(proto, tmp_path).classifier.channels_last
    assert reproduces(proto, tmp_path, layout=Layout.NHWC).width == 10
    with pytest.raises(UceEdgeError, match="8 channels"):
        export(proto, tmp_path, layout=Layout.NCHW)
    net = Net()
    proto = net.model(net.head(net.stem(channels=1)), shape=("n", 1, 8, 8))
    assert reproduces(proto, tmp_path).channels == 1


def test_half_precision_is_widened(tmp_path: Path) -> None:
    found = reproduces(simple(Net(dtype=np.float16)), tmp_path, tolerance=2e-3)
    assert found.notes == ["its half-precision weights were widened to float32"]


# What cannot be sampled.


def _if(net: Net) -> onnx.ModelProto:
    x = net.head(net.stem())
    inner = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Relu", [x], ["inner"])], "branch", [], [inner])
    return net.model(net.If(net.constant(np.array(True)), then_branch=branch, else_branch=branch))


def _loop(net: Net) -> onnx.ModelProto:
    x = net.head(net.stem())
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "a": TensorProto.FLOAT, "b": TensorProto.FLOAT}
    info = {name: helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()}
    results = [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), info["b"]]
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Identity", ["go"], ["go_on"])]
    body = helper.make_graph(nodes, "body", [info["i"], info["go"], info["a"]], results)
    return net.model(net.Loop(net.constant(np.int64(2)), net.constant(np.array(True)), x, body=body))


def _integers(net: Net) -> onnx.ModelProto:
    x = net.Cast(net.pool(net.stem()), to=TensorProto.UINT8)
    y = net.MatMulInteger(x, net.constant(net.rng.integers(0, 255, (6, 4)).astype(np.uint8)))
    return net.model(net.Cast(y, to=TensorProto.FLOAT))


def _quantized(net: Net) -> onnx.ModelProto:
    scale, zero = net.constant(np.float32(0.1)), net.constant(np.uint8(0))
    x = net.QuantizeLinear(net.stem(), scale, zero)
    weight = net.constant(net.rng.integers(0, 255, (6, 6, 3, 3)).astype(np.uint8))
    return net.model(net.head(net.DequantizeLinear(net.QLinearConv(x, scale, zero, weight, scale, zero, scale, zero))))


def _two_outputs(net: Net) -> onnx.ModelProto:
    x = net.stem()
    return net.model(net.head(x), net.head(x))


def _columns(net: Net, axis: int = 1) -> onnx.ModelProto:
    """The images of a batch as columns."""
    y = net.Transpose(net.head(net.conv(net.stem(), 6, 6)), perm=[1, 0])
    return net.model(net.Transpose(net.Softmax(y, axis=axis), perm=[1, 0]))


def _centred(net: Net, early: bool) -> onnx.ModelProto:
    """Batch statistics, as of a batch-norm left in training mode."""
    x = net.stem()
    x = x if early else net.conv(x, 6, 6)
    centred = net.Sub(net.Mul(x, net.constant(np.float32(2))), net.ReduceMean(x, net.constant([0])))
    return net.model(net.head(net.conv(centred, 6, 6)))


def _mixed(net: Net) -> onnx.ModelProto:
    rows = net.Reshape(net.stem(), net.constant([6, 64]))
    return net.model(net.Reshape(net.MatMul(rows, net.weight(64, 2)), net.constant([1, 12])))


def _masked(net: Net) -> onnx.ModelProto:
    x = net.head(net.stem())
    net.Dropout(x, outputs=2)
    return net.model(net.Where(net.nodes[-1].output[1], x, net.Relu(x)))


def _flat(net: Net, *shape: int) -> onnx.ModelProto:
    return net.model(net.Conv("image", net.weight(6, 3, *[3] * (len(shape) - 2))), shape=shape)


REFUSED: dict[str, tuple[Callable[[Net], onnx.ModelProto], str]] = {
    "1d": (lambda net: _flat(net, 1, 3, 8), "input image has shape .* four dimensions"),
    "3d": (lambda net: _flat(net, 1, 3, 4, 8, 8), "input image has shape .* four dimensions"),
    "two inputs": (lambda net: net.model(net.head(net.stem()), extra=("age",)), r"2 inputs \(image, age\)"),
    "two outputs": (_two_outputs, "has 2 outputs"),
    "a map": (lambda net: net.model(net.conv(net.stem(), 6, 6)), r"output of shape \[1, 6, 8, 8\]"),
    "one class": (lambda net: net.model(net.Gemm(net.pool(net.stem()), net.weight(6, 1))), "at least 2 classes"),
    "no second layer": (lambda net: net.model(net.pool(net.stem())), "No layer is left to be noisy"),
    "no image": (lambda net: net.model(net.Relu(net.weight(1, 4))), "does not depend on the image"),
    "random": (lambda net: net.model(net.head(net.RandomNormalLike(net.stem()))), "RandomNormalLike .* random already"),
    "custom": (lambda net: net.model(net.head(net.Swish(net.stem(), domain="com.acme"))), "Swish .* domain com.acme"),
    "integer": (_integers, "MatMulInteger .* integer arithmetic"),
    "quantized": (_quantized, "QLinearConv .* integer arithmetic"),
    "if": (_if, "operator If .* control flow"),
    "loop": (_loop, "operator Loop .* control flow"),
    "reshape": (_mixed, "Reshape .* mixes the batch"),
    "columns": (_columns, "Transpose .* works across the images"),
    "batch statistics behind noise": (lambda net: _centred(net, False), "ReduceMean .* works across the images"),
    "batch statistics before noise": (lambda net: _centred(net, True), "depends on its neighbours|differ from the orig"),
    "dropout mask": (_masked, "mask of the Dropout"),
    "old opset": (lambda net: simple(Net(6)), "opset 7 to 23, but got 6"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sampled_is_named(case: str, tmp_path: Path) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(UceEdgeError, match=sentence):
        export(make(Net()), tmp_path)
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("case", ["batch statistics behind noise", "batch statistics before noise"])
def test_a_deterministic_file_must_not_mix_images_either(case: str, tmp_path: Path) -> None:
    with pytest.raises(UceEdgeError, match="differ from the original"):
        export(REFUSED[case][0](Net()), tmp_path, inference=Inference.DETERMINISTIC)


def test_a_size_the_network_cannot_take(tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.MatMul(net.Flatten(net.stem()), net.weight(384, 4)), shape=("n", 3, "h", "w"))
    reproduces(proto, tmp_path, size=(8, 8))
    with pytest.raises(UceEdgeError, match=r"cannot run on an image of 9x8 .* --size"):
        export(proto, tmp_path, size=(9, 8))
    with pytest.raises(UsageError, match="leaves the image size open"):
        export(proto, tmp_path)
    with pytest.raises(UsageError, match="8x8, as the model fixes it"):
        export(simple(Net()), tmp_path, size=(8, 9))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for content in (b"", b"no model\n", simple(Net()).SerializeToString()[:-50]):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=r"net\.onnx (is not a valid|cannot be read as an) ONNX model"):
            foreign.load(path)
    for absent in (tmp_path, tmp_path / "absent.onnx"):
        with pytest.raises(ModelFileError, match=f"no file {absent}"):
            foreign.load(absent)


def test_external_data_is_read_from_the_models_folder_only(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "net.onnx"
    onnx.save_model(simple(Net()), path, save_as_external_data=True, location="x.bin", size_threshold=0)
    assert foreign.load(path).classes == 4
    (tmp_path / "inside" / "x.bin").rename(tmp_path / "x.bin")
    with pytest.raises(ModelFileError, match=r"net\.onnx"):
        foreign.load(path)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "../x.bin"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelFileError, match=r"net\.onnx"):
        foreign.load(path)


@pytest.mark.parametrize("opset", [9, 12, 18])
@pytest.mark.parametrize("last", [False, True])
def test_dropout_is_removed(opset: int, last: bool, tmp_path: Path) -> None:
    net, plain = Net(opset), Net(opset)

    def dropout(x: str) -> str:
        if opset < 12:
            return net.Dropout(x, ratio=0.5)
        return net.Dropout(x, net.constant(np.float32(0.5)), net.constant(np.array(True)))

    x = net.head(net.stem()) if last else net.head(dropout(net.stem()))
    source = tmp_path / "net.onnx"
    source.write_bytes(net.model(dropout(x) if last else x).SerializeToString())
    found = foreign.load(source, output_is=OutputIs.LOGITS)
    assert [note for note in found.notes if "training mode" in note] == (
        [] if opset < 12 else [f"the Dropout {net.nodes[-1 if last else 2].name} was in training mode and was removed"]
    )
    images = np.full((1, 8, 8, 3), 200, np.uint8)
    spec = ImageSpec(8, 8, 3)
    ours = graph_reference(found.classifier, spec, [])(images, None)[0]
    assert np.allclose(ours, truth(plain.model(plain.head(plain.stem())), images, spec), atol=1e-5)
