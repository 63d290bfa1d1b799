"""Images that occur twice: in two splits, under two labels, or in the training set.

A model file stores a sketch of its training set: the fingerprints that are a multiple of m. Up to `KEPT` training
images, m is 1 and the answer is exact. Beyond that, an overlap of k images is missed with probability (1 - 1/m)^k: for
40,000 training images and k = 100, less than 1 %.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.datasets import near_duplicates
from uce_edge.datasets.fingerprints import fingerprints
from uce_edge.datasets.image_files import LOG
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import Sketch

KEPT = 2048
FEW = 0.05
"""The largest share of training images that is left out; more are refused."""
_NAMED = 5  # images that a message names
_PAIRS = 1_000_000_000  # the most pairs of images to compare for a split: some 8 seconds


def sketch(images: npt.NDArray[Any]) -> Sketch:
    """The sketch of a training set."""
    distinct = np.unique(fingerprints(images))
    one_in = -(-len(distinct) // KEPT)
    kept = distinct[distinct % np.uint64(one_in) == 0]
    return Sketch(one_in, base64.b64encode(kept.astype("<u8").tobytes()).decode())


def union(sketches: Sequence[Sketch | None]) -> Sketch | None:
    """The sketch of the training sets of several networks."""
    known = [one for one in sketches if one is not None]
    if not known:
        return None
    kept = np.unique(np.concatenate([np.frombuffer(one.content, "<u8") for one in known]))
    return Sketch(max(one.one_in for one in known), base64.b64encode(kept.tobytes()).decode())


def seen(trained_on: Sketch | None, images: npt.NDArray[Any]) -> int:
    """Count the images that the network was trained on.

    Args:
        trained_on: A `sketch`; the count is an estimate if it has only some fingerprints. None counts as no image.
        images: The images to calibrate or to evaluate on.
    """
    if trained_on is None:
        return 0
    return min(int(_known(trained_on, images).sum()) * trained_on.one_in, len(images))


def _known(trained_on: Sketch, images: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which images have a fingerprint of the sketch."""
    kept = np.frombuffer(trained_on.content, "<u8").astype(np.uint64)
    return np.isin(fingerprints(images), kept)


def without_seen(trained_on: Sketch | None, data: Split, what: str) -> Split:
    """Leave out training images, on which a network is overconfident.

    A few are duplicates, and a warning names one. Many are the wrong images.

    Args:
        trained_on: The sketch of the training images; None for an unknown training.
        data: The images to calibrate on.
        what: Their name.

    Raises:
        UsageError: More than `FEW` of the images were trained on.
    """
    if trained_on is None or not (known := _known(trained_on, data.images)).any():
        return data
    places = np.flatnonzero(known)
    hits = min(len(places) * trained_on.one_in, len(data))
    about = "" if trained_on.one_in == 1 else "about "
    named = ", ".join(_name({"": data}, "", int(place)) for place in places[:_NAMED])
    fact = (
        f"{about}{hits} of the {len(data)} images of {what} {'was' if hits == 1 else 'were'} used to train this network"
    )
    if hits > FEW * len(data):
        raise UsageError(
            f"{fact}, which is overconfident on them, such as {named}. Calibrate on other images.",
            "dataset.seen-in-training",
            images=hits,
        )
    LOG.warning("%s, and %d left out: %s.", fact, len(places), named)
    return data.take(np.flatnonzero(~known))


@dataclass(frozen=True)
class Twins:
    """Duplicate images."""

    images: int
    """Their number."""
    compared: int
    """The number of images that were compared."""
    example: tuple[str, str]
    """The names of one pair."""


@dataclass(frozen=True)
class Overlaps:
    """Duplicates across the splits of a dataset; None for no duplicates."""

    same: Twins | None
    """Images of a later split whose pixels are also in an earlier one."""
    alike: Twins | None
    """Images of a later split that look like one of an earlier one, with other pixels."""
    two_labels: Twins | None
    """Images with the same pixels and different labels, in any split."""


def across(splits: Mapping[str, Split]) -> Overlaps:
    """Find images in two splits, or with two labels.

    This takes some 5 seconds for 50,000 images on one core.

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
    """Find exact duplicates in one split, and those with another label."""
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
