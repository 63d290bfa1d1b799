"""A threshold with a promise: found for the file as it ships, stored in it, and used by `--reject auto`."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Call, Digits, Said
from PIL import Image

from uce_edge.contract import Inference, Method, NoiseKind
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.model import GuaranteeWarning, Model, SamplesWarning
from uce_edge.prediction import Decision
from uce_edge.rejection import guarantee
from uce_edge.rejection.guarantee import Guarantee, NoGuaranteeError
from uce_edge.rejection.promises import Promise
from uce_edge.report import words
from uce_edge_export.recalibrating import recalibrate
from uce_edge_train import calibrating
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run


def refused(code: int, said: Said) -> str:
    assert said.code == code, said.err
    return said.err


PROMISE = Promise(0.03, confidence=0.9)


@pytest.fixture(scope="module")
def promised(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model with a threshold for 3 % errors."""
    folder = tmp_path_factory.mktemp("promise")
    shutil.copytree(digits.run, folder / "run")
    calibrating.calibrate(folder / "run", promise=PROMISE)
    done = export_run(folder / "run", folder / "model.onnx", digits.dataset)
    assert isinstance(done.promised, Guarantee)
    return folder / "model.onnx"


def test_the_file_has_the_threshold_of_its_own_guarantee_images(digits: Digits, promised: Path) -> None:
    model = Model(promised, "cpu")
    kept = digits.dataset.splits["guarantee"]
    said = model.predict(kept.images)
    wanted = guarantee.find(said.uncertainty, said.class_ids != kept.labels, PROMISE.target_error, PROMISE.confidence)
    stored = model.metadata.reject
    assert stored is not None
    assert Guarantee.from_document(stored.to_document()) == wanted
    assert (stored.samples, stored.seed, stored.data) == (25, 0, kept.sha256())
    document = json.loads(promised.with_suffix(".json").read_text())
    assert document["reject"] == stored.to_document()
    # Only the metadata differ from the file without a promise.
    np.testing.assert_array_equal(said.probabilities, Model(digits.model, "cpu").predict(kept.images).probabilities)


def test_reject_auto_uses_it(digits: Digits, promised: Path) -> None:
    model = Model(promised, "cpu")
    assert model.metadata.reject is not None
    test = digits.dataset.splits["test"]
    said = model.predict(test.images, reject="auto")
    accepted = np.array([decision is Decision.ACCEPT for decision in said.decisions])
    assert np.array_equal(accepted, said.uncertainty <= np.float32(model.metadata.reject.threshold))
    assert (said.class_ids != test.labels)[accepted].mean() <= PROMISE.target_error
    assert accepted.mean() > 0.5


def test_other_passes_are_announced(digits: Digits, promised: Path) -> None:
    model = Model(promised, "cpu")
    images = digits.dataset.splits["test"].images[:1]
    with pytest.warns(GuaranteeWarning, match="25 samples and seed 0"):
        model.predict(images, seed=1, reject="auto")
    with pytest.warns(GuaranteeWarning, match="with 5 and seed 0"), pytest.warns(SamplesWarning):
        model.predict(images, samples=5, reject="auto")


def test_without_a_stored_threshold_auto_is_refused(digits: Digits) -> None:
    with pytest.raises(UsageError, match=r"has no stored threshold.*--target-error"):
        Model(digits.model, "cpu").predict(digits.dataset.splits["test"].images[:1], reject="auto")


def test_a_run_keeps_its_map_when_the_promise_cannot_be_kept(promised: Path, tmp_path: Path) -> None:
    run = shutil.copytree(promised.parent / "run", tmp_path / "run")
    with pytest.raises(NoGuaranteeError, match=r"No threshold can promise .* map is kept in .*run, without a pr\w+\.$"):
        calibrating.calibrate(run, method=Method.VECTOR, samples=5, promise=Promise(0.0112))
    kept = Run.load(run)
    assert (kept.calibration.method, kept.calibration.samples) == (Method.VECTOR, 5)
    assert kept.promise is None  # neither the new one nor that of the old map
    assert calibrating.calibrate(run, method=Method.VECTOR, samples=5).calibration == kept.calibration


def test_the_twin_gets_a_threshold_of_its_own(digits: Digits, promised: Path, tmp_path: Path) -> None:
    done = export_run(promised.parent / "run", tmp_path / "deterministic.onnx", digits.dataset, Inference.DETERMINISTIC)
    stored = Model(tmp_path / "deterministic.onnx", "cpu").metadata.reject
    assert stored is not None
    assert stored.samples == 1
    assert isinstance(done.promised, Guarantee)
    assert stored.threshold != Model(promised, "cpu").metadata.reject.threshold  # type: ignore[union-attr]


def test_a_model_file_is_given_a_promise_from_half_of_the_images(digits: Digits, tmp_path: Path) -> None:
    parts = [digits.dataset.splits[name] for name in ("calibration", "guarantee", "test")]
    data = Split(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))
    out = tmp_path / "new.onnx"
    done = recalibrate(digits.model, out, data, Method.TEMPERATURE, promise=PROMISE)
    fitted, kept = data.halves()
    assert done.metadata.calibration.outcome.images == len(fitted)
    assert isinstance(done.promised, Guarantee)
    assert done.promised.images == len(kept)
    assert len(fitted) + len(kept) == len(data)
    assert Model(out, "cpu").metadata == done.metadata
    assert json.loads(out.with_suffix(".json").read_text())["reject"]["data"] == kept.sha256()


def test_a_model_file_has_its_new_map_when_the_promise_cannot_be_kept(promised: Path, tmp_path: Path) -> None:
    data, out = Run.load(promised.parent / "run").dataset().splits["calibration"], tmp_path / "new.onnx"
    done = recalibrate(promised, out, data, Method.VECTOR, promise=Promise(0.0223))
    assert isinstance(done.promised, NoGuaranteeError)
    assert "No threshold can promise an error of at most 0.0223" in str(done.promised)
    written = Model(out, "cpu").metadata
    assert written == done.metadata
    assert written.calibration.method is Method.VECTOR
    assert written.reject is None
    # What thresholds let through is known all the same.
    assert written.held_out is not None
    assert written.held_out.data == data.halves()[1].sha256()


def test_calibrating_again_without_a_promise_drops_it(promised: Path, tmp_path: Path) -> None:
    run = shutil.copytree(promised.parent / "run", tmp_path / "run")
    assert Run.load(run).promise == PROMISE
    assert calibrating.calibrate(run, samples=5).promise is None
    done = recalibrate(promised, tmp_path / "new.onnx", Run.load(run).dataset().splits["calibration"], Method.NONE)
    assert done.metadata.reject is None
    assert done.metadata.held_out is None


def test_every_export_knows_what_a_threshold_lets_through(digits: Digits, tmp_path: Path, call: Call) -> None:
    model = Model(digits.model, "cpu")
    kept = digits.dataset.splits["guarantee"]
    said = model.predict(kept.images)
    wanted = guarantee.error_at(said.uncertainty, said.class_ids != kept.labels, 0.3, 0.95)
    out = call("info", digits.model, "--reject", 0.3).out
    line = next(line for line in out.splitlines() if line.startswith("reject 0.3 "))
    assert f"accepts {wanted.coverage:.1%}".removesuffix("%") in line
    assert f"at most {words.at_most(wanted.error_bound)} are wrong, with 95 % confidence" in line
    assert f"({wanted.accepted} of {len(kept)} held-out images" in line
    assert "reject 0.1 " in call("info", digits.model, "--all").out
    assert "two decimals" in refused(2, call("info", digits.model, "--reject", 0.333))
    export_run(digits.run, tmp_path / "input.onnx", digits.dataset, noise=NoiseKind.INPUT)
    recalibrate(digits.model, tmp_path / "new.onnx", digits.dataset.splits["calibration"], Method.NONE)
    assert "uce-edge evaluate" in refused(2, call("info", tmp_path / "new.onnx", "--reject", 0.3))


def test_from_the_command_line(digits: Digits, tmp_path: Path, call: Call) -> None:
    folder = shutil.copytree(digits.run, tmp_path / "run")
    said = call("calibrate", folder, "--target-error", 0.03, "--confidence", 0.9).err
    assert "The guarantee images can prove a threshold" in said
    out = tmp_path / "m.onnx"
    said = call("export", folder, "--out", out).err
    rule = Model(out, "cpu").metadata.rule
    assert rule is not None
    stored = rule.uncertain
    assert stored is not None
    assert f"Images with an uncertainty above {stored.threshold:.4g} are rejected, too. Both rules accept" in said
    assert "--reject auto" in said
    test = digits.dataset.splits["test"]
    Image.fromarray(test.images[0, :, :, 0]).save(tmp_path / "one.png")
    record = json.loads(call("predict", "--model", out, tmp_path / "one.png", "--reject", "auto", "--json").out)
    accepted = record[0]["uncertainty"] <= stored.threshold and record[0]["novelty"] > rule.foreign.cutoff
    assert record[0]["decision"] == ("accept" if accepted else "reject")
    shown = call("info", out, "--all").out
    assert "reject auto" in shown
    assert "the proof must allow for the search" in shown
    again = tmp_path / "again.onnx"
    said = call("calibrate", out, "--data", "digits", "--target-error", 0.1, "--out", again).err
    assert "at most 10.0 % are wrong, with 95 % confidence" in said
    for arguments, words_ in (
        (("--target-error", 0), "strictly between 0 and 1"),
        (("--target-error", 0.05, "--confidence", 0.2), "strictly between 0.5 and 1"),
        (("--confidence", 0.9), "--target-error"),
    ):
        assert words_ in refused(2, call("calibrate", folder, *arguments))


def test_the_command_line_keeps_the_map_and_exits_with_1_when_it_cannot_promise(
    digits: Digits, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = shutil.copytree(digits.run, tmp_path / "run"), tmp_path / "new.onnx"
    told = refused(2, call("calibrate", folder, "--target-error", 0.001))
    assert "takes at least 2995. Nothing was computed." in told
    line = ["calibrate", str(folder), "--samples", "7", "--target-error", "0.0112", "--no-novelty"]
    monkeypatch.setattr(sys, "argv", ["uce-edge", *line])
    told = refused(1, call(*line))
    assert "warning: nothing is promised." in told
    assert f"The fitted map is kept in {folder}, without a promise." in told
    assert "The guarantee images can prove" not in told
    assert Run.load(folder).calibration.samples == 7
    # What can be promised instead is the first row of the table, and its command is one to paste.
    table = told[told.index("error at most ") :].splitlines()
    least = float(table[1].split()[0]) / 100
    pasted = f"uce-edge calibrate {folder} --samples 7 --target-error {least:g} --no-novelty"
    assert f"For the first row: {pasted}" in told
    assert call(*shlex.split(pasted)[1:]).code == 0
    assert Run.load(folder).promise == Promise(least)
    said = call("calibrate", digits.model, "--data", "digits", "--target-error", 0.0223, "--out", out, "--json")
    assert f"Wrote {out} and {out.with_suffix('.json')}, without a threshold." in refused(1, said)
    assert "warning: nothing is promised." in said.err
    assert said.err.splitlines()[-1].endswith("image.png --reject 0.3")
    told = json.loads(said.out)
    written = Model(out, "cpu").metadata
    assert told["parameters"] == written.calibration.parameters
    # Every row keeps its error among the held-out images of the file.
    assert told["refused"].startswith("No threshold can promise")
    rows = told["can_promise"]
    assert len(rows) > 1
    assert all(row["target_error"] > 0.0223 and row["error"] <= row["target_error"] for row in rows)
    assert written.held_out is not None
    assert {row["images"] for row in rows} == {written.held_out.accepted[-1]}
