"""Images for a model that exists already: resized as it takes them, and their labels matched to its classes."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import images
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge_train import sources
from uce_edge_train.data import Split, digits

# Held-out images come first; images a model may have been trained on are never taken.
_PREFERRED = ("all", "val", "test")


def load(source: str, spec: ImageSpec, classes: Sequence[str]) -> Split:
    """Labelled images from a user's disk.

    Args:
        source: A folder with one sub-folder per class, an .npz file, or `digits` (its calibration images).
        spec: What the model takes as an image.
        classes: The model's class names; sub-folders and `class_names` are matched by name.
    """
    path = Path(source)
    if source == "digits":
        part, names = digits().splits["calibration"], tuple(classes)
        found = sources.Source({"all": (part.images, part.labels)}, names)
        sources.check_labels(found.parts, names, path)
    elif path.is_dir():
        found = sources.read_folder(path, spec)
    elif path.suffix == ".npz":
        found = sources.read_npz(path, classes)
    else:
        rule = "a folder with one sub-folder per class, or an .npz file"
        raise UsageError(expected("`data`", rule, source, "Check the path given to --data"))
    name = next((name for name in _PREFERRED if name in found.parts), None)
    if name is None:
        raise UsageError(f"{source} has training images only. Calibration needs images the model has not seen.")
    pixels, labels = found.parts[name]
    unknown = [name for name in found.class_names if name not in classes]
    if unknown:
        rule = f"among the model's ({', '.join(list(classes)[:5])}, ...)"
        raise UsageError(
            expected(f"the classes of {source}", rule, ", ".join(unknown), "Rename them, or export with --classes")
        )
    index = np.array([list(classes).index(name) for name in found.class_names])
    return Split(_fitted(pixels, spec), index[labels])


def foreign(source: str, spec: ImageSpec, root: str | Path | None = None) -> Split:
    """Images whose labels do not matter, all 0: what a model was not trained for.

    Args:
        source: A dataset's name (its test images; NAME_test.npz will do), a folder of images with or without
            sub-folders, or an .npz file.
        spec: What the model takes as an image.
        root: Where datasets with a name lie; None for the environment variable UCE_EDGE_DATA.
    """
    path, place = Path(source), Path(root or os.environ.get("UCE_EDGE_DATA") or ".")
    if path.is_dir():
        folders = [str(entry) for entry in sorted(path.iterdir()) if entry.is_dir()] or [source]
        pixels = np.stack([images.load(file, spec) for file in images.collect(folders)])
    else:
        archive = path if path.suffix == ".npz" else place / f"{source}_test.npz"
        if path.suffix != ".npz" and not archive.is_file():
            archive = place / f"{source}.npz"
        known = source in sources.NAMED and not archive.is_file()
        found = sources.read_named(source, place) if known else sources.read_npz(archive)
        name = next(name for name in ("test", "all", "val", "train") if name in found.parts)
        pixels = _fitted(found.parts[name][0], spec)
    return Split(pixels, np.zeros(len(pixels), np.int64))


def _fitted(pixels: npt.NDArray[Any], spec: ImageSpec) -> npt.NDArray[Any]:
    if pixels.shape[1:] == (spec.height, spec.width, spec.channels) and str(pixels.dtype) == spec.dtype:
        return pixels
    return np.stack([images.fit(image, spec) for image in pixels])
