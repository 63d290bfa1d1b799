"""Images that are in two places: in two splits, under two labels, or in what a network was trained on.

What is kept of a training set is small enough to travel with the model file. Of many training images, one in m is
kept: those whose fingerprint is a multiple of m. Up to `KEPT` training images m is 1 and the answer exact. Otherwise an
overlap of k images is missed with probability (1 - 1/m)^k: for 40,000 training images and k = 100, less than 1 %.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.datasets import near_duplicates
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import Sketch

KEPT = 2048
_PAIRS = 1_000_000_000  # of pictures, that are compared for a split at most: some 8 seconds


def fingerprints(images: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Eight bytes per image that change with any of its pixels."""
    digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def sketch(images: npt.NDArray[Any]) -> Sketch:
    """What is kept of a training set."""
    distinct = np.unique(fingerprints(images))
    one_in = -(-len(distinct) // KEPT)
    kept = distinct[distinct % np.uint64(one_in) == 0]
    return Sketch(one_in, base64.b64encode(kept.astype("<u8").tobytes()).decode())


def union(sketches: Sequence[Sketch | None]) -> Sketch | None:
    """What several networks together were trained on, as far as it is known."""
    known = [one for one in sketches if one is not None]
    if not known:
        return None
    kept = np.unique(np.concatenate([np.frombuffer(one.content, "<u8") for one in known]))
    return Sketch(max(one.one_in for one in known), base64.b64encode(kept.tobytes()).decode())


def seen(trained_on: Sketch | None, images: npt.NDArray[Any]) -> int:
    """How many of these images the network was trained on; an estimate where not every fingerprint is kept.

    Args:
        trained_on: A `sketch`, or None when nothing is known, which counts as none.
        images: The images somebody wants to calibrate or to evaluate on.
    """
    if trained_on is None:
        return 0
    kept = np.frombuffer(trained_on.content, "<u8").astype(np.uint64)
    hits = int(np.isin(fingerprints(images), kept).sum())
    return min(hits * trained_on.one_in, len(images))


def refuse_overlap(trained_on: Sketch | None, images: npt.NDArray[Any], what: str) -> None:
    """Refuse images that the network was trained on: it is too sure of them. `what` is their name."""
    if trained_on is not None and (hits := seen(trained_on, images)):
        about = "" if trained_on.one_in == 1 else "about "
        raise UsageError(
            f"{about}{hits} of the {len(images)} images of {what} were used "
            "to train this network, which is too sure of them. Calibrate on images it has not seen."
        )


@dataclass(frozen=True)
class Twins:
    """Images that are there twice."""

    images: int
    """How many."""
    compared: int
    """How many were looked at, of those that could be."""
    example: tuple[str, str]
    """Two of them, by name."""


@dataclass(frozen=True)
class Overlaps:
    """What is wrong between the splits of a dataset; None for what is not."""

    same: Twins | None
    """Images of a later split whose pixels are also in an earlier one."""
    alike: Twins | None
    """Images of a later split that look like one of an earlier one, without being the same."""
    two_labels: Twins | None
    """Images with the same pixels and different labels, wherever they are."""


def across(splits: Mapping[str, Split]) -> Overlaps:
    """Find images that are in two splits, or have two labels; takes some 5 seconds for 50,000 images on one core.

    Args:
        splits: By name, the training images first.
    """
    prints = {key: fingerprints(split.images) for key, split in splits.items()}
    small = {key: near_duplicates.thumbnails(split.images) for key, split in splits.items()}
    same: list[tuple[str, str]] = []
    like: list[tuple[str, str]] = []
    compared = 0
    keys = list(splits)
    for number, key in enumerate(keys[1:], 1):
        earlier = [(other, index) for other in keys[:number] for index in range(len(splits[other]))]
        known = {value: at for at, value in enumerate(np.concatenate([prints[k] for k in keys[:number]]).tolist())}
        twins = {i: known[value] for i, value in enumerate(prints[key].tolist()) if value in known}
        same += [(_name(splits, key, i), _name(splits, *earlier[at])) for i, at in twins.items()]
        some = np.setdiff1d(np.arange(len(splits[key])), list(twins))
        some = some[:: -(-len(some) * len(earlier) // _PAIRS) or 1]  # every m-th of too many
        compared += len(some)
        best, which = near_duplicates.nearest(small[key][some], np.concatenate([small[k] for k in keys[:number]]))
        for at in np.flatnonzero(best >= near_duplicates.LIKE).tolist():
            like.append((_name(splits, key, int(some[at])), _name(splits, *earlier[which[at]])))
    held_out = sum(len(splits[key]) for key in keys[1:])
    return Overlaps(_twins(same, held_out), _twins(like, compared), _two_labels(splits, prints))


def repeated(split: Split) -> tuple[Twins | None, Twins | None]:
    """Images of one set that are there again, pixel by pixel; and those of them that have another label."""
    prints = fingerprints(split.images)
    _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(split)))
    found = [(_name({"": split}, "", int(i)), _name({"": split}, "", int(first[inverse[i]]))) for i in again]
    return _twins(found, len(split)), _two_labels({"": split}, {"": prints})


def _twins(found: Sequence[tuple[str, str]], compared: int) -> Twins | None:
    return Twins(len(found), compared, found[0]) if found else None


def _two_labels(splits: Mapping[str, Split], prints: Mapping[str, npt.NDArray[np.uint64]]) -> Twins | None:
    first: dict[int, tuple[int, str, int]] = {}
    found = []
    for key, split in splits.items():
        for i, (value, label) in enumerate(zip(prints[key].tolist(), split.labels.tolist(), strict=True)):
            other, split_of_other, at = first.setdefault(value, (label, key, i))
            if other != label:
                found.append((_name(splits, key, i), _name(splits, split_of_other, at)))
    return _twins(found, sum(map(len, splits.values())))


def _name(splits: Mapping[str, Split], key: str, index: int) -> str:
    names = splits[key].names
    if names is None:
        return f"image {index} of {key}" if key else f"image {index}"
    return f"{names[index]} ({key})" if key else str(names[index])
