"""Images for a model that exists already: resized as it takes them, and their labels matched to its classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import images
from uce_edge.datasets.resolve import Resolved, resolve
from uce_edge.datasets.sources import Part, Source, Wanted
from uce_edge.datasets.splits import Split, from_source
from uce_edge.errors import UsageError, argument, expected
from uce_edge.metadata import ImageSpec

# Held-out images come first; images a model may have been trained on are never taken.
_TO_CALIBRATE = ("all", "val", "test")
_TO_EVALUATE = ("test", "all", "val")
_FOREIGN = ("test", "all", "val", "train")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def load(source: str, spec: ImageSpec, classes: Sequence[str], own: Mapping[str, str] = _NOTHING) -> Split:
    """Labelled images to calibrate on.

    Args:
        source: A folder with one sub-folder per class, an .npz file, or `digits` (its calibration images).
        spec: What the model takes as an image.
        classes: The model's class names; sub-folders and `class_names` are matched by name.
        own: The SHA-256 of the splits that the model's training made, by name. Where the source is what the network
            was trained from, only the images set aside for calibration are taken.
    """
    resolved = resolve(source, wanted=Wanted(spec, classes=classes), below_root=False)
    unseen = _unseen(resolved, "calibration", own)
    _, part = _first(source, unseen, _TO_CALIBRATE)
    return _matched(source, part, unseen.class_names, spec, classes)


def load_with_names(source: str, spec: ImageSpec) -> tuple[Split, tuple[str, ...]]:
    """Labelled images to calibrate on, and the names of their classes, for a model whose classes have no names.

    Args:
        source: A folder with one sub-folder per class, or an .npz file.
        spec: What the model takes as an image.
    """
    read = resolve(source, wanted=Wanted(spec), below_root=False).source
    _, (pixels, labels) = _first(source, read, _TO_CALIBRATE)
    return Split(_prepared(pixels, spec), labels), tuple(read.class_names)


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
        root: Where datasets with a name lie, as in `resolve`.
        own: As in `load`, for the images set aside to test.
    """
    unseen = _unseen(resolve(source, root, Wanted(spec, classes=classes)), "test", own)
    name, part = _first(source, unseen, _TO_EVALUATE)
    words = {"test": "test images", "val": "validation images", "all": "all images"}[name]
    return _matched(source, part, unseen.class_names, spec, classes), words


def foreign(source: str, spec: ImageSpec, root: str | Path | None = None, download: bool = False) -> Split:
    """Images whose labels do not matter, all 0: what a model was not trained for.

    Args:
        source: A dataset's name (its test images; NAME_test.npz will do), a folder of images with or without
            sub-folders, or an .npz file.
        spec: What the model takes as an image.
        root: Where datasets with a name lie, as in `resolve`.
        download: Fetch a public dataset that is not under the root.
    """
    wanted = Wanted(spec, labels=False)
    resolved = resolve(source, root, wanted, argument="ood", download=download, endings=("_test", ""))
    _, (pixels, _) = _first(source, _unseen(resolved, "test", _NOTHING), _FOREIGN)
    return Split(_prepared(pixels, spec), np.zeros(len(pixels), np.int64))


def _unseen(resolved: Resolved, part: str, own: Mapping[str, str]) -> Source:
    """What training sets aside of images that have no parts of their own, if these are the images it cut."""
    source = resolved.source
    if set(source.parts) != {"all"} or not (resolved.packaged or part in own):
        return source
    try:
        split = from_source(resolved.name, source).splits[part]
    except UsageError:  # too few to have been cut, so no network was trained on them
        return source
    if not resolved.packaged and split.sha256() != own[part]:
        return source
    return Source({part if part == "test" else "val": (split.images, split.labels)}, source.class_names)


def _first(given: str, source: Source, preferred: Sequence[str]) -> tuple[str, Part]:
    """The first of the preferred parts that is there, and its name."""
    for name in preferred:
        if name in source.parts:
            return name, source.parts[name]
    raise UsageError(
        f"{given} has training images only, and images the model has not seen are needed. Add a part val or test, "
        f"or name other images: {argument('data', 'FOLDER')}"
    )


def _matched(given: str, part: Part, names: Sequence[str], spec: ImageSpec, classes: Sequence[str]) -> Split:
    """The images as the model takes them, with their labels in the order of its classes."""
    unknown = [name for name in names if name not in classes]
    if unknown:
        rule = f"among the model's ({', '.join(list(classes)[:5])}, ...)"
        raise UsageError(
            expected(f"the classes of {given}", rule, ", ".join(unknown), "Rename them, or export with --classes")
        )
    pixels, labels = part
    index = np.array([list(classes).index(name) for name in names])
    return Split(_prepared(pixels, spec), index[labels])


def _prepared(pixels: npt.NDArray[Any], spec: ImageSpec) -> npt.NDArray[Any]:
    if pixels.shape[1:] == (spec.height, spec.width, spec.channels) and str(pixels.dtype) == spec.dtype:
        return pixels
    return np.stack([images.prepare(image, spec) for image in pixels])
