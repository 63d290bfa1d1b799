"""One folder of evidence about a file: complete, checked against the tools it quotes, written whole or not at all."""

import csv
import html
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import GOLDEN, Call
from PIL import Image
from scipy import stats

from tests.helpers.errors import raises
from uce_edge.cli import app
from uce_edge.datasets import splits
from uce_edge.dossier import change_control, pages, software
from uce_edge.dossier.contents import collect
from uce_edge.dossier.promises import check, decided, sets_decided
from uce_edge.errors import UsageError
from uce_edge.evaluation.evaluation_data import EvaluationData
from uce_edge.integrity.digests import of_file
from uce_edge.metadata import Pretrained
from uce_edge.rejection.promises import ClassPromise
from uce_edge.runtime.model import Model

pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed: pip install uce-edge[dossier]")
MODEL = GOLDEN / "digits-rule-all.onnx"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 120 digits of two scanners."""
    folder = tmp_path_factory.mktemp("digits")
    test = splits.load("digits").splits["test"]
    with (folder / "test.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "scanner"])
        for index in range(120):
            Image.fromarray(test.images[index, :, :, 0]).save(folder / f"{index:03}.png")
            writer.writerow([f"{index:03}.png", int(test.labels[index]), "old" if index % 3 else "new"])
    return folder / "test.csv"


@pytest.fixture(scope="module")
def folder(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "dossier"
    found = collect(MODEL, str(table), by=["scanner"], ood=["far"], corrupt=False, intended_use="Sorting <letters>.")
    pages.write(found, out, "uce-edge dossier")
    return out


def test_the_folder_is_complete(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(pages.FILES)
    page = (folder / pages.INDEX).read_text(encoding="utf-8")
    assert "Sorting &lt;letters&gt;." in page
    for title in ("Subgroups", "Change control", "Questions of regulators"):
        assert f"<h2>{title}</h2>" in page


def test_its_numbers_are_those_of_an_evaluation(folder: Path, table: Path) -> None:
    document = json.loads((folder / pages.DATA).read_text())
    model = Model(MODEL, "cpu")
    expected = EvaluationData.load(str(table), model.metadata).evaluate(model)
    assert document["sha256"] == of_file(MODEL.read_bytes())
    assert document["metrics"]["metrics"]["nll"]["value"] == pytest.approx(expected.metrics["nll"].value)
    assert sum(document["data"]["by_class"].values()) == 120


def test_subgroups_add_up_to_all_images(folder: Path) -> None:
    document = json.loads((folder / pages.DATA).read_text())
    new, old = document["subgroups"]["scanner"]
    assert (new["value"], new["images"], old["value"], old["images"]) == ("new", 40, "old", 80)
    right = sum(one["accuracy"] * one["images"] for one in (new, old))
    assert right / 120 == pytest.approx(document["metrics"]["metrics"]["accuracy"]["value"])
    for one in (new, old):
        assert one["accuracy_low"] <= one["accuracy"] <= one["accuracy_high"]
        assert one["errors"] <= one["accepted"] <= one["images"]


def test_the_bill_lists_the_runtime_with_licences(folder: Path) -> None:
    bill = json.loads((folder / pages.BILL).read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["type"] == "machine-learning-model"
    assert bill["metadata"]["component"]["hashes"][0]["content"] == of_file(MODEL.read_bytes())
    names = {part["name"]: part for part in bill["components"]}
    assert {"uce-edge", "numpy", "pillow", "typer", "onnxruntime"} <= set(names)
    assert "torch" not in names, "the runtime does not need it"
    assert names["numpy"]["licenses"]
    assert {package.metadata["Name"].lower() for package in software.installed()} >= {"numpy", "pillow"}


def test_the_page_has_every_class(folder: Path) -> None:
    page = (folder / pages.INDEX).read_text(encoding="utf-8")
    assert "<h3>By class</h3>" in page
    rates = json.loads((folder / pages.DATA).read_text())["metrics"]["classes"]["rates"]
    shown = page[page.index("<h3>By class</h3>") :]
    for one in rates:
        assert f"{one['sensitivity']['count']:,} of {one['sensitivity']['of']:,}" in shown


@pytest.mark.parametrize(
    ("golden", "names"),
    [
        ("digits-sets-lac.onnx", ["prediction sets"]),
        ("digits-novelty.onnx", ["accepted error", "novelty gate"]),
        ("digits-mc.onnx", ["accepted error"]),
        ("digits-rule-classes.onnx", []),
    ],
)
def test_a_changed_file_is_checked_for_every_promise(table: Path, golden: str, names: list[str]) -> None:
    """Recalibration may move the limits of sets and the cutoff of the gate, too."""
    model = Model(GOLDEN / golden, "cpu")
    found = EvaluationData.load(str(table), model.metadata).evaluate(model)
    kept = check(found, None)
    broken = check(replace(found, truth=(found.truth + 1) % len(model.classes)), None)
    for promises in (kept, broken):
        tests = [one for one in change_control.checks(found, promises, ["--data", "test.csv"]) if "promise" in one.name]
        assert [one.name for one in tests] == [f"promise: {name}" for name in names]
        for one, promise in zip(tests, promises, strict=True):
            assert promise.promise in one.condition
            assert promise.here in one.condition
            assert arguments(one.command)["data"] == "test.csv"
            assert one.command.startswith("uce-edge dossier NEW.onnx"), "the command that tests all promises"


def test_a_gate_that_rejects_nothing_fails_its_check(table: Path) -> None:
    """Its promise is about familiar images alone, so that a smaller cutoff keeps it."""
    model = Model(GOLDEN / "digits-novelty.onnx", "cpu")
    test = EvaluationData.load(str(table), model.metadata, ood=["far"])
    found = test.evaluate(model)
    (far,) = found.ood
    (one,) = [one for one in change_control.checks(found, (), ["--data", "a b"]) if one.name.endswith(": far")]
    (limit,) = re.findall(r"at most ([0-9.]+) %", one.condition)
    assert far.gated is not None
    assert 100 * far.gated < float(limit) < 100 * far.accepted, "without the gate, more are accepted"
    assert arguments(one.command)["ood"] == ("far",)


@pytest.mark.parametrize(
    ("failures", "images", "expected"),
    [(1, 15, None), (0, 0, None), (0, 15, None), (0, 100, True), (12, 100, False), (6, 100, None), (5, 10, False)],
)
def test_a_promise_is_broken_only_where_the_images_refute_it(failures: int, images: int, expected: bool | None) -> None:
    assert decided(failures, images, 0.05) is expected
    if images and expected is not True:
        value = stats.binomtest(failures, images, 0.05, alternative="greater").pvalue
        assert (value < 0.05) == (expected is False)


@pytest.mark.parametrize(("missed", "images", "fitted"), [(14, 200, 100), (30, 200, 100), (70, 1_000, 10_000)])
def test_sets_are_broken_by_a_beta_binomial_test(missed: int, images: int, fitted: int) -> None:
    failing = int((fitted + 1) * 0.05)
    value = stats.betabinom.sf(missed - 1, images, failing, fitted + 1 - failing)
    assert sets_decided(missed, images, fitted, 0.05) is (False if value < 0.05 else None)
    assert sets_decided(1, images, fitted, 0.05) is True


def test_kept_sets_are_rarely_called_broken() -> None:
    """The limit of few images varies, so a fixed bound of 5 % would be broken in nearly half of the draws."""
    rng = np.random.default_rng(0)
    shares = rng.beta(10, 191, 2_000)
    broken = [sets_decided(int(rng.binomial(5_000, share)), 5_000, 200, 0.05) is False for share in shares[:300]]
    assert np.mean(broken) < 0.09


def test_sets_of_a_file_are_a_promise(table: Path) -> None:
    model = Model(GOLDEN / "digits-sets-lac.onnx", "cpu")
    found = EvaluationData.load(str(table), model.metadata).evaluate(model)
    (promise,) = check(found, None)
    assert "contains the true label for at least 90.0 % of the images of every class" in promise.promise
    assert f"{found.sets.covered.count} of 120 sets" in promise.here  # type: ignore[union-attr]
    halves = check(found, np.arange(120) // 2)
    assert "one image of each of 60 groups" in halves[0].here
    assert " of 60 sets" in halves[0].here
    truth = (found.truth + 1) % len(model.classes)
    assert check(replace(found, truth=truth), None)[0].kept is False
    assert check(found, np.zeros(120))[0].kept is None


def test_a_wrong_accepted_image_breaks_nothing(table: Path) -> None:
    model = Model(GOLDEN / "digits-novelty.onnx", "cpu")
    found = EvaluationData.load(str(table), model.metadata).evaluate(model)
    truth = found.truth.copy()
    truth[:8] += 1  # of the first of fifteen groups
    for one in check(replace(found, truth=truth % len(model.classes)), np.arange(120) // 8):
        assert one.kept is None, one
    assert check(replace(found, truth=(found.truth + 1) % len(model.classes)), None)[0].kept is False


def test_promises_by_label_name_the_broken_ones(table: Path) -> None:
    model = Model(GOLDEN / "digits-rule-classes.onnx", "cpu")
    found = EvaluationData.load(str(table), model.metadata).evaluate(model)
    rule = found.metadata.rule
    assert rule is not None
    each = ClassPromise(target_error=0.1, error_bound=0.1, error=0, coverage=1, accepted=50, images=50)
    stored = Model(GOLDEN / "digits-novelty.onnx", "cpu").metadata.promise
    assert stored is not None
    stored = replace(stored, classes=(each,) * 10, tested=10)
    truth = np.where(found.answers.table.predicted == 3, 4, found.answers.table.predicted)
    metadata = replace(found.metadata, rule=replace(rule, limits=(1.0,) * 9 + (-1.0,), promise=stored))
    _, by_label = check(replace(found, metadata=metadata, truth=truth), None)
    assert by_label.kept is False
    assert "broken for 1 (3)" in by_label.here
    assert "1 of 10 labels have no promise" in by_label.here


def test_the_bill_has_the_licences_of_the_model_and_of_its_weights() -> None:
    metadata = Model(MODEL, "cpu").metadata
    weights = Pretrained("lite", "Apache-2.0", "https://example.org/lite", "ab" * 32)
    metadata = replace(metadata, card={"licence": "MIT"}, pretrained=weights)
    bill = json.loads(software.bill_of_materials("m.onnx", "cd" * 32, metadata=metadata))
    subject = bill["metadata"]["component"]
    assert subject["licenses"][0]["license"]["id"] == "MIT"
    (part,) = [one for one in bill["components"] if one["type"] == "machine-learning-model"]
    assert (part["name"], part["licenses"][0]["license"]["id"]) == ("lite", "Apache-2.0")
    assert part["hashes"][0]["content"] == weights.sha256
    assert part["externalReferences"][0]["url"] == weights.source
    (needs,) = [one["dependsOn"] for one in bill["dependencies"] if one["ref"] == subject["bom-ref"]]
    assert part["bom-ref"] in needs
    bare = json.loads(software.bill_of_materials("m.onnx", "cd" * 32, metadata=replace(metadata, card={})))
    assert "not stated" in json.dumps(bare["metadata"]["component"]["licenses"])


def test_the_bill_is_valid_cyclonedx(folder: Path) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib[json-validation]")
    from cyclonedx.exception import MissingOptionalDependencyException
    from cyclonedx.schema import SchemaVersion

    try:
        error = validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str((folder / pages.BILL).read_text())
    except MissingOptionalDependencyException:
        pytest.skip("jsonschema is not installed: pip install cyclonedx-python-lib[json-validation]")
    assert error is None


def test_bad_arguments_are_refused_and_nothing_is_written(table: Path, tmp_path: Path) -> None:
    with raises("manifest.columns", UsageError):
        collect(MODEL, str(table), by=["hospital"])
    with raises("dossier.no-manifest", UsageError):
        collect(MODEL, "digits", by=["scanner"])
    (tmp_path / "letter.txt").write_text("mine")
    with raises("dossier.place", UsageError):
        pages.check_place(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_an_earlier_dossier_is_replaced(folder: Path, table: Path) -> None:
    again = collect(MODEL, str(table), corrupt=False)
    pages.write(again, folder.parent / "second", "uce-edge dossier")
    pages.write(again, folder.parent / "second", "uce-edge dossier --again")
    assert "--again" in (folder.parent / "second" / pages.INDEX).read_text()
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def arguments(line: str) -> dict[str, Any]:
    """What the program reads in a command of a page."""
    words = shlex.split(line)
    assert words[0] == "uce-edge"
    found = typer.main.get_command(app).get_command(None, words[1])  # type: ignore[attr-defined,arg-type]
    values: dict[str, Any] = found.make_context(words[1], words[2:]).params
    return values


def test_its_commands_have_all_options_quoted_and_no_path(table: Path, tmp_path: Path, call: Call) -> None:
    secret = tmp_path / "mrs smith"
    shutil.copytree(table.parent, secret / "test images")
    data = (secret / "test images" / "test.csv").rename(secret / "test images" / "my test.csv")
    out, use = secret / "the dossier", "Sorting 'new' & \"old\" letters."
    made = call(
        "dossier", MODEL, "--data", data, "--by", "scanner", "--ood", "far", "--group", "scanner", "--no-corrupt",
        "--intended-use", use, "--root", secret, "--out", out,
    )  # fmt: skip
    assert made.code == 0, made.err
    page = (out / pages.INDEX).read_text(encoding="utf-8")
    (again,) = re.findall(r"uce-edge dossier [^<]*--out [^<]*", page[page.rindex("<footer") :])
    found = arguments(html.unescape(again))
    expected = {"data": "my test.csv", "by": ("scanner",), "ood": ("far",), "group": "scanner", "corrupt": False}
    expected |= {"intended_use": use, "root": "mrs smith", "out": "the dossier", "model": MODEL.name}
    assert {name: found[name] for name in expected} == expected
    document = json.loads((out / pages.DATA).read_text())
    commands = [one["command"] for one in document["change_control"]["checks"] if "--data" in one["command"]]
    assert len(commands) > 3
    for line in commands:
        found = arguments(line)
        assert (found["data"], found["group"], found["root"]) == ("my test.csv", "scanner", "mrs smith")
    assert not [file for file in out.iterdir() if str(secret) in file.read_text(encoding="utf-8")]
