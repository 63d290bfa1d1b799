"""The result of every dataset reader, before splits are made."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.downloads import Public
from uce_edge.errors import UceEdgeWarning, UsageError, expected
from uce_edge.images.gray_range import Choice
from uce_edge.images.gray_survey import UNDECIDED, Decided
from uce_edge.images.resize import STRETCH, Resize
from uce_edge.metadata import ImageSpec

Part = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Images [n, height, width, channels] and labels [n]."""


PARTS = ("train", "val", "calibration", "guarantee", "test")
"""The parts that a dataset may have; a `val` part is divided into calibration and guarantee."""
_WORDS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "calibration": ("calibration", "calib"),
    "guarantee": ("guarantee",),
    "test": ("test", "testing"),
}
_PART_OF = {word: part for part, words in _WORDS.items() for word in words}


_UNFIT = ("Cc", "Cs")
"""Control characters, and halves of characters, as which Python reads a file name that is not UTF-8."""


class SkippedImagesWarning(UceEdgeWarning):
    """Unreadable images were left out."""


class UngroupedWarning(UceEdgeWarning):
    """Images are treated as independent, although the training images were grouped."""


def part_named(word: str) -> str | None:
    """The part that a word names, in upper or lower case; else None."""
    return _PART_OF.get(word.strip().lower())


def part_words() -> str:
    """Every spelling of every part, for messages."""
    return ", ".join(_PART_OF)


@dataclass(frozen=True)
class Origin:
    """The files and groups of the images of a part."""

    names: npt.NDArray[np.object_]
    """The file of each image, as shown in messages."""
    groups: npt.NDArray[np.int64] | None = None
    """The group of each image, numbered over all parts; None where images are not grouped."""
    files: npt.NDArray[np.object_] | None = None
    """The path of each image."""


@dataclass(frozen=True)
class Source:
    """Images and labels by part, as in `PARTS`, or one part `all`."""

    parts: dict[str, Part]
    class_names: tuple[str, ...]
    held_out: float = 0.1
    """The share that calibration and guarantee get each, where there is only one part."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """By part; empty where images have no files of their own."""
    group: str | None = None
    """The column or pattern that groups the images."""
    gray: Decided = UNDECIDED
    """The gray range of images of more than 8 bits, where one was chosen."""
    class_ids: tuple[int, ...] | None = None
    """The output of the network for each class, where a column `class_id` names it."""


@dataclass(frozen=True)
class ReaderOptions:
    """The options of a dataset reader."""

    image: ImageSpec | None = None
    """The image format of the model, if there is a model."""
    size: tuple[int, int] = (32, 32)
    """Height and width of the images of folders and manifests, if there is no model."""
    classes: Sequence[str] | None = None
    """The class names of numeric labels; None for the numbers themselves."""
    labels: bool = True
    """Whether labels are read; if not, all are 0."""
    group: str | None = None
    """The column of a manifest, or the pattern with one capture group, that groups the images."""
    must_group: bool = True
    """Whether images without groups raise an error instead of a warning."""
    range: Choice = None
    """The gray range of images of more than 8 bits, if there is no model."""
    resize: Resize = STRETCH
    """How images of another size get this one, if there is no model."""


@dataclass(frozen=True)
class Format:
    """A format of labelled images."""

    rule: str
    """Its description, as in "a folder with one sub-folder per class"."""
    takes: Callable[[Path], bool]
    """Whether a path has this format, judged without opening it."""
    read: Callable[[Path, ReaderOptions], Source]
    rule_unlabelled: str | None = None
    """The description for unlabelled images; None for the same."""


@dataclass(frozen=True)
class Named:
    """A dataset with a name."""

    read: Callable[[Path, ReaderOptions], Source]
    """Reads the folder of its files."""
    sign: str = ""
    """The pattern of a file that identifies the dataset."""
    public: Public | None = None
    """Its origin; None for a dataset of a Python package."""


def make_part(pixels: npt.NDArray[Any], labels: npt.NDArray[Any], what: str) -> Part:
    """Check arrays of images and labels; `what` names the labels in messages."""
    labels = labels.ravel()
    if labels.dtype.kind not in "iu":
        raise UsageError(
            expected(what, "whole numbers", str(labels.dtype), "Save class numbers from 0"), "dataset.labels"
        )
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        rule = "uint8 [n, height, width] or [n, height, width, 1 or 3]"
        raise UsageError(
            expected(f"the images beside {what}", rule, f"{pixels.dtype} {list(pixels.shape)}", "Convert them"),
            "dataset.images",
        )
    if len(pixels) != len(labels) or len(labels) == 0:
        raise UsageError(
            expected(what, f"one per image ({len(pixels)}), one at least", len(labels), "Check the file"),
            "dataset.labels",
        )
    height, width = pixels.shape[1:3]
    if not height or not width:
        raise UsageError(
            expected(f"the images beside {what}", "at least 1 x 1 pixels", f"{height} x {width}", "Save them again"),
            "dataset.images",
        )
    if labels.dtype == np.uint64:
        labels = np.minimum(labels, np.iinfo(np.int64).max)  # a larger one would become negative
    # A copy of read-only bytes, because torch warns about such arrays.
    return np.require(pixels, requirements="W"), labels.astype(np.int64)


def numbered(parts: dict[str, Part], path: Path) -> tuple[str, ...]:
    """Numbers as the names of numeric labels."""
    images, largest = sum(len(labels) for _, labels in parts.values()), max(int(y.max()) for _, y in parts.values())
    # One wrong label of a billion would make a billion names.
    if largest >= images:
        raise UsageError(
            expected(
                f"the labels of {path}",
                f"between 0 and {images - 1}, since {images} images have at most as many classes",
                largest,
                "Number the classes 0, 1, 2, ... without gaps, or store their names as class_names",
            ),
            "dataset.labels",
        )
    return tuple(str(number) for number in range(largest + 1))


def check_names(names: Sequence[str], where: Path | str) -> None:
    """Refuse unprintable class names, and names equal but for case and blanks."""
    known: dict[str, str] = {}
    for name in names:
        if any(unicodedata.category(character) in _UNFIT for character in name.strip()):
            raise UsageError(
                expected(f"the class names of {where}", "text without control characters", name, "Rename the class"),
                "dataset.class-names",
            )
        key = name.strip().casefold()
        if key in known:
            twice = f"{name} twice" if known[key] == name else f"'{known[key]}' and '{name}'"
            rule = "different, not only in case or blanks"
            raise UsageError(
                expected(f"the class names of {where}", rule, twice, "Write one class in one way"),
                "dataset.class-names",
            )
        known[key] = name


def check_labels(parts: dict[str, Part], names: Sequence[str], path: Path | str) -> None:
    """Refuse labels that are not the number of a class."""
    for _, labels in parts.values():
        wrong = labels[(labels < 0) | (labels >= len(names))]
        if len(wrong):
            rule = f"between 0 and {len(names) - 1}"
            raise UsageError(
                expected(f"the labels of {path}", rule, int(wrong[0]), "Labels count from 0"), "dataset.labels"
            )
