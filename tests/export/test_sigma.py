"""Factored sigma in files: exported as it was trained, or judged against what was trained."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import Call, Digits
from helpers import progress_lines
from helpers.errors import raises
from helpers.nets import Net, export, wide
from torch import nn

from uce_edge import Model, metrics
from uce_edge.contract import Inference, Sigma
from uce_edge.errors import UceEdgeError
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export.check import quality
from uce_edge_export.check.quality import QualityError
from uce_edge_export.options import Options
from uce_edge_train import export_module, gaussianize
from uce_edge_train.dropout.gaussian_layers import gaussian_layers
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run, load_model

FACTORED = Options(sigma=Sigma.FACTORED)


class Branches(nn.Module):
    """Batch-norm with statistics of its own, a group, a stride, a depthwise layer, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.plain = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.grouped = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=3)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.narrow = nn.Conv2d(12, 6, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(6)
        self.head = nn.Sequential(nn.Linear(6 * 16, 10), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.plain(torch.relu(self.stem(x)))))
        x = x + torch.relu(self.depthwise(self.grouped(x)))
        return self.head(torch.relu(self.second_norm(self.narrow(x))).flatten(1))


def branches(sigma: Sigma) -> nn.Module:
    torch.manual_seed(0)
    network = Branches()
    for layer in (network.norm, network.second_norm):
        for values in (layer.weight, layer.running_var):
            nn.init.uniform_(values, 0.2, 3)
        nn.init.normal_(layer.running_mean)
    return gaussianize(network, 0.2, sigma=sigma)


METADATA = Metadata(("a", "b", "c"), ImageSpec(8, 8, 1))


def squares_weights(path: Path) -> bool:
    """Whether a file multiplies a constant by itself, which a runtime does when it loads it."""
    graph = onnx.load(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    return any(node.op_type == "Mul" and set(node.input) <= constants for node in graph.node)


def test_a_network_that_was_trained_so_is_exported_so(tmp_path: Path) -> None:
    done = export_module(branches(Sigma.FACTORED), METADATA, tmp_path / "m.onnx")
    assert done.parity.largest_difference < 1e-4  # against PyTorch, under the same noise
    assert done.metadata.sigma is Sigma.FACTORED
    assert done.notes == ()
    assert {layer.name: layer.kind for layer in done.metadata.layers} == {
        "plain.weight": "gaussian-factored",
        "grouped.weight": "gaussian-factored",
        "depthwise.weight": "gaussian",
        "narrow.weight": "gaussian-factored",
        "head.0.weight": "gaussian-factored",
        "head.2.weight": "gaussian-factored",
    }
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["sigma"] == "factored"


@pytest.mark.parametrize(
    ("sigma", "inference"),
    [
        *((sigma, Inference.MC) for sigma in Sigma),
        (Sigma.EXACT, Inference.MOMENTS),
        (Sigma.FACTORED, Inference.MOMENTS),
    ],
)
def test_batch_norm_with_negative_scales_passes_the_check(tmp_path: Path, sigma: Sigma, inference: Inference) -> None:
    """It mirrors the noise of its channels, which has the same distribution."""
    network = branches(sigma)
    with torch.no_grad():
        network.norm.weight[::2] *= -1
        network.second_norm.weight[1] *= -1
    done = export_module(network, replace(METADATA, inference=inference), tmp_path / "m.onnx")
    assert done.parity.largest_difference < (1e-4 if inference is Inference.MC else 0.25)


def test_the_batch_norm_of_a_factored_network_is_not_in_its_factors(tmp_path: Path) -> None:
    """The gate notices factors of folded weights: they are another network's."""
    trained = branches(Sigma.FACTORED)
    folded = nn.utils.fusion.fuse_conv_bn_eval
    trained.eval()
    exact = branches(Sigma.EXACT).eval()
    scale = (exact.norm.weight / (exact.norm.running_var + exact.norm.eps).sqrt()).detach()
    fused = folded(exact.plain, exact.norm).weight
    assert torch.allclose(fused, exact.plain.weight * scale[:, None, None, None])
    squares = fused.square()
    ours = trained.plain.weight.square().sum((0, 2, 3)) / trained.plain.weight.square().sum()
    assert not torch.allclose(squares.sum((0, 2, 3)) / squares.sum(), ours, rtol=1e-2)


@pytest.mark.parametrize("inference", [Inference.MC, Inference.MOMENTS])
def test_a_factored_file_squares_no_weight_and_costs_little_more_than_the_network(
    tmp_path: Path, inference: Inference
) -> None:
    files, costs = {}, {}
    for sigma in (Sigma.EXACT, Sigma.FACTORED):
        layers = (nn.Conv2d(channels, 16, 3) for channels in (1, 16, 16))
        network = gaussianize(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3)), 0.2, sigma=sigma)
        done = export_module(network, replace(METADATA, inference=inference), tmp_path / f"{sigma}.onnx")
        files[sigma], costs[sigma] = done.path, done.metadata.costs
    assert squares_weights(files[Sigma.EXACT])
    assert not squares_weights(files[Sigma.FACTORED])
    total = {sigma: cost.macs_once + cost.macs_per_pass for sigma, cost in costs.items()}
    assert total[Sigma.FACTORED] < 0.6 * total[Sigma.EXACT]


def test_another_sigma_than_the_trained_one_is_told_by_layer(tmp_path: Path) -> None:
    for trained, asked in ((Sigma.EXACT, Sigma.FACTORED), (Sigma.FACTORED, Sigma.EXACT)):
        done = export_module(branches(trained), METADATA, tmp_path / "m.onnx", options=Options(sigma=asked))
        assert done.metadata.sigma is asked
        (note,) = done.notes
        assert note.startswith(f"{asked} sigma differs from the trained one by ")
        assert "depthwise" not in note
        assert done.parity.largest_difference < 1e-4
    # A network without noise of its own keeps what it was trained with.
    network = branches(Sigma.EXACT)
    export_module(network, METADATA, tmp_path / "m.onnx", options=FACTORED)
    assert {layer.sigma for layer in (network.plain, network.head[0])} == {Sigma.EXACT}


def test_the_told_error_is_that_of_sigma(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = gaussianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 3)), 0.3)
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
    done = export_module(network, METADATA, tmp_path / "m.onnx", images, FACTORED)
    with torch.no_grad():
        x = network[1](torch.from_numpy(images).flatten(1) / 255).double().square()
        squares = network[2].weight.double().square()
        product = squares.sum(1, keepdim=True) * squares.sum(0) / squares.sum()
        exact, factored = ((x @ weights.T).sqrt() for weights in (squares, product))
        error = ((exact - factored).square().sum() / exact.square().sum()).sqrt().item()
    assert f"2.weight {error:.1%}" in done.notes[0]


def test_the_noise_is_scaled_until_images_are_as_uncertain_as_they_were(digits: Digits, tmp_path: Path) -> None:
    run = Run.load(digits.run)
    network = load_model(run, digits.run)
    for layer in gaussian_layers(network).values():
        layer.p = 0.4  # far more than it was trained with
    images = digits.dataset.splits["calibration"].images
    metadata = replace(METADATA, classes=run.class_names, image=run.image)
    exact = export_module(network, metadata, tmp_path / "exact.onnx", images)
    scaled = export_module(network, metadata, tmp_path / "scaled.onnx", images, FACTORED)
    plain = export_module(network, metadata, tmp_path / "plain.onnx", images[:3], FACTORED)
    means = [Model(done.path, "cpu").predict(images, 100).uncertainty.mean() for done in (exact, scaled, plain)]
    exact_mean, *others = means
    with_scale, without = (abs(mean - exact_mean) for mean in others)
    assert with_scale < min(0.006, without)
    # A scale on alpha is another rate, and the file says which; the network keeps its own.
    (note,) = (note for note in scaled.notes if "the variance of every layer" in note)
    (rate,) = {layer.p for layer in scaled.metadata.layers}
    assert f"multiplied by {rate / (1 - rate) / (0.4 / 0.6):.2f}" in note
    assert {layer.p for layer in gaussian_layers(network).values()} == {0.4}
    assert {layer.p for layer in plain.metadata.layers} == {0.4}


@pytest.mark.parametrize("inference", [Inference.MC, Inference.MOMENTS])
def test_a_run_is_judged_on_its_calibration_images(digits: Digits, tmp_path: Path, inference: Inference) -> None:
    done = export_run(digits.run, tmp_path / "fast.onnx", digits.dataset, inference, options=FACTORED)
    judged = done.judgements["factored sigma"]
    assert set(judged.changes) == {"nll", "uce", "aurc"}
    data = digits.dataset.splits["calibration"]
    after = Model(tmp_path / "fast.onnx", "cpu").predict(data.images)
    assert judged.changes["nll"].after == pytest.approx(metrics.nll(after.probabilities, data.labels), rel=1e-6)
    if inference is Inference.MC:
        before = Model(digits.model, "cpu").predict(data.images)
        assert judged.changes["nll"].before == pytest.approx(metrics.nll(before.probabilities, data.labels), rel=1e-6)
        assert not np.array_equal(before.probabilities, after.probabilities)
        # Less than half of what other seeds change.
        other = Model(digits.model, "cpu").predict(data.images, seed=1)
        ours, chance = (np.abs(said.uncertainty - before.uncertainty).mean() for said in (after, other))
        assert ours < chance
    for change in judged.changes.values():
        assert change.difference.low <= change.after - change.before <= change.difference.high


def test_both_sigmas_report_their_images(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = progress_lines.every_line(monkeypatch)
    export_run(digits.run, tmp_path / "fast.onnx", digits.dataset, options=FACTORED)
    for form in ("the trained sigma", "factored sigma"):
        assert f"16 of {len(digits.dataset.splits['calibration'])} images" in progress_lines.shown(
            lines, f"measuring {form}"
        )


def test_what_costs_too_much_is_refused_and_names_the_layers(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(quality.BOUNDS, "aurc", -1.0)
    with raises("quality.worse", QualityError) as said:
        export_run(digits.run, tmp_path / "m.onnx", digits.dataset, options=FACTORED)
    assert "uce-edge train --sigma factored" in str(said.value)
    assert list(tmp_path.iterdir()) == []


def test_a_third_party_network_takes_it_too(tmp_path: Path) -> None:
    _, done = export(wide(), tmp_path, options=FACTORED)
    assert done.metadata.sigma is Sigma.FACTORED
    assert done.parity.largest_difference < 1e-4
    assert "factored sigma differs" in " ".join(done.notes)


def test_a_network_without_such_a_layer_is_refused(tmp_path: Path) -> None:
    net = Net()
    body = net.Conv(net.Relu(net.Conv("image", net.weight(4, 3, 3, 3))), net.weight(4, 1, 3, 3), group=4)
    pooled = net.Flatten(net.GlobalAveragePool(body))
    with raises("sigma.depthwise"):
        export(net.model(pooled, shape=("n", 3, 8, 8)), tmp_path, options=FACTORED)


def test_a_layer_whose_weights_are_computed_from_the_image_is_refused(tmp_path: Path) -> None:
    net = Net()
    x = net.stem()
    pooled = net.Flatten(net.GlobalAveragePool(x))
    computed = net.MatMul(net.Unsqueeze(pooled, net.constant([1])), net.Reshape(x, net.constant([0, 6, 64])))
    with raises("layer.missing"):
        export(net.model(net.Flatten(computed)), tmp_path, options=FACTORED)


def test_from_the_command_line(digits: Digits, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    said = call("export", digits.run, "--sigma", "factored", "--out", out)
    assert said.code == 0, said.err
    assert "factored sigma: NLL 0." in said.err
    assert "Note: factored sigma differs from the trained one by" in said.err
    assert "factored sigma" in call("info", out).out
    refused = call("export", digits.run, "--sigma", "factored", "--inference", "deterministic", "--out", out)
    assert refused.code == 2
    assert "A deterministic model has no noise: leave --sigma factored out" in refused.err


def test_an_unknown_sigma_is_a_sentence() -> None:
    with pytest.raises(UceEdgeError, match="Expected `sigma` to be one of exact, factored, channel, but got 'half'"):
        Options(sigma="half")


def test_training_with_it_is_exported_with_it(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = call("train", "--data", "digits", "--epochs", 1, "--sigma", "factored", "--out", run)
    assert said.code == 0, said.err
    assert json.loads((run / "run.json").read_text())["recipe"]["sigma"] == "factored"
    said = call("export", run, "--out", tmp_path / "m.onnx")
    assert said.code == 0, said.err
    assert Model(tmp_path / "m.onnx", "cpu").metadata.sigma is Sigma.FACTORED
    assert "differs from the trained one" not in said.err


@pytest.mark.parametrize("sigma", Sigma)
def test_a_runtime_can_tell_which_values_are_equally_large(tmp_path: Path, sigma: Sigma) -> None:
    """Otherwise ONNX Runtime plans the memory of a file several times longer than it needs for all the rest."""
    export_module(branches(sigma), METADATA, tmp_path / "m.onnx")
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "m.onnx")).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}
    layers = [shapes[node.output[0]] for node in graph.node if node.op_type in ("Conv", "Relu")]
    assert {shape[0].dim_param for shape in layers} == {"batch", "passes"}


def test_a_run_that_was_trained_with_other_noise_is_judged_before_it_gets_noise_by_channel(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_channel = Options(sigma=Sigma.CHANNEL)
    with raises("quality.worse", QualityError):
        export_run(digits.run, tmp_path / "m.onnx", digits.dataset, options=by_channel)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(quality, "BOUNDS", dict.fromkeys(quality.BOUNDS, 1.0))
    done = export_run(digits.run, tmp_path / "m.onnx", digits.dataset, options=by_channel)
    assert done.metadata.sigma is Sigma.CHANNEL
    assert [*done.judgements] == ["channel sigma"]
    assert any("draws other noise than the trained one" in note for note in done.notes)
    model = Model(done.path, "cpu")
    images = digits.dataset.splits["test"].images[:3]
    assert np.array_equal(model.predict(images).novelty, model.predict(images, seed=7).novelty)  # it has no noise
