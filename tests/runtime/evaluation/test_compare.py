"""Comparing files: paired differences, ties that are called ties, and a sentence that follows from both."""

import dataclasses
import json
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.errors import raises

from uce_edge import metrics, models
from uce_edge.bench.measurements import Measurement
from uce_edge.bench.sweep import side_by_side
from uce_edge.contract import Inference
from uce_edge.datasets import splits
from uce_edge.evaluation import comparison, evaluate, ood, score_intervals
from uce_edge.evaluation.comparison import Price
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.metrics import intervals
from uce_edge.output.report import comparison_tables, verdict
from uce_edge.runtime.model import Model

QUICK = 40  # resamples


@pytest.fixture(scope="module")
def hard() -> SimpleNamespace:
    """Test digits, every second half erased: right and wrong answers."""
    test = splits.load("digits").splits["test"].at_most(200)
    images = test.images.copy()
    images[::2, :, 4:] = 0
    return SimpleNamespace(images=images, labels=test.labels)


@pytest.fixture(scope="module")
def evaluations(hard):
    foreign = np.random.default_rng(1).integers(0, 256, (40, 8, 8, 1)).astype(np.uint8)
    return {
        name: evaluate(
            Model(GOLDEN / f"digits-{name}.onnx", "cpu"), hard.images, hard.labels, outside={"noise": foreign},
            resamples=QUICK,
        )
        for name in ("mc", "moments", "novelty")
    }  # fmt: skip


def price(macs: int, milliseconds: float | None = None) -> Price:
    timed = None
    if milliseconds is not None:
        timed = Measurement(25, 1, milliseconds, milliseconds, milliseconds, 1.0, None, 1.0, milliseconds, milliseconds)
    return Price(25, 0.1, macs, timed)


@pytest.fixture(scope="module")
def found(evaluations):
    prices = {"mc": price(100), "moments": price(20), "novelty": price(110)}
    return comparison.compare(evaluations, prices)


def said(evaluation, probabilities):
    """An evaluation of other probabilities on the same images."""
    table = probabilities.astype(np.float32)
    entropy = metrics.normalized_entropy(table).astype(np.float32)
    answers = ModelOutputs(table, entropy, np.zeros_like(entropy))
    measured = score_intervals.measure(answers.table, evaluation.truth, QUICK)
    reliability = {
        kind: dataclasses.replace(one, test=metrics.calibration_test(table, evaluation.truth, kind=kind))
        for kind, one in evaluation.reliability.items()
    }
    return dataclasses.replace(evaluation, answers=answers, metrics=measured, reliability=reliability, ood=())


@pytest.fixture(scope="module")
def made(evaluations):
    """A comparison of files that say these probabilities of the same images, at these prices."""

    def compared_as(files, costs):
        base = evaluations["mc"]
        told = {name: said(base, table) for name, table in files.items()}
        return comparison.compare(told, {name: price(cost) for name, cost in costs.items()})

    return compared_as


def sure(hard, share, right=0.9, seed=0):
    """Probabilities that are right for a share of the images."""
    rng = np.random.default_rng(seed)
    label = np.where(rng.random(len(hard.labels)) < share, hard.labels, (hard.labels + 1) % 10)
    return np.where(np.arange(10) == label[:, None], right, (1 - right) / 9)


# The numbers.


def test_a_difference_is_that_of_the_metrics_and_its_interval_is_paired(found, evaluations):
    tables = {name: one.answers.probabilities for name, one in evaluations.items()}
    labels = evaluations["mc"].truth
    for name in ("nll", "aurc"):
        metric, told = getattr(metrics, name), found["moments"].differences[name]
        assert told.value == pytest.approx(metric(tables["moments"], labels) - metric(tables["mc"], labels), abs=1e-9)
        alone = [metrics.interval(name, tables[file], labels) for file in ("moments", "mc")]
        assert told.low <= told.value <= told.high
        assert told.high - told.low < sum(one.high - one.low for one in alone)
    assert found["mc"].differences == {}, "the reference has none to itself"


def test_the_reference_is_the_first_deterministic_network_or_else_the_first_file(evaluations):
    described = {name: one.metadata for name, one in evaluations.items()}
    assert comparison.reference_of(described) == "mc"
    plain = dataclasses.replace(described["moments"], inference=Inference.DETERMINISTIC)
    assert comparison.reference_of(described | {"moments": plain}) == "moments"
    assert comparison.reference_of(described | {"moments": dataclasses.replace(plain, members=3)}) == "mc"


def test_the_stored_rule_accepts_what_the_model_accepts(hard, found):
    for name in ("mc", "novelty"):
        prediction = Model(GOLDEN / f"digits-{name}.onnx", "cpu").predict(hard.images, reject="auto")
        accepted = np.array([decision == "accept" for decision in prediction.decisions])
        kept = found[name].kept
        assert kept.accepted.tolist() == accepted.tolist()
        assert kept.coverage == pytest.approx(accepted.mean())
        assert kept.error == pytest.approx((prediction.class_ids != hard.labels)[accepted].mean())
        assert kept.error < kept.error_bound
    assert found["novelty"].coverage.value == pytest.approx(found["novelty"].kept.coverage - found["mc"].kept.coverage)


def test_foreign_images_are_compared_by_every_score_that_both_files_have(found, evaluations):
    gap = found["novelty"].ood["noise"]
    assert set(gap) == {"uncertainty"}, "the reference cannot tell what is foreign"
    areas = {name: one.ood[0].detection["uncertainty"].auroc.value for name, one in evaluations.items()}
    assert gap["uncertainty"].value == pytest.approx(areas["novelty"] - areas["mc"])
    assert comparison.best_score(evaluations["novelty"], 0)[0] == "both"
    told = found.standing("foreign")
    assert told.about == "noise"
    assert set(told.differences) | {told.best} == set(evaluations)


def test_a_paired_difference_of_two_sets_is_narrower_than_an_unpaired_one(rng):
    inside, outside = rng.normal(size=300), rng.normal(1, 1, 200)
    other = (inside + 0.01 * rng.normal(size=300), outside + 0.01 * rng.normal(size=200))
    paired = ood.auroc_difference((inside, outside), other)
    alone = intervals.separation(inside, outside).interval()
    assert paired.low <= paired.value <= paired.high
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)
    same = ood.auroc_difference((inside, outside), (inside, outside))
    assert same.low < same.value == 0 < same.high, "an image that is not here may make a difference"


def test_one_image_makes_no_difference(hard):
    """Two models that differ in one image of 200."""
    first = sure(hard, 0.9)
    second = first.copy()
    at = int(np.argmax(first.argmax(1) == hard.labels))
    second[at] = np.roll(second[at], 1)
    for metric in ("accuracy", "nll", "aurc"):
        assert comparison.holds_zero(metrics.difference(metric, first, second, hard.labels))
        assert comparison.holds_zero(metrics.bootstrap_difference(getattr(metrics, metric), first, second, hard.labels))


def test_files_take_turns_and_the_reference_costs_one():
    files = {name: GOLDEN / f"digits-{name}.onnx" for name in ("mc", "moments")}
    measured = side_by_side(files, "mc", device="cpu", threads=1, rounds=1)
    assert (measured["mc"].samples, measured["moments"].samples) == (25, 100)
    assert (measured["mc"].ratio, measured["mc"].ratio_best) == (1, 1)
    assert measured["moments"].ratio == pytest.approx(measured["moments"].p50_ms / measured["mc"].p50_ms, rel=0.01)


# The sentence.


def test_files_that_say_the_same_are_a_tie_and_the_cheapest_is_named(made, hard):
    table = sure(hard, 0.8)
    tie = made({"a": table, "b": table}, {"a": 10, "b": 30})
    assert tie.winner == "a"
    assert all(set(standing.tied) == {"a", "b"} for standing in tie.standings)
    assert verdict.sentence(tie).startswith(
        "A tie: on these 200 images no file is better than another in accuracy, NLL or AURC beyond chance. "
        "a costs least; the other takes 3 times its multiply-accumulates."
    )


def test_a_better_file_wins_with_what_it_costs_and_what_is_no_better_is_named(made, hard):
    better = sure(hard, 0.95)
    won = made({"plain": sure(hard, 0.6), "good": better, "dear": better}, {"plain": 10, "good": 20, "dear": 250})
    assert won.winner == "good"
    sentence = verdict.sentence(won)
    assert sentence.startswith("good wins: better than plain in accuracy +")
    assert "for 2 times its multiply-accumulates." in sentence
    assert "No better beyond chance: dear (25x)." in sentence
    assert ("Accuracy", "A tie of good") in [(about, text[:13]) for about, text in verdict.findings(won)]
    assert "Worse: plain −" in dict(verdict.findings(won))["Accuracy"]


def test_a_reference_that_none_beats_wins(made, hard):
    won = made({"plain": sure(hard, 0.95), "worse": sure(hard, 0.5)}, {"plain": 10, "worse": 20})
    assert verdict.sentence(won).startswith(
        "plain wins: on these 200 images no other file is better in accuracy, NLL or AURC beyond chance; the other "
        "takes 2 times its multiply-accumulates."
    )


def test_files_that_are_best_at_different_things_have_no_winner(made, hard):
    """One has the better labels, the other the better probabilities."""
    split = made({"labels": sure(hard, 0.85, 0.9999), "odds": sure(hard, 0.7, 0.7)}, {"labels": 10, "odds": 20})
    assert split.winner is None
    sentence = verdict.sentence(split)
    assert sentence.startswith("No file wins on these 200 images: accuracy is best with labels (1x);")
    assert "NLL is best with odds (2x);" in sentence
    assert "But labels is not calibrated." in sentence


def test_a_winner_that_only_ties_with_the_reference_is_not_called_better(made, hard):
    """The reference lost to a file that costs more; the winner ties with both."""
    better = sure(hard, 0.95)
    won = made({"plain": sure(hard, 0.6), "good": better, "dear": better}, {"plain": 10, "good": 20, "dear": 250})
    tie, worse = (metrics.Interval(value, low, 0.2) for value, low in ((0.0, -0.2), (0.1, 0.05)))

    def told(**differences):
        files = [dataclasses.replace(one, differences=differences) if one.name == "good" else one for one in won.files]
        return verdict.sentence(dataclasses.replace(won, files=tuple(files)))

    assert told(accuracy=tie, nll=tie, aurc=tie).startswith(
        "good wins: no file is better beyond chance, and another one is better than plain, for 2 times"
    )
    mixed = told(accuracy=worse, nll=worse, aurc=tie)
    assert (
        "better than plain in accuracy +10.0 % (+5.0 to +20.0), worse in NLL +0.100 (+0.050 to +0.200), a tie in"
        in mixed
    )


def test_a_winner_that_is_overconfident_or_lost_calibration_is_not_praised_alone(made, hard):
    """The better labels come with claims of 99.9 %; the other file is right as often as it says."""
    won = made({"honest": sure(hard, 0.5, 0.5), "loud": sure(hard, 0.85, 0.999)}, {"honest": 10, "loud": 10})
    loud = won["loud"]
    assert loud.evaluation.reliability["uncertainty"].test.verdict == "overconfident"
    told = verdict.sentence(dataclasses.replace(won, winner="loud"))
    assert "But loud is not calibrated. By uncertainty it is overconfident" in told
    assert "The Debiased T-UCE of loud is larger than of honest: +" in told
    assert "not calibrated" not in verdict.sentence(dataclasses.replace(won, winner="honest"))


def test_a_file_that_only_gains_a_little_nll_and_loses_its_calibration_does_not_win(made, hard):
    table = sure(hard, 0.8, 0.8)
    plain = made({"plain": table, "loud": table}, {"plain": 10, "loud": 10})
    better, worse, tie = (
        metrics.Interval(*values) for values in ((-0.008, -0.01, -0.006), (0.054, 0.04, 0.07), (0, -1, 1))
    )

    def winner(**differences):
        files = [dataclasses.replace(one, differences=differences) for one in plain.files if one.name == "loud"]
        return comparison._winner(files, plain.standings)

    assert winner(accuracy=tie, nll=better, debiased_ece=tie) == "loud"
    assert winner(accuracy=tie, nll=better, debiased_ece=worse) is None
    labels = metrics.Interval(0.05, 0.02, 0.08)
    assert winner(accuracy=labels, nll=better, debiased_ece=worse) == "loud", "a constant prediction has no error"


def test_time_is_told_before_multiply_accumulates(evaluations):
    prices = {"mc": price(100, 1.0), "moments": price(20, 0.4), "novelty": price(110, 1.2)}
    timed = comparison.compare(evaluations, prices, threads=2)
    assert timed["moments"].ratio == 0.4
    assert timed["moments"].macs_ratio == 0.2
    assert "2 threads" in comparison_tables.how_timed(timed)
    assert comparison_tables.prices(timed).rows[1][4:] == ["0.2x", "0.4", "0.4x", "0.4", "0.4x"]


# The command.


@pytest.fixture
def comparing(call, monkeypatch, tmp_path, hard):
    """`uce-edge compare` on hard digits, with few resamples and nothing timed."""
    monkeypatch.setattr(evaluate, "__kwdefaults__", evaluate.__kwdefaults__ | {"resamples": 4})
    np.savez(tmp_path / "hard.npz", x=hard.images[:60], y=hard.labels[:60])
    return partial(call, "compare", "--data", tmp_path / "hard.npz", "--no-latency")


FILES = (GOLDEN / "digits-mc.onnx", GOLDEN / "digits-novelty.onnx")


def test_a_comparison_is_tables_a_sentence_and_a_page_that_no_name_can_break(comparing, tmp_path):
    hostile = tmp_path / "<img src=x>&.onnx"
    shutil.copy(GOLDEN / "digits-moments.onnx", hostile)
    page = tmp_path / "compare.html"
    noise = np.random.default_rng(1).integers(0, 256, (20, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "noise.npz", x=noise, y=np.zeros(20, np.int64))
    done = comparing(*FILES, hostile, "--ood", tmp_path / "noise.npz", "--report", page)
    assert done.code == 0, done.err
    for line in (
        "file ",
        "less digits-mc.onnx ",
        "the stored rule ",
        "out of distribution: noise.npz ",
        "price of one image ",
    ):
        assert f"\n{line}" in f"\n{done.out}"
    assert "Only 60 images" in done.err
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text
    assert "&lt;img src=x&gt;&amp;.onnx" in text
    for name in ("risk-coverage", "gaps", "price-nll", "price-aurc"):
        assert f'id="chart-{name}"' in text
    assert "errors that are too rare to be among these images" in text


def test_json_is_alone_on_stdout_and_has_every_evaluation(comparing):
    done = comparing(*FILES, "--json", "--images", 50)
    document = json.loads(done.out)
    assert document["reference"] == "digits-mc.onnx"
    assert [one["name"] for one in document["files"]] == ["digits-mc.onnx", "digits-novelty.onnx"]
    other = document["files"][1]
    assert other["evaluation"]["images"] == 50
    assert set(other["differences"]["nll"]) == {"value", "low", "high"}
    assert other["price"]["macs"] > document["files"][0]["price"]["macs"]
    assert document["verdict"] in done.err


def test_images_that_a_network_was_trained_on_are_announced_with_its_name(comparing, tmp_path):
    trained = splits.load("digits").splits["train"]
    np.savez(tmp_path / "seen.npz", x=trained.images[:40], y=trained.labels[:40])
    done = comparing(*FILES, "--data", tmp_path / "seen.npz")
    assert "40 of these images" in done.err


def test_files_of_one_name_are_told_apart_by_their_folders(comparing, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(GOLDEN / "digits-mc.onnx", tmp_path / folder / "model.onnx")
    done = comparing(tmp_path / "a" / "model.onnx", tmp_path / "b" / "model.onnx")
    assert "\na/model.onnx " in done.out
    assert "A tie: " in done.err


def test_what_cannot_be_compared_is_refused_in_a_sentence(comparing, tmp_path):
    assert "2 to 12" in comparing(FILES[0]).err
    assert "twice" in comparing(FILES[0], FILES[0]).err
    other = comparing(FILES[0], models.bundled(Inference.MC, "cifar10")).err
    assert "classes of cifar10-mc.onnx" in other
    assert ".html" in comparing(*FILES, "--report", tmp_path / "x.pdf").err
    assert comparing(FILES[0], tmp_path / "none.onnx").code == 1


def test_files_that_take_other_images_are_refused(evaluations):
    described = {name: one.metadata for name, one in evaluations.items()}
    large = dataclasses.replace(described["moments"].image, height=16)
    described["moments"] = dataclasses.replace(described["moments"], image=large)
    with raises("comparison.image"):
        comparison.check_alike(described)
