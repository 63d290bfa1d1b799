"""Evaluating a model file: its numbers are those of the metrics, and what cannot be measured is said."""

import dataclasses
import json
import math
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image
from scipy.stats import binomtest

from uce_edge import metrics
from uce_edge.datasets import labelled, overlap
from uce_edge.datasets.overlap import sketch
from uce_edge.errors import UsageError
from uce_edge.evaluation import batch_mixture, class_results, evaluate, model_outputs, ood, score_intervals
from uce_edge.images.corruptions import corrupt
from uce_edge.metadata import ImageSpec
from uce_edge.output.report import page
from uce_edge.rejection.promises import ErrorPromise
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.model import Model

QUICK = 20  # resamples


@pytest.fixture(scope="module")
def model(digits) -> Model:
    return Model(digits.model, "cpu")


@pytest.fixture(scope="module")
def hard(digits) -> SimpleNamespace:
    """Test digits, every third half erased: right and wrong answers, certain and uncertain ones."""
    test = digits.dataset.splits["test"]
    images = test.images.copy()
    images[::3, :, 4:] = 0
    return SimpleNamespace(images=images, labels=test.labels)


@pytest.fixture(scope="module")
def foreign() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (40, 8, 8, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def evaluated(model, hard, foreign):
    return evaluate(model, hard.images, hard.labels, outside={"noise": foreign}, reject=0.3, resamples=QUICK)


@pytest.fixture(scope="module")
def prediction(model, hard):
    return model.predict(hard.images, reject=0.3)


@pytest.fixture
def evaluating(call):
    """`uce-edge evaluate` with these arguments."""
    return partial(call, "evaluate")


@pytest.fixture
def archive(tmp_path, hard):
    """A few hard digits as a file."""

    def saved(name: str = "hard.npz", **arrays) -> Path:
        np.savez(tmp_path / name, **({"x": hard.images[:60], "y": hard.labels[:60]} | arrays))
        return tmp_path / name

    return saved


@pytest.fixture
def quick(monkeypatch):
    """Fewer resamples for the command line."""
    monkeypatch.setattr(evaluate, "__kwdefaults__", evaluate.__kwdefaults__ | {"resamples": QUICK})


# The numbers.


@pytest.mark.parametrize("name", score_intervals.METRICS)
def test_every_number_is_that_of_the_metric_on_the_model_s_answers(evaluated, prediction, hard, name):
    metric, score = getattr(metrics, name), evaluated.metrics[name]
    assert score.value == pytest.approx(metric(prediction.probabilities, hard.labels), rel=1e-6)
    interval = metrics.interval(name, prediction.probabilities, hard.labels)
    twin = metrics.calibrated_twin(metric, prediction.probabilities, resamples=QUICK)
    if name == "mce":
        assert (interval, score.low, score.high) == (None, None, None)
        assert "no interval" in score.why
        return
    assert (score.low, score.high) == pytest.approx((interval.low, interval.high), rel=1e-6)
    assert score.low <= score.value <= score.high
    assert (score.twin, score.twin_spread) == pytest.approx((twin.value, twin.spread), rel=1e-6)
    assert score.difference == score.value - score.twin
    assert score.why is None


def test_a_threshold_lets_through_what_the_model_accepts(evaluated, prediction, hard):
    point = evaluated.rejection[0]
    accepted = np.array([decision == "accept" for decision in prediction.decisions])
    wrong = prediction.class_ids != hard.labels
    assert point.origin == "asked"
    assert point.measured.accepted == accepted.sum()
    assert point.measured.coverage == pytest.approx(accepted.mean())
    assert point.measured.error == pytest.approx(wrong[accepted].mean())
    assert point.measured.error < point.measured.error_bound < 1
    assert (point.errors, point.rejected_errors) == (wrong[accepted].sum(), wrong[~accepted].sum())
    at = int(np.argmin(np.abs(evaluated.thresholds.thresholds - 0.3)))
    assert evaluated.thresholds.error[at] == pytest.approx(point.measured.error)
    assert evaluated.thresholds.coverage[at] == pytest.approx(point.measured.coverage)
    assert evaluated.thresholds.error_bound[at] == pytest.approx(point.measured.error_bound)


def test_the_stored_threshold_is_measured_with_its_promise(model, hard, monkeypatch):
    promise = ErrorPromise(0.05, 0.9, 0.04, 0.03, 0.8, 80, 100, samples=25, seed=0, data="")
    rule = RejectRule(limits=(0.2,), promise=promise)
    monkeypatch.setattr(model, "metadata", dataclasses.replace(model.metadata, rule=rule))
    both = evaluate(model, hard.images[:50], hard.labels[:50], reject=0.3, resamples=2)
    assert [(point.origin, point.measured.threshold) for point in both.rejection] == [("asked", 0.3), ("stored", 0.2)]
    stored = evaluate(model, hard.images[:50], hard.labels[:50], resamples=2)
    assert [point.origin for point in stored.rejection] == ["stored"]
    assert stored.kept is not None
    assert (stored.kept.target_error, stored.kept.confidence) == (0.05, 0.9)
    assert not any("promise" in note for note in stored.notes)
    other = evaluate(model, hard.images[:50], hard.labels[:50], seed=1, resamples=2)
    assert any("promise" in note for note in other.notes)


def test_without_any_threshold_an_example_is_shown(model, hard, monkeypatch):
    monkeypatch.setattr(model, "metadata", dataclasses.replace(model.metadata, rule=None))
    found = evaluate(model, hard.images[:50], hard.labels[:50], resamples=2).rejection
    assert [(point.origin, point.measured.threshold) for point in found] == [("example", 0.3)]


def test_a_threshold_that_accepts_nothing(model, hard):
    found = evaluate(model, hard.images[:50], hard.labels[:50], reject=0.0, resamples=2)
    assert found.rejection[0].measured.error is None
    assert "accepts none" in page.render(found)


def test_reliability_has_every_image_in_a_bin(evaluated, prediction, hard):
    for kind, reliability in evaluated.reliability.items():
        wanted = metrics.reliability_curve(prediction.probabilities, hard.labels, kind=kind)
        assert reliability.curve.counts.sum() == len(hard.labels)
        np.testing.assert_allclose(reliability.curve.mean_outcome, wanted.mean_outcome, rtol=1e-6)
    # A calibrated model errs as often as its confidence says.
    curve, twin = evaluated.reliability["uncertainty"].curve, evaluated.reliability["uncertainty"].twin
    there = curve.counts > 0
    assert (curve.counts[there] @ twin[there]) / len(hard.labels) == pytest.approx(
        1 - float(prediction.probabilities.max(-1).mean(dtype=np.float64)), rel=1e-5
    )


def test_classes_are_counted_one_by_one(evaluated, prediction, hard):
    counted = np.zeros((10, 10), int)
    for label, truth in zip(prediction.class_ids, hard.labels, strict=True):
        counted[truth, label] += 1
    found = evaluated.as_dict()["classes"]
    assert found["confusion"] == counted.tolist()
    assert [one["name"] for one in found["rates"]] == list("0123456789")
    for number, one in enumerate(found["rates"]):
        row, column = counted[number].sum(), counted[:, number].sum()
        hit, rest = counted[number, number], counted.sum()
        tables = {
            "sensitivity": (hit, row),
            "specificity": (rest - row - column + hit, rest - row),
            "ppv": (hit, column),
            "npv": (rest - row - column + hit, rest - column),
        }
        for name, (count, of) in tables.items():
            ends = binomtest(int(count), int(of)).proportion_ci(method="wilson")
            wanted = {"count": count, "of": of, "value": count / of, "low": ends.low, "high": ends.high}
            assert one[name] == pytest.approx(wanted)
    first = found["confused"][0]
    off = counted - np.diag(counted.diagonal())
    assert first["count"] == off.max() == off[int(first["truth"]), int(first["label"])]
    assert first["share"] == first["count"] / counted[int(first["truth"])].sum()


def test_of_many_classes_the_most_confused_pairs_and_the_weakest_are_shown(rng):
    probabilities, labels = rng.dirichlet(np.ones(30) / 10, 2000), rng.integers(0, 29, 2000)
    labels[:1500] = probabilities[:1500].argmax(-1) % 29
    found = class_results.measure(metrics.Probabilities(probabilities), labels, [f"c{number}" for number in range(30)])
    pairs = Counter(
        (f"c{truth}", f"c{label}")
        for truth, label in zip(labels, probabilities.argmax(-1), strict=True)
        if truth != label
    )
    assert found.confusion is None
    assert [one.count for one in found.confused] == [count for _, count in pairs.most_common(20)]
    assert all(pairs[one.truth, one.label] == one.count for one in found.confused)
    assert len(found.shown) == 20
    kept = [one.sensitivity.value for one in found.shown]
    assert kept == sorted(one.sensitivity.value for one in found.rates if one.images)[:20]
    assert found.rates[29].images == 0
    assert math.isnan(found.rates[29].sensitivity.value)


def test_examples_are_the_extremes(evaluated, prediction, hard):
    unsure = [example.index for example in evaluated.most_uncertain]
    assert unsure == np.argsort(-prediction.uncertainty, kind="stable")[:12].tolist()
    wrong = np.flatnonzero(prediction.class_ids != hard.labels)
    surest = wrong[np.argsort(prediction.uncertainty[wrong], kind="stable")][:12]
    assert [example.index for example in evaluated.confidently_wrong] == surest.tolist()
    for example in evaluated.confidently_wrong:
        assert example.label == prediction.labels[example.index] != example.truth == str(hard.labels[example.index])
        assert np.array_equal(example.pixels, hard.images[example.index])


def test_answers_come_in_chunks_and_are_those_of_one_request(model, hard, monkeypatch):
    whole, sizes, predict = model.predict(hard.images[:50]), [], model.predict
    monkeypatch.setattr(model_outputs, "_CHUNK", 16)
    monkeypatch.setattr(model, "predict", lambda images, *how: sizes.append(len(images)) or predict(images, *how))
    found = model_outputs.predict_all(model, hard.images[:50], None, 0, "predicting")
    assert sizes == [16, 16, 16, 2]
    np.testing.assert_allclose(found.probabilities, whole.probabilities, rtol=1e-6)
    np.testing.assert_allclose(found.model_uncertainty, whole.model_uncertainty, atol=1e-6)


# What cannot be measured.


@pytest.fixture(scope="module")
def right(digits, model):
    """Digits that the model gets right, every one."""
    test = digits.dataset.splits["test"]
    good = np.flatnonzero(model.predict(test.images).class_ids == test.labels)[:60]
    return SimpleNamespace(images=test.images[good], labels=test.labels[good])


def test_a_metric_that_is_undefined_says_why(model, right):
    found = evaluate(model, right.images, right.labels, resamples=QUICK)
    for name in ("auroc", "fpr_at_95"):
        assert found.metrics[name].value is None
        assert "0 of 60 wrong" in found.metrics[name].why
        assert found.as_dict()["metrics"][name]["value"] is None
    assert found.metrics["aurc"].value == 0
    assert found.confidently_wrong == ()
    names = [f"{number}.png" for number in range(20)]
    few = evaluate(model, right.images[:20], right.labels[:20], names=names, resamples=QUICK)
    assert all(one.name == f"{one.index}.png" for one in few.most_uncertain)
    assert "at least 30 for 15 bins" in few.metrics["debiased_ece"].why


def test_one_error_has_an_interval_that_says_how_little_it_tells(model, right):
    labels = right.labels.copy()
    labels[0] = (labels[0] + 1) % 10
    score = evaluate(model, right.images, labels, resamples=100).metrics["auroc"]
    assert score.value is not None
    assert score.high - score.low > 0.9


def test_an_infinite_surprise_is_null(model, hard, monkeypatch):
    def certain(model, images, *_):
        table = np.eye(10, dtype=np.float32)[np.zeros(len(images), int)]
        return model_outputs.ModelOutputs(table, np.zeros(len(images), np.float32), np.zeros(len(images), np.float32))

    monkeypatch.setattr("uce_edge.evaluation.evaluator.predict_all", certain)
    found = evaluate(model, hard.images, hard.labels, resamples=QUICK)
    assert found.metrics["nll"].value is None
    assert "infinite" in found.metrics["nll"].why
    json.dumps(found.as_dict(), allow_nan=False)
    page.render(found)


def test_a_deterministic_model_has_no_model_part(digits, hard, foreign):
    found = evaluate(
        Model(digits.deterministic, "cpu"),
        hard.images[:60],
        hard.labels[:60],
        outside={"noise": foreign},
        resamples=5,
        timed=True,
    )
    assert set(found.risk_coverage) == {"uncertainty", "confidence"}
    part = found.ood[0].detection["model_uncertainty"].auroc
    assert part.value is None
    assert "One pass has no model part" in part.why
    assert found.latency.passes == (1,)
    assert "One pass has no model part" in page.render(found)


def test_notes_tell_what_a_reader_must_know(model, hard):
    found = evaluate(model, hard.images[:50], hard.labels[:50], samples=5, resamples=2, notes=["Mind the gap."])
    assert found.notes[0] == "Mind the gap."
    assert found.samples == 5
    assert any("Only 50 images" in note for note in found.notes)
    assert any("Calibrated at 25 passes but evaluated at 5" in note for note in found.notes)
    few = evaluate(model, hard.images[hard.labels < 2], hard.labels[hard.labels < 2], resamples=2)
    assert "8 of the model's 10 classes have no image here." in few.notes


WRONG = [
    ({"labels": np.array([10] * 359)}, "labels"),
    ({"labels": np.array([-1] * 359)}, "labels"),
    ({"labels": np.array([3] * 359)}, "labels"),
    ({"labels": np.array([0.5] * 359)}, "labels"),
    ({"labels": [1, 2]}, "labels"),
    ({"names": ["a.png"]}, "names"),
    ({"images": np.zeros((0, 8, 8, 1), np.uint8), "labels": np.zeros(0, int)}, "labels"),
    ({"reject": 1.5}, "reject"),
    ({"samples": 0}, "samples"),
    ({"seed": -1}, "seed"),
    ({"outside": {"none": np.zeros((0, 8, 8, 1), np.uint8)}}, "outside"),
]


@pytest.mark.parametrize(("change", "argument"), WRONG)
def test_wrong_requests_are_refused_before_predicting(model, hard, monkeypatch, change, argument):
    monkeypatch.setattr(model, "predict", None)
    request = {"images": hard.images, "labels": hard.labels} | change
    with raises(f"argument.{argument}"):
        evaluate(model, **request)


# Foreign and damaged images.


def test_foreign_images_are_told_apart_as_the_metrics_say(model, hard, foreign, evaluated, prediction):
    outside, (found,) = model.predict(foreign), evaluated.ood
    for name, own, other in (
        ("uncertainty", prediction.uncertainty, outside.uncertainty),
        ("model_uncertainty", prediction.model_uncertainty, outside.model_uncertainty),
        ("confidence", 1.0 - prediction.probabilities.max(-1), 1.0 - outside.probabilities.max(-1)),
    ):
        detection = found.detection[name]
        assert detection.auroc.value == pytest.approx(metrics.ood_auroc(own, other))
        assert detection.fpr_at_95.value == pytest.approx(metrics.ood_fpr_at_95(own, other))
        assert detection.auroc.low < detection.auroc.value < detection.auroc.high
    assert (found.name, found.images, found.gated) == ("noise", 40, None)
    assert set(found.detection) == {"uncertainty", "confidence", "model_uncertainty"}
    assert found.accepted == pytest.approx(float((outside.uncertainty <= np.float32(0.3)).mean()))
    assert found.inside.sum() == pytest.approx(1)
    assert found.outside.sum() == pytest.approx(1)


def test_the_mixture_goes_from_one_mean_to_the_other(rng):
    fractions = np.linspace(0, 1, 5)
    mean, deviation = batch_mixture.mixture(rng.normal(0.2, 0.05, 500), rng.normal(0.8, 0.05, 500), fractions)
    np.testing.assert_allclose(mean, 0.2 + 0.6 * fractions, atol=0.01)
    assert (deviation < 0.01).all()
    assert batch_mixture.mixture([0.25], [0.5], np.array([0.0, 0.5, 1.0]))[0] == pytest.approx([0.25, 0.375, 0.5])


def test_the_mixture_replaces_the_images_of_a_batch_one_after_the_other(rng):
    inside, outside, fractions = rng.beta(1, 5, 300), rng.beta(5, 1, 200), ood.FRACTIONS
    means, draws = np.empty((batch_mixture.BATCHES, len(fractions))), np.random.default_rng(3)
    for batch in means:
        own, foreign = draws.choice(inside, batch_mixture.BATCH), draws.choice(outside, batch_mixture.BATCH)
        for index, fraction in enumerate(fractions):
            replaced = round(fraction * batch_mixture.BATCH)
            batch[index] = np.concatenate([foreign[:replaced], own[replaced:]]).mean()
    mean, deviation = batch_mixture.mixture(inside, outside, fractions, seed=3)
    np.testing.assert_allclose(mean, means.mean(0), rtol=1e-9)
    np.testing.assert_allclose(deviation, means.std(0, ddof=1), rtol=1e-9)


def test_damage_is_evaluated_on_the_same_images(model, hard):
    found = evaluate(model, hard.images, hard.labels, corrupt=12, reject=0.2, resamples=2).shift
    assert list(found.curves) == ["noise", "blur", "brightness", "contrast", "jpeg", "pixelate"]
    assert (found.images, found.threshold) == (12, 0.2)
    chosen = np.sort(np.random.default_rng(0).permutation(len(hard.labels))[:12])
    damaged = model.predict(corrupt(hard.images[chosen], "noise", 3))
    wrong = damaged.class_ids != hard.labels[chosen]
    point = found.curves["noise"][3]
    assert [one.severity for one in found.curves["noise"]] == [0, 1, 2, 3, 4, 5]
    assert point.accuracy == pytest.approx(1 - wrong.mean())
    assert point.uncertainty == pytest.approx(float(damaged.uncertainty.mean()), rel=1e-5)
    assert point.uce == pytest.approx(metrics.uce(damaged.probabilities, hard.labels[chosen]), rel=1e-6)
    accepted = damaged.uncertainty <= np.float32(0.2)
    assert point.coverage == pytest.approx(accepted.mean())
    assert point.error == pytest.approx(wrong[accepted].mean())
    clean = model.predict(hard.images[chosen])
    assert all(curve[0] == found.curves["noise"][0] for curve in found.curves.values())
    assert found.curves["noise"][0].accuracy == pytest.approx((clean.class_ids == hard.labels[chosen]).mean())
    assert all(len(pictures) == 6 for pictures in found.pictures.values())


def test_only_bytes_can_be_damaged(model, hard, monkeypatch):
    spec = dataclasses.replace(model.metadata.image, dtype="float32")
    monkeypatch.setattr(model, "metadata", dataclasses.replace(model.metadata, image=spec))
    with raises("image.not-uint8"):
        evaluate(model, hard.images.astype(np.float32), hard.labels, corrupt=10)


# The command line.


@pytest.mark.usefixtures("quick")
def test_tables_on_stdout_and_talk_on_stderr(digits, evaluating, archive, foreign):
    ood = archive("foreign.npz", x=foreign, y=np.zeros(40, int))
    done = evaluating(digits.model, "--data", archive(), "--ood", ood, "--reject", 0.3)
    assert done.code == 0
    first, *rows = done.out.splitlines()
    assert first.split() == ["metric", "value", "95", "%", "interval", "calibrated", "twin", "difference"]
    titles = [row.split("  ")[0] for row in rows]
    for title in ("Accuracy", "NLL", "Brier score", "ECE", "MCE", "SKCE", "UCE", "cECE", "cUCE", "AURC"):
        assert title in titles
    for title in ("0.30 (asked)", "uncertainty H", "model part", "max probability"):
        assert title in titles
    assert any("foreign.npz" in title for title in titles)
    assert "0.30" in done.err
    assert "warning: Only 60 images" in done.err


@pytest.mark.usefixtures("quick")
def test_dashes_are_explained(digits, evaluating, archive, right):
    done = evaluating(digits.model, "--data", archive(x=right.images, y=right.labels))
    line = next(line for line in done.out.splitlines() if line.startswith("AUROC"))
    assert line.split() == ["AUROC", "of", "errors", "–", "–", "–", "–"]
    assert "AUROC of errors: " in done.err


def test_json_survives_a_pipe_without_torch(digits, archive, tmp_path):
    # What is imported is written by the process itself: torch, matplotlib and scikit-learn are not on a device.
    code = (
        "import sys, atexit, pathlib\n"
        "from uce_edge.cli import main\n"
        "atexit.register(lambda: pathlib.Path(sys.argv[1]).write_text(' '.join(sys.modules)))\n"
        "main(sys.argv[2:])"
    )
    asked = ["evaluate", digits.model, "--data", archive(), "--reject", "0.2", "--json", "--report", "r.html"]
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "modules", *asked], capture_output=True, check=True, cwd=tmp_path
    )
    document = json.loads(done.stdout)
    assert document["images"] == 60
    assert document["data"] == "hard.npz"
    assert set(document["metrics"]) == set(score_intervals.METRICS)
    assert set(document["metrics"]["ece"]) == {"value", "low", "high", "twin", "twin_spread", "why", "difference"}
    assert document["rejection"][0]["threshold"] == 0.2
    assert document["rejection"][0]["error_bound"] > document["rejection"][0]["error"]
    assert (document["ood"], document["gated"]) == ([], None)
    assert document["latency"]["passes"][0] == 1
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    loaded = set((tmp_path / "modules").read_text().split())
    assert "onnxruntime" in loaded
    assert not {"torch", "matplotlib", "sklearn", "onnx"} & loaded


@pytest.mark.usefixtures("quick")
def test_damage_and_report_from_the_command_line(digits, evaluating, archive, tmp_path):
    done = evaluating(
        digits.model, "--data", archive(), "--corrupt", "--corrupt-images", 5, "--json", "--no-latency",
        "--report", tmp_path / "r.html",
    )  # fmt: skip
    document = json.loads(done.out)
    assert document["shift"]["images"] == 5
    assert len(document["shift"]["curves"]["jpeg"]) == 6
    assert document["latency"] is None
    assert 'id="chart-shift-jpeg"' in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick")
def test_nothing_half_written_stays(digits, evaluating, archive, tmp_path, monkeypatch):
    (tmp_path / "r.html").write_text("old")

    def fail(_):
        raise UsageError("no page")

    monkeypatch.setattr(page, "render", fail)
    assert evaluating(digits.model, "--data", archive(), "--report", tmp_path / "r.html", "--no-latency").code == 2
    assert (tmp_path / "r.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hard.npz", "r.html"]


REFUSED = {
    "--reject 1.5": "1.5",
    "--reject much": "auto",
    "--samples 0": "`samples`",
    "--seed -1": "`seed`",
    "--report page.pdf": "page.pdf",
    "--report absent/page.html": "absent/page.html",
}


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_usage_is_told_before_anything_slow(evaluating, line):
    done = evaluating("absent.onnx", "--data", "absent", *line.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert REFUSED[line] in done.err
    assert done.err.count("\n") == 1


def test_wrong_files_are_named(digits, evaluating, archive, tmp_path):
    (tmp_path / "no.onnx").write_text("hello")
    done = evaluating(tmp_path / "no.onnx", "--data", archive())
    assert (done.code, done.out) == (1, "")
    assert "no.onnx" in done.err
    for data, code, word in (
        ("absent", 2, "`data`"),
        (archive("empty.npz", x=np.zeros((0, 8, 8, 1), np.uint8), y=np.zeros(0, int)), 2, "empty.npz"),
        (archive("many.npz", y=np.full(60, 10)), 2, " 10"),
        (archive("one.npz", y=np.full(60, 3)), 2, "two classes"),
        (archive("cow.npz", class_names=np.array([*"012345678", "cow"])), 2, "cow"),
    ):
        done = evaluating(digits.model, "--data", data)
        assert (done.code, done.out) == (code, ""), done.err
        assert word in done.err
    assert evaluating(digits.model).code == 2
    assert "--target-error" in evaluating(digits.model, "--data", "digits", "--reject", "auto").err
    done = evaluating(digits.model, "--data", archive(), "--ood", "absent")
    assert done.code == 2
    assert "`ood`" in done.err
    assert "Example: uce-edge evaluate" in evaluating("--help").out


# Which images are taken.


def test_the_test_part_comes_first(archive):
    y = {name: np.zeros(count, int) for name, count in (("train", 5), ("val", 3), ("test", 2))}
    x = {name: np.zeros((len(labels), 8, 8), np.uint8) for name, labels in y.items()}
    parts = {f"x_{name}": pixels for name, pixels in x.items()} | {f"y_{name}": labels for name, labels in y.items()}
    spec, classes = ImageSpec(8, 8, 1), tuple("0123456789")
    for kept, count, words in (
        (("train", "val", "test"), 2, "test images"),
        (("train", "val"), 3, "validation images"),
    ):
        path = archive("parts.npz")
        np.savez(path, **{name: array for name, array in parts.items() if name[2:] in kept})
        split, what = labelled.load_test(str(path), spec, classes)
        assert (len(split), what) == (count, words)
    np.savez(path, x_train=x["train"], y_train=y["train"])
    with raises("dataset.only-training"):
        labelled.load_test(str(path), spec, classes)


def test_digits_give_their_test_images(digits, model):
    split, what = labelled.load_test("digits", model.metadata.image, model.classes)
    assert what == "test images"
    assert split.sha256() == digits.dataset.splits["test"].sha256()


def test_a_dataset_has_a_name_under_the_root(archive, tmp_path):
    archive("cifar10.npz")
    archive("mine.npz")
    for name in ("cifar10", "mine"):
        split, what = labelled.load_test(name, ImageSpec(8, 8, 1), tuple("0123456789"), tmp_path)
        assert (len(split), what) == (60, "all images")
    with raises("dataset.missing"):
        labelled.load_test("cifar100", ImageSpec(8, 8, 1), tuple("0123456789"), tmp_path)


def test_of_the_training_folder_only_the_test_images_are_taken(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for index in range(20):
            Image.fromarray(rng.integers(0, 256, (8, 8)).astype(np.uint8)).save(tmp_path / name / f"{index}.png")
    from uce_edge.datasets import splits

    splits = splits.load(str(tmp_path), size=(8, 8)).splits
    spec, own = ImageSpec(8, 8, 1), splits["test"].sha256()
    split, what = labelled.load_test(str(tmp_path), spec, ("ant", "bee"), own=labelled.Own({"test": own}))
    assert (split.sha256(), what) == (own, "test images")
    split, what = labelled.load_test(str(tmp_path), spec, ("ant", "bee"), own=labelled.Own({"test": "another"}))
    assert (len(split), what) == (40, "all images")
    aside = {"calibration": splits["calibration"].sha256()}
    assert labelled.load(str(tmp_path), spec, ("ant", "bee"), labelled.Own(aside)).sha256() == aside["calibration"]
    assert overlap.seen(sketch(splits["train"].images), split.images) == len(splits["train"])
    assert overlap.seen(sketch(splits["train"].images), splits["test"].images) == 0
    assert overlap.seen(None, split.images) == 0


@pytest.mark.usefixtures("quick")
def test_training_images_are_announced(digits, evaluating, archive):
    train = digits.dataset.splits["train"]
    done = evaluating(digits.model, "--data", archive(x=train.images[:100], y=train.labels[:100]), "--json")
    assert "100 of these images" in done.err
    assert any("100 of these images" in note for note in json.loads(done.out)["notes"])


def test_scores_stay_finite_numbers_or_null(evaluated):
    def walk(value):
        if isinstance(value, dict):
            return all(map(walk, value.values()))
        if isinstance(value, list):
            return all(map(walk, value))
        return value is None or isinstance(value, str | int) or math.isfinite(value)

    assert walk(evaluated.as_dict())
    assert json.loads(json.dumps(evaluated.as_dict(), allow_nan=False)) == evaluated.as_dict()
