"""Rejecting by the confidence: the promise is about what is compared, and older readers keep one of their own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call
from port_cases import variant
from uce_edge_export.gating import add_gate

from uce_edge import contract
from uce_edge.contract import Method
from uce_edge.datasets.splits import Dataset, load
from uce_edge.errors import UsageError
from uce_edge.evaluation import rejection
from uce_edge.evaluation.answers import Answers
from uce_edge.metadata import Metadata
from uce_edge.model import Model
from uce_edge.prediction import Decision, Limits, Prediction
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import NoveltyPromise, Promise, RejectBy
from uce_edge.report import words
from uce_edge_export.promise import Known, chosen_score
from uce_edge_export.recalibrating import recalibrate


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load("digits")


@pytest.fixture(scope="module")
def file(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden file that rejects by its confidence, after the gate against foreign images."""
    out = tmp_path_factory.mktemp("score") / "m.onnx"
    calibration, held_out = dataset.splits["calibration"], dataset.splits["guarantee"]
    promise = Promise(0.02, score=RejectBy.CONFIDENCE)
    done = recalibrate(
        GOLDEN / "digits-mc.onnx", out, calibration, Method.TEMPERATURE, None, 0, promise, NoveltyPromise(), held_out
    )
    assert done.measured.refused is None
    return out


def test_the_promise_is_about_the_confidence_of_what_is_familiar(file: Path, dataset: Dataset) -> None:
    model, kept = Model(file, "cpu"), dataset.splits["guarantee"]
    metadata, said = model.metadata, model.predict(kept.images, reject="auto")
    assert metadata.rule is not None
    assert metadata.doubt is not None
    assert said.novelty is not None
    familiar = said.novelty > np.float32(metadata.rule.foreign.cutoff)
    wrong, doubt = said.class_ids != kept.labels, np.float32(1) - said.probabilities.max(-1)
    wanted = guarantee.find(doubt[familiar], wrong[familiar], 0.02, 0.95)
    assert (metadata.doubt.threshold, metadata.doubt.accepted) == (wanted.threshold, wanted.accepted)
    accepted = familiar & (doubt <= np.float32(metadata.doubt.threshold))
    assert [decision == "accept" for decision in said.decisions] == accepted.tolist()
    assert accepted.sum() == metadata.doubt.accepted
    assert metadata.promised is metadata.doubt


def test_an_evaluation_is_about_what_is_applied(file: Path, dataset: Dataset) -> None:
    model, test = Model(file, "cpu"), dataset.splits["test"]
    metadata, said = model.metadata, model.predict(test.images, reject="auto")
    assert metadata.doubt is not None
    answers = Answers(said.probabilities, said.uncertainty, said.model_uncertainty, said.novelty, said.novelty_score)
    wrong = said.class_ids != test.labels
    kept = rejection.kept(answers, wrong, metadata)
    assert kept is not None
    assert kept.accepted.tolist() == [decision == "accept" for decision in said.decisions]
    (point,) = rejection.operating_points(answers, wrong, None, metadata.reject)
    gated = rejection.gated(answers, wrong, rejection.gate_of(metadata, point), metadata.rule)
    assert gated is not None
    assert (gated.threshold, gated.doubt, gated.coverage) == (None, metadata.doubt.threshold, kept.coverage)
    assert words.limit(gated.threshold, gated.doubt).startswith("confidence at least")


def test_a_gate_that_is_added_later_keeps_the_promise_about_the_confidence(dataset: Dataset, tmp_path: Path) -> None:
    source = variant(tmp_path, lambda about: about.update(doubt=about["reject"]))
    calibration, held_out = dataset.splits["calibration"], dataset.splits["guarantee"]
    metadata = add_gate(source, tmp_path / "gated.onnx", calibration, held_out)
    assert metadata.doubt is not None
    said = Model(tmp_path / "gated.onnx", "cpu").predict(held_out.images, reject="auto")
    assert said.decisions.count(Decision.ACCEPT) == metadata.doubt.accepted


def test_a_reader_that_does_not_know_it_has_the_promises_about_the_uncertainty(file: Path) -> None:
    document = json.loads(file.with_suffix(".json").read_text())
    document.pop("doubt")
    older = Metadata.from_document(document)
    assert older.reject is not None
    assert older.rule is not None
    assert older.rule.uncertain is not None
    assert Limits.stored(older) == Limits(older.rule.uncertain.threshold, older.rule.foreign.cutoff)


def test_people_are_told_that_it_is_the_confidence(file: Path, dataset: Dataset, call: Call, tmp_path: Path) -> None:
    from PIL import Image

    for index in range(8):
        Image.fromarray(dataset.splits["test"].images[index, ..., 0]).save(tmp_path / f"{index}.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "black.png")
    doubt = Model(file, "cpu").metadata.doubt
    assert doubt is not None
    least = f"{100 * (1 - doubt.threshold):.4g} %"
    assert f"Images with a confidence below {least} are rejected" in call("info", file).out
    rows = json.loads(call("predict", tmp_path, "--model", file, "--reject", "auto", "--json").out)
    assert {(row["threshold"], row["doubt"]) for row in rows} == {(None, doubt.threshold)}
    assert {row["decision"] for row in rows} == {"accept", "reject"}
    assert (
        f"its confidence is at least {least}"
        in call("predict", tmp_path / "0.png", "--model", file, "--reject", "auto").out
    )
    refused = call("calibrate", file, "--data", "digits", "--score", "confidence")
    assert "add --target-error" in refused.err


def test_thresholds_are_compared_in_float32() -> None:
    confidence = np.array([0.75, np.nextafter(np.float32(0.75), np.float32(0)), np.nan], np.float32)
    limits = Limits(doubt=0.25)
    assert limits.accept(np.zeros(3, np.float32), None, confidence[:, None]).tolist() == [True, False, False]
    assert (limits.why(None), limits.decide) == ("its confidence is at least 75 %", True)


def known(probabilities: np.ndarray, labels: np.ndarray) -> Known:
    blank = np.zeros(len(labels), np.float32)
    p = probabilities.astype(np.float32)
    said = Prediction(
        class_ids=p.argmax(-1).astype(np.int32), labels=[""] * len(p), probabilities=p, uncertainty=blank,
        model_uncertainty=blank, standard_error=blank, error_probability=blank, decisions=[None] * len(p), samples=1,
        drawn=np.ones(len(p), np.int32), seed=0,
    )  # fmt: skip
    return Known(said, labels)


def test_auto_takes_the_confidence_only_where_it_is_better_beyond_doubt(rng: np.random.Generator) -> None:
    """Classes that are often wrong between two, and right among many: there the entropy misleads."""
    n = 1000
    two = np.tile([0.52, 0.48, 0, 0, 0, 0], (n, 1))
    many = np.tile([0.6, 0.08, 0.08, 0.08, 0.08, 0.08], (n, 1))
    p = np.concatenate([two, many]) + rng.uniform(0, 1e-3, (2 * n, 6))
    p /= p.sum(-1, keepdims=True)
    labels = np.array([rng.choice(6, p=row) for row in p])
    assert chosen_score(known(p, labels)) is RejectBy.CONFIDENCE
    assert chosen_score(known(p[:40], labels[:40])) is RejectBy.UNCERTAINTY
    assert chosen_score(known(p[:n], labels[:n])) is RejectBy.UNCERTAINTY


def test_a_confidence_that_cannot_promise_promises_nothing(dataset: Dataset, tmp_path: Path) -> None:
    few = dataset.splits["guarantee"].at_most(100)
    few = replace(few, labels=(few.labels + 1) % 10)  # every answer is wrong
    promise = Promise(0.1, score=RejectBy.CONFIDENCE)
    source, calibration = GOLDEN / "digits-mc.onnx", dataset.splits["calibration"].at_most(60)
    done = recalibrate(source, tmp_path / "m.onnx", calibration, Method.TEMPERATURE, None, 0, promise, None, few)
    assert done.measured.refused is not None
    assert (done.metadata.reject, done.metadata.doubt) == (None, None)
    with pytest.raises(UsageError, match="no stored threshold"):
        Model(tmp_path / "m.onnx", "cpu").limits("auto")
    assert contract.doubt([1.0]).tolist() == [0.0]
