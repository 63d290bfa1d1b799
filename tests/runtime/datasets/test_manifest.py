"""Manifests: a table of paths and labels becomes the same dataset as folders, or a sentence about what is wrong."""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image

from uce_edge.datasets import labelled, sources, splits
from uce_edge.metadata import ImageSpec

COUNT = 40


@pytest.fixture
def pictures(tmp_path: Path, rng: np.random.Generator) -> Path:
    (tmp_path / "scans").mkdir()
    for i in range(COUNT):
        Image.fromarray(rng.integers(0, 256, (6, 6), dtype=np.uint8)).save(tmp_path / "scans" / f"{i:02}.png")
    return tmp_path


def rows(**columns: object) -> list[dict[str, str]]:
    """A row per picture; a column is a function of its number."""
    columns = {"path": lambda i: f"scans/{i:02}.png", "label": lambda i: "sick" if i % 3 else "well"} | columns
    return [{name: value(i) for name, value in columns.items()} for i in range(COUNT)]  # type: ignore[operator]


def csv(folder: Path, table: list[dict[str, str]], name: str = "scans.csv", mark: str = ",") -> str:
    lines = [mark.join(table[0]), *(mark.join(row.values()) for row in table)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def images_of(dataset: splits.Dataset) -> set[str]:
    return {name for split in dataset.splits.values() for name in split.names}


def test_a_manifest_gives_what_folders_give(pictures: Path) -> None:
    dataset = splits.load(csv(pictures, rows()), size=(6, 6))
    assert dataset.class_names == ("sick", "well")
    assert dataset.image_shape == (6, 6, 1)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 24, "calibration": 4, "guarantee": 4, "test": 8,
    }  # fmt: skip
    for split in dataset.splits.values():
        for image, label, name in zip(split.images, split.labels, split.names, strict=True):
            assert np.array_equal(image[..., 0], np.asarray(Image.open(pictures / name)))
            assert dataset.class_names[label] == ("sick" if int(name[6:8]) % 3 else "well")


@pytest.mark.parametrize("kind", ["tsv", "semicolons", "bom", "jsonl", "parquet", "case"])
def test_every_kind_of_table_gives_the_same_splits(kind: str, pictures: Path) -> None:
    wanted = splits.load(csv(pictures, rows()), size=(6, 6)).hashes()
    if kind == "tsv":
        given = csv(pictures, rows(), "scans.tsv", "\t")
    elif kind == "semicolons":
        given = csv(pictures, rows(), "semicolons.csv", ";")
    elif kind == "bom":
        (pictures / "bom.csv").write_bytes(b"\xef\xbb\xbf" + (pictures / "scans.csv").read_bytes())
        given = str(pictures / "bom.csv")
    elif kind == "jsonl":
        (pictures / "scans.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows()))
        given = str(pictures / "scans.jsonl")
    elif kind == "case":
        text = (pictures / "scans.csv").read_text().replace("path,label", " Path ,LABEL")
        (pictures / "case.csv").write_text(text)
        given = str(pictures / "case.csv")
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows()), pictures / "scans.parquet")
        given = str(pictures / "scans.parquet")
    assert splits.load(given, size=(6, 6)).hashes() == wanted


def test_a_parquet_manifest_without_pyarrow_names_the_command(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pictures / "scans.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises("part.missing"):
        splits.load(str(pictures / "scans.parquet"))


def test_splits_of_the_column_are_kept_and_told(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "uce_edge.datasets")
    words = ["Training"] * 5 + ["calibration", "guarantee", "TEST"]
    given = csv(pictures, rows(split=lambda i: words[i % 8], age=str))
    dataset = splits.load(given)
    for name, remainders in (("calibration", {5}), ("guarantee", {6}), ("test", {7}), ("train", set(range(5)))):
        assert {int(file[6:8]) % 8 for file in dataset.splits[name].names} == remainders
    assert (
        "column split: Training (train), calibration (calibration), guarantee (guarantee), TEST (test)" in caplog.text
    )
    assert "columns that are not used: age." in caplog.text


def test_a_validation_split_is_cut_in_two(pictures: Path) -> None:
    given = csv(pictures, rows(split=lambda i: ("train", "train", "validation", "test")[i % 4]))
    dataset = splits.load(given)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 20, "calibration": 5, "guarantee": 5, "test": 10,
    }  # fmt: skip


def test_numbers_are_classes_in_the_order_of_numbers_and_of_a_model(pictures: Path) -> None:
    given = csv(pictures, rows(label=lambda i: str(i % 12)))
    assert splits.load(given).class_names == tuple(map(str, range(12)))
    classes = tuple("abcdefghijkl")
    split = labelled.load(given, ImageSpec(6, 6, 1), classes)
    assert split.labels.tolist() == [i % 12 for i in range(COUNT)]


def test_blanks_around_a_label_do_not_make_a_class(pictures: Path) -> None:
    assert splits.load(csv(pictures, rows(label=lambda i: f" {'ab'[i % 2]}"))).class_names == ("a", "b")


def test_a_damaged_image_of_a_manifest_is_left_out_and_named(pictures: Path) -> None:
    (pictures / "scans" / "07.png").write_bytes(b"nothing")
    with pytest.warns(sources.SkippedImagesWarning, match=r"1 images were left out of .*scans\.csv: scans/07\.png"):
        dataset = splits.load(csv(pictures, rows()))
    assert len(images_of(dataset)) == COUNT - 1


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"path": lambda i: f"gone/{i:02}.png" if i > 36 else f"scans/{i:02}.png"},
         "manifest.image-missing"),
        ({"label": lambda i: "" if i in (4, 9) else "ab"[i % 2]},
         "manifest.cell"),
        ({"label": lambda i: ("cat", "Cat")[i % 2]}, "dataset.class-names"),
        ({"label": lambda i: ("cat", "cat ")[i % 2]}, "dataset.class-names"),
        ({"split": lambda i: "train" if i != 5 else "tset"},
         "manifest.split"),
        ({"split": lambda i: "test"}, "dataset.no-training"),
        ({"split": lambda i: "train" if i < 20 else "test", "label": lambda i: "abc"[i % 2 + (i == 30)]},
         None),
        ({"split": lambda i: "train" if i < 20 else "test", "label": lambda i: "c" if i == 30 else "ab"[i % 2]},
         "dataset.class-missing"),
    ],
)  # fmt: skip
def test_a_bad_manifest_is_refused_with_its_row(columns: dict, code: str | None, pictures: Path) -> None:
    given = csv(pictures, rows(**columns))
    if code is None:
        assert splits.load(given).class_names == ("a", "b")
        return
    with raises(code):
        splits.load(given)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.csv", b"path,klass\nx.png,a\n", "manifest.columns"),
        ("a.csv", b"file,label\nx.png,a\n", "manifest.columns"),
        ("a.csv", b"path,label\n", "manifest.empty"),
        ("a.csv", b"", "manifest.empty"),
        ("a.csv", b"path,label,label\nx.png,a,b\n", "manifest.columns"),
        ("a.csv", b"path,label\nx.png,a,b\n", "manifest.row"),
        ("a.csv", b'path,label\nx.png,"a\n', "manifest.unreadable"),
        ("a.csv", b"path,label\nx\xff.png,a\n", "manifest.unreadable"),
        ("a.jsonl", b'{"path": "x.png", "label"\n', "manifest.row"),
        ("a.csv", b"path,label\n" + b"x" * 5000 + b",a\n", "manifest.image-missing"),
        ("a.jsonl", b"[1]\n", "manifest.row"),
        ("a.parquet", b"PAR1", "manifest.unreadable"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(name: str, content: bytes, code: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with raises(code):
        splits.load(str(tmp_path / name))


def test_a_folder_with_a_table_of_labels_is_that_manifest(pictures: Path) -> None:
    wanted = splits.load(csv(pictures, rows(group=lambda i: f"p{i // 2}")), size=(6, 6))
    csv(pictures, rows(group=lambda i: f"p{i // 2}"), "labels.csv")
    (pictures / "scans" / "unlisted.png").write_bytes((pictures / "scans" / "00.png").read_bytes())
    found = splits.load(str(pictures), size=(6, 6))
    assert found.hashes() == wanted.hashes()
    assert found.group == "group"


def test_another_table_in_a_folder_of_classes_is_not_read(pictures: Path, rng: np.random.Generator) -> None:
    (pictures / "other").mkdir()
    for i in range(10):
        Image.fromarray(rng.integers(0, 256, (6, 6), dtype=np.uint8)).save(pictures / "other" / f"{i}.png")
    (pictures / "labels.csv").write_text("number,name\n0,scans\n")
    assert splits.load(str(pictures)).class_names == ("other", "scans")


def test_class_id_orders_the_classes_and_tells_equal_names_apart(pictures: Path) -> None:
    names = ["zebra", "crane", "apple", "Crane"]
    given = csv(pictures, rows(class_id=lambda i: str((3 * i) % 4 + 7), label=lambda i: names[(3 * i) % 4]))
    assert splits.load(given).class_names == ("zebra", "crane (8)", "apple", "Crane (10)")
    images, outputs = labelled.load_with_names(given, ImageSpec(6, 6, 1), 12)
    assert outputs == (*map(str, range(7)), "zebra", "crane (8)", "apple", "Crane (10)", "11")
    assert images.labels.tolist() == [(3 * i) % 4 + 7 for i in range(COUNT)]


def test_class_id_is_the_class_of_a_model_with_other_names(pictures: Path) -> None:
    given = csv(pictures, rows(class_id=lambda i: str(i % 2 + 1), label=lambda i: ("tench", "crane")[i % 2]))
    split = labelled.load(given, ImageSpec(6, 6, 1), ("0", "tench, Tinca tinca", "crane (2)"))
    assert split.labels.tolist() == [i % 2 + 1 for i in range(COUNT)]
    by_name = labelled.load(given, ImageSpec(6, 6, 1), ("crane", "tench", "dog"))
    assert by_name.labels.tolist() == [(i + 1) % 2 for i in range(COUNT)]
    with raises("dataset.class-unknown"):  # a name says otherwise than its number
        labelled.load(given, ImageSpec(6, 6, 1), ("tench", "fish", "bird"))


@pytest.mark.parametrize("ids", [lambda i: "x", lambda i: "-1", str, lambda i: str(i % 3 + 1)])
def test_a_class_id_that_is_no_output_is_refused(ids: object, pictures: Path) -> None:
    given = csv(pictures, rows(class_id=ids, label=lambda i: "abc"[i % 3]))
    with raises("manifest.class-id"):
        labelled.load_with_names(given, ImageSpec(6, 6, 1), 3)


def test_numeric_folders_are_in_the_order_of_numbers(tmp_path: Path, rng: np.random.Generator) -> None:
    for label in (0, 1, 2, 10):
        (tmp_path / str(label)).mkdir()
        for i in range(5):
            Image.fromarray(rng.integers(0, 256, (6, 6), dtype=np.uint8)).save(tmp_path / str(label) / f"{i}.png")
    assert splits.load(str(tmp_path)).class_names == ("0", "1", "2", "10")
    split = labelled.load(str(tmp_path), ImageSpec(6, 6, 1), tuple("abcdefghijk"))
    assert sorted(set(split.labels)) == [0, 1, 2, 10]
