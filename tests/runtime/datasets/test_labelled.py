"""Labelled images from a user's disk: matched by class name, made to fit the model, and refused with a reason."""

from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image

from uce_edge.datasets import labelled, sources
from uce_edge.metadata import ImageSpec

RGB, GRAY = ImageSpec(8, 6, 3), ImageSpec(8, 6, 1)
CLASSES = ("zebra", "ant", "mole")


def picture(value: int, shape: tuple[int, ...] = (8, 6, 3)) -> np.ndarray:
    return np.full(shape, value, np.uint8)


def batch(count: int = 4, shape: tuple[int, ...] = (8, 6, 3)) -> np.ndarray:
    return np.stack([picture(10 * i, shape) for i in range(count)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for value, name in enumerate(("ant", "mole", "zebra")):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.fromarray(picture(100 * value + i)).save(tmp_path / name / f"{i}.png")
    return tmp_path


@pytest.fixture
def archive(tmp_path: Path):
    def saved(**arrays: object) -> str:
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return str(path)

    return saved


# Folders.


def test_folders_are_matched_by_name_not_by_order(folder: Path) -> None:
    split = labelled.load(str(folder), RGB, CLASSES)
    assert split.labels.tolist() == [1, 1, 2, 2, 0, 0]
    assert split.labels.dtype == np.int64
    assert split.images[:, 0, 0, 0].tolist() == [0, 1, 100, 101, 200, 201]
    assert split.images.shape == (6, 8, 6, 3)


def test_hidden_folders_and_loose_files_do_not_count(folder: Path) -> None:
    (folder / ".cache").mkdir()
    (folder / "README.txt").write_text("hello")
    (folder / "ant" / "notes.txt").write_text("hello")
    assert len(labelled.load(str(folder), RGB, CLASSES)) == 6


def test_a_missing_class_is_no_error(folder: Path) -> None:
    assert set(labelled.load(str(folder), RGB, (*CLASSES, "yak")).labels) == {0, 1, 2}


def test_an_unknown_folder_is_named(folder: Path) -> None:
    (folder / "mole").rename(folder / "cow")
    with raises("dataset.class-unknown"):
        labelled.load(str(folder), RGB, CLASSES)


def test_an_empty_class_folder_is_named(folder: Path) -> None:
    for image in (folder / "mole").iterdir():
        image.unlink()
    with raises("dataset.class-empty"):
        labelled.load(str(folder), RGB, CLASSES)


def test_a_folder_without_classes(tmp_path: Path) -> None:
    Image.fromarray(picture(1)).save(tmp_path / "loose.png")
    with raises("dataset.no-classes"):
        labelled.load(str(tmp_path), RGB, CLASSES)


def test_unreadable_images_are_left_out_and_named(folder: Path) -> None:
    (folder / "ant" / "1.png").write_bytes(b"no image")
    with pytest.warns(sources.SkippedImagesWarning, match=r"1 images were left out.*ant/1\.png"):
        split = labelled.load(str(folder), RGB, CLASSES)
    assert split.labels.tolist() == [1, 2, 2, 0, 0]


def test_no_readable_image_at_all(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "1.png").write_bytes(b"no image")
    with (
        pytest.warns(sources.SkippedImagesWarning),
        raises("dataset.unreadable"),
    ):
        labelled.load(str(tmp_path), RGB, CLASSES)


@pytest.mark.parametrize("spec", [RGB, GRAY, ImageSpec(3, 5, 3), ImageSpec(16, 16, 1)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P"])
def test_images_are_made_to_fit(spec: ImageSpec, mode: str, tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    Image.new("RGB", (20, 10), (77, 77, 77)).convert(mode).save(tmp_path / "ant" / "1.png")
    split = labelled.load(str(tmp_path), spec, CLASSES)
    assert split.images.shape == (1, spec.height, spec.width, spec.channels)
    assert split.images.dtype == np.uint8
    assert np.abs(split.images.astype(int) - 77).max() <= 30 * (mode == "P")


# Archives.


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_x_and_y(archive, kind: type, shape: tuple[int, ...]) -> None:
    split = labelled.load(archive(x=batch(), y=np.array([2, 0, 1, 1], kind).reshape(shape)), RGB, CLASSES)
    assert split.labels.tolist() == [2, 0, 1, 1]
    assert split.labels.dtype == np.int64
    assert np.array_equal(split.images, batch())


@pytest.mark.parametrize(
    ("present", "taken"),
    [
        (["train", "val", "test"], "val"),
        (["train", "test"], "test"),
        (["test", "val"], "val"),
    ],
)
def test_medmnist_keys_prefer_validation_images(archive, present: list[str], taken: str) -> None:
    count = {"train": 5, "val": 3, "test": 2}
    arrays = {f"{name}_images": batch(count[name]) for name in present}
    arrays |= {f"{name}_labels": np.zeros((count[name], 1), np.uint8) for name in present}
    assert len(labelled.load(archive(**arrays), RGB, CLASSES)) == count[taken]


def test_x_test_and_y_test(archive) -> None:
    assert len(labelled.load(archive(x_test=batch(), y_test=np.zeros(4, int)), RGB, CLASSES)) == 4


def test_training_images_alone_are_refused(archive) -> None:
    with raises("dataset.only-training"):
        labelled.load(archive(train_images=batch(), train_labels=np.zeros(4, int)), RGB, CLASSES)


def test_class_names_reorder_the_labels(archive) -> None:
    path = archive(x=batch(), y=np.array([0, 1, 2, 0]), class_names=np.array(["ant", "mole", "zebra"]))
    assert labelled.load(path, RGB, CLASSES).labels.tolist() == [1, 2, 0, 1]
    same = archive(x=batch(), y=np.array([0, 1, 2, 0]), class_names=np.array(CLASSES))
    assert labelled.load(same, RGB, CLASSES).labels.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("pixels", "spec"),
    [
        (batch(shape=(8, 6)), GRAY),
        (batch(shape=(8, 6)), RGB),
        (batch(shape=(28, 28, 1)), RGB),
        (batch(shape=(28, 28, 3)), GRAY),
    ],
)
def test_arrays_are_resized_and_converted(archive, pixels: np.ndarray, spec: ImageSpec) -> None:
    split = labelled.load(archive(x=pixels, y=np.zeros(4, int)), spec, CLASSES)
    assert split.images.shape == (4, 8, 6, spec.channels)
    assert split.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30]


NAMES = np.array(["ant", "mole", "zebra"])


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"x": batch(), "y": np.array([0.0, 1.0, 2.0, 0.5])}, "dataset.labels"),
        ({"x": batch(), "y": np.array([0.0, 1.0, 2.0, 0.5]), "class_names": NAMES}, "dataset.labels"),
        ({"x": batch(), "y": np.array(["ant"] * 4)}, "dataset.labels"),
        ({"x": batch(), "y": np.array(["ant"] * 4), "class_names": NAMES}, "dataset.labels"),
        ({"x": batch(), "y": np.zeros(3, int)}, "dataset.labels"),
        ({"x": batch(), "y": np.zeros((4, 3), int)}, "dataset.labels"),
        ({"x": batch(), "y": np.array([0, 1, 2, 3]), "class_names": NAMES}, "dataset.labels"),
        ({"x": batch(), "y": np.array([0, 1, 2, -1]), "class_names": NAMES}, "dataset.labels"),
        ({"x": batch(), "y": np.array([0, 1, 2, 3])}, "dataset.labels"),
        ({"x": batch(), "y": np.array([0, 1, 2, -1])}, "dataset.labels"),
        ({"x": batch(), "y": np.zeros(4, int), "class_names": np.array(["ant", "cow"])}, "dataset.class-unknown"),
        ({"x": batch().astype(np.float32), "y": np.zeros(4, int)}, "dataset.images"),
        ({"x": batch(shape=(8, 6, 2)), "y": np.zeros(4, int)}, "dataset.images"),
        ({"x": np.zeros(0, np.uint8), "y": np.zeros(0, int)}, "dataset.images"),
        ({"x": np.zeros((0, 8, 6, 3), np.uint8), "y": np.zeros(0, int)}, "dataset.labels"),
        ({"x": np.uint8(3), "y": np.int64(1)}, "dataset.images"),
        ({"x": np.array([{}], object), "y": np.zeros(1, int)}, "dataset.unreadable"),
        ({"a": batch()}, "dataset.arrays"),
    ],
)
def test_archives_that_do_not_fit(archive, arrays: dict, code: str) -> None:
    with raises(code):
        labelled.load(archive(**arrays), RGB, CLASSES)


def _npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, batch())


def _cut(path: Path) -> None:
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 255, (4, 8, 6, 3)), y=np.zeros(4, int))
    content = bytearray(path.read_bytes())
    content[100:140] = bytes(40)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "write", [lambda path: path.write_bytes(b""), lambda path: path.write_text("hello"), _npy, _cut]
)
def test_files_that_are_no_archives(write, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    write(path)
    with raises("dataset.unreadable"):
        labelled.load(str(path), RGB, CLASSES)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("absent", "argument.data"),
        ("a.csv", "dataset.missing"),
        ("absent.npz", "dataset.missing"),
    ],
)
def test_sources_that_are_not_there(source: str, code: str) -> None:
    with raises(code):
        labelled.load(source, RGB, CLASSES)


def test_the_embedded_digits() -> None:
    pytest.importorskip("sklearn")
    split = labelled.load("digits", ImageSpec(8, 8, 1), tuple("0123456789"))
    assert split.images.shape[1:] == (8, 8, 1)
    assert labelled.load("digits", ImageSpec(12, 12, 3), tuple("0123456789")).images.shape[1:] == (12, 12, 3)
