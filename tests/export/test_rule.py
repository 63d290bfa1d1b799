"""Two promises in one file: what is foreign is turned away, and of the rest what is uncertain."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Call, Digits
from PIL import Image

from uce_edge import contract
from uce_edge.calibration import guarantee
from uce_edge.calibration.novelty import USUAL, NoveltyError, cutoff
from uce_edge.calibration.promises import NoveltyPromise, Promise, StoredCutoff, StoredRule
from uce_edge.contract import Inference, Method, Precision
from uce_edge.datasets.splits import Split
from uce_edge.errors import ModelFileError, UsageError
from uce_edge.model import GuaranteeWarning, Model, SamplesWarning
from uce_edge.prediction import Decision, Limits, Reason
from uce_edge_export.options import Options
from uce_edge_export.recalibrating import recalibrate
from uce_edge_train import calibrating
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run

PROMISE, GATE = Promise(0.03, 0.9), NoveltyPromise()


@pytest.fixture(scope="module")
def run(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the digits that wants both promises."""
    folder = tmp_path_factory.mktemp("rule") / "run"
    shutil.copytree(digits.run, folder)
    calibrating.calibrate(folder, promise=PROMISE, novelty=GATE)
    return folder


@pytest.fixture(scope="module")
def file(digits: Digits, run: Path) -> Path:
    export_run(run, run.parent / "model.onnx", digits.dataset)
    return run.parent / "model.onnx"


def stored(path: Path) -> StoredRule:
    rule = Model(path, "cpu").metadata.rule
    assert rule is not None
    return rule


def noise(count: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)


def test_the_cutoff_is_that_of_the_half_of_the_calibration_images_that_nothing_was_fitted_on(
    digits: Digits, file: Path
) -> None:
    model, foreign = Model(file, "cpu"), stored(file).foreign
    scoring = digits.dataset.splits["calibration"].halves()[1]
    assert (foreign.images, foreign.data) == (len(scoring), scoring.sha256())
    assert foreign.level == USUAL
    assert foreign.cutoff == cutoff(135, USUAL).cutoff
    turned_away = contract.is_foreign(model.predict(scoring.images).novelty, foreign.cutoff)
    assert turned_away.sum() == int(foreign.cutoff * 136) - 1  # each image counts itself once more


def test_the_threshold_is_promised_for_what_both_let_through(digits: Digits, file: Path) -> None:
    model, rule = Model(file, "cpu"), stored(file)
    kept = digits.dataset.splits["guarantee"]
    said = model.predict(kept.images)
    familiar = said.novelty > np.float32(rule.foreign.cutoff)
    assert 0 < (~familiar).sum() < 0.1 * len(kept)
    wrong = said.class_ids != kept.labels
    wanted = guarantee.find(said.uncertainty[familiar], wrong[familiar], 0.03, 0.9)
    assert rule.uncertain is not None
    assert (rule.uncertain.threshold, rule.uncertain.accepted) == (wanted.threshold, wanted.accepted)
    assert (rule.uncertain.images, rule.uncertain.coverage) == (len(kept), wanted.accepted / len(kept))
    assert (rule.uncertain.samples, rule.uncertain.seed, rule.uncertain.data) == (25, 0, kept.sha256())
    # Readers that know no rule have the promise about the uncertainty alone.
    alone = guarantee.find(said.uncertainty, wrong, 0.03, 0.9)
    assert model.metadata.reject is not None
    assert model.metadata.reject.threshold == alone.threshold


def test_reject_auto_applies_the_rule_and_says_why(digits: Digits, file: Path) -> None:
    model, rule = Model(file, "cpu"), stored(file)
    test = digits.dataset.splits["test"].images
    doubtful = ((test.astype(int) + np.roll(test, 1, axis=0)) // 2).astype(np.uint8)  # two digits in one picture
    images = np.concatenate([test, doubtful, noise()])
    said = model.predict(images, reject="auto")
    assert rule.uncertain is not None
    uncertain = said.uncertainty > np.float32(rule.uncertain.threshold)
    foreign = said.novelty <= np.float32(rule.foreign.cutoff)
    names = {(0, 0): None, (1, 0): Reason.UNCERTAIN, (0, 1): Reason.FOREIGN, (1, 1): Reason.BOTH}
    assert said.reasons == [names[u, f] for u, f in zip(uncertain, foreign, strict=True)]
    assert {Reason.UNCERTAIN, Reason.FOREIGN, None} <= set(said.reasons)
    assert said.decisions == [Decision.ACCEPT if reason is None else Decision.REJECT for reason in said.reasons]
    first = said.reasons.index(Reason.FOREIGN)
    assert (said[first].reason, said[first].as_dict()["reason"]) == (Reason.FOREIGN, "foreign")
    assert said[0].as_dict()["reason"] is None


def test_a_threshold_of_ones_own_is_about_the_uncertainty_alone(file: Path) -> None:
    said = Model(file, "cpu").predict(noise(), reject=0.3)
    assert set(said.reasons or ()) <= {None, Reason.UNCERTAIN}
    assert Model(file, "cpu").predict(noise()).reasons is None


def test_other_passes_than_the_rule_was_found_with_are_announced(digits: Digits, file: Path) -> None:
    images = digits.dataset.splits["test"].images[:1]
    with pytest.warns(GuaranteeWarning, match="25 samples and seed 0"), pytest.warns(SamplesWarning):
        Model(file, "cpu").predict(images, samples=5, reject="auto")


@pytest.mark.parametrize(
    ("inference", "options", "precision"),
    [
        (Inference.MOMENTS, Options(), Precision.FP32),
        (Inference.DETERMINISTIC, Options(), Precision.FP32),
        (Inference.MC, Options(bake=True), Precision.FP32),
        (Inference.MC, Options(), Precision.FP16),
        (Inference.MC, Options(), Precision.INT8),
    ],
    ids=["moments", "deterministic", "baked", "fp16", "int8"],
)
def test_every_kind_of_file_has_it(
    digits: Digits, run: Path, tmp_path: Path, inference: Inference, options: Options, precision: Precision
) -> None:
    out = tmp_path / "m.onnx"
    export_run(run, out, digits.dataset, inference, options=options, numbers=precision)
    model = Model(out, "cpu")
    assert stored(out).foreign.images == 135
    test = digits.dataset.splits["test"].images
    own, foreign = (model.predict(images, reject="auto") for images in (test, 255 - test))
    # The published level is 2.2 %, and 359 images leave some room.
    assert contract.is_foreign(own.novelty, stored(out).foreign.cutoff).mean() < 0.06
    assert contract.is_foreign(foreign.novelty, stored(out).foreign.cutoff).mean() > 0.5
    calibration = digits.dataset.splits["calibration"].images[:2]
    assert np.isfinite(model.predict(calibration).novelty_score).all()


def test_without_a_wish_a_run_and_its_file_have_none(digits: Digits) -> None:
    assert Run.load(digits.run).novelty is None
    assert Model(digits.model, "cpu").metadata.rule is None
    assert "novelty" not in json.loads((digits.run / "run.json").read_text())


def test_a_file_is_given_the_gate_in_the_field(digits: Digits, tmp_path: Path) -> None:
    data, out = digits.dataset.splits["calibration"], tmp_path / "field.onnx"
    done = recalibrate(digits.model, out, data, Method.TEMPERATURE, novelty=GATE)
    rule = stored(out)
    assert rule == done.metadata.rule == done.measured.rule
    assert rule.uncertain is None
    model = Model(out, "cpu")
    assert model.limits("auto") == Limits(None, rule.foreign.cutoff)
    said = model.predict(noise(), reject="auto")
    assert set(said.reasons or ()) == {None, Reason.FOREIGN}
    assert np.array_equal(model.logits(data.images[:3]), Model(digits.model, "cpu").logits(data.images[:3]))


def test_in_the_field_the_images_of_the_error_promise_serve_nothing_else(digits: Digits, tmp_path: Path) -> None:
    parts = [digits.dataset.splits[name] for name in ("calibration", "guarantee")]
    data = Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    out = tmp_path / "field.onnx"
    recalibrate(digits.model, out, data, Method.TEMPERATURE, promise=Promise(0.05, 0.9), novelty=GATE)
    rule = stored(out)
    fitting, kept = data.halves()
    assert rule.foreign.data == fitting.halves()[1].sha256()
    assert rule.uncertain is not None
    assert rule.uncertain.data == kept.sha256()


def test_a_new_map_takes_the_old_gate_away_unless_one_is_wanted(digits: Digits, file: Path, tmp_path: Path) -> None:
    data = digits.dataset.splits["calibration"]
    plain = recalibrate(file, tmp_path / "plain.onnx", data, Method.TEMPERATURE)
    assert (plain.metadata.rule, plain.metadata.outputs) == (None, ())
    assert [output.name for output in onnx.load(plain.path).graph.output] == [
        output.name for output in contract.outputs_of(())
    ]
    again = recalibrate(file, tmp_path / "again.onnx", data, Method.TEMPERATURE, novelty=GATE)
    assert again.metadata.costs == Model(file, "cpu").metadata.costs
    assert plain.metadata.costs == Model(digits.model, "cpu").metadata.costs


def test_when_the_error_cannot_be_promised_there_is_no_rule_that_accepts_all(digits: Digits, tmp_path: Path) -> None:
    data = digits.dataset.splits["calibration"]
    strict = Promise(0.0223, 0.95)
    done = recalibrate(digits.model, tmp_path / "m.onnx", data, Method.TEMPERATURE, promise=strict, novelty=GATE)
    assert (done.metadata.reject, done.metadata.rule) == (None, None)
    assert done.measured.refused is not None
    assert "novelty" in done.metadata.outputs


def test_too_few_images_leave_a_file_without_the_gate_and_say_how_many_it_takes(digits: Digits, tmp_path: Path) -> None:
    data = digits.dataset.splits["calibration"].at_most(100)
    done = recalibrate(digits.model, tmp_path / "m.onnx", data, Method.TEMPERATURE, novelty=GATE)
    assert done.metadata.rule is None
    assert "118 calibration images can promise 5%" in str(done.unfit)
    with pytest.raises(NoveltyError, match=r"50 reference images cannot promise .* 1\.00%.* 5\.82% is the least"):
        recalibrate(digits.model, tmp_path / "n.onnx", data, Method.TEMPERATURE, novelty=NoveltyPromise(0.01))
    assert not (tmp_path / "n.onnx").exists()


def test_a_run_refuses_at_once_a_level_that_its_images_cannot_keep(digits: Digits, tmp_path: Path) -> None:
    shutil.copytree(digits.run, tmp_path / "run")
    with pytest.raises(NoveltyError, match="135 reference images cannot promise"):
        calibrating.calibrate(tmp_path / "run", novelty=NoveltyPromise(0.01))


def test_a_rule_about_an_output_that_a_file_does_not_list_is_refused(file: Path, tmp_path: Path) -> None:
    proto = onnx.load(file)
    document = json.loads(next(entry.value for entry in proto.metadata_props if entry.key == contract.KEY))
    del document["outputs"], document["digests"]
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {contract.KEY: json.dumps(document)})
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match="novelty, which the rule compares"):
        Model(tmp_path / "m.onnx", "cpu")


@pytest.mark.parametrize(
    "change",
    [{"cutoff": 0.0}, {"cutoff": 1.5}, {"level": 1}, {"confidence": 0}, {"images": 0}],
    ids=str,
)
def test_a_rule_that_makes_no_sense_is_refused(change: dict[str, float]) -> None:
    good = StoredCutoff(0.01, 0.02, 0.95, 135, data="")
    with pytest.raises(UsageError, match=next(iter(change))):
        replace(good, **change)


def test_the_command_line_calibrates_exports_shows_and_applies_it(
    digits: Digits, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(digits.run, "run")
    said = call("calibrate", "run", "--target-error", "0.05")
    assert said.code == 0, said.err
    assert "`export` will also fit the novelty gate on the calibration images" in said.err
    said = call("export", "run", "--out", "m.onnx")
    assert "Foreign images are rejected. At most 3.0 % of familiar images" in said.err
    assert "are rejected, too. Both rules accept" in said.err
    assert "--reject auto" in said.err
    said = call("info", "m.onnx")
    assert "Foreign images are rejected. At most 3.0 %" in said.out
    test, rule = digits.dataset.splits["test"].images, stored(Path("m.onnx"))
    model = Model("m.onnx", "cpu")
    inverted = 255 - test
    odd = int(np.argmin(model.predict(inverted).novelty))
    Path("in").mkdir()
    Image.fromarray(test[0][..., 0]).save("in/a.png")
    Image.fromarray(inverted[odd][..., 0]).save("in/b.png")
    said = call("predict", "--model", "m.onnx", "in", "--reject", "auto")
    assert "reject: unlike anything it was calibrated on" in said.out
    assert "1 accepted, 1 rejected, 1 of them as foreign." in said.err
    said = call("predict", "--model", "m.onnx", "in/b.png", "--reject", "auto")
    assert "  reject: unlike anything it was calibrated on" in said.out
    said = call("predict", "--model", "m.onnx", "in/a.png", "--reject", "auto")
    assert "  accept: like what it was calibrated on, and its uncertainty is at most" in said.out
    said = call(
        "predict", "--model", "m.onnx", "in", "--reject", "auto", "--json", "--save", "saved", "--sheet", "s.png",
        "--audit", "log.jsonl",
    )  # fmt: skip
    answers = json.loads(said.out)
    assert answers[0]["reason"] is None
    assert answers[1]["reason"] in ("foreign", "both")
    assert answers[1]["cutoff"] == rule.foreign.cutoff
    assert answers[1]["novelty"] <= rule.foreign.cutoff < answers[0]["novelty"]
    logged = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in logged] == [answer["reason"] for answer in answers]
    assert Path("s.png").is_file()
    assert len(list(Path("saved").iterdir())) == 2


def test_the_command_line_can_leave_it_out(digits: Digits, call: Call, tmp_path: Path) -> None:
    shutil.copytree(digits.run, tmp_path / "run")
    assert call("calibrate", tmp_path / "run", "--no-novelty").code == 0
    assert Run.load(tmp_path / "run").novelty is None
    assert call("calibrate", tmp_path / "run").code == 0
    assert Run.load(tmp_path / "run").novelty == NoveltyPromise()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--novelty-level", "1.5"], "Expected `novelty_level` to be a number strictly between 0 and 1, but got 1.5"),
        (["--novelty-level", "0.01", "--no-novelty"], "--novelty-level and --no-novelty exclude each other"),
    ],
)
def test_wrong_wishes_are_told_before_anything_slow(digits: Digits, call: Call, words: list[str], told: str) -> None:
    said = call("calibrate", digits.run, *words)
    assert said.code == 2
    assert told in said.err


def test_a_run_that_is_calibrated_on_other_images_says_where_its_gate_comes_from(
    digits: Digits, call: Call, tmp_path: Path
) -> None:
    said = call("calibrate", digits.run, "--data", tmp_path, "--foreign", "0.05")
    assert said.code == 2
    assert "uce-edge calibrate MODEL.onnx --data" in said.err
