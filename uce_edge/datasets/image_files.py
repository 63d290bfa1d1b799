"""Read image files with labels, for folders and manifests."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from uce_edge._util.progress import progress
from uce_edge.datasets import groups as grouping
from uce_edge.datasets import range_choice
from uce_edge.datasets.sources import PARTS, Origin, Part, ReaderOptions, SkippedImagesWarning, Source
from uce_edge.errors import ImageError, UsageError
from uce_edge.images import loader
from uce_edge.images.converter import Pixels
from uce_edge.images.gray_survey import UNDECIDED, Decided, Notes
from uce_edge.metadata import ImageSpec

LOG = logging.getLogger("uce_edge.datasets")
"""The command line shows it on stderr."""
UNLEARNABLE = "a class without images cannot be learned. Add some, or remove it."
_NAMED_AT_MOST = 10  # images that could not be read, in the warning about them


class Listed(NamedTuple):
    """An image file to read."""

    file: str
    name: str
    """Its name in messages, in which a group pattern is searched for."""
    label: str
    """The name of its class."""
    part: str
    """One of `PARTS`, or `all`."""


def read(
    listed: Sequence[Listed],
    class_names: Sequence[str],
    where: Path,
    options: ReaderOptions,
    groups: Sequence[str] | None = None,
    group: str | None = None,
) -> Source:
    """Read image files in one shape; unreadable files give a warning.

    Args:
        listed: The files, at least one.
        class_names: The classes; every label is one of them.
        where: The folder or manifest that names them.
        options: The reader's options.
        groups: The group of every file, if they are grouped.
        group: The column or pattern that groups them.
    """
    numbers = None if groups is None else grouping.numbered(groups, [one.part for one in listed], where)
    channels = 1 if options.image is None and _are_gray(listed) else 3
    spec = options.image or ImageSpec(*options.size, channels, resize=options.resize)
    decided = _decided(listed, options)
    pixels = _read(listed, where, replace(spec, range=decided.range or spec.range))
    label_of = {name: label for label, name in enumerate(class_names)}
    parts: dict[str, Part] = {}
    origins: dict[str, Origin] = {}
    for key in ("all", *PARTS):
        index = np.array([i for i, one in enumerate(listed) if one.part == key and i in pixels], np.int64)
        if not len(index):
            continue
        chosen = [listed[i] for i in index]
        parts[key] = np.stack([pixels[i] for i in index]), np.array([label_of[one.label] for one in chosen], np.int64)
        names = np.array([one.name for one in chosen], object)
        files = np.array([one.file for one in chosen], object)
        origins[key] = Origin(names, None if numbers is None else numbers[index], files)
    return Source(parts, tuple(class_names), origins=origins, group=group, gray=decided)


def _read(listed: Sequence[Listed], where: Path, spec: ImageSpec) -> dict[int, Pixels]:
    """The readable images, by their index in the list."""
    pixels: dict[int, Pixels] = {}
    failed = []
    with progress("reading images", len(listed)) as advance, Notes() as notes:
        for index, one in enumerate(listed):
            found: list[str] = []
            try:
                pixels[index] = loader.load(one.file, spec, note=found.append)
                notes.add(*found)
            except ImageError as error:
                failed.append((one.name, error))
            advance(1)
    if failed:
        named = ", ".join(name for name, _ in failed[:_NAMED_AT_MOST])
        if len(failed) > _NAMED_AT_MOST:
            named += f" and {len(failed) - _NAMED_AT_MOST} more"
        warnings.warn(
            f"{len(failed)} images were left out of {where}: {named}. The first: {failed[0][1]}",
            SkippedImagesWarning,
            stacklevel=2,
        )
    if not pixels:
        raise UsageError(
            f"No image under {where} can be read. The first: {failed[0][1] if failed else 'there is none'}",
            "dataset.unreadable",
            path=where,
        )
    readable = {(listed[index].part, listed[index].label) for index in pixels}
    for part, label in dict.fromkeys((one.part, one.label) for one in listed):
        if (part, label) not in readable:
            place = where if part == "all" else f"{where}, part {part},"
            raise UsageError(
                f"No image of the class {label} in {place} can be read, and {UNLEARNABLE}",
                "dataset.class-empty",
                path=where,
            )
    return pixels


def _decided(listed: Sequence[Listed], options: ReaderOptions) -> Decided:
    """The gray range, decided by the training images where known."""
    if options.range is None:
        return UNDECIDED
    training = [one.file for one in listed if one.part == "train"]
    return range_choice.decided(training or [one.file for one in listed], options.range)


def _are_gray(listed: Sequence[Listed]) -> bool:
    """Whether the first image of every class and folder is gray."""
    first = {(Path(one.file).parent, one.part, one.label): one.file for one in reversed(listed)}
    found = {loader.is_gray(Path(file)) for file in first.values()}
    found.discard(None)  # damaged or far too large: the reader reports it
    return found == {True}
