"""Third-party ONNX classifiers: without noise they say what they said, and the noise goes where it was asked for."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.errors import raises
from helpers.nets import Net, export, simple, softmax, truth, wide
from onnx import TensorProto, helper

from uce_edge.contract import Inference, NoiseKind, Sigma
from uce_edge.errors import ModelFileError
from uce_edge.runtime.model import Model
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.noise.sites import sites_by_rule
from uce_edge_export.options import Expand, Layout, Options, OutputIs
from uce_edge_export.source import third_party


def reproduces(
    proto: onnx.ModelProto, folder: Path, tolerance: float = 1e-5, left: float = 2e-5, **how: object
) -> third_party.ThirdParty:
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
    assert np.allclose(model.predict(images).probabilities, wanted, atol=max(left, tolerance))
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


def _rows(net: Net, x: str) -> str:
    """The channels of an image as the rows of a matrix, which leaves no room for a batch."""
    rows = net.Reshape(net.conv(x, 6, 6), net.constant([6, 64]))
    weight = net.weight(2, 64)
    hidden = net.Add(
        net.Gemm(rows, weight, net.weight(2), transB=1, alpha=0.5, beta=2.0), net.Gemm(rows, weight, transB=1)
    )
    return net.MatMul(net.Reshape(hidden, net.constant([1, 12])), net.weight(12, 4))


def _qkv(net: Net, x: str) -> str:
    """Attention whose queries, keys and values come from one product and are told apart in front of the batch."""
    tokens = net.Transpose(net.Reshape(net.conv(x, 6, 6), net.constant([0, 6, -1])), perm=[0, 2, 1])
    qkv = net.Reshape(net.MatMul(tokens, net.weight(6, 18)), net.constant([0, 64, 3, 2, 3]))
    qkv = net.Transpose(qkv, perm=[2, 0, 3, 1, 4])
    q, k, v = (
        net.Squeeze(net.Slice(qkv, *map(net.constant, ([i], [i + 1], [0]))), net.constant([0])) for i in range(3)
    )
    mixed = net.MatMul(net.Softmax(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2]))), v)
    return net.MatMul(
        net.ReduceMean(
            net.Reshape(net.Transpose(mixed, perm=[2, 0, 1, 3]), net.constant([64, -1, 6])),
            net.constant([0]),
            keepdims=0,
        ),
        net.weight(6, 4),
    )


def _gelu(net: Net, x: str) -> str:
    return net.head(net.conv(net.Gelu(net.Gelu(net.conv(x, 6, 6), approximate="tanh")), 6, 6))


def _group_norm(net: Net, x: str) -> str:
    y = net.GroupNormalization(net.conv(x, 6, 6), net.weight(6), net.weight(6), num_groups=3)
    return net.Gemm(net.Flatten(net.GlobalMaxPool(y)), net.weight(6, 4))


def _attention(net: Net, x: str) -> str:
    heads = net.Transpose(net.Reshape(net.conv(x, 6, 6), net.constant([0, 2, 3, 64])), perm=[0, 1, 3, 2])
    y = net.ReduceMean(net.Attention(heads, heads, heads), net.constant([2]), keepdims=0)
    return net.Gemm(net.Flatten(y), net.weight(6, 4))


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
    "no room for a batch": _rows,
    "attention by permute": _qkv,
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


def test_attention_has_moments(tmp_path: Path) -> None:
    net = Net()
    _, done = export(net.model(_qkv(net, net.stem())), tmp_path, inference=Inference.MOMENTS)
    assert Model(done.path).predict(np.zeros((1, 8, 8, 3), np.uint8)).model_uncertainty > 0


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18, 19, 21, 23])
def test_opsets(opset: int, tmp_path: Path) -> None:
    reproduces(simple(Net(opset)), tmp_path)


@pytest.mark.parametrize(("opset", "make"), [(20, _gelu), (21, _group_norm), (23, _gelu), (23, _attention)])
def test_operators_of_newer_opsets_are_written_in_older_ones(opset: int, make, tmp_path: Path) -> None:
    net = Net(opset)
    reproduces(net.model(make(net, net.stem())), tmp_path)


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_local_functions_are_inlined(opset: int, tmp_path: Path) -> None:
    net = Net(opset)
    proto = net.model(net.head(net.conv(net.Act(net.conv("image", 3, 6), domain="com.acme"), 6, 6)))
    relu, imports = helper.make_node("Relu", ["a"], ["b"]), [helper.make_opsetid("", opset)]
    proto.functions.append(helper.make_function("com.acme", "Act", ["a"], ["b"], [relu], imports))
    reproduces(proto, tmp_path)


def test_initializers_may_be_listed_as_inputs(tmp_path: Path) -> None:
    proto = simple(Net(9))
    inputs = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in proto.graph.initializer]
    proto.graph.input.extend(inputs)
    proto.ir_version = 3
    reproduces(proto, tmp_path)


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
        with raises("source.input"):
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
    with raises("source.input"):
        export(proto, tmp_path, layout=Layout.NCHW)
    net = Net()
    proto = net.model(net.head(net.stem(channels=1)), shape=("n", 1, 8, 8))
    assert reproduces(proto, tmp_path).channels == 1


def test_half_precision_is_widened(tmp_path: Path) -> None:
    found = reproduces(simple(Net(dtype=np.float16)), tmp_path, tolerance=2e-3)
    assert found.notes == ["its half-precision numbers became float32"]


@pytest.mark.parametrize("opset", [9, 12, 18])
@pytest.mark.parametrize("last", [False, True])
def test_dropout_is_removed_also_in_training_mode(opset: int, last: bool, tmp_path: Path) -> None:
    net, plain = Net(opset), Net(opset)

    def dropout(x: str) -> str:
        mode = () if opset < 12 else (net.constant(np.float32(0.5)), net.constant(np.array(True)))
        return net.Dropout(x, *mode)

    x = dropout(net.head(net.stem())) if last else net.head(dropout(net.stem()))
    found, done = export(net.model(x), tmp_path, inference=Inference.DETERMINISTIC)
    assert ["Dropout node" in note and "removed" in note for note in found.notes] == [True]
    images = np.full((1, 8, 8, 3), 200, np.uint8)
    theirs = truth(plain.model(plain.head(plain.stem())), images, done.metadata.image)
    assert np.allclose(Model(done.path, "cpu").logits(images)[0], theirs, atol=1e-5)


# Where the noise goes.


def test_layers_and_rates_by_name_and_number(tmp_path: Path) -> None:
    def layers(*p: str, noisy: tuple[str, ...] = ()) -> dict[str, float]:
        _, done = export(wide(), tmp_path, p, Options(noisy))
        assert Model(done.path, "cpu").metadata.layers == done.metadata.layers
        return {layer.name: layer.p for layer in done.metadata.layers}

    assert layers("0.2") == {"body.0": 0.2, "body.1": 0.2, "head": 0.2}
    assert layers("0.2", noisy=("all",)) == layers("0.2", noisy=("last:9",)) == layers("0.2")
    assert layers("0.2", noisy=("last:2",)) == layers("0.2", noisy=("*.1", "head")) == {"body.1": 0.2, "head": 0.2}
    assert layers("0.2", noisy=("tail",)) == layers("0.2", noisy=("last:2",))  # from the last convolution on
    assert layers("0.2", "body*=0.1", "*.1=0.3") == {"body.0": 0.1, "body.1": 0.3, "head": 0.2}
    assert layers("*=0.3", "0.2", noisy=("head",)) == {"head": 0.2}
    assert layers("h*=0.3") == {"head": 0.3}


def test_costs_by_hand(tmp_path: Path) -> None:
    stem, body, grouped, head = 6 * 36 * 27, 8 * 4 * 54, 8 * 4 * 2, 32 * 4

    def macs(**options: object) -> dict[str, int]:
        _, done = export(wide(), tmp_path, **options)
        return {name: value for name, value in done.metadata.costs.to_document().items() if name.startswith("macs")}

    costs = {at: macs(options=Options((f"last:{4 - at}",))) for at in (1, 2, 3)}
    # A noisy layer computes a mean and a variance; those of the first one are shared by all passes.
    assert costs[1] == {"macs_once": stem + 2 * body, "macs_per_pass": 2 * grouped + 2 * head}
    assert costs[2] == {"macs_once": stem + body + 2 * grouped, "macs_per_pass": 2 * head}
    assert costs[3] == {"macs_once": stem + body + grouped + 2 * head, "macs_per_pass": 0}
    # Noise by channel is on the input of a layer, so that the first noisy layer runs in every pass, too.
    by_channel = {at: macs(options=Options((f"last:{4 - at}",), sigma=Sigma.CHANNEL)) for at in (1, 2, 3)}
    assert by_channel[1] == {"macs_once": stem, "macs_per_pass": body + grouped + 2 * head}
    assert by_channel[2] == {"macs_once": stem + body, "macs_per_pass": grouped + 2 * head}
    assert by_channel[3] == costs[3]  # a linear layer has exact sigma
    early = macs(options=Options(expand=Expand.EARLY))
    assert early == {"macs_once": 0, "macs_per_pass": stem + 2 * (body + grouped + head)}
    deterministic = macs(inference=Inference.DETERMINISTIC)
    assert deterministic == {"macs_once": stem + body + grouped + head, "macs_per_pass": 0}


def test_early_and_late_expansion_agree(tmp_path: Path) -> None:
    images = np.random.default_rng(4).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    files = [export(wide(), tmp_path, options=Options(expand=at))[1].path.read_bytes() for at in Expand]
    feed = {"image": images, "seeds": np.arange(5, dtype=np.int32)}
    late, early = (onnxruntime.InferenceSession(file).run(["logits"], feed)[0] for file in files)
    assert files[0] != files[1]
    assert np.allclose(late, early, atol=1e-5)
    assert late.std(0).min() > 1e-3


def test_other_sources_of_noise(tmp_path: Path) -> None:
    images = np.full((2, 8, 8, 3), 99, np.uint8)
    _, done = export(wide(), tmp_path, noise=NoiseKind.RANDN)
    model = Model(done.path, "cpu")
    assert model.metadata.noise is NoiseKind.RANDN
    assert not np.array_equal(model.logits(images), model.logits(images))
    _, done = export(wide(), tmp_path, noise=NoiseKind.INPUT)
    with pytest.raises(ModelFileError, match="takes its noise as graph inputs"):
        Model(done.path, "cpu")


# Files other people made.


def installed_file(package: str, *inside: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*inside)


def test_a_text_direction_classifier_from_pypi(tmp_path: Path) -> None:
    path = installed_file("rapidocr", "models", "ch_ppocr_mobile_v2.0_cls_mobile.onnx")
    found = reproduces(onnx.load(path), tmp_path, left=1e-4, size=(48, 192), mean=(0.5,), std=(0.5,))
    assert found.classes == 2


def test_a_shufflenet_from_the_onnx_package() -> None:
    path = installed_file("onnx", "backend", "test", "data", "light", "light_shufflenet.onnx")
    found = third_party.load(path)
    spec = third_party.metadata(found, path).image
    assert (spec.height, found.classes, found.original_is) == (224, 1000, OutputIs.PROBABILITIES)
    assert len(sites_by_rule(found.classifier.graph, ["0.2"])) > 40
    third_party.check_original(found, spec, graph_reference(found.classifier, spec, []))
