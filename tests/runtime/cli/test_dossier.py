"""One folder of evidence about a file: complete, checked against the tools it quotes, written whole or not at all."""

import csv
import json
from pathlib import Path

import pytest
from conftest import GOLDEN
from PIL import Image

from tests.helpers.errors import raises
from uce_edge.datasets import splits
from uce_edge.dossier import pages, software
from uce_edge.dossier.contents import collect
from uce_edge.errors import UsageError
from uce_edge.evaluation.evaluation_data import EvaluationData
from uce_edge.integrity.digests import of_file
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
