"""Folders as people have them: images in sub-folders of a class, parts in any spelling, nothing left out in silence."""

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image

from uce_edge.datasets import labelled, overlap, splits
from uce_edge.metadata import ImageSpec


def write(path: Path, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(path)


def sizes(dataset: splits.Dataset) -> dict[str, int]:
    return {name: len(split) for name, split in dataset.splits.items()}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "uce_edge.datasets")
    return caplog


def test_images_in_sub_folders_of_a_class_belong_to_it(tmp_path: Path, rng: np.random.Generator) -> None:
    for i in range(10):
        write(tmp_path / "sick" / f"{i}.png", rng)
        write(tmp_path / "sick" / "virus" / f"{i}.png", rng)
        write(tmp_path / "sick" / "virus" / "2019" / f"{i}.PNG", rng)
        write(tmp_path / "well" / f"patient{i}" / "scan.png", rng)
    dataset = splits.load(str(tmp_path), size=(6, 6))
    assert dataset.class_names == ("sick", "well")
    assert sum(sizes(dataset).values()) == 40
    names = {name for split in dataset.splits.values() for name in split.names}
    assert {"sick/3.png", "sick/virus/2019/4.PNG", "well/patient7/scan.png"} <= names
    labels = np.concatenate([split.labels for split in dataset.splits.values()])
    assert np.bincount(labels).tolist() == [30, 10]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("Training", "Testing"), "Testing (test), Training (train)"),
        (("TRAIN", "Validation", "Test"), "TRAIN (train), Test (test), Validation (val)"),
        (("train", "valid", "test"), "test (test), train (train), valid (val)"),
        (("train", "calibration", "guarantee", "test"), None),
    ],
)
def test_parts_are_known_by_their_usual_names(
    given: tuple[str, ...], told: str | None, tmp_path: Path, rng: np.random.Generator, said: pytest.LogCaptureFixture
) -> None:
    for number, part in enumerate(given):
        for name in ("a", "b"):
            for i in range(20 - number):
                write(tmp_path / part / name / f"{i}.png", rng)
    found = sizes(splits.load(str(tmp_path)))
    assert found["test"] == 2 * (20 - given.index(given[-1]))
    if len(given) == 2:
        assert found == {"train": 32, "calibration": 4, "guarantee": 4, "test": 38}
    if len(given) == 3:
        assert found == {"train": 40, "calibration": 19, "guarantee": 19, "test": 36}
    if len(given) == 4:
        assert found == {"train": 40, "calibration": 38, "guarantee": 36, "test": 34}
    assert f"{tmp_path} has parts: " in said.text
    assert told is None or told in said.text


def test_a_calibration_part_alone_leaves_the_guarantee_to_be_cut(tmp_path: Path, rng: np.random.Generator) -> None:
    for part, count in (("train", 20), ("calibration", 3), ("test", 2)):
        for name in ("a", "b"):
            for i in range(count):
                write(tmp_path / part / name / f"{i}.png", rng)
    assert sizes(splits.load(str(tmp_path))) == {"train": 36, "calibration": 6, "guarantee": 4, "test": 4}
    spec = ImageSpec(6, 6, 3)
    assert len(labelled.load(str(tmp_path), spec, ("a", "b"))) == 6
    for name in ("a", "b"):
        write(tmp_path / "guarantee" / name / "0.png", rng)
    assert len(labelled.load(str(tmp_path), spec, ("a", "b"))) == 8, "images that nobody trained on, all of them"
    write(tmp_path / "val" / "a" / "0.png", rng)
    with raises("dataset.parts"):
        splits.load(str(tmp_path))


def test_parts_beside_other_folders_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    for folder in ("train/a", "train/b", "test/a", "test/b", "docs"):
        write(tmp_path / folder / "0.png", rng)
    with raises("dataset.parts"):
        splits.load(str(tmp_path))


def test_one_part_under_two_names_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    for folder in ("train/a", "val/a", "Validation/a"):
        write(tmp_path / folder / "0.png", rng)
    with raises("dataset.parts"):
        splits.load(str(tmp_path))


def test_a_class_called_train_is_a_class(tmp_path: Path, rng: np.random.Generator) -> None:
    for name in ("bus", "train"):
        for i in range(10):
            write(tmp_path / name / f"{i}.png", rng)
    assert splits.load(str(tmp_path)).class_names == ("bus", "train")


def test_what_is_no_image_is_counted_by_kind(
    tmp_path: Path, rng: np.random.Generator, said: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        for i in range(10):
            write(tmp_path / name / f"{i}.png", rng)
    for name in ("a/notes.txt", "a/more.TXT", "b/.DS_Store", "b/Makefile", "readme.md"):
        (tmp_path / name).write_text("-")
    write(tmp_path / "loose.png", rng)
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "b" / "again").symlink_to(tmp_path / "b")
    (tmp_path / "__MACOSX").mkdir()
    dataset = splits.load(str(tmp_path))
    assert dataset.class_names == ("a", "b")
    assert sum(sizes(dataset).values()) == 20
    for counted in (
        "8 entries are not read as images", "2 x .txt file", "1 x hidden file", "1 x file without an ending",
        "1 x .md file", "1 x image outside of the class folders", "1 x broken link",
        "1 x link to a folder that is listed already",
    ):  # fmt: skip
        assert counted in said.text


def test_foreign_images_may_lie_in_folders_of_any_depth(tmp_path: Path, rng: np.random.Generator) -> None:
    for name in ("0.png", "x/1.png", "x/y/2.png"):
        write(tmp_path / name, rng)
    assert len(labelled.load_ood(str(tmp_path), ImageSpec(6, 6, 3))) == 3


@pytest.mark.parametrize("other", ["Cat", "cat ", " CAT"])
def test_classes_that_differ_only_in_case_or_blanks_are_refused(
    other: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    for name in ("cat", other, "dog"):
        write(tmp_path / name / "0.png", rng)
    with raises("dataset.class-names"):
        splits.load(str(tmp_path))


def test_class_names_of_an_archive_that_stand_there_twice_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((4, 8, 8), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "data.npz", x=x, y=y, class_names=["cat", "cat"])
    with raises("dataset.class-names"):
        splits.load(str(tmp_path / "data.npz"))


def test_copies_of_an_image_are_dealt_together(tmp_path: Path, rng: np.random.Generator) -> None:
    for name in ("a", "b"):
        for i in range(40):
            write(tmp_path / name / f"{i}.png", rng)
        for i in range(15):
            (tmp_path / name / f"copy of {i}.png").write_bytes((tmp_path / name / f"{i}.png").read_bytes())
    dataset = splits.load(str(tmp_path), size=(6, 6))
    assert sum(sizes(dataset).values()) == 110
    assert overlap.across(dataset.splits).same is None
    first, second = dataset.splits["train"].halves()
    assert overlap.across({"first": first, "second": second}).same is None
