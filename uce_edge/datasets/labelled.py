"""Images for a model that exists already: resized as it takes them, and their labels matched to its classes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import images
from uce_edge.datasets import sources
from uce_edge.datasets.splits import Split, digits, from_source
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import ImageSpec

# Held-out images come first; images a model may have been trained on are never taken.
_TO_CALIBRATE = ("all", "val", "test")
_TO_EVALUATE = ("test", "all", "val")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def load(source: str, spec: ImageSpec, classes: Sequence[str], own: Mapping[str, str] = _NOTHING) -> Split:
    """Labelled images from a user's disk.

    Args:
        source: A folder with one sub-folder per class, an .npz file, or `digits` (its calibration images).
        spec: What the model takes as an image.
        classes: The model's class names; sub-folders and `class_names` are matched by name.
        own: The SHA-256 of the splits that the model's training made, by name. Where the source is what the network
            was trained from, only the images set aside for calibration are taken.
    """
    found = _digits("calibration", classes) if source == "digits" else _read(source, spec, classes)
    if found is None:
        rule = "a folder with one sub-folder per class, or an .npz file"
        raise UsageError(expected("`data`", rule, source, "Check the path given to --data"))
    split, _ = _chosen(source, _set_aside(source, found, "calibration", own), spec, classes, _TO_CALIBRATE)
    return split


def load_test(
    source: str,
    spec: ImageSpec,
    classes: Sequence[str],
    root: str | Path | None = None,
    own: Mapping[str, str] = _NOTHING,
) -> tuple[Split, str]:
    """Labelled images to evaluate on: the test part where there is one, and what they are in words.

    Args:
        source: As in `load`, or the name of a dataset under the root; `digits` gives its test images.
        spec: What the model takes as an image.
        classes: The model's class names.
        root: Where datasets with a name lie; None for the environment variable UCE_EDGE_DATA.
        own: As in `load`, for the images set aside to test.
    """
    if source == "digits":
        return _chosen(source, _digits("test", classes), spec, classes, _TO_EVALUATE)[0], "test images"
    found = _read(source, spec, classes) or _named(source, _root(root), classes)
    if found is None:
        rule = f"digits, {', '.join(sources.NAMED)}, a folder with one sub-folder per class, or an .npz file"
        raise UsageError(expected("`data`", rule, source, "Check --data, and --root for a dataset's name"))
    found = _set_aside(source, found, "test", own)
    split, part = _chosen(source, found, spec, classes, _TO_EVALUATE)
    return split, {"test": "test images", "val": "validation images", "all": "all images"}[part]


def foreign(source: str, spec: ImageSpec, root: str | Path | None = None) -> Split:
    """Images whose labels do not matter, all 0: what a model was not trained for.

    Args:
        source: A dataset's name (its test images; NAME_test.npz will do), a folder of images with or without
            sub-folders, or an .npz file.
        spec: What the model takes as an image.
        root: Where datasets with a name lie; None for the environment variable UCE_EDGE_DATA.
    """
    path, place = Path(source), _root(root)
    if source == "digits":
        pixels = _prepared(digits().splits["test"].images, spec)
    elif path.is_dir():
        pixels = sources.read_unlabelled(path, spec)
    else:
        archive = path if path.suffix == ".npz" else place / f"{source}_test.npz"
        if path.suffix != ".npz" and not archive.is_file():
            archive = place / f"{source}.npz"
        known = source in sources.NAMED and not archive.is_file()
        if not known and not archive.is_file():
            rule = "a dataset's name, a folder of images, or an .npz file"
            raise UsageError(expected("`ood`", rule, source, "Check --ood, and --root for a dataset's name"))
        found = sources.read_named(source, place) if known else sources.read_npz(archive)
        name = next(name for name in ("test", "all", "val", "train") if name in found.parts)
        pixels = _prepared(found.parts[name][0], spec)
    return Split(pixels, np.zeros(len(pixels), np.int64))


def _root(root: str | Path | None) -> Path:
    return Path(root or os.environ.get("UCE_EDGE_DATA") or ".")


def _set_aside(source: str, found: sources.Source, part: str, own: Mapping[str, str]) -> sources.Source:
    """What training set aside of images that have no parts of their own, if these are the images it cut."""
    if part not in own or set(found.parts) != {"all"}:
        return found
    try:
        split = from_source(source, found).splits[part]
    except UsageError:  # too few to have been cut, so no network was trained on them
        return found
    if split.sha256() != own[part]:
        return found
    return sources.Source({part if part == "test" else "val": (split.images, split.labels)}, found.class_names)


def _digits(part: str, classes: Sequence[str]) -> sources.Source:
    split, names = digits().splits[part], tuple(classes)
    found = sources.Source({"all": (split.images, split.labels)}, names)
    sources.check_labels(found.parts, names, Path("digits"))
    return found


def _read(source: str, spec: ImageSpec, classes: Sequence[str]) -> sources.Source | None:
    """A folder or an archive; None when it is neither."""
    path = Path(source)
    if path.is_dir():
        return sources.read_folder(path, spec)
    return sources.read_npz(path, classes) if path.suffix == ".npz" else None


def _named(name: str, root: Path, classes: Sequence[str]) -> sources.Source | None:
    """A dataset under the root; None when the name is not known and there is no such archive."""
    archive = root / f"{name}.npz"
    if archive.is_file():
        return sources.read_npz(archive, classes)
    return sources.read_named(name, root) if name in sources.NAMED else None


def _chosen(
    source: str, found: sources.Source, spec: ImageSpec, classes: Sequence[str], preferred: Sequence[str]
) -> tuple[Split, str]:
    """The first of the preferred parts that is there, with its labels in the order of the model's classes."""
    part = next((name for name in preferred if name in found.parts), None)
    if part is None:
        raise UsageError(
            f"{source} has training images only, and images the model has not seen are needed. Add a part val or test, "
            "or name other images: --data FOLDER"
        )
    unknown = [name for name in found.class_names if name not in classes]
    if unknown:
        rule = f"among the model's ({', '.join(list(classes)[:5])}, ...)"
        raise UsageError(
            expected(f"the classes of {source}", rule, ", ".join(unknown), "Rename them, or export with --classes")
        )
    pixels, labels = found.parts[part]
    index = np.array([list(classes).index(name) for name in found.class_names])
    return Split(_prepared(pixels, spec), index[labels]), part


def _prepared(pixels: npt.NDArray[Any], spec: ImageSpec) -> npt.NDArray[Any]:
    if pixels.shape[1:] == (spec.height, spec.width, spec.channels) and str(pixels.dtype) == spec.dtype:
        return pixels
    return np.stack([images.prepare(image, spec) for image in pixels])
