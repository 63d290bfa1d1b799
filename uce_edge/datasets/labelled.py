"""Images for an existing model, resized and matched to its classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge._util.progress import progress
from uce_edge.datasets import class_order, overlap
from uce_edge.datasets.image_files import LOG
from uce_edge.datasets.resolve import Resolved, resolve
from uce_edge.datasets.sources import ReaderOptions, Source
from uce_edge.datasets.splits import Split, from_source, part_of
from uce_edge.errors import UsageError, argument, expected
from uce_edge.images import loader
from uce_edge.metadata import ImageSpec

# Held-out images come first; images a model may have been trained on are never taken.
_TO_CALIBRATE = ("all", "val", "test")
_TO_EVALUATE = ("test", "all", "val")
_TO_REJECT = ("test", "all", "val", "train")


@dataclass(frozen=True)
class Own:
    """A model's metadata about its training images."""

    splits: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the splits of its training, by name. If the network was trained from the same source, only the
    images that training set aside are used."""
    group: str | None = None
    """The column or pattern that grouped them. It also groups other images by default."""


_UNKNOWN = Own()


def load(source: str, spec: ImageSpec, classes: Sequence[str], own: Own = _UNKNOWN, group: str | None = None) -> Split:
    """Labelled images to calibrate on.

    Args:
        source: A folder with one sub-folder per class, a manifest, an .npz file, or `digits` (its calibration images).
        spec: The image format of the model.
        classes: The model's class names; sub-folders and `class_names` are matched by name.
        own: The model's metadata about its training images.
        group: The column or pattern that groups the images, as in `splits.load`; None for that of the model.
    """
    resolved = resolve(source, options=_options(spec, classes, own, group), below_root=False)
    _, split = _first(source, _unseen(resolved, "calibration", own), _TO_CALIBRATE)
    _warn_about_duplicates(source, split)
    return _matched(source, split, resolved.source, spec, classes)


def load_with_names(
    source: str, spec: ImageSpec, outputs: int, group: str | None = None
) -> tuple[Split, tuple[str, ...]]:
    """Labelled images to calibrate on, and the class names of a network's outputs.

    Args:
        source: A folder with one sub-folder per class, a manifest, or an .npz file.
        spec: The image format of the model.
        outputs: How many outputs the network has. Classes are in their order: by `class_id`, by number or by name.
        group: The column or pattern that groups the images, as in `splits.load`.
    """
    resolved = resolve(source, options=ReaderOptions(spec, group=group), below_root=False)
    _, split = _first(source, _parts(resolved), _TO_CALIBRATE)
    _warn_about_duplicates(source, split)
    names, ids = resolved.source.class_names, resolved.source.class_ids
    if ids is not None:
        names = class_order.of_outputs(names, ids, outputs, source)
        split = replace(split, labels=np.array(ids)[split.labels])
    elif len(names) != outputs:
        rule = f"{outputs}, as many as the model has outputs"
        remedy = "Name those of the model: --classes; or add a column class_id to a manifest"
        raise UsageError(expected(f"the classes of {source}", rule, len(names), remedy), "dataset.classes")
    return _prepared(split, spec), tuple(names)


def load_test(
    source: str,
    spec: ImageSpec,
    classes: Sequence[str],
    root: str | Path | None = None,
    own: Own = _UNKNOWN,
    group: str | None = None,
) -> tuple[Split, str]:
    """Labelled images to evaluate on, and the name of their part.

    Args:
        source: As in `load`, or the name of a dataset under the root; `digits` gives its test images.
        spec: The image format of the model.
        classes: The model's class names.
        root: The folder of named datasets, as in `resolve`.
        own: As in `load`, for the images set aside to test.
        group: As in `load`.
    """
    resolved = resolve(source, root, _options(spec, classes, own, group))
    name, split = _first(source, _unseen(resolved, "test", own), _TO_EVALUATE)
    words = {"test": "test images", "val": "validation images", "all": "all images"}[name]
    return _matched(source, split, resolved.source, spec, classes), words


def load_ood(
    source: str, spec: ImageSpec, root: str | Path | None = None, download: bool = False, argument: str = "ood"
) -> Split:
    """Images without labels, such as out-of-distribution ones; every label is 0.

    Args:
        source: A dataset's name (its test images; NAME_test.npz will do), a folder of images with or without
            sub-folders, a manifest, or an .npz file.
        spec: The image format of the model.
        root: The folder of named datasets, as in `resolve`.
        download: Fetch a public dataset that is not under the root.
        argument: The argument that names them, for messages.
    """
    options = ReaderOptions(spec, labels=False)
    resolved = resolve(source, root, options, argument=argument, download=download, endings=("_test", ""))
    _, split = _first(source, _unseen(resolved, "test", _UNKNOWN), _TO_REJECT)
    return _prepared(replace(split, labels=np.zeros(len(split), np.int64)), spec)


def _options(spec: ImageSpec, classes: Sequence[str], own: Own, group: str | None) -> ReaderOptions:
    if group is not None:
        return ReaderOptions(spec, classes=classes, group=group)
    return ReaderOptions(spec, classes=classes, group=own.group, must_group=False)


def _parts(resolved: Resolved) -> dict[str, Split]:
    """The parts of a source; calibration and guarantee images are one part."""
    parts = {key: part_of(resolved.source, key) for key in resolved.source.parts}
    held_out = [parts.pop(key) for key in ("val", "calibration", "guarantee") if key in parts]
    return parts | ({"val": _joined(held_out)} if held_out else {})


def _joined(parts: Sequence[Split]) -> Split:
    def together(values: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
        known = [value for value in values if value is not None]
        return np.concatenate(known) if len(known) == len(values) else None

    return Split(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
        together([part.groups for part in parts]),
        together([part.names for part in parts]),
        together([part.originals for part in parts]),
    )


def _unseen(resolved: Resolved, part: str, own: Own) -> dict[str, Split]:
    """The split that training set aside, if it used these images."""
    parts = _parts(resolved)
    if set(parts) != {"all"} or not (resolved.packaged or part in own.splits):
        return parts
    try:
        split = from_source(resolved.name, resolved.source).splits[part]
    except UsageError:  # too few to have been cut, so no network was trained on them
        return parts
    if not resolved.packaged and split.sha256() != own.splits[part]:
        return parts
    return {part if part == "test" else "val": split}


def _first(given: str, parts: Mapping[str, Split], preferred: Sequence[str]) -> tuple[str, Split]:
    """The first preferred part that exists, and its name."""
    for name in preferred:
        if name in parts:
            return name, parts[name]
    raise UsageError(
        f"{given} has training images only. Use images that the model was not trained on: add a part val or test, or "
        f"name other images: {argument('data', 'FOLDER')}",
        "dataset.only-training",
    )


def _warn_about_duplicates(given: str, split: Split) -> None:
    """Log duplicates, which could end up on both sides of a split."""
    again, two_labels = overlap.repeated(split)
    for twins, fact in ((again, "occur twice"), (two_labels, "also occur with another label")):
        if twins is not None:
            LOG.warning(
                "%d of the %d images of %s %s, such as %s and %s.",
                *(twins.images, twins.compared, given, fact, *twins.example),
            )


def _matched(given: str, split: Split, source: Source, spec: ImageSpec, classes: Sequence[str]) -> Split:
    """Resize the images and map their labels to the model's classes."""
    place = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in source.class_names if name not in place]
    index = _by_number(source, place) if unknown else [place[name] for name in source.class_names]
    if index is None:
        rule = f"among the model's ({', '.join(list(classes)[:5])}, ...)"
        shown = ", ".join(unknown[:5]) + (f", and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise UsageError(
            expected(f"the classes of {given}", rule, shown, "Rename them, or export with --classes"),
            "dataset.class-unknown",
        )
    return _prepared(replace(split, labels=np.array(index)[split.labels]), spec)


def _by_number(source: Source, place: Mapping[str, int]) -> list[int] | None:
    """The classes by `class_id` or as numbers; None if a name is of another class."""
    names, ids = source.class_names, source.class_ids
    if ids is None:
        if not all(map(class_order.is_number, names)):
            return None
        ids = tuple(map(int, names))
    agrees = all(place.get(name, number) == number for name, number in zip(names, ids, strict=True))
    return list(ids) if agrees and max(ids) < len(place) else None


def _prepared(split: Split, spec: ImageSpec) -> Split:
    pixels = split.images
    if pixels.shape[1:] == (spec.height, spec.width, spec.channels) and str(pixels.dtype) == spec.dtype:
        return split
    originals = np.empty(len(pixels), object)
    originals[:] = list(pixels)
    return replace(split, images=np.stack([loader.prepare(image, spec) for image in pixels]), originals=originals)


def resized(split: Split, spec: ImageSpec, *, shown: bool = True) -> Split:
    """The same images, read again for another spec.

    Images without originals are finished, and stay.

    Args:
        split: The images.
        spec: The image that the model takes.
        shown: Whether to show progress; False for a part of larger work.

    Raises:
        ImageError: An image cannot be resized in this way.
    """
    if split.originals is None:
        return split
    pixels = []
    with progress("resizing images", len(split), shown, "images") as advance:
        for original in split.originals:
            if isinstance(original, str):
                pixels.append(loader.load(original, spec, note=lambda _: None))
            else:
                pixels.append(loader.prepare(original, spec))
            advance(1)
    return replace(split, images=np.stack(pixels))
