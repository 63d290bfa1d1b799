"""The exported file fulfils the contract to the letter and does what PyTorch does."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from conftest import Call, Digits
from helpers.errors import raises
from onnx import TensorProto
from torch import nn

from uce_edge import contract
from uce_edge.calibration.maps import apply_map, initial
from uce_edge.contract import Inference, Method
from uce_edge.errors import UceEdgeError, UceEdgeWarning, UsageError
from uce_edge.metadata import Calibration, ImageSpec, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.noise import noise_table
from uce_edge_export.noise.perturbations import GaussianDropout
from uce_edge_export.options import Options
from uce_edge_train import gaussianize, torch_graph
from uce_edge_train.export import export_module, export_run
from uce_edge_train.networks import architectures
from uce_edge_train.runs import Run

SPEC = ImageSpec(16, 16, 3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


def metadata(classes: int = 5, **changes: object) -> Metadata:
    return replace(Metadata(tuple("abcdefghij"[:classes]), SPEC), **changes)


class Dense(nn.Module):
    """Concatenation and batch-norm before the convolution, which cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 8, 1)
        self.classifier = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.conv(torch.relu(self.bn(x)))], 1)
        return self.classifier(self.conv2(torch.relu(self.bn2(x))).mean((2, 3)))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, padding=1), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 12, 1, bias=False), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12 * 16, 5),
    )  # fmt: skip


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2, padding=1),
        nn.Flatten(), nn.Linear(8 * 16, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 5),
    )  # fmt: skip


MODELS = {"resnet8": lambda: architectures.resnet8(5), "dense": Dense, "depthwise": depthwise, "vgg": vgg}


def trained_like(make) -> nn.Module:
    """Random weights, and batch-norm statistics that are not the identity."""
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return gaussianize(model, 0.25).eval()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("inference", [Inference.MC, Inference.DETERMINISTIC])
def test_any_network_equals_pytorch_under_the_same_noise(name: str, inference: Inference, tmp_path: Path) -> None:
    done = export_module(trained_like(MODELS[name]), metadata(inference=inference), tmp_path / "m.onnx")
    assert done.parity.largest_difference < 1e-5
    assert (done.parity.largest_z is None) == (inference is Inference.DETERMINISTIC)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.onnx"]


def test_the_file_is_the_contract_to_the_letter(digits: Digits) -> None:
    model = onnx.load(digits.model)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 9
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]

    def signature(values):
        for value in values:
            kind = value.type.tensor_type
            yield value.name, kind.elem_type, [dim.dim_value or dim.dim_param for dim in kind.shape.dim]

    assert list(signature(model.graph.input)) == [
        ("image", TensorProto.UINT8, ["batch", 8, 8, 1]),
        ("seeds", TensorProto.INT32, ["samples"]),
    ]
    assert list(signature(model.graph.output)) == [
        ("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ("class_id", TensorProto.INT32, ["batch"]),
        ("uncertainty", TensorProto.FLOAT, ["batch"]),
        ("model_uncertainty", TensorProto.FLOAT, ["batch"]),
        ("standard_error", TensorProto.FLOAT, ["batch"]),
        ("error_probability", TensorProto.FLOAT, ["batch"]),
        ("pass_probabilities", TensorProto.FLOAT, ["samples", "batch", 10]),
        ("logits", TensorProto.FLOAT, ["samples", "batch", 10]),
        ("decision", TensorProto.INT32, ["batch"]),
    ]
    initializers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert initializers["calibration.temperature"] == pytest.approx(
        digits.exported.metadata.calibration.parameters["temperature"]
    )
    assert not {node.op_type for node in model.graph.node} & {"RandomNormal", "RandomNormalLike", "Dropout"}


def test_the_metadata_says_what_a_maintainer_needs(digits: Digits) -> None:
    properties = {entry.key: entry.value for entry in onnx.load(digits.model).metadata_props}
    document = json.loads(properties["uce_edge"])
    assert document["contract"] == 2
    assert document["classes"] == list("0123456789")
    assert document["samples"] == document["calibration"]["samples"] == 25
    assert document["calibration"]["method"] == "temperature"
    assert {layer["p"] for layer in document["layers"]} == {0.2}
    assert len(document["hashes"]["weights"]) == 64
    assert document["hashes"]["splits"] == digits.dataset.hashes()
    assert {"uce_edge", "torch", "onnx", "onnxruntime"} <= set(document["tools"])
    assert json.loads(properties["names"])["3"] == "3"
    assert json.loads(properties["imgsz"]) == [8, 8]
    assert json.loads(digits.model.with_suffix(".json").read_text()) == document


def test_every_weight_layer_but_the_first_is_noisy(digits: Digits) -> None:
    names = [layer.name for layer in digits.exported.metadata.layers]
    assert "stem.0.weight" not in names
    assert "classifier.weight" in names
    assert "blocks.1.shortcut.0.weight" in names
    assert len(names) == 9


@pytest.mark.parametrize("method", Method)
def test_outputs_follow_from_the_logits_by_the_formulas(method: Method, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    parameters = {k: (v + 0.2 * rng.random(v.shape)).astype(np.float32) for k, v in initial(method, 5).items()}
    calibration = Calibration(method, {name: value.tolist() for name, value in parameters.items()}, 7)
    out = tmp_path / "m.onnx"
    export_module(trained_like(vgg), metadata(calibration=calibration, samples=7), out)
    session = onnxruntime.InferenceSession(out)
    images = np.random.default_rng(1).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    values = session.run(None, {"image": images, "seeds": np.arange(7, dtype=np.int32)})
    got = dict(zip((output.name for output in session.get_outputs()), values, strict=True))
    z = apply_map(method, parameters, got["logits"].astype(np.float64))
    passes = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    p = passes.mean(0)
    entropy = -(p * np.log(p)).sum(-1) / math.log(5)
    data = -(passes * np.log(passes)).sum(-1).mean(0) / math.log(5)
    jackknife = _jackknife_error(passes)
    assert np.allclose(got["pass_probabilities"], passes, atol=1e-6)
    assert np.allclose(got["probabilities"], p, atol=1e-6)
    assert np.array_equal(got["class_id"], p.argmax(-1))
    assert np.allclose(got["uncertainty"], entropy, atol=1e-6)
    assert np.allclose(got["model_uncertainty"], entropy - data, atol=1e-6)
    assert np.allclose(got["error_probability"], 1 - p.max(-1), atol=1e-6)
    assert np.allclose(got["standard_error"], jackknife, rtol=0.2)


def _jackknife_error(passes: np.ndarray) -> np.ndarray:
    """Another estimator of the standard error of H, which shares no formula with the delta method."""
    count = len(passes)
    means = [np.delete(passes, i, axis=0).mean(0) for i in range(count)]
    leave_one = np.stack([-(p * np.log(p)).sum(-1) / math.log(p.shape[-1]) for p in means])
    return np.sqrt((count - 1) / count * ((leave_one - leave_one.mean(0)) ** 2).sum(0))


def test_inference_by_its_name_gives_the_graph_of_that_name(tmp_path: Path) -> None:
    model = gaussianize(vgg()).eval()
    files = [
        export_module(model, metadata(inference=wanted), tmp_path / f"{number}.onnx").path
        for number, wanted in enumerate((Inference.MOMENTS, "moments"))
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert Model(files[1], "cpu").metadata.inference is Inference.MOMENTS


def test_an_extreme_temperature_gives_certain_answers_and_no_nan(tmp_path: Path) -> None:
    calibration = Calibration(Method.TEMPERATURE, {"temperature": [1e-3]}, 3)
    out = tmp_path / "m.onnx"
    export_module(trained_like(vgg), metadata(calibration=calibration, samples=3), out)
    prediction = Model(out, "cpu").predict(np.zeros((1, 16, 16, 3), np.uint8))
    values = np.concatenate([prediction.probabilities.ravel(), prediction.uncertainty, prediction.standard_error])
    assert np.isfinite(values).all()
    assert 0 <= prediction.uncertainty[0] <= 1


def test_the_file_is_as_good_as_pytorch_on_the_calibration_images(digits: Digits) -> None:
    assert digits.exported.file_nll == pytest.approx(digits.exported.torch_nll, abs=0.02)
    report = digits.exported.metadata.calibration.outcome
    assert report.nll_after <= report.nll_before


class TestTheGate:
    """An export that fails its check writes nothing."""

    def refuse(self, tmp_path: Path, code: str, **changes: object) -> None:
        with raises(code):
            export_module(trained_like(vgg), metadata(**changes), tmp_path / "m.onnx")
        assert list(tmp_path.iterdir()) == []

    def test_wrong_arithmetic(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = torch_graph.noisy_sites

        def wrong(classifier, model):
            return [
                replace(s, perturbation=GaussianDropout(s.perturbation.p * 1.01)) for s in honest(classifier, model)
            ]

        monkeypatch.setattr(torch_graph, "noisy_sites", wrong)
        self.refuse(tmp_path, "parity.logits")

    def test_batch_norm_left_in_training_mode(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = torch_graph.torch_reference

        def unfrozen(model, spec, sites):
            monkeypatch.setattr(model, "eval", lambda: model)
            return honest(model.train(), spec, sites)

        monkeypatch.setattr(torch_graph, "torch_reference", unfrozen)
        with raises("parity.logits"):
            export_module(trained_like(depthwise), metadata(), tmp_path / "m.onnx")
        assert list(tmp_path.iterdir()) == []

    def test_noise_that_is_not_in_the_graph(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise_table, "table", lambda: np.zeros((noise_table.ROWS, noise_table.WIDTH), np.float32))
        self.refuse(tmp_path, "parity.noise-missing")

    def test_a_biased_table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        biased = noise_table.table() * np.float32(0.3) + np.float32(2)
        monkeypatch.setattr(noise_table, "table", lambda: biased)
        self.refuse(tmp_path, "parity.statistic")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_refused_and_named(value: float, tmp_path: Path) -> None:
    model = trained_like(vgg)
    with torch.no_grad():
        model[3].weight[0, 0, 0, 0] = value
    with pytest.raises(UceEdgeError, match=r"NaN or infinity \(first in 3\.weight\)"):
        export_module(model, metadata(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_survives_a_failed_export(tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    out.write_bytes(b"precious")
    model = trained_like(vgg)
    nn.init.constant_(model[0].weight, float("nan"))
    with pytest.raises(UceEdgeError):
        export_module(model, metadata(), out)
    assert out.read_bytes() == b"precious"


def test_baked_passes_give_the_same_answer_without_seeds(digits: Digits, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "baked.onnx"
    said = call("export", digits.run, "--bake-samples", 25, "--out", out)
    assert said.code == 0, said.err
    assert [value.name for value in onnx.load(out).graph.input] == [contract.IMAGE]
    images = digits.dataset.splits["test"].images[:40]
    ours, theirs = Model(out, "cpu").predict(images), Model(digits.model, "cpu").predict(images)
    assert np.array_equal(ours.probabilities, theirs.probabilities)
    assert np.array_equal(ours.standard_error, theirs.standard_error)
    plain = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert np.array_equal(plain.run(["uncertainty"], {contract.IMAGE: images[:1]})[0], theirs.uncertainty[:1])
    for options, rule in (
        (["--samples", 5], "Expected `samples` to be 25 for a model with its passes baked in, but got 5."),
        (["--seed", 1], "Expected `seed` to be 0 for a model with its passes baked in, but got 1."),
        (["--adaptive", 0.1], "nothing to stop early"),
    ):
        refused = call("predict", "--model", out, digits.image, *options)
        assert refused.code == 2
        assert rule in refused.err
    assert call("bench", "--model", out, "--samples", 25).code == 0


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--bake-samples", 7], "is calibrated at 25 passes, but --bake-samples is 7. First calibrate it at 7"),
        (["--bake-samples", 25, "--samples", 25], "Choose one of --samples and --bake-samples."),
        (["--bake-samples", 1, "--inference", "deterministic"], "Only a model that takes seeds"),
    ],
)
def test_what_cannot_be_baked_is_refused(
    digits: Digits, call: Call, tmp_path: Path, options: list[object], rule: str
) -> None:
    said = call("export", digits.run, *options, "--out", tmp_path / "m.onnx")
    assert said.code == 2
    assert rule in said.err
    assert list(tmp_path.iterdir()) == []


def test_dropout_layers_that_a_file_does_not_have_are_named(tmp_path: Path) -> None:
    network = gaussianize(
        nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Dropout(0.5), nn.Linear(8, 3), nn.Dropout(0))
    )
    described = Metadata(("a", "b", "c"), ImageSpec(4, 4, 3))
    with pytest.warns(UceEdgeWarning, match=r"the dropout of 2 is not in the file"):
        done = export_module(network, described, tmp_path / "m.onnx")
    assert len(done.notes) == 1
    assert "gaussianize" in done.notes[0]


def test_a_plain_network_is_told_how_to_get_noise_in_words_of_python(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))
    wanted = r"Sequential has no Gaussian dropout.*gaussianize\(model\).*deterministic"
    with pytest.raises(UsageError, match=wanted) as refusal:
        export_module(network, Metadata(("a", "b", "c"), ImageSpec(4, 4, 3)), tmp_path / "m.onnx")
    assert "--" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"inference": "magic"}, {"noise": "magic"}, {"numbers": "magic"}])
def test_a_choice_of_export_run_may_be_a_name_and_a_wrong_one_is_told(digits: Digits, tmp_path: Path, wrong) -> None:
    with pytest.raises(UsageError, match=rf"Expected `{next(iter(wrong))}` to be one of .*, but got 'magic'"):
        export_run(tmp_path / "absent", tmp_path / "m.onnx", digits.dataset, **wrong)


def test_an_inference_that_is_given_by_its_name_gets_its_own_calibration(digits: Digits, tmp_path: Path) -> None:
    done = export_run(digits.run, tmp_path / "m.onnx", digits.dataset, "deterministic")  # type: ignore[arg-type]
    assert done.metadata.inference is Inference.DETERMINISTIC
    assert done.metadata.calibration == Model(digits.deterministic, "cpu").metadata.calibration


def test_a_run_stores_its_noisy_layers(call: Call, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "m.onnx"
    said = call(
        "train", "--data", "digits", "--out", run, "--epochs", 1, "--noisy", "tail", "--noisy", "blocks.1.conv2"
    )
    assert said.code == 0, said.err
    call("calibrate", run, "--samples", 3)
    call("export", run, "--out", out)
    names = [layer.name for layer in Model(out, "cpu").metadata.layers]
    assert names == ["blocks.1.conv2.weight", "blocks.2.shortcut.0.weight", "classifier.weight"]


def test_fewer_noisy_layers_than_in_training_are_calibrated_again(digits: Digits, tmp_path: Path) -> None:
    done = export_run(digits.run, tmp_path / "m.onnx", digits.dataset, options=Options(("last:1",)))
    same = export_run(digits.run, tmp_path / "m.onnx", digits.dataset, options=Options(("all",)))
    assert [layer.name for layer in done.metadata.layers] == ["classifier.weight"]
    assert done.metadata.calibration.temperature != Run.load(digits.run).calibration.temperature
    assert same.metadata.calibration.temperature == Run.load(digits.run).calibration.temperature
