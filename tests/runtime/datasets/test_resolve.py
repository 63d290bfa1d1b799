"""A word for a dataset means the same in every command, and a new reader is one new file."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image

from uce_edge import datasets
from uce_edge.datasets import formats, labelled, named
from uce_edge.datasets.resolve import resolve
from uce_edge.metadata import ImageSpec

GRAY, CLASSES = ImageSpec(8, 8, 1), ("0", "1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, beside a root for datasets with a name."""
    monkeypatch.delenv("UCE_EDGE_DATA", raising=False)
    (tmp_path / "here").mkdir()
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def archive(path: Path, value: int, count: int = 40) -> None:
    """An archive whose pixels all have one value."""
    np.savez(path, x=np.full((count, 8, 8), value, np.uint8), y=np.arange(count) % 2)


def folder(path: Path, value: int) -> None:
    """Images with one value in their corner, no two the same."""
    for at, name in enumerate(CLASSES):
        (path / name).mkdir(parents=True)
        for index in range(20):
            image = Image.new("L", (8, 8), value)
            image.putpixel((7, 7), 20 * at + index)
            image.save(path / name / f"{index}.png")


def meant(word: str, root: Path | None = None) -> set[int]:
    """Which pixels training, evaluation and the search for foreign images take a word for."""
    trained = datasets.load(word, root, (8, 8)).splits["train"].images
    evaluated, _ = labelled.load_test(word, GRAY, CLASSES, root)
    foreign = labelled.load_ood(word, GRAY, root)
    return {int(images[0, 0, 0, 0]) for images in (trained, evaluated.images, foreign.images)}


def test_a_word_means_the_same_to_every_command(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(here / "photos", 10)
    assert meant("photos") == {10}
    archive(here / "photos.npz", 20)
    assert meant("photos") == {10}, "a path comes before an archive in the current folder"
    assert meant("photos.npz") == {20}
    archive(tmp_path / "root" / "photos.npz", 30)
    assert meant("photos", tmp_path / "root") == {30}, "an archive under the root comes before a path"
    assert meant("./photos", tmp_path / "root") == {10}
    monkeypatch.setenv("UCE_EDGE_DATA", str(tmp_path / "root"))
    assert meant("photos") == {30}


def test_a_known_name_is_that_dataset_whatever_lies_here(tmp_path: Path, here: Path) -> None:
    folder(here / "mnist", 10)
    archive(tmp_path / "root" / "mnist.npz", 30)
    assert meant("mnist", tmp_path / "root") == {30}
    assert meant("./mnist", tmp_path / "root") == {10}
    for read in (datasets.load, lambda word: labelled.load_ood(word, GRAY)):
        with raises("dataset.missing"):
            read("mnist")
    archive(here / "mnist.npz", 20)
    assert meant("mnist") == {20}, "without a root, the current folder is it"


def test_foreign_images_may_have_an_archive_of_test_images(tmp_path: Path) -> None:
    archive(tmp_path / "root" / "svhn_test.npz", 7)
    archive(tmp_path / "root" / "svhn.npz", 30)
    assert labelled.load_ood("svhn", GRAY, tmp_path / "root").images.max() == 7
    with raises("argument.data"):
        datasets.load("svhn_test_", tmp_path / "root")


def test_labels_of_foreign_images_do_not_matter(here: Path) -> None:
    np.savez(here / "few.npz", x=np.zeros((3, 8, 8), np.uint8), y=np.array([-1, 10**9, 5]))
    split = labelled.load_ood("few.npz", GRAY)
    assert split.labels.tolist() == [0, 0, 0]


def test_calibration_takes_no_dataset_under_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCE_EDGE_DATA", str(tmp_path / "root"))
    archive(tmp_path / "root" / "mnist.npz", 30)
    with raises("argument.data"):
        labelled.load("mnist", GRAY, CLASSES)


NEW_FORMAT = """
import numpy as np
from uce_edge.datasets.sources import Format, Source, numbered

def read(path, wanted):
    table = np.loadtxt(path, np.uint8, delimiter=",")
    parts = {"all": (table[:, 1:].reshape(-1, 2, 2, 1), table[:, 0].astype(np.int64))}
    return Source(parts, numbered(parts, path))

FORMAT = Format("a .rows file", lambda path: path.suffix == ".rows", read)
"""
NEW_DATASET = """
import numpy as np
from uce_edge.datasets.sources import Named, Source

def read(folder, wanted):
    images = np.arange(160, dtype=np.uint8).reshape(40, 2, 2, 1)
    return Source({"all": (images, np.arange(40) % 2)}, ("even", "odd"))

DATASET = Named(read)
"""


def test_a_new_format_is_one_file(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root" / "table.py").write_text(NEW_FORMAT)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path / "root")])
    formats.all_formats.cache_clear()
    try:
        (here / "mine.rows").write_text("".join(f"{i % 2},{i},{i},{i},{i}\n" for i in range(50)))
        dataset = datasets.load("mine.rows")
        assert dataset.image_shape == (2, 2, 1)
        assert dataset.class_names == ("0", "1")
        with raises("argument.data"):
            datasets.load("mine")
    finally:
        formats.all_formats.cache_clear()
        sys.modules.pop(f"{formats.__name__}.table")


def test_a_new_dataset_with_a_name_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root" / "my_numbers.py").write_text(NEW_DATASET)
    monkeypatch.setattr(named, "__path__", [*named.__path__, str(tmp_path / "root")])
    try:
        assert "my-numbers" in datasets.names()
        assert datasets.load("my-numbers").class_names == ("even", "odd")
    finally:
        sys.modules.pop(f"{named.__name__}.my_numbers")


def test_digits_name_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with raises("part.missing"):
        datasets.load("digits")


def test_digits_are_cut_alike_for_everybody() -> None:
    pytest.importorskip("sklearn")
    splits = datasets.load("digits").splits
    ten = tuple("0123456789")
    assert labelled.load("digits", GRAY, ten).sha256() == splits["calibration"].sha256()
    split, what = labelled.load_test("digits", GRAY, ten)
    assert (split.sha256(), what) == (splits["test"].sha256(), "test images")
    assert np.array_equal(labelled.load_ood("digits", GRAY).images, splits["test"].images)
    with raises("dataset.labels"):
        labelled.load("digits", GRAY, CLASSES)
    assert resolve("digits").root is None


def test_datasets_need_no_torch_and_their_names_not_even_numpy(here: Path) -> None:
    archive(here / "mine.npz", 3)
    code = (
        "import sys\n"
        "for name in ('torch', 'sklearn', 'scipy', 'onnx'): sys.modules[name] = None\n"
        "from uce_edge import datasets\n"
        "assert 'digits' in datasets.names() and 'numpy' not in sys.modules\n"
        "print(len(datasets.load('mine.npz').splits['train']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "24\n"
