"""A promise for every label: what is stored, what is applied, what people and older readers are told."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call
from PIL import Image
from uce_edge_export.gating import add_gate

from uce_edge.contract import Method
from uce_edge.datasets.splits import Dataset, load
from uce_edge.errors import UsageError
from uce_edge.evaluation import rejection
from uce_edge.evaluation.answers import Answers
from uce_edge.metadata import Metadata
from uce_edge.model import Model
from uce_edge.prediction import Limits, Reason
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyPromise, Promise, RejectBy
from uce_edge_export.recalibrating import Recalibrated, recalibrate

ASKED = {"3": 0.01, "8": 0.25, "other": 0.35}
"""The few digits that are labelled 3 cannot prove 1 %."""


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load("digits")


def calibrated(dataset: Dataset, out: Path, novelty: NoveltyPromise | None, asked: dict[str, float]) -> Recalibrated:
    calibration, held_out = dataset.splits["calibration"], dataset.splits["guarantee"]
    if novelty is None:
        calibration = calibration.at_most(60)
    return recalibrate(
        GOLDEN / "digits-mc.onnx", out, calibration, Method.TEMPERATURE, None, 0, Promise.of_classes(asked), novelty,
        held_out,
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("classes") / "m.onnx"
    assert calibrated(dataset, out, NoveltyPromise(), ASKED).measured.refused is None
    return out


@pytest.fixture(scope="module")
def pictures(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve digits, and one that is always rejected: a 3."""
    folder, test = tmp_path_factory.mktemp("pictures"), dataset.splits["test"]
    for index in [*range(12), int(np.flatnonzero(test.labels == 3)[0])]:
        Image.fromarray(test.images[index, ..., 0]).save(folder / f"{index}.png")
    return folder


def test_every_label_is_compared_with_its_own_limit(file: Path, dataset: Dataset) -> None:
    model, kept = Model(file, "cpu"), dataset.splits["guarantee"]
    metadata, said = model.metadata, model.predict(kept.images, reject="auto")
    stored = metadata.per_class
    assert stored is not None
    assert metadata.rule is not None
    assert said.novelty is not None
    familiar = said.novelty > np.float32(metadata.rule.foreign.cutoff)
    wrong, targets = said.class_ids != kept.labels, [ASKED.get(name, 0.35) for name in model.classes]
    among = (said.uncertainty[familiar], wrong[familiar], said.class_ids[familiar])
    wanted = per_class.find(*among, targets, 0.95, model.classes)
    assert stored.thresholds == tuple(limit.threshold for limit in wanted.limits)
    assert (stored.thresholds[3], stored.limits[3].accepted, stored.tested) == (-1, 0, 9)
    own = np.array(stored.thresholds, np.float32)[said.class_ids]
    accepted = familiar & (said.uncertainty <= own)
    assert [decision == "accept" for decision in said.decisions] == accepted.tolist()
    assert [limit.accepted for limit in stored.limits] == [
        int((accepted & (said.class_ids == index)).sum()) for index in range(10)
    ]
    assert stored.coverage == accepted.mean()
    assert metadata.promised is stored
    assert stored.target_error == 0.35


def test_an_evaluation_counts_every_label_by_its_own_limit(file: Path, dataset: Dataset) -> None:
    model, test = Model(file, "cpu"), dataset.splits["test"]
    metadata, said = model.metadata, model.predict(test.images, reject="auto")
    answers = Answers(said.probabilities, said.uncertainty, said.model_uncertainty, said.novelty, said.novelty_score)
    wrong = said.class_ids != test.labels
    rows = rejection.kept_classes(answers, wrong, metadata)
    accepted = np.array([decision == "accept" for decision in said.decisions])
    assert sum(row.accepted for row in rows) == accepted.sum()
    assert (rows[3].accepted, rows[3].target_error, rows[8].target_error) == (0, None, 0.25)
    kept = rejection.kept(answers, wrong, metadata)
    assert kept is not None
    assert kept.accepted.tolist() == accepted.tolist()
    (point,) = rejection.operating_points(answers, wrong, None, metadata.reject)
    gated = rejection.gated(answers, wrong, rejection.gate_of(metadata, point), metadata.rule)
    assert gated is not None
    assert (gated.per_class, gated.coverage) == (True, kept.coverage)


def test_a_reader_that_does_not_know_it_has_a_promise_for_all_labels_or_none(file: Path, dataset: Dataset) -> None:
    document = json.loads(file.with_suffix(".json").read_text())
    stored = Metadata.from_document(document)
    assert stored.per_class is not None
    assert Metadata.from_document(stored.to_document()) == stored
    document.pop("per_class")
    older = Metadata.from_document(document)
    assert older.rule is not None
    # 1 % is the strictest error that was asked for, and the images are too few for it: no error is promised.
    assert (older.reject, older.rule.uncertain) == (None, None)
    assert Limits.stored(older) == Limits(None, older.rule.foreign.cutoff)


def test_the_strictest_error_is_promised_to_older_readers_where_it_can_be(dataset: Dataset, tmp_path: Path) -> None:
    done = calibrated(dataset, tmp_path / "m.onnx", None, {"8": 0.25, "other": 0.35})
    assert done.metadata.per_class is not None
    assert done.metadata.reject is not None
    assert (done.metadata.reject.target_error, done.metadata.reject.confidence) == (0.25, 0.95)
    gated = add_gate(tmp_path / "m.onnx", tmp_path / "g.onnx", dataset.splits["calibration"], dataset.splits["test"])
    assert gated.per_class is not None
    assert [limit.target_error for limit in gated.per_class.limits][7:] == [0.35, 0.25, 0.35]


def test_people_are_told_the_limit_of_the_label(file: Path, pictures: Path, call: Call, tmp_path: Path) -> None:
    stored = Model(file, "cpu").metadata.per_class
    assert stored is not None
    shown = call("info", file).out
    for name, limit in enumerate(stored.limits):
        if name != 3:
            assert f"{name}: accepted up to an uncertainty of {limit.threshold:.4g}, at most" in shown
    assert f"3: always rejected, because its {stored.limits[3].images} images cannot prove" in shown
    log = tmp_path / "log.jsonl"
    told = call("predict", pictures, "--model", file, "--reject", "auto", "--audit", log, "--json")
    rows = json.loads(told.out)
    assert [row["threshold"] for row in rows] == [stored.thresholds[row["class_id"]] for row in rows]
    assert {row["decision"] for row in rows} == {"accept", "reject"}
    replayed = call("replay", log, "--images", pictures, "--model", file)
    assert replayed.code == 0, replayed.err
    answers = list(Model(file, "cpu").answers(sorted(pictures.glob("*.png")), reject="auto"))
    accepted = next(answer for answer in answers if answer.decision == "accept")
    assert accepted.prediction is not None
    ending = f"at most {accepted.threshold:.4g}, the limit for {accepted.prediction.label}"
    assert accepted.why == accepted.prediction.why == f"like what it was calibrated on, and its uncertainty is {ending}"
    (three,) = {answer.why for answer in answers if answer.prediction and answer.prediction.label == "3"}
    assert three == "nothing that is labelled 3 is accepted"
    above = Limits(0.21, label="glioma").why(Reason.UNCERTAIN)
    assert above == "its uncertainty is above 0.21, the limit for glioma"


def test_passes_are_drawn_until_the_limit_of_the_label_is_settled(file: Path, dataset: Dataset) -> None:
    model, images = Model(file, "cpu"), dataset.splits["test"].images[:60]
    with pytest.warns(UserWarning, match="promise about the error does not hold"):
        early = model.predict(images, reject="auto", adaptive=0.05)
    every = model.predict(images, reject="auto")
    assert np.mean([a == b for a, b in zip(early.decisions, every.decisions, strict=True)]) > 0.95
    assert early.drawn.mean() < 25


def test_classes_that_do_not_exist_are_refused_with_those_that_do(call: Call, tmp_path: Path) -> None:
    def refused(target: str, *more: str) -> str:
        given = ("--data", "digits", "--out", tmp_path / "m.onnx", "--target-error", target, *more)
        said = call("calibrate", GOLDEN / "digits-mc.onnx", *given)
        assert said.code == 2
        return said.err

    assert "but got 'glioma'. The classes are: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in refused("glioma=0.02,other=0.1")
    assert "an error for every class, but got 'none for 0'. Add those" in refused("3=0.1")
    assert "strictly between 0 and 1" in refused("3=2,other=0.1")
    assert "a number, or CLASS=NUMBER" in refused("3=x,other=0.1")
    assert "one error for each class" in refused("3=0.1,3=0.2,other=0.1")
    assert "needs --score uncertainty, but got confidence" in refused("3=0.1,other=0.1", "--score", "confidence")
    with pytest.raises(UsageError, match="score"):
        Promise(0.1, score=RejectBy.CONFIDENCE, per_class={"other": 0.1})
    assert not list(tmp_path.iterdir())


def test_where_no_label_can_be_promised_nothing_is(dataset: Dataset, tmp_path: Path) -> None:
    done = calibrated(dataset, tmp_path / "m.onnx", None, {"other": 0.02})
    refused = done.measured.refused
    assert isinstance(refused, NoGuaranteeError)
    assert "No class can be promised its error" in str(refused)
    assert (refused.curve[0].target_error or 0) >= 0.02
    assert (done.metadata.per_class, done.metadata.reject) == (None, None)
