"""Images that are in two splits, look alike across them, or have two labels are found and named."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from uce_edge.cli.dataset_summary import tell_dataset
from uce_edge.datasets import labelled, near_duplicates, overlap
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.metadata import ImageSpec


def photos(rng: np.random.Generator, count: int, size: int = 32) -> np.ndarray:
    """Pictures with large shapes, as photos have them."""
    rough = rng.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((size, size), Image.Resampling.BICUBIC)) for one in rough])


def named(images: np.ndarray, labels: np.ndarray, prefix: str) -> Split:
    return Split(images, labels, names=np.array([f"{prefix}{i}.png" for i in range(len(images))], object))


@pytest.fixture
def splits(rng: np.random.Generator) -> dict[str, Split]:
    sizes = {"train": 60, "calibration": 20, "guarantee": 20, "test": 30}
    return {key: named(photos(rng, count), np.arange(count) % 2, key) for key, count in sizes.items()}


def jpeg(image: np.ndarray) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=85)
    return np.asarray(Image.open(stream))


def test_different_images_are_not_alike(splits: dict[str, Split]) -> None:
    assert overlap.across(splits) == overlap.Overlaps(None, None, None)


def test_the_same_image_in_two_splits_is_counted_and_named(splits: dict[str, Split]) -> None:
    splits["test"].images[4:7] = splits["train"].images[[10, 12, 14]]
    splits["guarantee"].images[2] = splits["calibration"].images[6]
    splits["test"].labels[4:7] = 0
    found = overlap.across(splits)
    assert found.same == overlap.Twins(4, 70, ("guarantee2.png (guarantee)", "calibration6.png (calibration)"))
    assert found.alike is None
    assert found.two_labels is None


@pytest.mark.parametrize("change", ["jpeg", "bright", "contrast", "resized"])
def test_a_copy_that_looks_the_same_is_found(change: str, splits: dict[str, Split]) -> None:
    original = splits["train"].images[20]
    image = Image.fromarray(original)
    copies = {
        "jpeg": lambda: jpeg(original),
        "bright": lambda: (original * 0.9 + 20).astype(np.uint8),
        "contrast": lambda: (original * 0.7).astype(np.uint8),
        "resized": lambda: np.asarray(image.resize((48, 48)).resize((32, 32))),
    }
    splits["calibration"].images[3] = copies[change]()
    found = overlap.across(splits)
    assert found.same is None
    assert found.alike == overlap.Twins(1, 70, ("calibration3.png (calibration)", "train20.png (train)"))


def test_another_picture_of_the_same_thing_is_not_a_copy(splits: dict[str, Split]) -> None:
    image = Image.fromarray(splits["train"].images[20])
    splits["calibration"].images[3] = np.asarray(image.rotate(8).filter(ImageFilter.GaussianBlur(1)))
    assert overlap.across(splits).alike is None


def test_one_image_under_two_labels_is_found_within_a_split(splits: dict[str, Split]) -> None:
    splits["train"].images[31] = splits["train"].images[10]
    found = overlap.across(splits)
    assert found.two_labels == overlap.Twins(1, 130, ("train31.png (train)", "train10.png (train)"))
    assert found.same is None


def test_images_for_a_model_that_are_there_twice_are_told(
    tmp_path: Path, rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    images = photos(rng, 10)
    images[7], images[9] = images[2], images[3]
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(10) // 8)
    labelled.load(str(tmp_path / "data.npz"), ImageSpec(32, 32, 3), ("a", "b"))
    assert f"2 of the 10 images of {tmp_path / 'data.npz'} occur twice, such as image 7 and image 2." in caplog.text
    assert "1 of the 10 images" in caplog.text
    assert "also occur with another label, such as image 9 and image 3." in caplog.text


def test_images_without_contrast_are_like_nothing() -> None:
    flat = np.stack([np.full((20, 20, 1), value, np.uint8) for value in (0, 9, 200)])
    best, _ = near_duplicates.nearest(near_duplicates.thumbnails(flat), near_duplicates.thumbnails(flat))
    assert (best == 0).all()


def test_the_nearest_is_that_of_numpys_correlation(rng: np.random.Generator) -> None:
    some, others = photos(rng, 7, 16), photos(rng, 1100, 16)
    best, which = near_duplicates.nearest(near_duplicates.thumbnails(some), near_duplicates.thumbnails(others))
    flat = np.concatenate([some, others]).mean(-1).reshape(1107, -1)
    wanted = np.corrcoef(flat)[:7, 7:]
    assert np.array_equal(which, wanted.argmax(1))
    assert np.allclose(best, wanted.max(1), atol=1e-5)


def test_of_too_many_pairs_some_are_compared_and_counted(
    splits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    splits["test"].images[:] = splits["train"].images[:30] // 2
    monkeypatch.setattr(overlap, "_PAIRS", 1000)
    found = overlap.across(splits)
    assert found.alike == overlap.Twins(10, 30, ("test0.png (test)", "train0.png (train)"))


def test_classes_sizes_and_overlaps_are_told(splits: dict[str, Split], capsys: pytest.CaptureFixture[str]) -> None:
    splits["test"].images[4] = splits["train"].images[11]
    splits["train"].images[31] = splits["train"].images[10]
    splits["guarantee"].images[2] = jpeg(splits["train"].images[13])
    tell_dataset(Dataset("photos", ("cat", "dog", "eel"), splits))
    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines()[:6] == [
        "3 classes in photos:",
        "        train  calibration  guarantee  test",
        "images     60           20         20    30",
        "cat        30           10         10    15",
        "dog        30           10         10    15",
        "eel         0            0          0     0",
    ]
    assert "there is no training image of the class eel" in said
    assert "1 of 70 images are also in an earlier split, pixel by pixel, such as test4.png (test) and train11" in said
    assert "1 of 69 images look like one of an earlier split, such as guarantee2.png (guarantee) and train13" in said
    assert "2 of 130 images also occur with another label, such as train31.png (train) and train10" in said
