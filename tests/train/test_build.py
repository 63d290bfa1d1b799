"""One command from labelled photos to a promised file, and refusals before anything slow."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call
from PIL import Image

from tests.helpers import tiny_backbone
from uce_edge import cli
from uce_edge.cli.build_decisions import decisions
from uce_edge.cli.build_refusals import possible
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset
from uce_edge.metadata import Calibration
from uce_edge.runtime.model import Model
from uce_edge_train.choices import Rates, Unfreeze
from uce_edge_train.loop import training
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import LayerChoice, Run, TrainingScores


def decided(words: str) -> list[tuple[str, str]]:
    """The list at the end of a build: names and reasons."""
    lines = words.partition("What was decided, and why:")[2].splitlines()[1:]
    rows = [line.strip().partition("  ") for line in lines[: lines.index("")]]
    return [(name, text.strip()) for name, _, text in rows]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright pictures, 200 of them: a network learns them in seconds."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, level in (("bright", 180), ("dark", 40)):
        (folder / name).mkdir()
        for i in range(100):
            pixels = rng.integers(level, level + 70, (18, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:03}.png")
    return folder


def test_photos_become_a_promised_file_with_a_report(photos: Path, tmp_path: Path, call: Call) -> None:
    out, run = tmp_path / "photos.onnx", tmp_path / "run"
    words = ("build", photos, "--target-error", 0.3, "--backbone", "none", "--size", "16x16", "--budget", "40s",
             "--run", run, "--out", out)  # fmt: skip
    made = call(*words)
    assert made.code == 0, made.err
    for number, stage in enumerate(("train", "calibrate", "export", "evaluate"), 1):
        assert f"[{number}/4] uce-edge {stage} " in made.err
    promise = Model(out).metadata.promise
    assert promise is not None
    told = dict(decided(made.err))
    assert list(told) == [
        "views, epochs",
        "trained layers",
        "dropout rate",
        "calibration",
        "limit",
        "sets",
        "gate",
        "accuracy",
    ]
    recipe = Run.load(run).recipe
    assert told["views, epochs"] == f"{recipe.epochs} epochs, which fit --budget 40s."
    assert told["dropout rate"].startswith("0.2 in ")
    assert told["calibration"].startswith(f"temperature, T = {Model(out).metadata.calibration.temperature:.3f}, ")
    assert "proves an error of 30.0 % with 95 % confidence. It accepts " in told["limit"]
    assert told["accuracy"].endswith(" of 20 guarantee images; the report has that of the test images.")
    assert promise.target_error == 0.3
    sets = Model(out).metadata.sets
    assert sets is not None
    assert (sets.alpha, sets.images) == (0.05, 20)
    assert told["sets"].startswith("the set of labels of at least 95 % of the images has the true label; 20 guarantee ")
    assert "<html" in out.with_suffix(".html").read_text(encoding="utf-8")
    weights = (run / "weights.safetensors").stat().st_mtime_ns
    again = call(*words, "--sets", "none")
    assert again.code == 0, again.err
    assert Model(out).metadata.sets is None
    assert dict(decided(again.err))["sets"].startswith("none, ")
    assert (run / "weights.safetensors").stat().st_mtime_ns == weights, "a finished training is not repeated"


def test_an_ensemble_is_built_and_promised_as_a_whole(photos: Path, tmp_path: Path, call: Call) -> None:
    out, run = tmp_path / "two.onnx", tmp_path / "run"
    made = call(
        "build", photos, "--members", 2, "--target-error", 0.3, "--sets", 0.1, "--backbone", "none", "--size", "16x16",
        "--budget", "20s", "--run", run, "--out", out,
    )  # fmt: skip
    assert made.code == 0, made.err
    assert "[2/3] uce-edge export " in made.err
    model = Model(out).metadata
    assert (model.members, model.samples) == (2, 1)
    assert model.sets is not None
    assert model.sets.alpha == 0.1
    assert model.promise is not None
    assert dict(decided(made.err))["dropout rate"] == "none: the members of an ensemble have no noise."


def test_reasons_follow_the_run_and_the_file() -> None:
    file = Model(GOLDEN / "digits-mc.onnx").metadata
    recipe = Recipe(
        arch="efficientnet-lite0", unfreeze=Unfreeze.TAIL, seam="head", rates=Rates.FITTED, patience=14, epochs=14,
        views=4, noisy=("tail",),
    )  # fmt: skip
    run = Run(
        "photos", None, recipe, file.classes, file.image, {}, None, rates={"head": 0.1, "classifier": 0.1},
        metrics=TrainingScores(9, 0.1, 0.2, 0.9),
    )  # fmt: skip
    told = decisions(run, file, "10m", each=40)
    assert told["views, epochs"].startswith("4 views, 9 of the 14 epochs that fit --budget 10m: ")
    assert told["trained layers"].endswith("40 training images a class, and all layers take 300")
    assert told["dropout rate"].startswith("0.1 in head, classifier: the largest of those tried")
    assert "take 300" not in decisions(run, file, "10m", each=400)["trained layers"]
    for kept, all_nll in ((Unfreeze.TAIL, 0.43), (Unfreeze.ALL, 0.39)):
        whole = replace(recipe, unfreeze=Unfreeze.ALL)
        text = decisions(
            replace(run, recipe=whole, layer_choice=LayerChoice(kept, 0.418, all_nll)), file, "1h", each=400
        )
        assert f"from 0.418 to {all_nll:.3f}" in text["trained layers"]
        assert ("then all" in text["trained layers"]) == (kept is Unfreeze.ALL)
        assert " if " not in text["trained layers"], "it was decided"
    hurried = replace(run, recipe=replace(recipe, rates=Rates.FIXED))
    assert decisions(hurried, file, "1m", each=40)["dropout rate"].endswith("no time was left to fit it")
    bare = replace(file, rule=None, held_out=None, calibration=Calibration())
    assert decisions(run, bare, "10m", each=40)["limit"].startswith("none: ")


def test_an_ensemble_without_a_provable_promise_is_not_reported(tmp_path: Path, call: Call) -> None:
    folder, rng = tmp_path / "alike", np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(100):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / name / f"{i:03}.png")
    made = call(
        "build", folder, "--members", 2, "--target-error", 0.15, "--backbone", "none", "--size", "16x16",
        "--budget", "5s", "--run", tmp_path / "run", "--out", tmp_path / "two.onnx",
    )  # fmt: skip
    assert made.code == 1
    assert "nothing is promised" in made.err
    assert "[3/3]" not in made.err


def test_impossible_requests_are_refused_before_training(photos: Path, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    base = ("build", photos, "--backbone", "none", "--size", "16x16", "--run", run, "--out", tmp_path / "x.onnx")
    few = call(*base, "--target-error", 0.001)
    assert few.code == 2
    assert "in all" in few.err, "it tells how many photos the promise takes"
    assert call(*base, "--target-error", "bird=0.1,other=0.2").code == 2
    assert call(*base[:-1], tmp_path / "x.html").code == 2
    assert call(*base, "--budget", "soon").code == 2
    assert call(*base, "--sets", 0.04).error == "sets.few"  # 24 images, and 20 are there
    for wrong in ("many", 1.5, -1):
        assert call(*base, "--sets", wrong).error == "argument.sets"
    for ood in ("elsewhere", tmp_path / "absent"):
        assert "--ood" in call(*base, "--ood", ood).err
    (tmp_path / "empty").mkdir()
    assert call(*base, "--ood", tmp_path / "empty").code == 2
    (tmp_path / "x.html").mkdir()
    assert call(*base).error == "argument.report"
    (tmp_path / "x.html").rmdir()
    lonely = tmp_path / "one"
    (lonely / "only").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(lonely / "only" / "a.png")
    assert call("build", lonely, *base[2:]).code == 2
    assert not run.exists()


def loaded(photos: Path) -> Dataset:
    return splits.load(str(photos), size=(16, 16), range_="auto")


def stop(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that a build trained on the photos."""
    run = tmp_path_factory.mktemp("trained") / "run"
    training.train(loaded(photos), run, Recipe(epochs=1, batch_size=32))
    return run


def test_the_training_of_something_else_is_never_taken(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    others, tiny = tmp_path / "others", tiny_backbone.install(tmp_path, monkeypatch, "tiny")
    shutil.copytree(photos, others)
    weights = (trained / "weights.safetensors").read_bytes()
    base = ("--budget", "9s", "--run", trained, "--out", tmp_path / "x.onnx")
    plain = ("--backbone", "none", "--size", "16x16")
    for words, difference in (
        ((others, *plain), f"not of {others}"),
        ((photos, *plain, "--group", "([0-9]+).png"), "grouped by nothing, not by "),
        ((photos, "--backbone", "none"), "the size 16x16 (stretch), not 32x32 (stretch)"),
        ((photos, "--backbone", "tiny", "--size", "16x16"), f"random weights, not with {tiny.start()}"),
    ):
        refused = call("build", *words, *base)
        assert refused.error == "build.other-training", refused.err
        assert difference in refused.err
        assert f"--run {trained}-2" in refused.err
        assert "--overwrite" in refused.err
        assert "[1/" not in refused.err, "before anything slow"
    ensemble = call("build", photos, *plain, "--members", 2, *base)
    assert ensemble.error == "build.other-members"
    assert (trained / "weights.safetensors").read_bytes() == weights


def test_photos_that_changed_need_another_training(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    mine, run = tmp_path / "mine", tmp_path / "run"
    shutil.copytree(photos, mine)
    shutil.copytree(trained, run)
    replace(Run.load(run), data=str(mine)).save(run)
    words = ("build", mine, "--backbone", "none", "--size", "16x16", "--run", run, "--out", tmp_path / "x.onnx")
    monkeypatch.setattr(cli.train, "need_torch", stop)
    monkeypatch.setattr(cli.calibrate, "need_torch", stop)
    assert "[2/4]" in call(*words).err, "the finished training is taken"
    Image.new("RGB", (20, 18)).save(mine / "dark" / "new.png")
    refused = call(*words)
    assert refused.error == "build.other-training"
    assert "have changed since" in refused.err
    assert "[1/4]" not in refused.err
    again = call(*words, "--overwrite")
    assert "[1/4]" in again.err
    assert "--overwrite" not in again.err.partition("Stopped.")[2], "the same command would begin again"
    assert "[2/4]" not in call(*words).err, "the old training was replaced"


def test_photos_of_12_bits_are_those_of_their_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, rng: np.random.Generator
) -> None:
    folder, run = tmp_path / "scans", tmp_path / "run"
    for name, level in (("bright", 3000), ("dark", 300)):
        (folder / name).mkdir(parents=True)
        for i in range(40):
            Image.fromarray(rng.integers(level, level + 900, (16, 16)).astype(np.uint16)).save(
                folder / name / f"{i}.png"
            )
    assert call("train", "--data", folder, "--size", "16x16", "--epochs", 1, "--out", run).code == 0
    monkeypatch.setattr(cli.calibrate, "need_torch", stop)
    words = ("--backbone", "none", "--size", "16x16", "--run", run, "--out", tmp_path / "x.onnx")
    assert "[2/4]" in call("build", folder, *words).err


def test_an_unfinished_training_of_other_photos_is_not_continued(photos: Path, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training._Loop, "_stalled", lambda loop: loop.training.progress.epoch and stop())
        with pytest.raises(KeyboardInterrupt):
            training.train(loaded(photos), run, Recipe(epochs=3, batch_size=32))
    words = ("--backbone", "none", "--run", run, "--out", tmp_path / "x.onnx")
    refused = call("build", photos, "--size", "20x20", *words)
    assert refused.error == "build.other-training"
    assert "of another size" in refused.err


def test_sets_that_so_few_photos_cannot_fit_are_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, rng: np.random.Generator
) -> None:
    folder = tmp_path / "few"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(50):
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    monkeypatch.setattr(cli.train, "need_torch", stop)
    base = ("build", folder, "--backbone", "none", "--run", tmp_path / "run", "--out", tmp_path / "x.onnx")
    told = call(*base).err
    assert "--sets 0.05 needs 19 guarantee images, and there are 10, which suffice for --sets 0.1." in told
    assert "[1/4]" in told
    assert call(*base, "--sets", 0.05).error == "sets.few"
    assert "[1/4]" in call(*base, "--sets", 0.1).err
    assert "prediction sets" not in call(*base, "--sets", 0).err


def test_a_gate_on_pretrained_layers_has_a_level_of_its_own(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, rng: np.random.Generator
) -> None:
    tiny, many = tiny_backbone.install(tmp_path, monkeypatch, "tiny"), tmp_path / "many.npz"
    levels, labels = np.array([180, 40]), np.arange(700) % 2
    pixels = rng.integers(levels[labels][:, None, None, None], levels[labels][:, None, None, None] + 70, (700, 8, 8, 3))
    np.savez(many, x=pixels.astype(np.uint8), y=labels)
    recipe = Recipe(**tiny.recipe() | {"epochs": 1, "views": 1, "rates": Rates.FIXED})  # type: ignore[arg-type]
    monkeypatch.setattr(cli.calibrate, "need_torch", stop)

    def calibrated(data: Path, run: Path, *more: object) -> str:
        said = call("build", data, "--backbone", "tiny", "--run", run, "--out", tmp_path / "x.onnx", *more)
        return said.err.partition("[2/4] ")[2].partition("\n")[0] or said.error

    for data, run in ((photos, tmp_path / "few"), (many, tmp_path / "enough")):
        image = tiny.image
        dataset = splits.load(str(data), size=(image.height, image.width), range_="auto", resize=image.resize)
        training.train(dataset, run, recipe)
    assert "--novelty-level" not in calibrated(photos, tmp_path / "few")  # 20 reference images cannot promise it
    assert calibrated(photos, tmp_path / "few", "--novelty-level", 0.05) == "novelty.unprovable"
    assert calibrated(many, tmp_path / "enough").endswith(" --novelty-level 0.05")
    assert calibrated(many, tmp_path / "enough", "--novelty-level", 0.2).endswith(" --novelty-level 0.2")
    assert calibrated(many, tmp_path / "enough", "--novelty-level", 2) == "argument.novelty_level"
    run = Run.load(tmp_path / "enough")
    choice = LayerChoice(Unfreeze.ALL, 0.4, 0.3)
    replace(run, recipe=replace(run.recipe, unfreeze=Unfreeze.ALL), layer_choice=choice).save(tmp_path / "enough")
    assert "--novelty-level" not in calibrated(many, tmp_path / "enough")  # no layer is as it was


def test_a_stopped_build_names_the_build_that_goes_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(cli.train, "need_torch", stop)
    words = ["build", str(photos), "--backbone", "none", "--run", str(tmp_path / "my run"), "--out", "x.onnx"]
    done = call(*words)
    assert done.code == 130
    assert done.err.splitlines()[-1] == f"Stopped. To continue where it stopped: {shlex.join(['uce-edge', *words])}"
    assert "--resume" not in done.err.partition("Stopped.")[2]


def test_few_photos_are_told_what_they_could_promise() -> None:
    words = possible(18, 180, grouped=False)
    assert "18 guarantee images could promise 15.3% at best" in words
    for target, count in ((0.1, 29), (0.05, 59), (0.02, 149)):
        assert (1 - target) ** count <= 0.05 < (1 - target) ** (count - 1)
        assert f"{target:.0%} takes {count} ({10 * count:,} photos in all)" in words
    grouped = possible(40, 900, grouped=True)
    assert "10% takes" not in grouped, "it can promise that"
    assert "photos in all" not in grouped
