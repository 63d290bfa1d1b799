"""The accuracy without labels: its intervals cover, its doubts come, and the window stays bounded."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call, Digits
from helpers.errors import raises
from scipy import stats

from uce_edge import Model, Monitor
from uce_edge.monitor import reference
from uce_edge.monitor.accuracy import RunningWindow, binomial_tail, estimated, outcomes_of
from uce_edge.monitor.state import Outcomes, StoredReference, Window
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import HeldOut
from uce_edge.rejection.rule import RejectRule
from uce_edge_export.publish.draft import graph_of, publish

MODEL = GOLDEN / "digits-novelty.onnx"
OUTCOMES = Outcomes(steps=(10, 40, 100), images=(800, 150, 50), errors=(8, 30, 25), covered=(796, 145, 48), level=0.02)


def answer(uncertainty: float, decision: str | None = "accept", reason: str | None = None) -> dict[str, object]:
    return {"uncertainty": uncertainty, "decision": decision, "reason": reason}


def stored(rng: np.random.Generator) -> StoredReference:
    drawn = [{"uncertainty": rng.random(500).astype(np.float32) ** 3} for _ in range(2)]
    return reference.count(*drawn, 25, 0, "")


@pytest.mark.parametrize(("wrong", "images"), [(0, 50), (3, 50), (50, 1000), (990, 1000)])
def test_known_rates_give_the_wilson_interval_of_the_window_alone(wrong: int, images: int) -> None:
    many = 10**12  # held-out images, so that their rate is known
    found = estimated([images], [many], [many * wrong // images])
    expected = stats.binomtest(wrong, images).proportion_ci(method="wilson")
    effective = images if wrong else None  # of a rate of 0 the variance is not that of a Wilson interval
    assert found.value == pytest.approx(wrong / images)
    if effective:
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert found.low <= found.value <= found.high


def test_few_held_out_images_widen_the_interval() -> None:
    widths = []
    for many in (10_000, 300, 30):
        found = estimated([600, 400], [many, many], [many // 20, many // 4])
        widths.append(found.high - found.low)
    assert widths[0] < 0.7 * widths[1] < 0.7 * widths[2]


@pytest.mark.parametrize("held_out", [200, 5_000])
def test_the_interval_covers_the_true_accuracy_of_95_windows_in_a_hundred(held_out: int) -> None:
    """Direct simulation: of the held-out images, and of a window with harder images."""
    rng = np.random.default_rng(held_out)
    rates, window = np.array([0.01, 0.05, 0.2, 0.5]), np.array([300, 250, 250, 200])
    shares = np.array([0.6, 0.2, 0.15, 0.05])
    covered, draws = 0, 2_000
    for _ in range(draws):
        images = rng.multinomial(held_out - 4, shares) + 1
        found = estimated(window, images, rng.binomial(images, rates))
        covered += found.low <= rng.binomial(window, rates).sum() / window.sum() <= found.high
    assert covered >= stats.binom.ppf(0.001, draws, 0.94)


@pytest.mark.parametrize(("hits", "images", "rate"), [(0, 10, 0.1), (3, 10, 0.1), (40, 1000, 0.02), (1000, 1000, 0.3)])
def test_the_test_of_the_gate_is_the_binomial_one(hits: int, images: int, rate: float) -> None:
    expected = stats.binomtest(hits, images, rate, alternative="greater").pvalue
    found = binomial_tail(hits, images, rate)
    assert found == pytest.approx(expected, rel=1e-6) or (hits <= images * rate and found == 1)


def test_bins_and_decisions_are_counted_as_in_the_file() -> None:
    running = RunningWindow(Window(OUTCOMES, 100))
    for uncertainty in (0.1, 0.11, 0.9):  # an edge belongs to the bin below, as in the counts of the file
        running.add(answer(uncertainty))
    running.add(answer(0.9, "reject", "uncertain"))
    running.add(answer(0.0, None))
    estimate = running.estimate(0.01, alarm=False)
    assert estimate is not None
    assert (estimate.images, estimate.accepted, estimate.doubts) == (5, 3, ())
    assert estimate.accuracy.value == pytest.approx(1 - (2 * 0.01 + 0.2 + 2 * 0.5) / 5)
    assert estimate.accepted_error is not None
    assert estimate.accepted_error.value == pytest.approx((0.01 + 0.2 + 0.5) / 3)
    assert estimate.coverage is not None
    assert estimate.coverage.value == pytest.approx((2 * 796 / 800 + 145 / 150 + 2 * 48 / 50) / 5)
    assert "of the 3 accepted" in estimate.sentence


def test_a_gate_that_rejects_more_than_its_level_raises_a_doubt() -> None:
    running = RunningWindow(Window(OUTCOMES, 200))
    for number in range(200):
        running.add(answer(0.3, "reject", "both") if number % 50 == 0 else answer(0.05))
    quiet = running.estimate(0.01, alarm=False)
    for _ in range(10):
        running.add(answer(0.3, "reject", "out-of-distribution"))
    loud, alarmed = running.estimate(0.01, alarm=False), running.estimate(0.01, alarm=True)
    assert quiet is not None
    assert loud is not None
    assert alarmed is not None
    assert (len(quiet.doubts), len(loud.doubts), len(alarmed.doubts)) == (0, 1, 2)
    assert "rejected as out of distribution" in loud.sentence
    assert "DO NOT BELIEVE" not in quiet.sentence


def test_a_window_forgets_and_continues_from_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    monitor = Monitor.start(stored(rng), window=Window(OUTCOMES, 50))
    path, values = tmp_path / "state.json", rng.random(200) ** 3
    for value in values[:100]:
        monitor.add_scores(answer(float(value)))
    monitor.save(path)
    after = Monitor.load(path)
    for value in values[100:]:
        monitor.add_scores(answer(float(value)))
        after.add_scores(answer(float(value)))
    only_last = RunningWindow(Window(OUTCOMES, 50))
    for value in values[-50:]:
        only_last.add(answer(float(value)))
    assert monitor.report().estimate == after.report().estimate
    assert replace(monitor.report().estimate, doubts=()) == only_last.estimate(0.01, alarm=False)  # type: ignore[type-var]
    assert len(monitor.state.window.answers) == 50  # type: ignore[union-attr]


def test_an_older_state_loads_and_says_that_the_estimate_is_missing(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    monitor, path = Monitor.start(stored(rng), window=Window(OUTCOMES)), tmp_path / "state.json"
    monitor.add_scores(answer(0.2))
    monitor.save(path)
    document = json.loads(path.read_text())
    del document["window"]
    path.write_text(json.dumps(document))
    older = Monitor.load(path)
    older.add_scores(answer(0.2))
    assert older.report().estimate is None
    assert "No estimate of the accuracy" in older.report().estimated


@pytest.mark.parametrize(
    ("key", "value"), [("answers", [15]), ("answers", [-1]), ("size", 0), ("size", 10**6), ("outcomes", {})]
)
def test_a_damaged_window_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "state.json"
    Monitor.start(stored(np.random.default_rng(1)), window=Window(OUTCOMES)).save(path)
    document = json.loads(path.read_text())
    document["window"][key] = value
    path.write_text(json.dumps(document))
    with raises("monitor.not-a-state"):
        Monitor.load(path)


def test_bins_come_from_the_counts_of_the_file_and_none_is_empty() -> None:
    metadata = Model(MODEL, "cpu").metadata
    rng = np.random.default_rng(2)
    uncertainty = np.round(rng.random(300) ** 2, 1).astype(np.float32)
    wrong = rng.random(300) < uncertainty / 2
    counted = guarantee.count(uncertainty, wrong).to_document()
    held_out = HeldOut.from_document(counted | {"samples": 25, "seed": 0, "data": "", "grouped": False})
    rule = RejectRule(limits=(0.255,))
    found = outcomes_of(replace(metadata, outputs=(), rule=rule, sets=None, held_out=held_out))
    assert found is not None
    assert min(found.images) > 0
    assert (sum(found.images), sum(found.errors)) == (300, int(wrong.sum()))
    assert {int(counted["accepted"][25])} <= set(np.cumsum(found.images).tolist())  # a bin ends at the threshold
    for low, high, images, errors in zip((-1, *found.steps), found.steps, found.images, found.errors, strict=False):
        inside = (uncertainty > np.float32(low / 100)) & (uncertainty <= np.float32(high / 100))
        assert (images, errors) == (inside.sum(), wrong[inside].sum())


def test_commands_print_the_estimate_of_a_calibrated_file(digits: Digits, call: Call, tmp_path: Path) -> None:
    from uce_edge.calibration.label_sets import SetPromise
    from uce_edge.contract import Method
    from uce_edge.datasets import splits
    from uce_edge_export.recalibration import recalibrate

    data, file, state = splits.load("digits"), tmp_path / "m.onnx", tmp_path / "state.json"
    done = recalibrate(
        digits.deterministic, file, data.splits["calibration"], Method.TEMPERATURE, sets=SetPromise(0.1),
        held_out=data.splits["guarantee"],
    )  # fmt: skip
    counted = done.metadata.held_out
    assert counted is not None
    assert done.metadata.sets is not None
    assert counted.covered is not None
    assert counted.covered[-1] == round(done.metadata.sets.coverage * counted.accepted[-1])
    test = data.splits["test"]
    monitor = Monitor.of(Model(file, "cpu"), window=200)
    prediction = Model(file, "cpu").predict(test.images[:300], reject="auto" if done.metadata.rule else None)
    for image in prediction:
        monitor.add(image)
    monitor.save(state)
    report = json.loads(call("monitor", "--state", state, "--json").out)
    estimate = report["estimate"]
    true = float((prediction.class_ids == test.labels[:300])[-200:].mean())
    assert estimate["images"] == 200
    low, high = (estimate["accuracy"][end] for end in ("low", "high"))
    assert low - 0.01 <= true <= high + 0.01  # one window: a 95 % interval may miss it by a little
    assert estimate["coverage"]["low"] <= 0.95
    assert "of the labels are right" in call("monitor", "--state", state).out
    assert call("monitor", "--state", state, "--window", 300).code == 2


def test_a_window_of_a_file_without_counts_is_refused(tmp_path: Path, call: Call) -> None:
    state, model = tmp_path / "state.json", Model(GOLDEN / "digits-mc.onnx", "cpu")
    with publish(graph_of(model), replace(model.metadata, held_out=None), tmp_path / "bare.onnx"):
        pass
    start = ("monitor", "--model", tmp_path / "bare.onnx", "--reference", "digits", "--state", state)
    assert call(*start, "--window", 300).error == "argument.window"
    assert not state.exists()
    assert call(*start).code == 0
