"""A folder for the Hugging Face hub: the header of its card is YAML that says what the file says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, ROOT, Call

from uce_edge import Model
from uce_edge.metadata import Metadata, StoredScore

hub = pytest.importorskip("uce_edge_export.publish.huggingface", reason="the extra `recalibrate` is not installed")
yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

BUNDLED = ROOT / "uce_edge" / "models" / "cifar10-moments.onnx"


def header(card: str) -> Any:
    start, text, rest = card.split("---\n", 2)
    assert start == ""
    assert rest.strip()
    return yaml.safe_load(text)


@pytest.fixture(scope="module")
def metadata() -> Metadata:
    return Model(BUNDLED, "cpu").metadata


def test_the_folder_has_the_file_as_it_is_and_a_card_with_its_metrics(
    tmp_path: Path, call: Call, metadata: Metadata
) -> None:
    folder = tmp_path / "hub"
    said = call("export", BUNDLED, "--hub", folder)
    assert (said.code, "hf upload" in said.err, "names no licence" in said.err) == (0, True, False), said.err
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.json", "model.onnx"]
    assert (folder / "model.onnx").read_bytes() == BUNDLED.read_bytes()
    assert call("verify", folder / "model.onnx").code == 0
    card = (folder / "README.md").read_text()
    known = header(card)
    assert (known["license"], known["library_name"], known["pipeline_tag"]) == (
        "mit",
        "uce-edge",
        "image-classification",
    )
    assert {"onnx", "uncertainty"} < set(known["tags"])
    (index,) = known["model-index"]
    (results,) = index["results"]
    assert (index["name"], results["dataset"]["name"]) == ("cifar10-moments", "CIFAR-10")
    found = {metric["type"]: metric["value"] for metric in results["metrics"]}
    assert found == {name: pytest.approx(score.value, abs=1e-6) for name, score in metadata.metrics.items()}
    assert known["metrics"] == list(found)
    assert "95 % confidence" in card
    assert "not for decisions about people" in card


def test_a_card_holds_whatever_a_file_says(metadata: Metadata) -> None:
    names = ('a: "b" #c\n- d', "no", "---", "ü\t", "{x}")
    strange = replace(
        metadata,
        classes=names,
        card={"data": '---\nx: [1, "2": 3', "licence": "All mine", "limits": []},
        metrics={"nll": StoredScore(1e-7), "ece": StoredScore(None), "my own": StoredScore(12345.678)},
    )
    known = header(hub.card('a"b: c', strange))
    (index,) = known["model-index"]
    assert (known["license"], index["name"]) == ("unknown", 'a"b: c')
    assert index["results"][0]["dataset"]["name"] == "---\nx"
    assert [metric["value"] for metric in index["results"][0]["metrics"]] == [0.0, 12345.678]
    assert "model-index" not in header(hub.card("x", replace(metadata, metrics={})))


@pytest.mark.parametrize(
    ("said", "licence"),
    [("MIT, as this project", "mit"), ("Apache-2.0", "apache-2.0"), ("CC-BY-4.0.", "cc-by-4.0"), ("ask me", "unknown")],
)
def test_a_licence_is_one_that_the_hub_knows(metadata: Metadata, said: str, licence: str) -> None:
    assert hub.licence(replace(metadata, card={"licence": said})) == licence


def test_files_of_another_model_stay(tmp_path: Path, call: Call) -> None:
    (tmp_path / "README.md").write_text("mine")
    said = call("export", GOLDEN / "digits-mc.onnx", "--hub", tmp_path)
    assert (said.code, "README.md already exists with other content" in said.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    (tmp_path / "README.md").unlink()
    said = call("export", GOLDEN / "digits-mc.onnx", "--hub", tmp_path)
    assert (said.code, "names no licence" in said.err) == (0, True)
