"""Reading labelled images as they lie on disk: .npz, folders of classes, CIFAR's and SVHN's files, idx. No pickle."""

import gzip
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge import images
from uce_edge.datasets import downloads
from uce_edge.errors import ImageError, UceEdgeWarning, UsageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge.progress import progress

Part = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Images [n, height, width, channels] and labels [n]."""

_NAMED_AT_MOST = 10  # images that could not be read, in the warning about them
_UNLEARNABLE = "a class without images cannot be learned. Add some, or remove the folder."


class SkippedImagesWarning(UceEdgeWarning):
    """Some images of a folder could not be read and were left out."""


@dataclass(frozen=True)
class Source:
    """What a dataset's files hold: parts named `train`, `val` and `test`, or one part `all`."""

    parts: dict[str, Part]
    class_names: tuple[str, ...]


_NPZ_KEYS = {
    "all": [("x", "y")],
    "train": [("train_images", "train_labels"), ("x_train", "y_train")],
    "val": [("val_images", "val_labels"), ("x_val", "y_val")],
    "test": [("test_images", "test_labels"), ("x_test", "y_test")],
}


def read_npz(path: Path, classes: Sequence[str] | None = None) -> Source:
    """An archive with x/y, {train,val,test}_images/_labels (MedMNIST) or x_train/y_train/..., and maybe class_names.

    Args:
        path: The file.
        classes: The class names of an archive that has none; None for numbers.
    """
    if not path.is_file():
        raise UsageError(f"There is no file {path}. Check the path given to --data.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            parts = {}
            for name, pairs in _NPZ_KEYS.items():
                for pixels, labels in pairs:
                    if pixels in archive.files and labels in archive.files:
                        parts[name] = _part(archive[pixels], archive[labels], f"{labels} of {path}")
            if not parts:
                known = ", ".join("/".join(pair) for pairs in _NPZ_KEYS.values() for pair in pairs)
                raise UsageError(
                    expected(
                        f"{path}",
                        f"an archive with one of the pairs {known}",
                        ", ".join(archive.files),
                        "Save it with: np.savez(path, x=images, y=labels)",
                    )
                )
            if "class_names" in archive.files:
                names = tuple(str(name) for name in archive["class_names"].ravel())
            elif classes is not None:
                names = tuple(classes)
            else:
                names = tuple(str(i) for i in range(1 + max(int(y.max(initial=0)) for _, y in parts.values())))
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise whatever their parsing ran into
        raise UsageError(f"{path} cannot be read as an .npz archive ({error}).") from None
    check_labels(parts, names, path)
    return Source(parts, names)


def read_folder(path: Path, spec: ImageSpec) -> Source:
    """One sub-folder per class, or `train`, `val` and `test` with one sub-folder per class each."""
    folders = _subfolders(path)
    wanted = {folder.name: folder for folder in folders if folder.name in ("train", "val", "test")}
    roots = wanted if wanted and len(wanted) == len(folders) else {"all": path}
    names = sorted({folder.name for root in roots.values() for folder in _subfolders(root)})
    if not names:
        raise UsageError(expected(f"{path}", "a folder with one sub-folder per class", "no sub-folder", "Add them"))
    for name in names:
        if "train" in roots and not (roots["train"] / name).is_dir():
            raise UsageError(f"{roots['train']} has no sub-folder {name}, which another part has. Add it with images.")
    return Source({name: _read_classes(root, names, spec) for name, root in roots.items()}, tuple(names))


def gray_folder(path: Path) -> bool:
    """Whether the images of a folder are gray, judged by the first of every sub-folder."""
    modes = set()
    for folder in [path, *_subfolders(path), *(inner for outer in _subfolders(path) for inner in _subfolders(outer))]:
        first = next((file for file in sorted(folder.iterdir()) if file.suffix.lower() in images.SUFFIXES), None)
        if first is not None:
            try:
                with Image.open(first) as image:
                    modes.add(image.mode)
            except OSError:
                continue
    return bool(modes) and modes <= {"1", "L", "LA", "I", "I;16", "F"}


def read_unlabelled(path: Path, spec: ImageSpec) -> npt.NDArray[Any]:
    """All images of a folder, or of its sub-folders where it has any."""
    folders = _subfolders(path) or [path]
    pixels, _ = _read_images(path, images.collect(map(str, folders)), spec)
    return pixels


def _read_classes(root: Path, names: list[str], spec: ImageSpec) -> Part:
    folders = {label: root / name for label, name in enumerate(names) if (root / name).is_dir()}
    files = [(file, label) for label, folder in folders.items() for file in _list(folder)]
    pixels, kept = _read_images(root, [file for file, _ in files], spec)
    labels = np.array([label for _, label in files], np.int64)[kept]
    for label in sorted(folders.keys() - set(labels.tolist())):
        raise UsageError(f"No image in {folders[label]} can be read, and {_UNLEARNABLE}")
    return pixels, labels


def _read_images(root: Path, files: list[str], spec: ImageSpec) -> tuple[npt.NDArray[Any], list[int]]:
    """What can be read, and which of the files that is; the others are counted and named."""
    pixels, kept, failed = [], [], []
    with progress("reading images", len(files)) as advance:
        for index, file in enumerate(files):
            try:
                pixels.append(images.load(file, spec))
                kept.append(index)
            except ImageError as error:
                failed.append((Path(file).relative_to(root).as_posix(), error))
            advance(1)
    if failed:
        listed = ", ".join(name for name, _ in failed[:_NAMED_AT_MOST])
        if len(failed) > _NAMED_AT_MOST:
            listed += f" and {len(failed) - _NAMED_AT_MOST} more"
        warnings.warn(
            f"{len(failed)} images were left out of {root}: {listed}. The first: {failed[0][1]}",
            SkippedImagesWarning,
            stacklevel=2,
        )
    if not pixels:
        raise UsageError(f"No image under {root} can be read. The first: {failed[0][1] if failed else 'there is none'}")
    return np.stack(pixels), kept


def _list(folder: Path) -> list[str]:
    try:
        return images.collect([str(folder)])
    except ImageError:
        _subfolders(folder)  # says so when it cannot be listed
        kinds = ", ".join(images.SUFFIXES)
        raise UsageError(f"{folder} has no images directly in it ({kinds}), and {_UNLEARNABLE}") from None


def read_cifar(folder: Path, fine: bool) -> Source:
    """The binary version of CIFAR-10 (`fine` false) or CIFAR-100 (fine labels)."""

    def part(names: Iterable[str]) -> Part:
        skip = 2 if fine else 1
        rows = [np.frombuffer((folder / name).read_bytes(), np.uint8) for name in names]
        if any(row.size % (3072 + skip) for row in rows):
            raise UsageError(f"The files in {folder} have a wrong length. Download them again.")
        table = np.concatenate(rows).reshape(-1, 3072 + skip)
        pixels = table[:, skip:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), table[:, skip - 1].astype(np.int64)

    train = ["train.bin"] if fine else [f"data_batch_{i}.bin" for i in range(1, 6)]
    listing = folder / ("fine_label_names.txt" if fine else "batches.meta.txt")
    names = tuple(line.strip() for line in listing.read_text().splitlines() if line.strip())
    parts = {"train": part(train), "test": part(["test.bin" if fine else "test_batch.bin"])}
    check_labels(parts, names, folder)
    return Source(parts, names)


def read_svhn(folder: Path) -> Source:
    """SVHN's cropped digits, `train_32x32.mat` and `test_32x32.mat`; the label 10 means 0."""
    from scipy.io import loadmat

    def part(name: str) -> Part:
        content = loadmat(folder / name)
        return np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), content["y"].ravel().astype(np.int64) % 10

    parts = {"train": part("train_32x32.mat"), "test": part("test_32x32.mat")}
    return Source(parts, tuple(str(digit) for digit in range(10)))


def read_idx(folder: Path, class_names: tuple[str, ...]) -> Source:
    """MNIST's and Fashion-MNIST's idx files, gzipped or not."""

    def array(name: str) -> npt.NDArray[np.uint8]:
        plain, packed = folder / name, folder / f"{name}.gz"
        content = plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())
        rank = content[3]
        shape = np.frombuffer(content, ">i4", rank, 4)
        if content[:3] != b"\x00\x00\x08" or len(content) != 4 + 4 * rank + int(np.prod(shape)):
            raise UsageError(f"{plain} is not an idx file of bytes, or is damaged. Download it again.")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)

    def part(prefix: str) -> Part:
        return _part(
            array(f"{prefix}-images-idx3-ubyte"), array(f"{prefix}-labels-idx1-ubyte"), f"the labels in {folder}"
        )

    parts = {"train": part("train"), "test": part("t10k")}
    check_labels(parts, class_names, folder)
    return Source(parts, class_names)


_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

NAMED: dict[str, tuple[str, Callable[[Path], Source]]] = {
    "cifar10": ("data_batch_1.bin", lambda folder: read_cifar(folder, fine=False)),
    "cifar100": ("train.bin", lambda folder: read_cifar(folder, fine=True)),
    "svhn": ("train_32x32.mat", read_svhn),
    "fashion-mnist": ("train-labels-idx1-ubyte*", lambda folder: read_idx(folder, _FASHION)),
    "mnist": ("train-labels-idx1-ubyte*", lambda folder: read_idx(folder, tuple(map(str, range(10))))),
}
"""Per dataset: a file that shows it is there, and its reader; `downloads.PUBLIC` knows where it comes from."""


def read_named(name: str, root: Path) -> Source:
    """A public dataset under a root: `NAME.npz`, or the original files in their usual folder or in the root itself."""
    archive = root / f"{name}.npz"
    if archive.is_file():
        return read_npz(archive)
    sign, read = NAMED[name]
    remedy = f"`train` and `reproduce` fetch it with --download; or {downloads.by_hand(name, root)}"
    for folder in downloads.places(name, root):
        if folder.is_dir() and any(folder.glob(sign)):
            try:
                return read(folder)
            except UsageError:
                raise
            except Exception as error:  # a missing file, or whatever gzip and scipy ran into in a damaged one
                raise UsageError(f"{name} in {folder} is incomplete or damaged ({error}). {remedy}.") from None
    raise UsageError(
        f"{name} is not under {root}. {remedy}. "
        f"Or put {name}.npz into {root}, or name another place with --root or UCE_EDGE_DATA."
    )


def _part(pixels: npt.NDArray[Any], labels: npt.NDArray[Any], what: str) -> Part:
    labels = labels.ravel()
    if labels.dtype.kind not in "iu":
        raise UsageError(expected(what, "whole numbers", str(labels.dtype), "Save class numbers from 0"))
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        rule = "uint8 [n, height, width] or [n, height, width, 1 or 3]"
        raise UsageError(
            expected(f"the images beside {what}", rule, f"{pixels.dtype} {list(pixels.shape)}", "Convert them")
        )
    if len(pixels) != len(labels) or len(labels) == 0:
        raise UsageError(expected(what, f"one per image ({len(pixels)}), one at least", len(labels), "Check the file"))
    # A copy where the file's bytes are read-only: torch warns of such arrays.
    return np.require(pixels, requirements="W"), labels.astype(np.int64)


def check_labels(parts: dict[str, Part], names: tuple[str, ...], path: Path) -> None:
    """Refuse labels that are not the number of a class."""
    for _, labels in parts.values():
        wrong = labels[(labels < 0) | (labels >= len(names))]
        if len(wrong):
            rule = f"between 0 and {len(names) - 1}"
            raise UsageError(expected(f"the labels of {path}", rule, int(wrong[0]), "Labels count from 0"))


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"The folder {path} cannot be listed: {error.strerror}. Check that you may read it.") from None
