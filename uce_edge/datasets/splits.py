"""Labelled images and their fixed splits."""

import hashlib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.resolve import resolve
from uce_edge.datasets.sources import Source, Wanted
from uce_edge.errors import UsageError, expected
from uce_edge.images.gray_range import Choice, Range
from uce_edge.images.gray_survey import UNDECIDED, Decided, decide

SPLITS = ("train", "calibration", "guarantee", "test")
_SPLIT_SEED = 20200713  # fixed: a run, its calibration and its evaluation must agree on who is who
ONE_EACH = "Only one image of each group counts."
"""What a refusal adds where images are grouped."""
_HELD_OUT = 5000  # images that calibration and guarantee get each, at most


@dataclass(frozen=True)
class Split:
    """Some images [n, height, width, channels], uint8 as a rule, and their labels [n]."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64] | None = None
    """The group of each image, such as a patient; None where every image stands for itself."""
    names: npt.NDArray[np.object_] | None = None
    """The file of each image, where it has one."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: npt.NDArray[np.int64]) -> "Split":
        """Some of its images."""
        groups = None if self.groups is None else self.groups[index]
        names = None if self.names is None else self.names[index]
        return Split(self.images[index], self.labels[index], groups, names)

    def at_most(self, images: int) -> "Split":
        """Itself, or so many of its images, always the same."""
        if len(self) <= images:
            return self
        return self.take(np.sort(np.random.default_rng(_SPLIT_SEED).permutation(len(self))[:images]))

    def halves(self) -> "tuple[Split, Split]":
        """Two disjoint halves, always the same; no group is in both."""
        return self.parted(1 / 2)

    def parted(self, share: float) -> "tuple[Split, Split]":
        """A part with so large a share of the images or groups, and the rest, always the same."""
        deck = _Deck(self, np.random.default_rng(_SPLIT_SEED))
        return deck.deal(math.ceil(share * len(deck))), deck.deal(len(deck))

    def one_per_group(self) -> "Split":
        """One image of each group, drawn at random, always the same; itself where images are not grouped.

        Images of one group are not independent draws, and a binomial bound needs such: of a random image of a random
        group.
        """
        if self.groups is None:
            return self
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(self))
        _, first = np.unique(self.groups[order], return_index=True)
        return self.take(np.sort(order[first]))

    def sha256(self) -> str:
        """A fingerprint of pixels and labels, to prove later what a model was fitted on."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


class _Deck:
    """The images of a split, or its groups, in random order, to be dealt."""

    def __init__(self, split: Split, rng: np.random.Generator) -> None:
        self.split, self.unit = split, None
        units = len(split)
        if split.groups is not None:
            known, self.unit = np.unique(split.groups, return_inverse=True)
            units = len(known)
        self.order: npt.NDArray[np.int64] = rng.permutation(units)

    def __len__(self) -> int:
        return len(self.order)

    def deal(self, count: int) -> Split:
        """The next so many images or groups."""
        taken, self.order = self.order[:count], self.order[count:]
        return self.split.take(taken if self.unit is None else np.flatnonzero(np.isin(self.unit, taken)))


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
    """Where a dataset that has a name was found."""
    group: str | None = None
    """What groups the images, so that no group is in two splits: a column, or a pattern."""
    gray: Decided = UNDECIDED
    """Which gray values of more than 8 bits became black and white, where that was asked for."""

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
) -> Dataset:
    """A dataset with its splits.

    Args:
        name: A dataset's name (`named.names()`), the name of an .npz file under the root, a folder with one sub-folder
            per class, a manifest, or an .npz file.
        root: Where datasets lie; None for the environment variable UCE_EDGE_DATA, or else the current folder.
        size: Height and width that images are resized to which lie in files of their own; None for 32x32.
        download: Fetch a public dataset that is not under `root`.
        group: What groups the images: a column of a manifest, or a pattern for file names with one capture group.
        range_: Which gray values of a folder's images of more than 8 bits become black and white; `auto` looks at the
            images, None takes what the number type or the window of every file says.
    """
    wanted = Wanted(group=group, range=range_) if size is None else Wanted(size=size, group=group, range=range_)
    resolved = resolve(name, root, wanted, download=download)
    decided = resolved.source.gray
    if decided == UNDECIDED and isinstance(range_, Range):  # of images of 8 bits: for those that come later
        decided = decide(range_, ())
    return replace(from_source(resolved.name, resolved.source), root=resolved.root, gray=decided)


def part_of(source: Source, key: str) -> Split:
    """A part of a source, as it is."""
    images, labels = source.parts[key]
    if key in source.origins:
        return Split(images, labels, source.origins[key].groups, source.origins[key].names)
    return Split(images, labels)


def from_source(name: str, source: Source) -> Dataset:
    """Cut what the files hold into the four splits, always in the same way.

    Parts called calibration, guarantee and test are kept. Of the first two, what is not there is cut from a `val` part
    in equal shares, or else is the fraction `source.held_out` of the training images each, 5,000 at most. A source
    without a test part gives a fifth to the test. Where images are grouped, groups are dealt instead of images.
    """
    parts = {key: part_of(source, key) for key in source.parts}
    rng = np.random.default_rng(_SPLIT_SEED)
    rest = [part for key, part in parts.items() if key in ("all", "train")]
    if not rest:
        raise UsageError(f"{name} has no training images ({', '.join(parts)} only). Add a part `train`, or x and y.")
    images = len(rest[0])
    if len(np.unique(rest[0].labels)) < 2:
        raise UsageError(
            expected(f"the training images of {name}", "of two classes at least", "one class", "Add images")
        )
    deck = _Deck(rest[0], rng)
    units = len(deck)
    chosen = {key: part for key, part in parts.items() if key in SPLITS and key != "train"}
    lacking = [key for key in ("calibration", "guarantee") if key not in chosen]
    if "val" in parts:
        if not lacking:
            raise UsageError(f"{name} has a part val beside calibration and guarantee. Call its images one of these.")
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
        raise UsageError(f"{name} has too few {few}: nothing is left for {', '.join(empty)}. Add some.")
    return Dataset(name, source.class_names, {key: chosen[key] for key in SPLITS}, group=source.group)
