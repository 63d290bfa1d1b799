"""Labelled images from a user's disk: a folder with one sub-folder per class, or an .npz file."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import images
from uce_edge.contract import ImageSpec
from uce_edge.errors import ImageError, UsageError, expected
from uce_edge_train.data import Split, digits

# The first pair of keys that a file has; held-out images come before those a model may have been trained on.
_PAIRS = (
    ("x", "y"),
    ("val_images", "val_labels"),
    ("x_val", "y_val"),
    ("test_images", "test_labels"),
    ("x_test", "y_test"),
)


class SkippedImagesWarning(UserWarning):
    """Some images of a folder could not be read and were left out."""


def load(source: str, spec: ImageSpec, classes: Sequence[str]) -> Split:
    """Labelled images for a model that exists already, resized and converted as it takes them.

    Args:
        source: A folder with one sub-folder per class, an .npz file, or `digits` (its calibration images).
        spec: What the model takes as an image.
        classes: The model's class names; sub-folders and `class_names` are matched by name.
    """
    if source == "digits":
        part = digits().splits["calibration"]
        _check(part.images, part.labels, len(classes), "the digits")
        return _fit(part.images, part.labels, spec)
    path = Path(source)
    if path.is_dir():
        return _from_folder(path, spec, classes)
    if path.suffix == ".npz":
        return _from_npz(path, spec, classes)
    raise UsageError(
        expected(
            "`data`",
            "a folder with one sub-folder per class, or an .npz file",
            source,
            "Check the path given to --data",
        )
    )


def _from_folder(path: Path, spec: ImageSpec, classes: Sequence[str]) -> Split:
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    unknown = [folder.name for folder in folders if folder.name not in classes]
    if not folders or unknown:
        raise UsageError(
            expected(
                f"the sub-folders of {path}",
                f"class names of the model ({', '.join(list(classes)[:5])}, ...)",
                ", ".join(unknown) or "no sub-folder",
                "Rename or remove them",
            )
        )
    pixels, labels, failed = [], [], []
    for folder in folders:
        for file in images.collect([str(folder)]):
            try:
                pixels.append(images.load(file, spec))
                labels.append(list(classes).index(folder.name))
            except ImageError as error:
                failed.append(str(error))
    if failed:
        warnings.warn(f"{len(failed)} images were left out: {failed[0]}", SkippedImagesWarning, stacklevel=2)
    if not pixels:
        raise UsageError(f"No image under {path} can be read. First: {failed[0] if failed else 'none found'}")
    return Split(np.stack(pixels), np.array(labels, np.int64))


def _from_npz(path: Path, spec: ImageSpec, classes: Sequence[str]) -> Split:
    if not path.is_file():
        raise UsageError(f"There is no file {path}. Check the path given to --data.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            pair = next((pair for pair in _PAIRS if set(pair) <= set(archive.files)), None)
            if pair is None:
                raise UsageError(
                    expected(
                        f"{path}",
                        "an archive with one of the pairs " + ", ".join("/".join(keys) for keys in _PAIRS),
                        ", ".join(archive.files),
                        "Save it with: np.savez(path, x=images, y=labels)",
                    )
                )
            pixels, labels = archive[pair[0]], archive[pair[1]].ravel()
            names = [str(name) for name in archive["class_names"].ravel()] if "class_names" in archive.files else None
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise whatever their parsing ran into
        raise UsageError(f"{path} cannot be read as an .npz archive ({error}).") from None
    _check(pixels, labels, len(classes if names is None else names), str(path))
    if names is not None and names != list(classes):
        missing = [name for name in names if name not in classes]
        if missing:
            raise UsageError(
                expected(
                    f"`class_names` of {path}", "classes of the model", ", ".join(missing), "Rename or remove them"
                )
            )
        labels = np.array([list(classes).index(names[int(label)]) for label in labels])
    return _fit(pixels, labels, spec)


def _check(pixels: npt.NDArray[Any], labels: npt.NDArray[Any], classes: int, source: str) -> None:
    """Refuse labels that are not one class number per image."""
    what, count = f"the labels of {source}", len(pixels) if pixels.ndim else 0
    if count == 0:
        raise UsageError(expected(f"the images of {source}", "at least one image", list(pixels.shape), "Add images"))
    if count != len(labels):
        raise UsageError(expected(what, f"one per image ({count})", len(labels), "Check the data file"))
    if labels.dtype.kind not in "iu":
        raise UsageError(expected(what, "whole numbers", str(labels.dtype), "Save class numbers from 0"))
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UsageError(expected(what, f"between 0 and {classes - 1}", int(wrong[0]), "Labels count from 0"))


def _fit(pixels: npt.NDArray[Any], labels: npt.NDArray[Any], spec: ImageSpec) -> Split:
    wanted = (spec.height, spec.width, spec.channels)
    if pixels.shape[1:] != wanted or str(pixels.dtype) != spec.dtype:
        pixels = np.stack([images.fit(image, spec) for image in pixels])
    return Split(pixels, labels.astype(np.int64))
