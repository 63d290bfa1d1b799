"""Datasets as they lie on disk become four disjoint splits that never change."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image
from scipy.io import savemat

from uce_edge.datasets import sources, splits
from uce_edge.datasets.resolve import resolve


def pixels(rng: np.random.Generator, count: int, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8)


def digest(dataset: splits.Dataset) -> dict[str, int]:
    return {name: len(split) for name, split in dataset.splits.items()}


def read(name: str, root: Path) -> sources.Source:
    return resolve(name, root).source


def write_folder(root: Path, rng: np.random.Generator, counts: dict[str, int], mode: str = "RGB") -> None:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            shape = (10, 12) if mode == "L" else (10, 12, 3)
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(root / name / f"{i}.png")


def test_cifar10_in_its_binary_version(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images, labels = pixels(rng, 60, 3, 32, 32), rng.integers(0, 10, 60).astype(np.uint8)
    rows = np.concatenate([labels[:, None], images.reshape(60, -1)], axis=1)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(rows[10 * i : 10 * i + 10].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[50:].tobytes())
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    source = read("cifar10", tmp_path)
    assert source.class_names == tuple("abcdefghij")
    assert np.array_equal(source.parts["train"][0][7], images[7].transpose(1, 2, 0))
    assert np.array_equal(source.parts["test"][1], labels[50:])
    (folder / "test_batch.bin").write_bytes(b"too short")
    with raises("dataset.damaged"):
        read("cifar10", tmp_path)


def test_cifar100_takes_the_fine_label(tmp_path: Path, rng: np.random.Generator) -> None:
    images = pixels(rng, 4, 3072)
    labels = np.array([[1, 3], [0, 2], [1, 1], [0, 0]], np.uint8)
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(np.concatenate([labels, images], axis=1).tobytes())
    (tmp_path / "fine_label_names.txt").write_text("a\nb\nc\nd\n")
    assert read("cifar100", tmp_path).parts["train"][1].tolist() == [3, 2, 1, 0]


def test_svhn_counts_its_ten_as_zero(tmp_path: Path, rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": images, "y": np.array([[10], [1], [9]])})
    source = read("svhn", tmp_path)
    assert source.parts["test"][1].tolist() == [0, 1, 9]
    assert np.array_equal(source.parts["train"][0][1], images[..., 1])


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_gzipped_or_not(packed: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    images = pixels(rng, 6, 28, 28)
    header = b"\x00\x00\x08\x03" + np.array([6, 28, 28], ">i4").tobytes()
    files = {"images-idx3-ubyte": header + images.tobytes()}
    files["labels-idx1-ubyte"] = b"\x00\x00\x08\x01" + np.array([6], ">i4").tobytes() + bytes(range(6))
    for prefix in ("train", "t10k"):
        for name, content in files.items():
            path = tmp_path / f"{prefix}-{name}"
            if packed:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)
    source = read("fashion-mnist", tmp_path)
    assert source.class_names[9] == "Ankle boot"
    assert np.array_equal(source.parts["train"][0][..., 0], images)
    assert source.parts["test"][1].tolist() == list(range(6))


def test_a_missing_dataset_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("dataset.missing"):
        splits.load("cifar10", tmp_path)
    monkeypatch.delenv("UCE_EDGE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with raises("dataset.missing"):
        splits.load("cifar10")
    (tmp_path / "cifar10").mkdir()
    with raises("dataset.missing"):
        splits.load("cifar10")


def test_a_named_dataset_may_be_an_npz_found_through_the_environment(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(100) % 3
    np.savez(tmp_path / "svhn.npz", x_train=pixels(rng, 100, 8, 8, 3), y_train=labels, x_test=pixels(rng, 9, 8, 8, 3),
             y_test=labels[:9], class_names=["a", "b", "c"])  # fmt: skip
    monkeypatch.setenv("UCE_EDGE_DATA", str(tmp_path))
    dataset = splits.load("svhn")
    assert digest(dataset) == {"train": 80, "calibration": 10, "guarantee": 10, "test": 9}
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.root == str(tmp_path)


def test_medmnist_gives_its_validation_images_to_calibration_and_guarantee(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    parts = {f"{name}_images": pixels(rng, n, 8, 8) for name, n in (("train", 20), ("val", 7), ("test", 5))}
    parts |= {f"{name}_labels": np.arange(n)[:, None] % 2 for name, n in (("train", 20), ("val", 7), ("test", 5))}
    np.savez(tmp_path / "med.npz", **parts)
    dataset = splits.load(str(tmp_path / "med.npz"))
    assert digest(dataset) == {"train": 20, "calibration": 4, "guarantee": 3, "test": 5}
    assert dataset.image_shape == (8, 8, 1)


def test_splits_are_disjoint_complete_and_always_the_same(tmp_path: Path) -> None:
    images = np.arange(200, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 1), np.uint8)
    np.savez(tmp_path / "all.npz", x=images, y=np.arange(200) % 4)
    dataset = splits.load(str(tmp_path / "all.npz"))
    found = [int(value) for split in dataset.splits.values() for value in split.images[:, 0, 0, 0]]
    assert sorted(found) == list(range(200))
    assert digest(dataset) == {"train": 120, "calibration": 20, "guarantee": 20, "test": 40}
    assert splits.load(str(tmp_path / "all.npz")).hashes() == dataset.hashes()


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_a_folder_of_classes(mode: str, channels: int, tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path, rng, {"cat": 12, "dog": 18, ".hidden": 1}, mode)
    dataset = splits.load(str(tmp_path), size=(6, 7))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.image_shape == (6, 7, channels)
    assert sum(digest(dataset).values()) == 30


def test_a_folder_with_its_own_parts(tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path / "train", rng, {"a": 8, "b": 8})
    write_folder(tmp_path / "val", rng, {"a": 3, "b": 3})
    write_folder(tmp_path / "test", rng, {"a": 2, "b": 3})
    assert digest(splits.load(str(tmp_path))) == {"train": 16, "calibration": 3, "guarantee": 3, "test": 5}


@pytest.mark.parametrize("count", [1, 10, 13])
def test_corrupt_images_are_left_out_counted_and_named(count: int, tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path, rng, {"cat": 12, "dog": 18})
    for i in range(count):
        (tmp_path / "cat" / f"broken{i:02}.png").write_bytes(b"nothing")
    with pytest.warns(sources.SkippedImagesWarning) as caught:
        dataset = splits.load(str(tmp_path))
    assert sum(digest(dataset).values()) == 30
    (warning,) = caught
    said = str(warning.message)
    names = ", ".join(f"cat/broken{i:02}.png" for i in range(min(count, 10)))
    rest = " and 3 more" if count == 13 else ""
    assert said.startswith(f"{count} images were left out of {tmp_path}: {names}{rest}. The first: ")
    assert said.count("broken") == min(count, 10) + 1


def huge_png(path: Path) -> None:
    """A picture of 60,000 x 60,000 pixels, by its header."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))))


def test_an_image_that_is_far_too_large_is_left_out_and_named(tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path, rng, {"cat": 12, "dog": 18}, "L")
    huge_png(tmp_path / "cat" / "0.png")  # the first one, which tells whether they are gray
    with pytest.warns(sources.SkippedImagesWarning, match=r"1 images were left out .*cat/0\.png.* has 3600 megapixels"):
        dataset = splits.load(str(tmp_path))
    assert sum(digest(dataset).values()) == 29
    assert dataset.image_shape == (32, 32, 1)


def test_a_class_without_images_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path, rng, {"cat": 12, "dog": 18, "empty": 0})
    (tmp_path / "empty" / "notes.txt").touch()
    with raises("dataset.class-empty"):
        splits.load(str(tmp_path))
    (tmp_path / "empty" / "broken.png").write_bytes(b"nothing")
    with (
        pytest.warns(sources.SkippedImagesWarning),
        raises("dataset.class-empty"),
    ):
        splits.load(str(tmp_path))


def test_a_class_that_only_the_test_part_has_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path / "train", rng, {"a": 8, "b": 8})
    write_folder(tmp_path / "test", rng, {"a": 2, "b": 3, "c": 1})
    with raises("dataset.class-missing"):
        splits.load(str(tmp_path))


def test_a_part_need_not_have_every_class(tmp_path: Path, rng: np.random.Generator) -> None:
    write_folder(tmp_path / "train", rng, {"a": 8, "b": 8, "c": 8})
    write_folder(tmp_path / "test", rng, {"a": 2, "c": 3})
    assert splits.load(str(tmp_path)).splits["test"].labels.tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(bytes(99))[:-9]], ids=["empty", "text", "cut"])
def test_a_damaged_public_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (tmp_path / "mnist" / name).write_bytes(content)
    with raises("dataset.damaged"):
        read("mnist", tmp_path)
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "train_32x32.mat").write_bytes(content)
    with raises("dataset.damaged"):
        read("svhn", tmp_path)


def bad_npz(tmp_path: Path, **arrays: np.ndarray) -> str:
    np.savez(tmp_path / "bad.npz", **arrays)
    return str(tmp_path / "bad.npz")


def labelled(*labels: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros((len(labels), 8, 8), np.uint8), "y": np.array(labels)}


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.zeros(4)}, "dataset.labels"),
        ({"x": np.zeros((4, 8, 8), np.float32), "y": np.zeros(4, int)}, "dataset.images"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.zeros(3, int)}, "dataset.labels"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.array([0, 1, -1, 0])}, "dataset.labels"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.zeros(4, int)}, "dataset.one-class"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.arange(4) % 2}, "dataset.too-small"),
        ({"test_images": np.zeros((4, 8, 8), np.uint8), "test_labels": np.arange(4) % 2}, "dataset.no-training"),
        ({"z": np.zeros(3)}, "dataset.arrays"),
        (labelled(0, 1, 4, 0), "dataset.labels"),
        (labelled(0, 1, 10**9, 0), "dataset.labels"),
        (
            labelled(0, 1, 0) | {"y": np.array([0, 1, 2**64 - 1], np.uint64)},
            "dataset.labels",
        ),
        (labelled(0, 1, 10**9, 0) | {"class_names": np.array(["a", "b"])}, "dataset.labels"),
        (labelled(-(10**9), 1, 0, 0), "dataset.labels"),
        ({"x": np.zeros((4, 0, 8), np.uint8), "y": np.arange(4) % 2}, "dataset.images"),
        ({"x": np.zeros((4, 8, 0, 3), np.uint8), "y": np.arange(4) % 2}, "dataset.images"),
    ],
)
def test_a_bad_archive_is_refused(arrays: dict[str, np.ndarray], code: str, tmp_path: Path) -> None:
    with raises(code):
        splits.load(bad_npz(tmp_path, **arrays))


def test_other_things_are_no_dataset(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with raises("dataset.unreadable"):
        splits.load(str(tmp_path / "text.npz"))
    with raises("dataset.missing"):
        splits.load(str(tmp_path / "missing.npz"))
    with raises("argument.data"):
        splits.load("nonsense")
    write_folder(tmp_path / "one", rng, {"cat": 3})
    with raises("dataset.one-class"):
        splits.load(str(tmp_path / "one"))
