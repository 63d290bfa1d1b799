"""What a dataset's files hold, before anything is cut or matched: the shape that every reader gives."""

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
from uce_edge.metadata import ImageSpec

Part = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Images [n, height, width, channels] and labels [n]."""


PARTS = ("train", "val", "calibration", "guarantee", "test")
"""What the files of a dataset may tell apart; a `val` part is cut into calibration and guarantee."""
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
    """Some images could not be read and were left out."""


class UngroupedWarning(UceEdgeWarning):
    """Images are taken to be independent, although a model's own images were grouped."""


def part_named(word: str) -> str | None:
    """The part that a folder or a cell of a manifest means, in any case; None for no part."""
    return _PART_OF.get(word.strip().lower())


def part_words() -> str:
    """Every spelling of every part, for messages."""
    return ", ".join(_PART_OF)


@dataclass(frozen=True)
class Origin:
    """Where the images of a part come from."""

    names: npt.NDArray[np.object_]
    """The file of each image, as messages call it."""
    groups: npt.NDArray[np.int64] | None = None
    """The group of each image, numbered over all parts; None where images are not grouped."""


@dataclass(frozen=True)
class Source:
    """What a dataset's files hold: parts named as in `PARTS`, or one part `all`."""

    parts: dict[str, Part]
    class_names: tuple[str, ...]
    held_out: float = 0.1
    """The share of a part without others that calibration and guarantee get each."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """By part; empty where images have no files of their own."""
    group: str | None = None
    """What groups the images: a column, or a pattern."""
    gray: Decided = UNDECIDED
    """Which gray values of more than 8 bits became black and white, where that was asked for."""


@dataclass(frozen=True)
class Wanted:
    """What a reader is told where the files leave a choice."""

    image: ImageSpec | None = None
    """What a model takes as an image, if there is one already."""
    size: tuple[int, int] = (32, 32)
    """Height and width of images that have no size of their own, if there is no model."""
    classes: Sequence[str] | None = None
    """The names of the classes where labels are numbers; None for the numbers themselves."""
    labels: bool = True
    """Whether labels matter; if not, all are 0 and none needs to be there."""
    group: str | None = None
    """What groups the images: a column of a manifest, or a pattern for file names with one capture group."""
    must_group: bool = True
    """Whether images that cannot be grouped so are refused, rather than announced."""
    range: Choice = None
    """Which gray values of more than 8 bits shall become black and white, if no model says it already."""


@dataclass(frozen=True)
class Format:
    """A kind of file or folder that holds labelled images."""

    rule: str
    """What it is in words, as in "a folder with one sub-folder per class"."""
    takes: Callable[[Path], bool]
    """Whether a path is meant to be one, judged without opening it."""
    read: Callable[[Path, Wanted], Source]
    rule_unlabelled: str | None = None
    """The rule where labels do not matter; None for the same."""


@dataclass(frozen=True)
class Named:
    """A dataset that has a name."""

    read: Callable[[Path, Wanted], Source]
    """From the folder that its files lie in."""
    sign: str = ""
    """The pattern of a file that shows it is there."""
    public: Public | None = None
    """Where it comes from; None for one that a Python package brings."""


def make_part(pixels: npt.NDArray[Any], labels: npt.NDArray[Any], what: str) -> Part:
    """Check arrays of images and labels; `what` names the labels in messages."""
    labels = labels.ravel()
    if labels.dtype.kind not in "iu":
        raise UsageError(expected(what, "whole numbers", str(labels.dtype), "Save class numbers from 0"))
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        rule = "uint8 [n, height, width] or [n, height, width, 1 or 3]"
        raise UsageError(
            expected(f"the images beside {what}", rule, f"{pixels.dtype} {list(pixels.shape)}", "Convert them")
        )
    if len(pixels) != len(labels) or len(labels) == 0:
        raise UsageError(expected(what, f"one per image ({len(pixels)}), one at least", len(labels), "Check the file"))
    height, width = pixels.shape[1:3]
    if not height or not width:
        raise UsageError(
            expected(f"the images beside {what}", "at least 1 x 1 pixels", f"{height} x {width}", "Save them again")
        )
    if labels.dtype == np.uint64:
        labels = np.minimum(labels, np.iinfo(np.int64).max)  # a larger one would become negative
    # A copy where the file's bytes are read-only: torch warns of such arrays.
    return np.require(pixels, requirements="W"), labels.astype(np.int64)


def numbered(parts: dict[str, Part], path: Path) -> tuple[str, ...]:
    """The class names of labels that are numbers and nothing else."""
    images, largest = sum(len(labels) for _, labels in parts.values()), max(int(y.max()) for _, y in parts.values())
    # One wrong label of a billion would otherwise make a billion names.
    if largest >= images:
        raise UsageError(
            expected(
                f"the labels of {path}",
                f"between 0 and {images - 1}, since {images} images have at most as many classes",
                largest,
                "Number the classes 0, 1, 2, ... without gaps, or store their names as class_names",
            )
        )
    return tuple(str(number) for number in range(largest + 1))


def check_names(names: Sequence[str], where: Path | str) -> None:
    """Refuse class names that no screen can show, or that a person cannot tell apart but for case and blanks."""
    known: dict[str, str] = {}
    for name in names:
        if any(unicodedata.category(character) in _UNFIT for character in name.strip()):
            raise UsageError(
                expected(f"the class names of {where}", "text without control characters", name, "Rename the class")
            )
        key = name.strip().casefold()
        if key in known:
            twice = f"{name} twice" if known[key] == name else f"'{known[key]}' and '{name}'"
            rule = "different, not only in case or blanks"
            raise UsageError(expected(f"the class names of {where}", rule, twice, "Write one class in one way"))
        known[key] = name


def check_labels(parts: dict[str, Part], names: Sequence[str], path: Path | str) -> None:
    """Refuse labels that are not the number of a class."""
    for _, labels in parts.values():
        wrong = labels[(labels < 0) | (labels >= len(names))]
        if len(wrong):
            rule = f"between 0 and {len(names) - 1}"
            raise UsageError(expected(f"the labels of {path}", rule, int(wrong[0]), "Labels count from 0"))
