"""Third-party files of every kind of number, output and form: each works, or is refused with a remedy that works."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.errors import raises
from helpers.nets import Net, export, simple, softmax, truth
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

from uce_edge.contract import Inference
from uce_edge.runtime.model import Model
from uce_edge_export.check import quantisation_steps
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.check.parity_gate import ParityError
from uce_edge_export.options import OutputIs
from uce_edge_export.source import third_party

IMAGES = np.random.default_rng(5).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


def _exported(proto: onnx.ModelProto, folder: Path, **how: object) -> tuple[third_party.ThirdParty, Model]:
    found, done = export(proto, folder, inference=Inference.DETERMINISTIC, **how)
    return found, Model(done.path)


def _scores(net: Net) -> str:
    return net.head(net.Relu(net.conv(net.stem(), 6, 6)))


def _number(net: Net) -> str:
    return net.Gemm(net.pool(net.Relu(net.conv(net.stem(), 6, 6))), net.weight(6, 1), net.weight(1))


def _retyped(proto: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    proto.graph.input[0].type.tensor_type.elem_type = kind
    return proto


# Numbers.


def test_a_network_in_double_precision_answers_as_its_float32_twin(tmp_path: Path) -> None:
    found, model = _exported(simple(Net(dtype=np.float64)), tmp_path)
    assert found.notes == ["its float64 numbers became float32"]
    wanted = truth(simple(Net()), IMAGES, model.metadata.image)
    assert np.allclose(model.predict(IMAGES).probabilities, softmax(wanted), atol=1e-5)


def test_a_network_in_bfloat16_answers_as_its_weights_say(tmp_path: Path) -> None:
    plain, rounded = simple(Net()), simple(Net())
    for proto, kind in ((plain, np.float32), (rounded, ml_dtypes.bfloat16)):
        for tensor in proto.graph.initializer:
            values = numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*rounded.graph.input, *rounded.graph.output, *rounded.graph.value_info):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    _, model = _exported(rounded, tmp_path)
    wanted = truth(plain, IMAGES, model.metadata.image)
    assert np.allclose(model.predict(IMAGES).probabilities, softmax(wanted), atol=1e-5)


def test_a_network_that_takes_bytes_gets_them_as_they_are(tmp_path: Path) -> None:
    net = Net()
    x = net.Mul(net.Cast("image", to=TensorProto.FLOAT), net.constant(np.float32(1 / 255)))
    proto = _retyped(net.model(net.head(net.stem(x))), TensorProto.UINT8)
    with raises("source.takes-bytes"):
        export(proto, tmp_path)
    found, model = _exported(proto, tmp_path, mean=(0.0,), std=(1.0,))
    assert found.takes_bytes
    assert model.metadata.image.scale == 1
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    wanted = session.run(None, {"image": IMAGES.transpose(0, 3, 1, 2)})[0]
    assert np.allclose(model.predict(IMAGES).probabilities, softmax(wanted), atol=1e-5)


def test_an_input_in_double_precision_works_and_one_of_integers_is_refused(tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.head(net.stem(net.Cast("image", to=TensorProto.FLOAT))))
    _, model = _exported(_retyped(proto, TensorProto.DOUBLE), tmp_path)
    assert np.isfinite(model.predict(IMAGES).probabilities).all()
    with raises("source.input"):
        export(_retyped(proto, TensorProto.INT32), tmp_path)


# Outputs.


def test_a_sigmoid_head_is_refused_unless_asked_for(tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.Sigmoid(_scores(net)))
    with raises("head.multi-label") as caught:
        export(proto, tmp_path)
    assert "--output-is sigmoid" in str(caught.value)
    _, model = _exported(proto, tmp_path, output_is=OutputIs.SIGMOID)
    p = truth(proto, IMAGES, model.metadata.image)
    odds = p / (1 - p)  # of independent answers, given that exactly one is yes
    assert np.allclose(model.predict(IMAGES).probabilities, odds / odds.sum(1, keepdims=True), atol=1e-5)


def test_a_sigmoid_without_its_node_can_be_named(tmp_path: Path) -> None:
    net = Net()
    one = net.constant(np.float32(1))
    proto = net.model(net.Div(one, net.Add(one, net.Exp(net.Neg(_scores(net))))))
    _, model = _exported(proto, tmp_path, output_is=OutputIs.SIGMOID)
    p = truth(proto, IMAGES, model.metadata.image)
    odds = p / (1 - p)
    assert np.allclose(model.predict(IMAGES).probabilities, odds / odds.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("inference", [Inference.DETERMINISTIC, Inference.MC, Inference.MOMENTS])
def test_one_probability_is_that_of_the_second_class(inference: Inference, tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.Sigmoid(_number(net)))
    found, done = export(proto, tmp_path, inference=inference, classes=("no", "yes"))
    assert found.classes == 2
    if inference is Inference.DETERMINISTIC:
        model = Model(done.path)
        p = truth(proto, IMAGES, model.metadata.image)
        assert np.allclose(model.predict(IMAGES).probabilities, np.concatenate([1 - p, p], 1), atol=1e-5)


def test_one_number_is_a_logit_only_if_asked_for(tmp_path: Path) -> None:
    net = Net()
    proto = net.model(_number(net))
    with raises("source.one-number"):
        export(proto, tmp_path)
    _, model = _exported(proto, tmp_path, output_is=OutputIs.LOGITS)
    p = 1 / (1 + np.exp(-truth(proto, IMAGES, model.metadata.image)))
    assert np.allclose(model.predict(IMAGES).probabilities[:, 1:], p, atol=1e-5)


@pytest.mark.parametrize("keep", [0, 1])
def test_the_scores_before_a_final_argmax_are_used(keep: int, tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.ArgMax(_scores(net), axis=1, keepdims=keep))
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    _, model = _exported(proto, tmp_path)
    assert np.array_equal(
        model.predict(IMAGES).probabilities.argmax(1), truth(proto, IMAGES, model.metadata.image)[:, 0]
    )


def test_one_of_several_outputs_is_chosen_by_name(tmp_path: Path) -> None:
    net = Net()
    x = net.stem()
    scores = net.head(x)
    proto = net.model(net.conv(x, 6, 6), net.Softmax(scores))
    first, second = (value.name for value in proto.graph.output)
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    with raises("source.outputs") as caught:
        third_party.load(path)
    assert all(part in str(caught.value) for part in (first, second, "--output"))
    with raises("source.outputs"):
        third_party.load(path, output="other")
    assert third_party.load(path, output=second).original_is is OutputIs.PROBABILITIES
    assert third_party.load(path, output=scores).original_is is OutputIs.LOGITS  # any value of the graph
    with raises("source.outputs"):
        third_party.load(path, output=first)  # a map


# Forms.


@pytest.mark.parametrize("opset", [9, 15])
def test_batch_norm_in_training_form_uses_its_stored_statistics(opset: int, tmp_path: Path) -> None:
    def network(training: bool) -> onnx.ModelProto:
        net = Net(opset)
        x = net.norm(net.conv(net.stem(), 6, 6), 6)
        if training and opset < 14:
            net.nodes[-1].output.extend(["mean", "variance", "saved_mean", "saved_variance"])
        elif training:
            net.nodes[-1].output.extend(["mean", "variance"])
            net.nodes[-1].attribute.append(helper.make_attribute("training_mode", 1))
        return net.model(net.head(x))

    found, model = _exported(network(True), tmp_path)
    assert any("training form" in note for note in found.notes)
    wanted = truth(network(False), IMAGES, model.metadata.image)
    assert np.allclose(model.predict(IMAGES).probabilities, softmax(wanted), atol=1e-5)


def test_batch_norm_over_joined_images_and_places(tmp_path: Path) -> None:
    net = Net()
    tokens = net.Transpose(net.Reshape(net.conv(net.stem(), 6, 6), net.constant([0, 6, -1])), perm=[0, 2, 1])
    rows = net.norm(net.Reshape(net.MatMul(tokens, net.weight(6, 6)), net.constant([-1, 6])), 6)
    tokens = net.Reshape(rows, net.constant([-1, 64, 6]))
    proto = net.model(net.Gemm(net.ReduceMean(tokens, net.constant([1]), keepdims=0), net.weight(6, 4)))
    _, model = _exported(proto, tmp_path)
    wanted = truth(proto, IMAGES, model.metadata.image)
    assert np.allclose(model.predict(IMAGES).probabilities, softmax(wanted), atol=1e-5)
    export(proto, tmp_path, inference=Inference.MC)


def test_a_pool_beyond_its_map_is_a_global_one(tmp_path: Path) -> None:
    """As in the EfficientNet of transformers: reference and runtime count cells beyond the map differently."""
    net = Net()
    pooled = net.AveragePool(net.stem(), kernel_shape=[50, 50], strides=[50, 50], ceil_mode=1)
    proto = net.model(net.Gemm(net.Reshape(pooled, net.constant([0, 6])), net.weight(6, 4)))
    whole = Net()
    wanted = whole.model(
        whole.Gemm(whole.Reshape(whole.GlobalAveragePool(whole.stem()), whole.constant([0, 6])), whole.weight(6, 4))
    )
    _, model = _exported(proto, tmp_path)
    truth_ = truth(wanted, IMAGES, model.metadata.image)
    assert np.allclose(model.predict(IMAGES).probabilities, softmax(truth_), atol=1e-5)


def test_external_data_is_read_and_more_than_2_gb_refused(tmp_path: Path) -> None:
    proto = simple(Net())
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0, location="net.data")
    assert third_party.load(path).classes == 4
    large = onnx.load(path, load_external_data=False)
    large.graph.initializer[0].dims[:] = [600, 1000, 1000]
    path.write_bytes(large.SerializeToString())
    with raises("source.too-large") as caught:
        third_party.load(path)
    assert "2.4 GB" in str(caught.value)


# Quantised networks.


class _Reader(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.images = iter([{"image": rng.standard_normal((1, 3, 8, 8), np.float32)} for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.images, None)


def _quantised(folder: Path, activations: quantization.QuantType, per_channel: bool) -> onnx.ModelProto:
    net = Net()
    x = net.stem()
    for _ in range(3):
        x = net.Clip(net.conv(x, 6, 6), net.constant(np.float32(0)), net.constant(np.float32(6)))
    onnx.save(net.model(net.head(x)), folder / "float.onnx")
    quantization.quantize_static(
        folder / "float.onnx",
        folder / "qdq.onnx",
        _Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=activations,
        weight_type=quantization.QuantType.QInt8,
        per_channel=per_channel,
    )
    return onnx.load(folder / "qdq.onnx")


@pytest.mark.parametrize("inference", [Inference.DETERMINISTIC, Inference.MC])
@pytest.mark.parametrize(
    ("activations", "per_channel"),
    [(quantization.QuantType.QUInt8, False), (quantization.QuantType.QInt8, True)],
)
def test_a_quantised_network_answers_as_before(
    activations: quantization.QuantType, per_channel: bool, inference: Inference, tmp_path: Path
) -> None:
    proto = _quantised(tmp_path, activations, per_channel)
    found, done = export(proto, tmp_path, inference=inference)
    assert any("quantised network" in note for note in found.notes)
    model = Model(done.path)
    if inference is Inference.DETERMINISTIC:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        image = model.metadata.image
        pixels = ((IMAGES / 255 - np.array(image.mean)) / np.array(image.std)).transpose(0, 3, 1, 2).astype(np.float32)
        wanted = np.concatenate([session.run(None, {"image": one[None]})[0] for one in pixels])
        assert np.allclose(model.predict(IMAGES).probabilities, softmax(wanted), atol=1e-5)


def test_the_gate_of_a_quantised_network_still_finds_a_wrong_graph(tmp_path: Path) -> None:
    proto = _quantised(tmp_path, quantization.QuantType.QUInt8, per_channel=True)
    found, done = export(proto, tmp_path, inference=Inference.DETERMINISTIC)
    spec = done.metadata.image
    allowed = quantisation_steps.tolerance(found.classifier, spec, IMAGES)
    assert 1e-4 < allowed.of_largest < 0.1
    change: Callable = lambda node, output: 1.2 * output if node.op_type == "Conv" else output  # noqa: E731
    with pytest.raises(ParityError):
        third_party.check_original(found, spec, graph_reference(found.classifier, spec, [], change), allowed.of_largest)
