"""Folders of images: one sub-folder per class, maybe inside `train`, `val` and `test`."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import images
from uce_edge.datasets import gray
from uce_edge.datasets.sources import Format, Part, SkippedImagesWarning, Source, Wanted
from uce_edge.depth import UNDECIDED, Decided, Notes
from uce_edge.errors import ImageError, UsageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge.progress import progress

_NAMED_AT_MOST = 10  # images that could not be read, in the warning about them
_UNLEARNABLE = "a class without images cannot be learned. Add some, or remove the folder."


def read(path: Path, wanted: Wanted) -> Source:
    """All images, resized to one shape; without labels, also those of a folder that has no sub-folders."""
    spec = wanted.image or ImageSpec(*wanted.size, 1 if _is_gray(path) else 3)
    decided = _decided(path, wanted)
    spec = replace(spec, range=decided.range or spec.range)
    folders = _subfolders(path)
    if not wanted.labels:
        pixels, _ = _read_images(path, images.collect(map(str, folders or [path])), spec)
        return Source({"all": (pixels, np.zeros(len(pixels), np.int64))}, ("",))
    parts = {folder.name: folder for folder in folders if folder.name in ("train", "val", "test")}
    roots = parts if parts and len(parts) == len(folders) else {"all": path}
    names = sorted({folder.name for root in roots.values() for folder in _subfolders(root)})
    if not names:
        raise UsageError(expected(f"{path}", "a folder with one sub-folder per class", "no sub-folder", "Add them"))
    for name in names:
        if "train" in roots and not (roots["train"] / name).is_dir():
            raise UsageError(f"{roots['train']} has no sub-folder {name}, which another part has. Add it with images.")
    read_parts = {name: _read_classes(root, names, spec) for name, root in roots.items()}
    return Source(read_parts, tuple(names), gray=decided)


def _decided(path: Path, wanted: Wanted) -> Decided:
    """Which gray values become black and white, by the training images if they are a part of their own."""
    if wanted.range is None:
        return UNDECIDED
    training = path / "train" if (path / "train").is_dir() else path
    return gray.decided([file for file in sorted(training.rglob("*")) if images.is_image(file)], wanted.range)


def _is_gray(path: Path) -> bool:
    """Whether the images are gray, judged by the first of every sub-folder."""
    outer = _subfolders(path)
    found = set()
    for folder in [path, *outer, *(inner for one in outer for inner in _subfolders(one))]:
        first = next((file for file in sorted(folder.iterdir()) if images.is_image(file)), None)
        if first is not None:
            found.add(images.is_gray(first))
    found.discard(None)  # damaged or far too large: the reader says so, and another image tells
    return found == {True}


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
    with progress("reading images", len(files)) as advance, Notes() as notes:
        for index, file in enumerate(files):
            odd: list[str] = []
            try:
                pixels.append(images.load(file, spec, note=odd.append))
                notes.add(*odd)
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


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"The folder {path} cannot be listed: {error.strerror}. Check that you may read it.") from None


FORMAT = Format("a folder with one sub-folder per class", Path.is_dir, read, rule_unlabelled="a folder of images")
