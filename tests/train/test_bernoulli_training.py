"""Networks with Bernoulli dropout, their own or ours: trained, calibrated and exported with the same kind of masks."""

import dataclasses
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Call
from helpers.nets import softmax
from torch import Tensor, nn
from torch.nn import functional as F

from tests.helpers.errors import raises
from uce_edge.contract import Inference, Method
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError
from uce_edge.runtime.model import Model
from uce_edge_export.options import Options
from uce_edge_train import bernoullize, calibration
from uce_edge_train.choices import Dropout, Rates
from uce_edge_train.dropout import torch_dropout
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.export import export_run
from uce_edge_train.loop import training
from uce_edge_train.networks import architectures
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, load_model

SHORT = Recipe(epochs=3, batch_size=32, dropout="bernoulli", p=0.1)
KEEP = Options(dropout=("keep",))


def own(classes: int, channels: int) -> nn.Module:
    """A third-party network with dropout, one as a function."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop = nn.Conv2d(channels, 8, 3), nn.Dropout2d(0.2)
            self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(8, classes)

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(F.relu(self.norm(self.first(x)))).mean((2, 3))
            return self.last(F.dropout(x, 0.1, self.training))

    return Own()


OWN = dataclasses.replace(SHORT, arch="test_bernoulli_training:own", dropout="none", epochs=2)


@pytest.fixture(scope="module")
def few() -> Dataset:
    whole = splits.load("digits")
    return dataclasses.replace(
        whole, splits={name: Split(part.images[::4], part.labels[::4]) for name, part in whole.splits.items()}
    )


@pytest.fixture(scope="module")
def runs(few: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp("runs") / name for name in ("bernoulli", "none", "own")}
    recipes = {"bernoulli": SHORT, "none": dataclasses.replace(SHORT, dropout="none"), "own": OWN}
    for name, folder in folders.items():
        training.train(few, folder, recipes[name])
    return folders


def test_dropout_on_inputs_keeps_parameters_and_leaves_the_first_layer_alone() -> None:
    plain, network = architectures.build("resnet8", 10, 1), bernoullize(architectures.build("resnet8", 10, 1), 0.3)
    network.load_state_dict(plain.state_dict())
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(plain.eval()(x), network.eval()(x))
        drawn = [network.train().classifier(torch.ones(1, 64)) for _ in range(2)]
    assert not torch.equal(*drawn)
    dropping = [name for name, layer in network.named_modules() if hasattr(layer, "p")]
    weighted = [name for name, layer in plain.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert dropping == weighted[1:]
    for p in (0.0, 1.0, float("nan")):
        with raises("argument.p", UsageError):
            bernoullize(architectures.build("resnet8", 10, 1), p)


@pytest.mark.parametrize("recipe", [SHORT, OWN], ids=["ours", "own"])
def test_a_training_with_masks_repeats_itself(recipe: Recipe, few: Dataset, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        torch.rand(7)  # whatever the global generator has done before
        training.train(few, folder, dataclasses.replace(recipe, epochs=1))
    ours, theirs = (load_model(Run.load(folder), folder).state_dict() for folder in folders)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_masks_are_drawn_for_every_image_in_training() -> None:
    x = torch.ones(64, 100, requires_grad=True)
    with torch_dropout.training_with(torch.Generator().manual_seed(0)):
        y = F.dropout(x, 0.25, True)
        off = F.dropout(x, 0.25, False)
    assert off is x
    assert abs(float((y > 0).float().mean()) - 0.75) < 0.03
    assert len(torch.unique(y, dim=0)) == 64
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # 1 / (1 - p) where a value was kept


def test_the_kernel_of_graphics_cards_takes_the_same_masks() -> None:
    x = torch.rand(5, 7)
    noise = torch.randn(5, 7)
    with torch_dropout.masks_from(lambda _, mask: noise):
        masked = F.dropout(x, 0.3)
        with torch_dropout._GivenMask(lambda _: noise > float(torch_dropout.threshold(0.3))):
            fused, mask = torch.native_dropout(x, 0.3, True)
    assert torch.allclose(fused, masked)
    assert torch.equal(mask, masked > 0)


def test_calibration_draws_one_mask_for_all_images_of_a_pass(runs: dict[str, Path], few: Dataset) -> None:
    run = Run.load(runs["bernoulli"])
    model = load_model(run, runs["bernoulli"])
    data = few.splits["test"]
    whole, last = (
        np.concatenate(list(mc_logits(model, part, run.image, 3, 0, keep_dropout=True)), 1)
        for part in (data, Split(data.images[-5:], data.labels[-5:]))
    )
    assert np.allclose(whole[:, -5:], last, atol=1e-5)
    assert np.abs(whole[0] - whole[1]).max() > 0.1
    silent = np.concatenate(list(mc_logits(model, data, run.image, 2, 0)), 1)
    assert np.array_equal(silent[0], silent[1])


def test_a_bernoulli_run_is_calibrated_and_exported_with_its_masks(
    runs: dict[str, Path], few: Dataset, tmp_path: Path
) -> None:
    run = calibration.calibrate(runs["bernoulli"], few.splits["calibration"], Method.TEMPERATURE, samples=10)
    assert run.rates == {}
    done = export_run(runs["bernoulli"], tmp_path / "m.onnx", few)
    assert {(layer.kind, layer.p) for layer in done.metadata.layers} == {("bernoulli", 0.1)}
    assert len(done.metadata.layers) == 9
    assert "classifier.dropout" in [layer.name for layer in done.metadata.layers]
    assert done.metadata.calibration == run.calibration  # what was fitted under masks holds for the file
    assert abs(done.file_nll - done.torch_nll) < 0.1
    plain = export_run(runs["bernoulli"], tmp_path / "d.onnx", few, Inference.DETERMINISTIC)
    assert plain.metadata.layers == ()


def test_moments_of_a_bernoulli_run_are_near_its_passes(runs: dict[str, Path], few: Dataset, tmp_path: Path) -> None:
    exact, moments = (
        export_run(runs["bernoulli"], tmp_path / f"{i}.onnx", few, Inference(i)) for i in ("mc", "moments")
    )
    images = few.splits["test"].images[:40]
    ours, theirs = (softmax(Model(done.path, "cpu").logits(images, 100)).mean(axis=0) for done in (moments, exact))
    assert np.abs(ours - theirs).mean() < 0.03


def test_a_run_without_dropout_has_no_passes(runs: dict[str, Path], few: Dataset, tmp_path: Path) -> None:
    with raises("dropout.missing", UsageError):
        export_run(runs["none"], tmp_path / "m.onnx", few)
    with raises("dropout.missing"):
        export_run(runs["none"], tmp_path / "m.onnx", few, options=KEEP)
    run = calibration.calibrate(runs["none"], few.splits["calibration"], Method.TEMPERATURE)
    assert run.calibration.samples == 1
    done = export_run(runs["none"], tmp_path / "m.onnx", few, Inference.DETERMINISTIC)
    assert done.metadata.calibration.temperature == pytest.approx(run.calibration.temperature, rel=1e-3)


def test_the_command_that_calibrate_prints_for_a_run_without_dropout_works(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained = call("train", "--data", "digits", "--epochs", 1, "--dropout", "none", "--out", "plain")
    assert trained.code == 0
    calibrated = call("calibrate", "plain", "--no-novelty")
    (following,) = (line for line in calibrated.err.splitlines() if line.startswith("Next: uce-edge "))
    assert call(*shlex.split(following.removeprefix("Next: uce-edge "))).code == 0
    assert (tmp_path / "plain.onnx").exists()


def test_dropout_of_ones_own_is_calibrated_where_it_is_kept(
    runs: dict[str, Path], few: Dataset, tmp_path: Path
) -> None:
    run = calibration.calibrate(runs["own"], few.splits["calibration"], Method.TEMPERATURE)
    done = export_run(runs["own"], tmp_path / "m.onnx", few, options=KEEP, samples=20)
    assert [(layer.name, layer.kind) for layer in done.metadata.layers] == [
        ("drop", "bernoulli-channel"), ("dropout", "bernoulli"),
    ]  # fmt: skip
    fitted = done.metadata.calibration
    assert (fitted.method, fitted.samples) == ("temperature", 20)
    assert fitted.temperature != run.calibration.temperature
    assert abs(done.file_nll - done.torch_nll) < 0.05


def test_what_is_gaussian_alone_is_refused(runs: dict[str, Path], few: Dataset) -> None:
    for kind in (Dropout.BERNOULLI, Dropout.NONE):
        with raises("argument.rates", UsageError):
            Recipe(dropout=kind, rates=Rates.LAYER)
        with raises("argument.sigma", UsageError):
            Recipe(dropout=kind, sigma="factored")
    with raises("rates.unsupported", UsageError):
        calibration.calibrate(runs["bernoulli"], few.splits["calibration"], tune=Rates.MODEL)


def test_the_command_trains_with_either_kind(call: Call, tmp_path: Path) -> None:
    done = call(
        "train", "--data", "digits", "--epochs", 1, "--dropout", "bernoulli", "--p", 0.05, "--out", tmp_path / "b"
    )
    assert done.code == 0, done.err
    recipe = Run.load(tmp_path / "b").recipe
    assert (recipe.dropout, recipe.p) == ("bernoulli", 0.05)
    wrong = call("train", "--data", "digits", "--dropout", "none", "--sigma", "factored", "--out", tmp_path / "c")
    assert wrong.code == 2
    assert "--sigma" in wrong.err
    assert not (tmp_path / "c" / "run.json").exists()


def test_an_untrained_network_of_ones_own_keeps_its_dropout(call: Call, tmp_path: Path) -> None:
    source, out = "test_bernoulli_training:own", tmp_path / "m.onnx"
    assert call("export", "--untrained", source, "--dropout", "keep", "--out", out).code == 0
    assert [layer.name for layer in Model(out, "cpu").metadata.layers] == ["drop", "dropout"]
    mixed = call("export", "--untrained", source, "--dropout", "keep", "--p", 0.1, "--out", out)
    assert mixed.code == 0
    kinds = [layer.kind for layer in Model(out, "cpu").metadata.layers]
    assert kinds == ["bernoulli-channel", "bernoulli", "gaussian"]


@pytest.mark.filterwarnings("ignore")
def test_a_file_that_torch_wrote_in_training_mode_keeps_its_dropout(call: Call, tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(288, 4)
    )
    model.eval()[4].train()
    torch.onnx.export(model, (torch.zeros(1, 3, 8, 8),), tmp_path / "net.onnx", dynamo=True, verbose=False)
    done = call("export", "--from", tmp_path / "net.onnx", "--dropout", "keep", "--out", tmp_path / "mc.onnx")
    assert done.code == 0, done.err
    (layer,) = Model(tmp_path / "mc.onnx", "cpu").metadata.layers
    assert (layer.p, layer.kind) == (0.3, "bernoulli")
