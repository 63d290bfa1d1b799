"""Labelled images and their fixed splits."""

import hashlib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.fingerprints import fingerprints
from uce_edge.datasets.resolve import resolve
from uce_edge.datasets.sources import ReaderOptions, Source
from uce_edge.errors import UsageError, expected
from uce_edge.images.gray_range import Choice, Range
from uce_edge.images.gray_survey import UNDECIDED, Decided, decide
from uce_edge.images.resize import STRETCH, Resize

SPLITS = ("train", "calibration", "guarantee", "test")
_SPLIT_SEED = 20200713  # fixed, so that training, calibration and evaluation use the same splits
ONE_EACH = "Only one image of each group counts."
"""Added to error messages where images are grouped."""
_HELD_OUT = 5000  # the most images for calibration and for guarantee


@dataclass(frozen=True)
class Split:
    """Images [n, height, width, channels], mostly uint8, and labels [n]."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64] | None = None
    """The group of each image, such as a patient; None where images are independent."""
    names: npt.NDArray[np.object_] | None = None
    """The file of each image, where known."""
    originals: npt.NDArray[np.object_] | None = None
    """The path of each image, or its pixels at another size; None for images that were never resized."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: npt.NDArray[np.int64]) -> "Split":
        """Some of its images."""
        groups = None if self.groups is None else self.groups[index]
        names = None if self.names is None else self.names[index]
        originals = None if self.originals is None else self.originals[index]
        return Split(self.images[index], self.labels[index], groups, names, originals)

    def at_most(self, images: int) -> "Split":
        """A fixed random choice of at most so many images."""
        if len(self) <= images:
            return self
        return self.take(np.sort(np.random.default_rng(_SPLIT_SEED).permutation(len(self))[:images]))

    def halves(self) -> "tuple[Split, Split]":
        """Two fixed disjoint halves; no group is in both."""
        return self.parted(1 / 2)

    def parted(self, share: float) -> "tuple[Split, Split]":
        """A fixed share of the images or groups, and the rest."""
        first, rest = self.parted_rows(share)
        return self.take(first), self.take(rest)

    def parted_rows(self, share: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `parted`, by the numbers of the images."""
        deck = _Deck(self, np.random.default_rng(_SPLIT_SEED))
        return deck.deal_rows(math.ceil(share * len(deck))), deck.deal_rows(len(deck))

    def one_per_group(self) -> "Split":
        """A fixed random image of each group; without groups, one of the copies of each image file.

        A binomial bound needs independent draws, and images of one group are not independent. The bound is then about
        a random image of a random group.
        """
        units = self.units()
        if units is None:
            return self
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(self))
        _, first = np.unique(units[order], return_index=True)
        return self.take(np.sort(order[first]))

    def units(self) -> npt.NDArray[Any] | None:
        """The unit of every image: its group, or without groups one for all copies of a file. None if all are alone."""
        if self.groups is not None or self.names is None:
            return self.groups
        prints = fingerprints(self.images)
        return None if len(np.unique(prints)) == len(self) else prints

    def sha256(self) -> str:
        """The SHA-256 of pixels and labels."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


class _Deck:
    """The images or groups of a split, dealt in random order.

    Copies of an image file are dealt together: a network must not be judged on what it was trained on.
    """

    def __init__(self, split: Split, rng: np.random.Generator) -> None:
        self.split = split
        self.unit, units = split.units(), len(split)
        if self.unit is not None:
            known, self.unit = np.unique(self.unit, return_inverse=True)
            units = len(known)
        self.order: npt.NDArray[np.int64] = rng.permutation(units)

    def __len__(self) -> int:
        return len(self.order)

    def deal(self, count: int) -> Split:
        """Take the next images or groups."""
        return self.split.take(self.deal_rows(count))

    def deal_rows(self, count: int) -> npt.NDArray[np.int64]:
        """As `deal`, by the numbers of the images."""
        taken, self.order = self.order[:count], self.order[count:]
        return taken if self.unit is None else np.flatnonzero(np.isin(self.unit, taken))


@dataclass(frozen=True)
class Dataset:
    """A dataset with its four disjoint splits.

    `calibration` fits the calibration map; `guarantee` fits nothing and serves promises about the error rate.
    """

    name: str
    """A known name, or the absolute path of a folder or file."""
    class_names: tuple[str, ...]
    splits: dict[str, Split] = field(repr=False)
    root: str | None = None
    """The folder in which a named dataset was found."""
    group: str | None = None
    """The column or pattern that groups the images. No group is in two splits."""
    gray: Decided = UNDECIDED
    """The gray range of images of more than 8 bits, where one was chosen."""
    resize: Resize = STRETCH
    """How images of another size get that of the dataset."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.splits["train"].images.shape[1:]
        return height, width, channels

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every split."""
        return {name: split.sha256() for name, split in self.splits.items()}


def load(
    name: str,
    root: str | Path | None = None,
    size: tuple[int, int] | None = None,
    download: bool = False,
    group: str | None = None,
    range_: Choice = None,
    resize: Resize = STRETCH,
) -> Dataset:
    """Load a dataset with its splits.

    Args:
        name: A dataset's name (`named.names()`), the name of an .npz file under the root, a folder with one sub-folder
            per class, a manifest, or an .npz file.
        root: The folder of named datasets; None for the environment variable UCE_EDGE_DATA, or else the current folder.
        size: Height and width of the resized images of folders and manifests; None for 32x32.
        download: Fetch a public dataset that is not under `root`.
        group: The column of a manifest, or the pattern with one capture group, that groups the images.
        range_: The gray range of images of more than 8 bits: `auto` reads it from the images, None uses the number type
            or the window of every file.
        resize: How the image files of folders and manifests get that size. A model that is trained on the dataset
            stores it.
    """
    options = ReaderOptions(group=group, range=range_, resize=resize)
    if size is not None:
        options = replace(options, size=size)
    resolved = resolve(name, root, options, download=download)
    decided = resolved.source.gray
    if decided == UNDECIDED and isinstance(range_, Range):  # images of 8 bits now, perhaps others later
        decided = decide(range_, ())
    return replace(from_source(resolved.name, resolved.source), root=resolved.root, gray=decided, resize=resize)


def part_of(source: Source, key: str) -> Split:
    """One part of a source."""
    images, labels = source.parts[key]
    if key in source.origins:
        origin = source.origins[key]
        return Split(images, labels, origin.groups, origin.names, origin.files)
    return Split(images, labels)


def from_source(name: str, source: Source) -> Dataset:
    """Divide a source into four fixed splits.

    Parts called calibration, guarantee and test are used as they are. A missing calibration or guarantee split is an
    equal share of a `val` part, or else the fraction `source.held_out` of the training images, at most 5,000. Without a
    test part, a fifth of the images is the test split. Grouped images are divided by group.
    """
    parts = {key: part_of(source, key) for key in source.parts}
    rng = np.random.default_rng(_SPLIT_SEED)
    rest = [part for key, part in parts.items() if key in ("all", "train")]
    if not rest:
        raise UsageError(
            f"{name} has no training images ({', '.join(parts)} only). Add a part `train`, or x and y.",
            "dataset.no-training",
        )
    images = len(rest[0])
    if len(np.unique(rest[0].labels)) < 2:
        raise UsageError(
            expected(f"the training images of {name}", "of two classes at least", "one class", "Add images"),
            "dataset.one-class",
        )
    deck = _Deck(rest[0], rng)
    units = len(deck)
    chosen = {key: part for key, part in parts.items() if key in SPLITS and key != "train"}
    lacking = [key for key in ("calibration", "guarantee") if key not in chosen]
    if "val" in parts:
        if not lacking:
            raise UsageError(
                f"{name} has a part val beside calibration and guarantee. Call its images one of these.",
                "dataset.parts",
            )
        held_out = _Deck(parts["val"], rng)
        for key, share in zip(lacking, np.array_split(held_out.order, len(lacking)), strict=True):
            chosen[key] = held_out.deal(len(share))
    else:
        # The same share of the groups; each is an image where images are not grouped.
        held = round(min(_HELD_OUT, round(source.held_out * images)) * (units / images))
        for key in lacking:
            chosen[key] = deck.deal(held)
    if "test" not in chosen:
        chosen["test"] = deck.deal(round(0.2 * units))
    chosen["train"] = deck.deal(len(deck))
    empty = [key for key in SPLITS if len(chosen[key]) == 0]
    if empty:
        few = "images" if source.group is None else "groups"
        raise UsageError(
            f"{name} has too few {few}: nothing is left for {', '.join(empty)}. Add some.", "dataset.too-small"
        )
    return Dataset(name, source.class_names, {key: chosen[key] for key in SPLITS}, group=source.group)
