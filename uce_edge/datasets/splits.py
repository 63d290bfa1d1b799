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
from uce_edge.depth import UNDECIDED, Decided, decide
from uce_edge.errors import UsageError, expected
from uce_edge.ranges import Choice, Range

SPLITS = ("train", "calibration", "guarantee", "test")
_SPLIT_SEED = 20200713  # fixed: a run, its calibration and its evaluation must agree on who is who


@dataclass(frozen=True)
class Split:
    """Some images [n, height, width, channels], uint8 as a rule, and their labels [n]."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def at_most(self, images: int) -> "Split":
        """Itself, or so many of its images, always the same."""
        if len(self) <= images:
            return self
        chosen = np.sort(np.random.default_rng(_SPLIT_SEED).permutation(len(self))[:images])
        return Split(self.images[chosen], self.labels[chosen])

    def halves(self) -> "tuple[Split, Split]":
        """Two disjoint halves, always the same."""
        return self.parted(1 / 2)

    def parted(self, share: float) -> "tuple[Split, Split]":
        """A part with so large a share of the images, and the rest, always the same."""
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(self))
        count = math.ceil(share * len(self))
        first, second = order[:count], order[count:]
        return Split(self.images[first], self.labels[first]), Split(self.images[second], self.labels[second])

    def sha256(self) -> str:
        """A fingerprint of pixels and labels, to prove later what a model was fitted on."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


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
    range_: Choice = None,
) -> Dataset:
    """A dataset with its splits.

    Args:
        name: A dataset's name (`named.names()`), the name of an .npz file under the root, a folder with one sub-folder
            per class, or an .npz file.
        root: Where datasets lie; None for the environment variable UCE_EDGE_DATA, or else the current folder.
        size: Height and width that a folder's images are resized to; None for 32x32.
        download: Fetch a public dataset that is not under `root`.
        range_: Which gray values of a folder's images of more than 8 bits become black and white; `auto` looks at the
            images, None takes what the number type or the window of every file says.
    """
    wanted = Wanted(range=range_) if size is None else Wanted(size=size, range=range_)
    resolved = resolve(name, root, wanted, download=download)
    decided = resolved.source.gray
    if decided == UNDECIDED and isinstance(range_, Range):  # of images of 8 bits: for those that come later
        decided = decide(range_, ())
    return replace(from_source(resolved.name, resolved.source), root=resolved.root, gray=decided)


def from_source(name: str, source: Source) -> Dataset:
    """Cut what the files hold into the four splits, always in the same way.

    A test part is kept. Calibration and guarantee images are the two halves of a `val` part, or else the fraction
    `source.held_out` of the training images each, 5,000 at most. A source without parts gives a fifth to the test.
    """
    parts = dict(source.parts)
    rng = np.random.default_rng(_SPLIT_SEED)
    rest = [part for key, part in parts.items() if key in ("all", "train")]
    if not rest:
        raise UsageError(f"{name} has no training images ({', '.join(parts)} only). Add a part `train`, or x and y.")
    images, labels = rest[0]
    if len(np.unique(labels)) < 2:
        raise UsageError(
            expected(f"the training images of {name}", "of two classes at least", "one class", "Add images")
        )
    order = rng.permutation(len(labels))
    chosen: dict[str, Split] = {}

    def take(key: str, count: int) -> None:
        nonlocal order
        chosen[key] = Split(images[order[:count]], labels[order[:count]])
        order = order[count:]

    if "val" in parts:
        pixels, truth = parts["val"]
        shuffled = rng.permutation(len(truth))
        for key, index in zip(("calibration", "guarantee"), np.array_split(shuffled, 2), strict=True):
            chosen[key] = Split(pixels[index], truth[index])
    else:
        held = min(5000, round(source.held_out * len(labels)))
        take("calibration", held)
        take("guarantee", held)
    if "test" in parts:
        chosen["test"] = Split(*parts["test"])
    else:
        take("test", round(0.2 * len(labels)))
    take("train", len(order))
    empty = [key for key in SPLITS if len(chosen[key]) == 0]
    if empty:
        raise UsageError(f"{name} has too few images: nothing is left for {', '.join(empty)}. Add some.")
    return Dataset(name, source.class_names, {key: chosen[key] for key in SPLITS})
