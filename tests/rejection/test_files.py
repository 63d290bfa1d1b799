"""Reject rules in files: fitted for the file as it ships, decided by its graph, applied by `--reject auto`."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import GOLDEN, Call, Digits
from PIL import Image

pytest.importorskip("onnx_ir")
pytest.importorskip("sklearn")

import onnx_ir as ir
from helpers.errors import raises

from uce_edge import contract
from uce_edge.contract import Inference, Method, Precision
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError
from uce_edge.evaluation import rejection_results
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.rejection import class_limits, guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyPromise, Promise, RejectBy
from uce_edge.rejection.rule import Decision, Reason, RejectRule
from uce_edge.runtime.model import GuaranteeWarning, Model, SamplesWarning
from uce_edge.runtime.prediction import Prediction
from uce_edge_export.publish.draft import publish
from uce_edge_export.recalibration import Recalibrated, recalibrate

SOURCE = GOLDEN / "digits-mc.onnx"
GATE = NoveltyPromise()
ERRORS = {"3": 0.01, "8": 0.25, "other": 0.35}
"""The few digits that are labelled 3 cannot prove 1 %."""
KINDS = {
    "uncertainty": (Promise(0.03, 0.9), None),
    "uncertainty-gate": (Promise(0.03, 0.9), GATE),
    "confidence": (Promise(0.02, score=RejectBy.CONFIDENCE), None),
    "confidence-gate": (Promise(0.02, score=RejectBy.CONFIDENCE), GATE),
    "classes": (Promise.of_classes(ERRORS), None),
    "classes-gate": (Promise.of_classes(ERRORS), GATE),
    "gate": (None, GATE),
}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return splits.load("digits")


@pytest.fixture(scope="module")
def made(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The golden file with a rule of some kind, fitted once."""
    folder, known = tmp_path_factory.mktemp("rules"), dict[str, Path]()

    def make(kind: str) -> Path:
        if kind not in known:
            promise, novelty = KINDS[kind]
            out = folder / f"{kind}.onnx"
            done = calibrated(dataset, out, promise, novelty)
            assert done.refused is None
            known[kind] = out
        return known[kind]

    return make


def calibrated(dataset: Dataset, out: Path, promise: Promise | None, novelty: NoveltyPromise | None) -> Recalibrated:
    data, held_out = dataset.splits["calibration"], dataset.splits["guarantee"]
    return recalibrate(SOURCE, out, data, Method.TEMPERATURE, None, 0, promise, novelty, held_out)


def stored(path: Path) -> RejectRule:
    rule = Model(path, "cpu").metadata.rule
    assert rule is not None
    return rule


def noise(count: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)


def hard(dataset: Dataset) -> np.ndarray:
    """Digits, two digits in one picture, negatives and noise."""
    test = dataset.splits["test"].images[:80]
    two = ((test.astype(int) + np.roll(test, 1, axis=0)) // 2).astype(np.uint8)
    return np.concatenate([test, two, 255 - test, noise()])


def passed(said: Prediction, rule: RejectRule) -> np.ndarray:
    """What the cutoff accepts, by the definition."""
    return np.ones(len(said), bool) if rule.cutoff is None else said.novelty > np.float32(rule.cutoff)


def within_limits(said: Prediction, rule: RejectRule) -> np.ndarray:
    """What the limits accept, by the definition."""
    score = said.uncertainty if rule.score == "uncertainty" else np.float32(1) - said.probabilities.max(-1)
    limits = np.array(rule.limits or [9], np.float32)
    return score <= limits[said.class_ids if len(limits) > 1 else 0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_limits_are_those_of_images_that_nothing_was_fitted_on(
    made: Callable[[str], Path], dataset: Dataset, kind: str
) -> None:
    promise, novelty = KINDS[kind]
    model, rule, kept = Model(made(kind), "cpu"), stored(made(kind)), dataset.splits["guarantee"]
    said = model.predict(kept.images, reject="auto")
    if novelty is not None:
        scoring = dataset.splits["calibration"].halves()[1]
        assert rule.gate is not None
        assert (rule.gate.images, rule.gate.data, rule.gate.level) == (len(scoring), scoring.sha256(), 0.03)
    assert (rule.cutoff is None) == (novelty is None)
    if promise is None:
        assert (rule.promise, rule.limits) == (None, None)
        return
    among, wrong = passed(said, rule), said.class_ids != kept.labels
    score = said.uncertainty if promise.score is RejectBy.UNCERTAINTY else np.float32(1) - said.probabilities.max(-1)
    if promise.by_class:
        targets = [ERRORS.get(name, 0.35) for name in model.classes]
        wanted = class_limits.find(
            score[among], wrong[among], said.class_ids[among], targets, 0.95, model.classes
        ).limits
        assert (wanted[3], len(wanted)) == (-1, 10)
    else:
        found = guarantee.find(score[among], wrong[among], promise.target_error, promise.confidence)
        wanted = (found.threshold,)
    assert rule.limits == wanted
    accepted = among & within_limits(said, rule)
    assert rule.promise is not None
    assert (rule.promise.accepted, rule.promise.images) == (accepted.sum(), len(kept))
    assert rule.promise.coverage == accepted.mean()
    assert (rule.promise.samples, rule.promise.seed, rule.promise.data) == (25, 0, kept.sha256())
    assert said.accepted.tolist() == accepted.tolist()
    if promise.by_class:
        labelled = [(accepted & (said.class_ids == index)).sum() for index in range(10)]
        assert [one.accepted for one in rule.promise.classes] == labelled


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_decides_as_the_reference_does_to_the_bit(
    made: Callable[[str], Path], dataset: Dataset, kind: str
) -> None:
    rule, images = stored(made(kind)), hard(dataset)
    session = onnxruntime.InferenceSession(made(kind), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    values = dict(zip(names, session.run(None, {"image": images, "seeds": np.arange(25, dtype=np.int32)}), strict=True))
    wanted = rule.decide(values["uncertainty"], values["probabilities"], values.get("novelty"))
    assert values["decision"].dtype == np.int32
    assert values["decision"].tolist() == wanted.tolist()
    assert len(set(wanted)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_reject_auto_says_why_whether_passes_are_split_or_not(
    made: Callable[[str], Path], dataset: Dataset, kind: str
) -> None:
    rule, images = stored(made(kind)), hard(dataset)
    said = Model(made(kind), "cpu").predict(images, reject="auto")
    uncertain, outside = ~within_limits(said, rule), ~passed(said, rule)
    names = {(0, 0): None, (1, 0): Reason.UNCERTAIN, (0, 1): Reason.OUT_OF_DISTRIBUTION, (1, 1): Reason.BOTH}
    assert said.reasons == [names[u, o] for u, o in zip(uncertain, outside, strict=True)]
    assert said.decisions == [Decision.ACCEPT if reason is None else Decision.REJECT for reason in said.reasons]
    split = Model(made(kind), "cpu", max_memory=1).predict(images, reject="auto")
    near = np.abs(said.uncertainty - split.uncertainty) > 0  # rounding may move what lies on a limit
    assert [a == b for a, b, moved in zip(said.reasons, split.reasons or (), near, strict=True) if not moved]


@pytest.mark.parametrize("kind", ["uncertainty", "confidence-gate", "classes-gate"])
def test_an_evaluation_is_about_what_is_applied(made: Callable[[str], Path], dataset: Dataset, kind: str) -> None:
    model, test = Model(made(kind), "cpu"), dataset.splits["test"]
    rule, said = stored(made(kind)), model.predict(test.images, reject="auto")
    answers = ModelOutputs(
        said.probabilities, said.uncertainty, said.model_uncertainty, said.novelty, said.novelty_score
    )
    wrong = said.class_ids != test.labels
    kept = rejection_results.kept(answers, wrong, rule)
    assert kept is not None
    assert kept.accepted.tolist() == said.accepted.tolist()
    gated = rejection_results.gated(answers, wrong, rejection_results.gate_of(rule, None))
    assert (gated is None) == (rule.cutoff is None)
    assert gated is None or gated.coverage == kept.coverage
    rows = rejection_results.kept_classes(answers, wrong, model.classes, rule)
    assert bool(rows) == rule.by_class
    assert not rows or sum(row.accepted for row in rows) == said.accepted.sum()


def test_a_threshold_of_ones_own_is_about_the_uncertainty_alone(made: Callable[[str], Path]) -> None:
    model = Model(made("classes-gate"), "cpu")
    said = model.predict(noise(), reject=0.3)
    assert said.accepted.tolist() == (said.uncertainty <= np.float32(0.3)).tolist()
    assert set(said.reasons or ()) <= {None, Reason.UNCERTAIN}
    assert model.predict(noise()).reasons is None


def test_without_a_stored_rule_nothing_is_rejected_and_auto_is_refused() -> None:
    model = Model(GOLDEN / "digits-rule-none.onnx", "cpu")
    values = model.outputs(noise(3), model.seeds(), [contract.DECISION])
    assert values[contract.DECISION].tolist() == [0, 0, 0]
    with pytest.raises(UsageError, match="--target-error"):
        model.predict(noise(1), reject="auto")


def test_an_answer_that_is_not_a_number_is_rejected_by_the_graph(tmp_path: Path) -> None:
    proto = onnx.load(GOLDEN / "digits-rule-none.onnx")
    weight = next(item for item in proto.graph.initializer if item.name == "calibration.temperature")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full(1, np.nan, np.float32), weight.name))
    onnx.save(proto, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert session.run([contract.DECISION], {"image": noise(2)})[0].tolist() == [1, 1]


def test_a_new_rule_edits_initializers_in_place(tmp_path: Path) -> None:
    source = GOLDEN / "digits-rule-all.onnx"
    old = Model(source, "cpu").metadata
    with publish(ir.load(source), old, tmp_path / "m.onnx") as draft:
        draft.describe(replace(draft.metadata, rule=RejectRule(limits=(0.25,))))
    before, after = onnx.load(source).graph, onnx.load(tmp_path / "m.onnx").graph
    assert before.node == after.node
    changed = {
        a.name
        for a, b in zip(before.initializer, after.initializer, strict=True)
        if onnx.numpy_helper.to_array(a).tobytes() != onnx.numpy_helper.to_array(b).tobytes()
    }
    assert changed == {contract.LIMITS, contract.CUTOFF, contract.BY_CONFIDENCE}


def test_a_file_of_contract_1_is_written_as_contract_2(tmp_path: Path) -> None:
    source = GOLDEN / "digits-minor-0.onnx"
    old = Model(source, "cpu")
    with publish(ir.load(source), old.metadata, tmp_path / "m.onnx"):
        pass
    new = Model(tmp_path / "m.onnx", "cpu")
    assert (old.metadata.contract, new.metadata.contract, new.metadata.rule) == (1, 2, old.metadata.rule)
    before, after = (model.predict(noise(), reject="auto") for model in (old, new))
    assert before.reasons == after.reasons
    assert np.array_equal(before.probabilities, after.probabilities)


def test_passes_are_drawn_until_the_limit_of_the_label_is_settled(
    made: Callable[[str], Path], dataset: Dataset
) -> None:
    for kind in ("classes-gate", "confidence"):
        model, images = Model(made(kind), "cpu"), dataset.splits["test"].images[:60]
        with pytest.warns(GuaranteeWarning):
            early = model.predict(images, reject="auto", adaptive=0.05)
        every = model.predict(images, reject="auto")
        assert np.mean([a == b for a, b in zip(early.decisions, every.decisions, strict=True)]) > 0.95
        assert early.drawn.mean() < 25


def test_other_passes_than_the_rule_was_found_with_are_announced(made: Callable[[str], Path]) -> None:
    model = Model(made("uncertainty"), "cpu")
    with pytest.warns(GuaranteeWarning, match="25 samples and seed 0"):
        model.predict(noise(1), seed=1, reject="auto")
    with pytest.warns(GuaranteeWarning, match="with 5 and seed 0"), pytest.warns(SamplesWarning):
        model.predict(noise(1), samples=5, reject="auto")


def test_a_new_map_drops_the_rule_and_its_outputs(
    made: Callable[[str], Path], dataset: Dataset, tmp_path: Path
) -> None:
    data, gated = dataset.splits["calibration"], made("uncertainty-gate")
    plain = recalibrate(gated, tmp_path / "plain.onnx", data, Method.TEMPERATURE)
    assert (plain.metadata.rule, plain.metadata.outputs, plain.metadata.held_out) == (None, (), None)
    assert [output.name for output in onnx.load(plain.path).graph.output] == [
        output.name for output in contract.outputs_of(())
    ]
    again = recalibrate(gated, tmp_path / "again.onnx", data, Method.TEMPERATURE, novelty=GATE)
    assert again.metadata.costs == Model(gated, "cpu").metadata.costs
    assert plain.metadata.costs == Model(SOURCE, "cpu").metadata.costs


def test_images_of_the_error_promise_serve_nothing_else(dataset: Dataset, tmp_path: Path) -> None:
    parts = [dataset.splits[name] for name in ("calibration", "guarantee")]
    data = Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    recalibrate(SOURCE, tmp_path / "m.onnx", data, Method.TEMPERATURE, promise=Promise(0.05, 0.9), novelty=GATE)
    rule, (fitting, kept) = stored(tmp_path / "m.onnx"), data.halves()
    assert rule.gate is not None
    assert rule.promise is not None
    assert (rule.gate.data, rule.promise.data) == (fitting.halves()[1].sha256(), kept.sha256())


@pytest.mark.parametrize(
    "promise",
    [Promise(0.04), Promise(0.04, score=RejectBy.CONFIDENCE), Promise.of_classes({"other": 0.02})],
    ids=["uncertainty", "confidence", "classes"],
)
def test_a_promise_that_cannot_be_kept_leaves_the_map_and_no_rule(
    dataset: Dataset, tmp_path: Path, promise: Promise
) -> None:
    few = dataset.splits["guarantee"].at_most(150)
    few = replace(few, labels=(few.labels + 1) % 10)  # every answer is wrong
    source, data = GOLDEN / "digits-mc.onnx", dataset.splits["calibration"].at_most(300)
    done = recalibrate(source, tmp_path / "m.onnx", data, Method.VECTOR, None, 0, promise, GATE, few)
    assert isinstance(done.refused, NoGuaranteeError)
    written = Model(tmp_path / "m.onnx", "cpu").metadata
    assert (written.calibration.method, written.rule) == (Method.VECTOR, None)
    assert written.held_out is not None, "what thresholds accept is known all the same"


def test_grouped_images_count_once_per_group(tmp_path: Path) -> None:
    parts = [splits.load("digits").splits[name] for name in ("calibration", "guarantee")]
    images, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    data = Split(images, labels, np.arange(len(labels)) // 3)
    done = recalibrate(
        SOURCE, tmp_path / "m.onnx", data, Method.TEMPERATURE, 4, 0, Promise(0.1, 0.9), NoveltyPromise(0.1)
    )
    metadata, (fitted, kept) = done.metadata, data.halves()
    assert not set(fitted.groups) & set(kept.groups)
    single, reference = kept.one_per_group(), fitted.halves()[1].one_per_group()
    assert metadata.promise is not None
    assert metadata.rule is not None
    assert metadata.rule.gate is not None
    assert metadata.held_out is not None
    assert metadata.monitor is not None
    assert (metadata.promise.images, metadata.promise.data) == (90, single.sha256())
    assert (metadata.rule.gate.images, metadata.rule.gate.data) == (45, reference.sha256())
    assert metadata.held_out.data == metadata.monitor.data == single.sha256()
    assert (metadata.promise.grouped, metadata.rule.gate.grouped, metadata.held_out.grouped) == (True, True, True)
    assert metadata.calibration.outcome.images == len(fitted), "the map is fitted on all of them"
    with raises("promise.too-few-images") as caught:
        recalibrate(SOURCE, tmp_path / "n.onnx", data, Method.TEMPERATURE, 2, 0, Promise(0.02), NoveltyPromise())
    assert caught.value.fields["images"] == 90
    wrong = replace(data, labels=(data.labels + 1) % 10)
    done = recalibrate(SOURCE, tmp_path / "m.onnx", wrong, Method.TEMPERATURE, 2, 0, Promise(0.04), NoveltyPromise())
    for refusal in (done.refused, done.unfit):
        assert str(refusal).endswith("Only one image of each group counts.")


def test_classes_that_do_not_exist_are_refused_with_those_that_do(call: Call, tmp_path: Path) -> None:
    for target, word in (
        ("glioma=0.02,other=0.1", "glioma"),
        ("3=0.1", "for 0"),
        ("3=2,other=0.1", " 2"),
        ("3=x,other=0.1", "CLASS=NUMBER"),
        ("3=0.1,3=0.2,other=0.1", "each class"),
    ):
        said = call("calibrate", SOURCE, "--data", "digits", "--out", tmp_path / "m.onnx", "--target-error", target)
        assert said.code == 2
        assert word in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_people_and_programs_are_told_what_was_compared(
    made: Callable[[str], Path], dataset: Dataset, call: Call, tmp_path: Path, kind: str
) -> None:
    rule, log = stored(made(kind)), tmp_path / "log.jsonl"
    folder = tmp_path / "in"
    folder.mkdir()
    for index, pixels in enumerate(hard(dataset)[::11]):
        Image.fromarray(pixels[..., 0]).save(folder / f"{index:03}.png")
    shown = call("info", made(kind)).out
    assert ("Out-of-distribution images are rejected" in shown) == (rule.cutoff is not None)
    words = ("predict", folder, "--model", made(kind), "--reject", "auto", "--audit", log, "--json")
    rows = json.loads(call(*words, "--sheet", tmp_path / "s.png", "--save", tmp_path / "saved").out)
    assert {row["decision"] for row in rows} == {"accept", "reject"}
    for row in rows:
        assert {name: row[name] for name in ("threshold", "cutoff", "doubt")} == rule.columns(row["class_id"])
        assert (row["reason"] is None) == (row["decision"] == "accept")
    assert (tmp_path / "s.png").is_file()
    assert call("replay", log, "--images", folder, "--model", made(kind)).code == 0


@pytest.fixture(scope="module")
def run(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the digits that wants both promises."""
    from uce_edge_train import calibration

    folder = tmp_path_factory.mktemp("rule") / "run"
    shutil.copytree(digits.run, folder)
    calibration.calibrate(folder, promise=Promise(0.03, 0.9), novelty=GATE)
    return folder


@pytest.mark.parametrize(
    ("inference", "bake", "precision"),
    [
        (Inference.MOMENTS, False, Precision.FP32),
        (Inference.DETERMINISTIC, False, Precision.FP32),
        (Inference.MC, True, Precision.FP32),
        (Inference.MC, False, Precision.FP16),
        (Inference.MC, False, Precision.INT8),
    ],
    ids=["moments", "deterministic", "baked", "fp16", "int8"],
)
def test_every_kind_of_export_has_a_rule_of_its_own(
    digits: Digits, run: Path, tmp_path: Path, inference: Inference, bake: bool, precision: Precision
) -> None:
    from uce_edge_export.options import Options
    from uce_edge_train.export import export_run

    out = tmp_path / "m.onnx"
    export_run(run, out, digits.dataset, inference, options=Options(bake=bake), numbers=precision)
    model, rule = Model(out, "cpu"), stored(out)
    assert rule.promise is not None
    assert rule.promise.samples == model.metadata.samples
    test = digits.dataset.splits["test"].images
    own, inverted = (~passed(model.predict(images), rule) for images in (test, 255 - test))
    # The published level is 2.2 %, and 359 images leave some room.
    assert own.mean() < 0.06
    assert inverted.mean() > 0.5
    said = model.predict(test, reject="auto")
    assert said.accepted.tolist() == (passed(said, rule) & within_limits(said, rule)).tolist()


def test_a_run_without_wishes_has_a_file_without_a_rule(digits: Digits) -> None:
    assert Model(digits.model, "cpu").metadata.rule is None
    assert "novelty" not in json.loads((digits.run / "run.json").read_text())


def test_a_run_keeps_its_map_when_the_promise_cannot_be_kept(run: Path, tmp_path: Path) -> None:
    from uce_edge_train import calibration
    from uce_edge_train.runs import Run

    copy = shutil.copytree(run, tmp_path / "run")
    with pytest.raises(NoGuaranteeError):
        calibration.calibrate(copy, method=Method.VECTOR, samples=5, promise=Promise(0.0112))
    kept = Run.load(copy)
    assert (kept.calibration.method, kept.calibration.samples, kept.promise) == (Method.VECTOR, 5, None)


def test_the_command_line_calibrates_exports_shows_and_applies_it(
    digits: Digits, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(digits.run, "run")
    said = call("calibrate", "run", "--target-error", "0.05")
    assert said.code == 0, said.err
    said = call("export", "run", "--out", "m.onnx")
    assert said.code == 0, said.err
    assert "--reject auto" in said.err
    model, test = Model("m.onnx", "cpu"), digits.dataset.splits["test"].images
    inverted = 255 - test
    odd = int(np.argmin(model.predict(inverted).novelty))
    Path("in").mkdir()
    Image.fromarray(test[0][..., 0]).save("in/a.png")
    Image.fromarray(inverted[odd][..., 0]).save("in/b.png")
    said = call("predict", "--model", "m.onnx", "in", "--reject", "auto")
    assert "1 accepted, 1 rejected, 1 of them as out of distribution." in said.err
    shown = call("info", "m.onnx", "--all").out
    assert "reject auto" in shown
    said = call("calibrate", "run", "--target-error", "0.05", "--no-novelty")
    assert said.code == 0
    for words in (("--target-error", 0), ("--target-error", 0.05, "--confidence", 0.2), ("--confidence", 0.9)):
        assert call("calibrate", "run", *words).code == 2


def test_the_command_line_keeps_the_map_and_exits_with_1_when_it_cannot_promise(
    digits: Digits, tmp_path: Path, call: Call
) -> None:
    from uce_edge_train.runs import Run

    folder, out = shutil.copytree(digits.run, tmp_path / "run"), tmp_path / "new.onnx"
    assert call("calibrate", folder, "--target-error", 0.001).code == 2  # 2995 images would be needed
    said = call("calibrate", folder, "--samples", "7", "--target-error", "0.0112", "--no-novelty")
    assert said.code == 1
    assert Run.load(folder).calibration.samples == 7
    # What can be promised instead is the first row of the table.
    table = said.err[said.err.index("error at most ") :].splitlines()
    least = float(table[1].split()[0]) / 100
    assert call("calibrate", folder, "--samples", 7, "--target-error", f"{least:g}", "--no-novelty").code == 0
    assert Run.load(folder).promise == Promise(least)
    said = call("calibrate", digits.model, "--data", "digits", "--target-error", 0.0223, "--out", out, "--json")
    assert said.code == 1
    rows = json.loads(said.out)["can_promise"]
    written = Model(out, "cpu").metadata
    assert all(row["target_error"] > 0.0223 and row["error"] <= row["target_error"] for row in rows)
    assert written.held_out is not None
    assert {row["images"] for row in rows} == {written.held_out.accepted[-1]}


def test_info_knows_what_any_threshold_accepts(digits: Digits, tmp_path: Path, call: Call) -> None:
    kept = digits.dataset.splits["guarantee"]
    said = Model(digits.model, "cpu").predict(kept.images)
    wanted = guarantee.error_at(said.uncertainty, said.class_ids != kept.labels, 0.3, 0.95)
    line = next(
        line for line in call("info", digits.model, "--reject", 0.3).out.splitlines() if line.startswith("reject 0.3 ")
    )
    assert f"({wanted.accepted} of {len(kept)} held-out images" in line
    assert call("info", digits.model, "--reject", 0.333).code == 2
    recalibrate(digits.model, tmp_path / "new.onnx", digits.dataset.splits["calibration"], Method.NONE)
    assert call("info", tmp_path / "new.onnx", "--reject", 0.3).code == 2


def test_too_few_images_leave_a_file_without_novelty(digits: Digits, tmp_path: Path) -> None:
    from uce_edge.calibration.novelty import NoveltyError

    data = digits.dataset.splits["calibration"].at_most(100)
    done = recalibrate(digits.model, tmp_path / "m.onnx", data, Method.TEMPERATURE, novelty=GATE)
    assert done.metadata.rule is None
    assert isinstance(done.unfit, NoveltyError)
    with pytest.raises(NoveltyError):
        recalibrate(digits.model, tmp_path / "n.onnx", data, Method.TEMPERATURE, novelty=NoveltyPromise(0.01))
    assert not (tmp_path / "n.onnx").exists()
