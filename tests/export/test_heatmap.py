"""The output `heatmap`: each place's share of the predicted class's logit, as PyTorch computes it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import Call, Digits
from helpers.errors import raises
from torch import nn

from uce_edge import Model, contract
from uce_edge.contract import Inference, Method, NoiseKind, Precision, PriorFrom
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export.graph import laplace_draws
from uce_edge_export.options import Options
from uce_edge_export.publish.draft import Draft, graph_of
from uce_edge_export.recalibration import recalibrate
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module, export_run

SPEC = ImageSpec(16, 16, 3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
WITH_MAP = Options(heatmap=True)


def body() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU())


class PerPlaceNorm(nn.Module):
    """A norm of every place's channels, as in ConvNeXt and Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).mean((1, 2))


HEADS: dict[str, Callable[[], nn.Module]] = {
    "pooled": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, 5)),
    "mean": lambda: nn.Sequential(Mean(), nn.Linear(12, 5)),
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
    "conv-then-pool": lambda: nn.Sequential(nn.Conv2d(12, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "pool-then-conv": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 5, 1), nn.Flatten()),
    "two-layers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, 5)),
    "two-pooled": lambda: nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 7), nn.LeakyReLU(0.1), nn.BatchNorm1d(7), nn.Linear(7, 5)
    ),
}


class Mean(nn.Module):
    """The average over places, as MobileNetV2 writes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def metadata(inference: Inference = Inference.DETERMINISTIC, **changes: object) -> Metadata:
    return replace(Metadata(tuple("abcde"), SPEC, inference=inference, samples=1), **changes)


def network(head: nn.Module, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(body(), head)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=2 / module.weight[0].numel() ** 0.5)
    return model.eval()


def pixels(count: int = 4) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3)).astype(np.uint8)


def normalised(images: np.ndarray) -> torch.Tensor:
    scaled = (images / 255 - np.array(SPEC.mean)) / np.array(SPEC.std)
    return torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32)


def share(model: nn.Sequential, images: np.ndarray, classes: np.ndarray, upto: int = 0) -> np.ndarray:
    """The gradient of the class's logit times the map, which is exact where the head is piecewise linear."""
    features = model[0](normalised(images))
    head = model[1]
    for number in range(upto):
        features = head[number](features)
    features = features.detach().requires_grad_()
    logits = head[upto:](features)[np.arange(len(images)), classes.astype(int)]
    (gradient,) = torch.autograd.grad(logits.sum(), features)
    return (gradient * features).sum(1).detach().numpy()


@pytest.mark.parametrize("name", HEADS)
def test_it_is_the_share_of_every_place_in_the_logit(name: str, tmp_path: Path) -> None:
    model = network(HEADS[name]())
    export_module(model, metadata(), tmp_path / "m.onnx", options=WITH_MAP)
    file, images = Model(tmp_path / "m.onnx", "cpu"), pixels()
    prediction = file.predict(images)
    assert file.metadata.outputs == (contract.HEATMAP,)
    assert prediction.heatmap is not None
    assert prediction.heatmap_spread is None
    after = 1 if name == "conv-then-pool" else 0  # the map is what is averaged
    expected = share(model, images, prediction.class_ids, after)
    np.testing.assert_allclose(prediction.heatmap, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(prediction[2].heatmap, prediction.heatmap[2])
    assert np.abs(prediction.heatmap).max() > 0.1


def test_a_gate_and_a_norm_keep_the_value_that_they_have(tmp_path: Path) -> None:
    gated = network(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 7), nn.SiLU(), nn.Linear(7, 5)))
    export_module(gated, metadata(), tmp_path / "m.onnx", options=WITH_MAP)
    images = pixels()
    prediction = Model(tmp_path / "m.onnx", "cpu").predict(images)
    features = gated[0](normalised(images)).detach().numpy()
    first, last = gated[1][2], gated[1][4]
    hidden = first(torch.tensor(features.mean((2, 3)))).detach().numpy()
    slope = last.weight.detach().numpy()[prediction.class_ids] / (1 + np.exp(-hidden))  # silu(x) = x sigmoid(x)
    expected = np.einsum("bh,hk,bkyx->byx", slope, first.weight.detach().numpy(), features) / 16
    np.testing.assert_allclose(prediction.heatmap, expected, rtol=1e-4, atol=1e-5)

    normed = network(nn.Sequential(PerPlaceNorm(), nn.Linear(12, 5)))
    export_module(normed, metadata(), tmp_path / "n.onnx", options=WITH_MAP)
    file = Model(tmp_path / "n.onnx", "cpu")
    prediction = file.predict(images)
    # With the norm's shift at 0, what is left of the logit is the bias alone.
    logits = file.logits(images)[0][np.arange(4), prediction.class_ids]
    bias = normed[1][1].bias.detach().numpy()[prediction.class_ids]
    assert prediction.heatmap is not None
    np.testing.assert_allclose(prediction.heatmap.sum((1, 2)) + bias, logits, rtol=1e-4, atol=1e-5)
    assert prediction.heatmap.std(axis=(1, 2)).min() > 0.001


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, nn.Sequential]:
    """A network with noise before its map, and none behind it."""
    model = network(HEADS["mean"]())
    gaussianize(model, 0.2, exclude=["1.1"])
    path = tmp_path_factory.mktemp("noisy") / "mc.onnx"
    export_module(model, metadata(Inference.MC, samples=8), path, options=WITH_MAP)
    return Model(path, "cpu"), model


def test_every_pass_has_the_map_of_its_own_features(noisy: tuple[Model, nn.Sequential]) -> None:
    file, model = noisy
    images, bias = pixels(), model[1][1].bias.detach().numpy()
    for seed in range(4):
        one = file.predict(images, samples=1, seed=seed)
        logits = file.logits(images, samples=1, seed=seed)[0][np.arange(4), one.class_ids]
        assert one.heatmap is not None
        np.testing.assert_allclose(one.heatmap.sum((1, 2)) + bias[one.class_ids], logits, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(one.heatmap_spread, np.zeros_like(one.heatmap))


def test_the_map_is_the_mean_of_the_passes_and_its_spread_their_deviation(noisy: tuple[Model, nn.Sequential]) -> None:
    file, images = noisy[0], pixels(24)
    seeds = file.seeds(8)
    names = [contract.CLASS_ID, *contract.MAPS]
    whole = file.outputs(images, seeds, names)
    each = [file.outputs(images, seeds[i : i + 1], names) for i in range(8)]
    same = np.all([one[contract.CLASS_ID] == whole[contract.CLASS_ID] for one in each], axis=0)
    assert 3 <= same.sum() < len(images)
    maps = np.stack([one[contract.HEATMAP] for one in each])[:, same]
    np.testing.assert_allclose(whole[contract.HEATMAP][same], maps.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole[contract.HEATMAP_SPREAD][same], maps.std(0), rtol=1e-3, atol=1e-5)


def test_moments_have_the_mean_map_and_the_spread_of_many_passes(tmp_path: Path) -> None:
    model = network(HEADS["mean"]())
    gaussianize(model, 0.1, exclude=["1.1"])
    for inference in (Inference.MC, Inference.MOMENTS):
        export_module(model, metadata(inference, samples=20), tmp_path / f"{inference}.onnx", options=WITH_MAP)
    images = pixels()
    moments = Model(tmp_path / "moments.onnx", "cpu").predict(images)
    exact = Model(tmp_path / "mc.onnx", "cpu").predict(images, samples=2000)
    same = moments.class_ids == exact.class_ids
    assert same.sum() >= 3
    assert moments.heatmap is not None
    assert moments.heatmap_spread is not None
    assert exact.heatmap is not None
    assert exact.heatmap_spread is not None
    off = np.abs(moments.heatmap - exact.heatmap)[same].max()
    assert off < 0.1 * np.abs(exact.heatmap).max()
    ratio = moments.heatmap_spread[same].mean() / exact.heatmap_spread[same].mean()
    assert 0.8 < ratio < 1.2


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (lambda: nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(12, 5)), "heatmap.head"),
        (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sigmoid(), nn.Linear(12, 5)), "heatmap.head"),
    ],
)
def test_a_head_that_is_not_linear_is_refused(head: Callable[[], nn.Module], code: str, tmp_path: Path) -> None:
    with raises(code, UsageError):
        export_module(network(head()), metadata(), tmp_path / "m.onnx", options=WITH_MAP)
    assert not list(tmp_path.iterdir())


def test_a_network_without_a_map_is_refused(tmp_path: Path) -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 5)).eval()
    with raises("heatmap.map-missing", UsageError):
        export_module(dense, metadata(), tmp_path / "m.onnx", options=WITH_MAP)
    assert not list(tmp_path.iterdir())


def test_other_outputs_do_not_change(tmp_path: Path) -> None:
    model = gaussianize(network(HEADS["pooled"]()), 0.2)
    for name, options in (("with", WITH_MAP), ("without", Options())):
        export_module(model, metadata(Inference.MC, samples=8), tmp_path / f"{name}.onnx", options=options)
    first, second = (Model(tmp_path / f"{name}.onnx", "cpu").predict(pixels()) for name in ("with", "without"))
    np.testing.assert_allclose(first.probabilities, second.probabilities, rtol=1e-5)
    assert second.heatmap is None
    assert second[0].heatmap is None


def test_weights_are_stored_once(tmp_path: Path) -> None:
    for name, options in (("with", WITH_MAP), ("without", Options())):
        export_module(network(HEADS["flat"]()), metadata(), tmp_path / f"{name}.onnx", options=options)

    def numbers(name: str) -> int:
        graph = onnx.load(tmp_path / f"{name}.onnx").graph
        return sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)

    assert numbers("with") < numbers("without") + 100


def test_a_run_exports_it_and_a_recalibrated_file_keeps_it(digits: Digits, tmp_path: Path) -> None:
    export_run(digits.run, tmp_path / "a.onnx", digits.dataset, options=WITH_MAP)
    file, images = Model(tmp_path / "a.onnx", "cpu"), digits.dataset.splits["test"].images[:20]
    before = file.predict(images)
    recalibrate(file, tmp_path / "b.onnx", digits.dataset.splits["calibration"], Method.VECTOR)
    after = Model(tmp_path / "b.onnx", "cpu").predict(images)
    same = before.class_ids == after.class_ids
    assert same.sum() > 15
    np.testing.assert_allclose(after.heatmap[same], before.heatmap[same], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.heatmap_spread[same], before.heatmap_spread[same], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_a_lower_precision_has_nearly_the_same_map(digits: Digits, precision: Precision, tmp_path: Path) -> None:
    images = digits.dataset.splits["test"].images[:20]
    maps = {}
    for numbers in (Precision.FP32, precision):
        path = tmp_path / f"{numbers}.onnx"
        export_run(digits.run, path, digits.dataset, options=WITH_MAP, numbers=numbers)
        maps[numbers] = Model(path, "cpu").predict(images)
    exact, near = maps[Precision.FP32], maps[precision]
    same = exact.class_ids == near.class_ids
    assert same.sum() > 15
    off = np.abs(exact.heatmap - near.heatmap)[same].max() / np.abs(exact.heatmap).max()
    assert off < (0.01 if precision is Precision.FP16 else 0.1)


def test_noise_of_any_source_leaves_it_a_map(tmp_path: Path) -> None:
    model = gaussianize(network(HEADS["pooled"]()), 0.2)
    for noise in (NoiseKind.RANDN, NoiseKind.TABLE):
        export_module(
            model, metadata(Inference.MC, samples=400, noise=noise), tmp_path / f"{noise}.onnx", options=WITH_MAP
        )
    first, second = (Model(tmp_path / f"{noise}.onnx", "cpu").predict(pixels()) for noise in ("randn", "table"))
    same = first.class_ids == second.class_ids
    assert same.any()
    assert first.heatmap is not None
    assert second.heatmap_spread is not None
    np.testing.assert_allclose(
        first.heatmap[same], second.heatmap[same], atol=6 * float(second.heatmap_spread.max()) / 20
    )


def test_an_ensemble_is_refused(digits: Digits, call: Call) -> None:
    done = call("export", "--from", str(digits.deterministic), str(digits.model), "--heatmap")
    assert (done.code, done.error) == (2, "heatmap.several-networks")
    assert "uce-edge export RUN --heatmap" in done.err


@pytest.mark.filterwarnings("ignore::uce_edge.runtime.request.SamplesWarning")  # the draws are not calibrated here
def test_a_posterior_keeps_the_map_of_the_mean_weights(digits: Digits, tmp_path: Path) -> None:
    export_run(digits.run, tmp_path / "plain.onnx", digits.dataset, Inference.DETERMINISTIC, options=WITH_MAP)
    plain, splits = Model(tmp_path / "plain.onnx", "cpu"), digits.dataset.splits
    prior = PriorFrom.HELD_OUT_NLL
    drawn = laplace_draws.Drawn(*laplace_draws.fit(graph_of(plain), splits["train"], splits["calibration"], prior))
    draft = Draft.of(graph_of(plain), plain.metadata)
    laplace_draws.add(draft, drawn, splits["test"].images[:3])
    before, after = (model.predict(splits["test"].images[:20]) for model in (plain, draft.model))
    same = before.class_ids == after.class_ids
    assert same.sum() > 15
    np.testing.assert_allclose(after.heatmap[same], before.heatmap[same], rtol=1e-5, atol=1e-6)
    assert after.heatmap_spread is None


@pytest.mark.parametrize("inference", ["mc", "deterministic"])
def test_a_third_party_file_gets_one(inference: str, call: Call, tmp_path: Path) -> None:
    model = network(HEADS["pooled"]())
    torch.onnx.export(model, (torch.zeros(1, 3, 16, 16),), tmp_path / "net.onnx", dynamo=True, verbose=False)
    options = ("--inference", inference, "--heatmap", "--out", tmp_path / "out.onnx")
    done = call("export", "--from", tmp_path / "net.onnx", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.25,0.3", *options)
    assert done.code == 0, done.err
    prediction = Model(tmp_path / "out.onnx", "cpu").predict(pixels())
    assert (prediction.heatmap_spread is not None) == (inference == "mc")
    if inference == "deterministic":
        expected = share(model, pixels(), prediction.class_ids)
        np.testing.assert_allclose(prediction.heatmap, expected, rtol=1e-3, atol=1e-4)
