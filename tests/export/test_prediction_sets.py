"""Prediction sets in files: fitted for the file as it ships, in its graph, in answers, and in commands."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import GOLDEN, Call
from PIL import Image

pytest.importorskip("onnx_ir")
pytest.importorskip("sklearn")

import onnx_ir as ir

from uce_edge import contract
from uce_edge.calibration import conformal
from uce_edge.calibration.label_sets import RANKED, SetPromise
from uce_edge.contract import IN_SET, Method, SetScore
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError
from uce_edge.evaluation import evaluate, latency
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.rejection.fitting import Circumstances
from uce_edge.runtime.model import GuaranteeWarning, Model
from uce_edge_export.graph import prediction_sets
from uce_edge_export.graph.assembly import checked
from uce_edge_export.recalibration import recalibrate

SOURCE = GOLDEN / "digits-mc.onnx"
GOLDENS = sorted(GOLDEN.glob("digits-sets-*.onnx"))
KINDS = [SetPromise(0.05), SetPromise(0.05, SetScore.APS), SetPromise(0.1, SetScore.RAPS, by_class=True)]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return splits.load("digits")


@pytest.fixture(scope="module")
def noisy(dataset: Dataset) -> dict[str, Split]:
    """Digits under so much noise that some have two readings."""
    rng = np.random.default_rng(0)

    def spoiled(split: Split) -> Split:
        pixels = split.images.astype(int) + rng.normal(0, 60, split.images.shape)
        return Split(np.clip(pixels, 0, 255).astype(np.uint8), split.labels)

    return {name: spoiled(dataset.splits[name]) for name in ("calibration", "guarantee", "test")}


@pytest.fixture(scope="module")
def file(noisy: dict[str, Split], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sets") / "sets.onnx"
    recalibrate(
        SOURCE, out, noisy["calibration"], Method.TEMPERATURE, held_out=noisy["guarantee"], sets=SetPromise(0.05)
    )
    return out


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_the_graph_agrees_with_the_reference_on_every_image(path: Path, noisy: dict[str, Split]) -> None:
    model = Model(path, "cpu")
    assert model.metadata.sets is not None
    values = model.outputs(noisy["test"].images, model.seeds(), (contract.PROBABILITIES, IN_SET))
    inside = model.metadata.sets.contains(values[contract.PROBABILITIES])
    np.testing.assert_array_equal(values[IN_SET], inside)
    assert inside.sum(-1).max() > 1


@pytest.mark.parametrize("score", SetScore)
@pytest.mark.parametrize("classes", [2, 10, RANKED + 1, 1000])
def test_the_nodes_agree_with_the_reference_on_any_probabilities(score: SetScore, classes: int) -> None:
    """With ties, zeros, certain answers, limits that equal a score, and NaN."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (60, classes))
    table = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(np.float32)
    table[0], table[1], table[2] = 1 / classes, np.eye(classes)[0], np.nan
    table[3:6] = np.round(table[3:6], 1)
    labels = rng.integers(0, classes, 60)
    promise, how = SetPromise(0.3, score), Circumstances(1, 0, "", "2026-01-01", grouped=False)
    names = [str(number) for number in range(classes)]
    penalty = conformal.choose_penalty(table[6:], labels[6:], promise)
    sets = conformal.fit(table, labels, promise, names, how, penalty)
    p = ir.val(contract.PROBABILITIES, dtype=ir.DataType.FLOAT, shape=ir.Shape(["batch", classes]))
    fed = ir.val("fed", dtype=ir.DataType.FLOAT, shape=ir.Shape(["batch", classes]))
    graph = ir.Graph([fed], [p], nodes=[ir.node("Identity", [fed], outputs=[p])], opset_imports={"": 18}, name="g")
    metadata = Metadata(tuple(names), ImageSpec(8, 8, 1))
    model, described = prediction_sets.attach(checked(ir.Model(graph, ir_version=10)), metadata, sets)
    assert described.outputs == (IN_SET,)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (inside,) = session.run([IN_SET], {"fed": table})
    np.testing.assert_array_equal(inside, sets.contains(table))
    assert not inside[2].any()


@pytest.mark.parametrize("promise", KINDS, ids=str)
def test_the_limits_are_those_of_images_that_nothing_was_fitted_on(
    promise: SetPromise, noisy: dict[str, Split], tmp_path: Path
) -> None:
    out = tmp_path / "sets.onnx"
    held_out = noisy["guarantee"]
    recalibrate(SOURCE, out, noisy["calibration"], Method.TEMPERATURE, held_out=held_out, sets=promise)
    model = Model(out, "cpu")
    sets = model.metadata.sets
    assert sets is not None
    said = model.predict(held_out.images)
    assert said.in_set is not None
    covered = said.in_set[np.arange(len(held_out)), held_out.labels]
    assert (sets.coverage, sets.data, sets.images) == (covered.mean(), held_out.sha256(), len(held_out))
    for label in range(10) if promise.by_class else [None]:
        among = covered if label is None else covered[held_out.labels == label]
        rank = np.ceil(round((len(among) + 1) * (1 - promise.alpha), 9))
        assert among.sum() >= rank
    values = {item.name: onnx.numpy_helper.to_array(item) for item in onnx.load(out).graph.initializer}
    assert values[contract.SET_LIMITS].tolist() == [np.float32(limit) for limit in sets.limits] * (
        1 if promise.by_class else 10
    )


def test_one_image_of_each_group_counts(noisy: dict[str, Split], tmp_path: Path) -> None:
    held_out = noisy["guarantee"]
    grouped = Split(held_out.images, held_out.labels, np.arange(len(held_out)) // 3)
    recalibrate(
        SOURCE, tmp_path / "s.onnx", noisy["calibration"], Method.TEMPERATURE, held_out=grouped, sets=SetPromise(0.05)
    )
    sets = Model(tmp_path / "s.onnx", "cpu").metadata.sets
    assert sets is not None
    assert (sets.images, sets.grouped) == (90, True)


def test_recalibration_changes_or_removes_the_sets(file: Path, noisy: dict[str, Split], tmp_path: Path) -> None:
    data, held_out = noisy["calibration"], noisy["guarantee"]
    recalibrate(file, tmp_path / "wide.onnx", data, Method.VECTOR, held_out=held_out, sets=SetPromise(0.01))
    recalibrate(file, tmp_path / "plain.onnx", data, Method.TEMPERATURE)
    before, wide, plain = (Model(path, "cpu") for path in (file, tmp_path / "wide.onnx", tmp_path / "plain.onnx"))
    sizes = [
        said.sum(-1).mean() for model in (before, wide) if (said := model.predict(held_out.images).in_set) is not None
    ]
    assert sizes[0] < sizes[1]
    assert (plain.metadata.sets, plain.metadata.outputs) == (None, ())
    names = [item.name for item in onnx.load(tmp_path / "plain.onnx").graph.initializer]
    assert not [name for name in names if name.startswith("in_set")]
    assert plain.predict(held_out.images[:1])[0].as_dict()["set"] is None


def test_split_calls_have_the_sets_of_one_call(file: Path, noisy: dict[str, Split]) -> None:
    images = noisy["test"].images[:60]
    with warnings.catch_warnings(action="ignore"):
        split = Model(file, "cpu").predict(images, samples=64)
        whole = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(
            [IN_SET], {contract.IMAGE: images, contract.SEEDS: np.arange(64, dtype=np.int32)}
        )[0]
    assert split.in_set is not None
    np.testing.assert_array_equal(split.in_set, whole)
    assert whole.sum(-1).max() > 1


def test_answers_name_the_labels_likeliest_first(file: Path, noisy: dict[str, Split]) -> None:
    said = Model(file, "cpu").predict(noisy["test"].images)
    assert said.in_set is not None
    index = int(np.argmax(said.in_set.sum(-1)))
    one = said[index]
    assert one.label_set is not None
    assert len(one.label_set) == said.in_set[index].sum() > 1
    chances = [one.probabilities[int(label)] for label in one.label_set]
    assert chances == sorted(chances, reverse=True)
    assert one.as_dict()["set"] == list(one.label_set)
    assert said[[index]][0].label_set == one.label_set


def test_other_passes_than_the_fitted_ones_are_announced(file: Path, noisy: dict[str, Split]) -> None:
    model, images = Model(file, "cpu"), noisy["test"].images[:2]
    for request in ({"seed": 1}, {"adaptive": 0.1}):
        with pytest.warns(GuaranteeWarning, match="prediction sets were fitted with 25 samples and seed 0"):
            model.predict(images, **request)  # type: ignore[call-overload]
    with warnings.catch_warnings(action="error"):
        model.predict(images)


def test_timing_other_passes_promises_nothing_and_warns_of_nothing(file: Path, noisy: dict[str, Split]) -> None:
    """Warnings are errors here."""
    measured = latency.measure(Model(file, "cpu"), noisy["test"].images[0])
    assert len(measured.passes) > 1


def test_an_evaluation_counts_the_sets_with_the_true_label(file: Path, noisy: dict[str, Split]) -> None:
    test = noisy["test"]
    result = evaluate(Model(file, "cpu"), test.images, test.labels, resamples=2)
    said = Model(file, "cpu").predict(test.images).in_set
    assert said is not None
    right, sizes = said[np.arange(len(test)), test.labels], said.sum(-1)
    sets = result.sets
    assert sets is not None
    assert (sets.covered.count, sets.covered.of) == (right.sum(), len(test))
    assert sets.covered.low < 0.95 < sets.covered.high + 0.05
    assert sets.size.value == pytest.approx(sizes.mean())
    assert [one.covered.count for one in sets.classes] == [right[test.labels == label].sum() for label in range(10)]
    assert sum(one.images for one in sets.by_size) == len(test)
    ones = next(one for one in sets.by_size if one.name == "1")
    assert (ones.images, ones.covered.count, ones.size) == ((sizes == 1).sum(), right[sizes == 1].sum(), 1)
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))["sets"]
    assert (document["alpha"], document["score"]) == (0.05, "lac")


def test_the_commands_tell_the_promise_the_set_and_the_sizes(
    noisy: dict[str, Split], tmp_path: Path, call: Call
) -> None:
    both = [noisy[name] for name in ("calibration", "guarantee")]
    np.savez(
        tmp_path / "data.npz",
        x=np.concatenate([one.images for one in both]),
        y=np.concatenate([one.labels for one in both]),
    )
    np.savez(tmp_path / "test.npz", x=noisy["test"].images, y=noisy["test"].labels)
    out, other = tmp_path / "sets.onnx", tmp_path / "aps.onnx"
    made = call("calibrate", SOURCE, "--data", tmp_path / "data.npz", "--sets", 0.05, "--no-novelty", "--out", out)
    promise = "contains the true label for at least 95 % of the images"
    assert (made.code, promise in made.err) == (0, True)
    assert promise in call("info", out).out
    options = ("--sets-score", "aps", "--no-novelty")
    call("calibrate", SOURCE, "--data", tmp_path / "data.npz", "--sets", 0.05, *options, "--out", other)
    compared = call("compare", out, other, "--data", tmp_path / "test.npz", "--no-latency").out
    assert "mean size, less sets.onnx" in compared
    assert "prediction sets" in call("evaluate", out, "--data", tmp_path / "test.npz").out
    said = Model(out, "cpu").predict(noisy["test"].images)
    assert said.in_set is not None
    index = int(np.flatnonzero(said.in_set.sum(-1) == 2)[0])
    names = said[index].label_set
    assert names is not None
    Image.fromarray(noisy["test"].images[index][..., 0]).save(tmp_path / "two.png")
    text = call("predict", "--model", out, tmp_path / "two.png", tmp_path / "two.png").out
    assert f"{names[0]} or {names[1]}" in text
    assert f"set: {names[0]} or {names[1]}" in call("predict", "--model", out, tmp_path / "two.png").out
    assert json.loads(call("predict", "--model", out, tmp_path / "two.png", "--json").out)[0]["set"] == list(names)
    assert f",{names[0]}|{names[1]}," in call("predict", "--model", out, tmp_path / "two.png", "--csv").out
    log = tmp_path / "log.jsonl"
    call("predict", "--model", out, tmp_path / "two.png", "--audit", log)
    assert json.loads(log.read_text())["set"] == list(names)
    assert call("replay", log, "--images", tmp_path, "--model", out).code == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--sets", "0.001"), "sets.few"),
        (("--sets", "0.02", "--sets-by", "class"), "sets.few"),
        (("--sets", "1.5"), "argument.sets"),
        (("--sets-by", "class"), "usage.needs-sets"),
        (("--sets-score", "aps"), "usage.needs-sets"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_anything_is_written(
    options: tuple[str, ...], code: str, dataset: Dataset, tmp_path: Path, call: Call
) -> None:
    data = dataset.splits["calibration"]
    np.savez(tmp_path / "data.npz", x=data.images, y=data.labels)
    out = tmp_path / "out.onnx"
    said = call("calibrate", SOURCE, "--data", tmp_path / "data.npz", "--out", out, *options)
    assert (said.code, said.error, out.exists()) == (2, code, False)


def test_a_run_gets_its_sets_when_it_is_exported(digits: Any, tmp_path: Path) -> None:
    import shutil

    from uce_edge_train import calibration
    from uce_edge_train.export import export_run

    run = tmp_path / "run"
    shutil.copytree(digits.run, run)
    with pytest.raises(UsageError, match="needs 999 images"):
        calibration.calibrate(run, sets=SetPromise(0.001))
    calibration.calibrate(run, sets=SetPromise(0.05))
    done = export_run(run, tmp_path / "sets.onnx", digits.dataset)
    sets = done.metadata.sets
    assert sets is not None
    assert sets.images == len(digits.dataset.splits["guarantee"])
    assert Model(tmp_path / "sets.onnx", "cpu").predict(digits.dataset.splits["test"].images[:1]).in_set is not None
