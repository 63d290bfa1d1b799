"""Ensembles of runs: trained member by member, exported and calibrated as a whole."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Call, Digits

from tests.helpers.errors import raises
from uce_edge.contract import Inference, Method, SetScore
from uce_edge.errors import UsageError
from uce_edge.rejection.promises import Promise
from uce_edge.runtime.model import Model
from uce_edge_export.options import FileKind
from uce_edge_train.ensemble_export import export_ensemble, plan_of
from uce_edge_train.runs import WEIGHTS, Run, load_model, members_of, newest, save_weights


@pytest.fixture(scope="module")
def two(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run, and one with weights that differ a little, as the members of an ensemble."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    for number in range(2):
        shutil.copytree(digits.run, folder / f"member-{number}")
    run = Run.load(folder / "member-1")
    model = load_model(run, folder / "member-1")
    for parameter in model.parameters():
        parameter.data *= 1.02
    save_weights(model, folder / "member-1")
    return folder


def test_runs_become_one_file_calibrated_on_what_they_set_aside(call: Call, two: Path, tmp_path: Path) -> None:
    out = tmp_path / "e.onnx"
    done = call("export", two, "--inference", "deterministic", "--target-error", 0.05, "--out", out)
    assert done.code == 0
    assert f"{two / 'member-1'}:" in done.err
    model, run = Model(out, "cpu"), Run.load(two / "member-0")
    assert (model.metadata.members, model.metadata.inference) == (2, Inference.DETERMINISTIC)
    assert model.metadata.hashes.splits == run.split_hashes
    assert model.metadata.hashes.calibration_data == run.split_hashes["calibration"]
    assert model.metadata.promise is not None
    assert model.metadata.promise.data == run.split_hashes["guarantee"]
    report = model.metadata.calibration.outcome
    assert report.nll_after < report.nll_before


def test_an_ensemble_gets_sets_and_a_level_when_it_is_exported(call: Call, two: Path, tmp_path: Path) -> None:
    out, kind = tmp_path / "e.onnx", ("--inference", "deterministic")
    done = call("export", two, *kind, "--sets", 0.1, "--sets-score", "aps", "--novelty-level", 0.04, "--out", out)
    assert done.code == 0, done.err
    made = Model(out, "cpu").metadata
    assert made.sets is not None
    assert (made.sets.alpha, made.sets.score) == (0.1, SetScore.APS)
    assert made.sets.data == Run.load(two / "member-0").split_hashes["guarantee"]
    assert made.rule is not None
    assert made.rule.gate is not None
    assert made.rule.gate.level == 0.04
    for option, value, code in (
        ("--sets", 0.0001, "sets.few"), ("--sets", 2, "argument.sets"), ("--sets-by", "class", "usage.needs-sets"),
        ("--novelty-level", 0.001, "novelty.unprovable"),
    ):  # fmt: skip
        refused = call("export", two, *kind, option, value, "--out", tmp_path / "no.onnx")
        assert refused.error == code
        assert "Parity" not in refused.err, "before the members are exported"


def test_a_single_run_is_promised_by_its_calibration(call: Call, two: Path) -> None:
    for words in (("--sets", "0.1"), ("--novelty-level", "0.04"), ("--target-error", "0.1", "--sets", "0.1")):
        refused = call("export", two / "member-0", *words)
        assert refused.error == "export.needs-from"
        assert f"uce-edge calibrate {two / 'member-0'} {' '.join(words)}" in refused.err
        assert call("export", "--untrained", "resnet8", *words).error == "export.needs-from"


def test_runs_that_do_not_belong_together_are_refused(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "two")
    folders = members_of(tmp_path / "two")
    run = Run.load(folders[1])
    replace(run, split_hashes=run.split_hashes | {"calibration": "other"}).save(folders[1])
    with raises("ensemble.data", UsageError):
        export_ensemble(folders, tmp_path / "e.onnx", FileKind(Inference.DETERMINISTIC))
    replace(run, calibration=replace(run.calibration, samples=7)).save(folders[1])
    with raises("ensemble.calibration", UsageError):
        export_ensemble(folders, tmp_path / "e.onnx", FileKind(Inference.MC))
    # Without passes their number does not matter, and the ensemble gets a map of its own.
    runs = [Run.load(folder) for folder in folders]
    assert plan_of(runs, folders, Inference.DETERMINISTIC) == plan_of(runs[:1], folders[:1], Inference.DETERMINISTIC)
    assert not (tmp_path / "e.onnx").exists()


def test_maps_that_are_dropped_need_not_agree(two: Path, tmp_path: Path) -> None:
    folders = members_of(two)
    first, second = (Run.load(folder) for folder in folders)
    other = replace(second, calibration=replace(second.calibration, method=Method.VECTOR))
    for inference in (Inference.DETERMINISTIC, Inference.MC):
        assert plan_of([first, other], folders, inference) == plan_of([first, second], folders, inference)
    promised = replace(second, promise=Promise(0.1))
    with raises("ensemble.calibration", UsageError):
        plan_of([first, promised], folders)


def test_members_are_trained_one_by_one_and_resumed(call: Call, tmp_path: Path) -> None:
    out, recipe = tmp_path / "runs" / "e", ("--epochs", 1, "--batch-size", 256, "--seed", 5)
    assert call("train", "--members", 2, "--out", out, *recipe).code == 0
    first, second = members_of(out)
    assert [Run.load(folder).recipe.seed for folder in (first, second)] == [5, 6]
    assert newest(tmp_path / "runs") == out
    kept, lost = ((folder / WEIGHTS).read_bytes() for folder in (first, second))
    assert kept != lost
    shutil.rmtree(second)
    second.mkdir()  # as a kill before its first epoch leaves it
    with raises("run.unfinished", UsageError) as caught:
        members_of(out)
    assert caught.value.fields["path"] == second
    assert call("export", out).code == 2
    again = call("train", "--members", 2, "--out", out, *recipe, "--resume")
    assert "Member 2 of 2" in again.err
    assert "Member 1 of 2" not in again.err
    assert [(folder / WEIGHTS).read_bytes() for folder in (first, second)] == [kept, lost]
    with raises("run.ensemble", UsageError):
        Run.load(out)
    assert call("calibrate", out).code == 2
    single = call("train", "--out", out)
    assert (single.code, "member-0, member-1" in single.err) == (2, True)
    assert "member-2" not in call("train", "--members", 2, "--out", out).err
    (out / "member-2").mkdir()
    fewer = call("train", "--members", 2, "--out", out, "--resume")
    assert (fewer.code, "member-2" in fewer.err) == (2, True)
    assert call("train", "--members", 2, "--out", first).code == 2
