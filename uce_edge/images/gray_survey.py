"""Survey gray values, and choose a range for a model."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UceEdgeWarning
from uce_edge.images.gray_range import FULL, UNIT, Choice, Range

__all__ = ["UNDECIDED", "Decided", "Display", "Extent", "Notes", "RangeWarning", "Survey", "decide", "warn"]

_FAR = 0.05  # warn when so many more pixels lie outside than in training images
_TINY = 1 / 8  # values in so small a part of the range look flat: 12 bits in 16 have a sixteenth
_EVERY = np.linspace(0, 1, 1001)  # stored quantiles of a surveyed image
_ROBUST = slice(1, 1000)  # without a thousandth at each end, where dead pixels lie


class RangeWarning(UceEdgeWarning):
    """The gray values differ from those of the training images."""


@dataclass(frozen=True)
class Display:
    """How a file displays its gray values."""

    range: Range | None
    """Black and white; None if the file does not say."""
    windowed: bool = False
    """Whether the file stores a window, so that its number type does not decide."""
    inverted: bool = False
    """Whether small values are bright."""


class Extent(NamedTuple):
    """The extent of the values of an image."""

    low: float
    high: float
    outside: float = 0.0
    """The share that a range clips."""

    def note(self, name: str, applied: Range, *, stored: bool) -> str | None:
        """A warning about values that the range does not suit, or None.

        Args:
            name: The name of the image.
            applied: The range that was applied.
            stored: Whether the model stores it; otherwise it is that of the file's type.
        """
        seen = f"{name} has gray values from {self.low:g} to {self.high:g}, and "
        those = f"the model's range {applied}" if stored else f"the range of its type, {applied}"
        if self.outside > applied.clipped + _FAR:
            return f"{seen}{self.outside:.0%} of its pixels lie outside of {those}: they become black or white"
        if 0 < min(self.high, applied.high) - max(self.low, applied.low) < _TINY * (applied.high - applied.low):
            remedy = "" if stored else ". A model that was trained with --range auto, or 12bit, reads such images"
            return f"{seen}these are a small part of {those}: it comes out nearly flat{remedy}"
        return None


class Notes:
    """Warnings about many images.

    The first is shown at once, the others are counted.
    """

    def __init__(self) -> None:
        self._count = 0

    def add(self, *notes: str) -> None:
        """Add the warnings about one image."""
        if notes and not self._count:
            warn(notes[0])
        self._count += bool(notes)

    def __enter__(self) -> "Notes":
        return self

    def __exit__(self, *_: object) -> None:
        others = self._count - 1
        if others > 0:
            warn(f"the last warning also holds for {others} other {'image' if others == 1 else 'images'}")


def warn(note: str) -> None:
    """Warn of one image."""
    # As this module's: warnings of the decoding modules are silenced.
    warnings.warn(note, RangeWarning, stacklevel=1)


@dataclass(frozen=True, eq=False)
class Survey:
    """The raw values of one image."""

    quantiles: npt.NDArray[np.float64]
    whole: bool
    """Whether they are whole numbers."""
    windowed: bool
    """Whether the file stores a window."""

    @classmethod
    def of(cls, values: npt.NDArray[Any], *, windowed: bool) -> "Survey":
        """Survey the values of an image, or a sample."""
        flat = values.ravel().astype(np.float64)
        flat = flat[np.isfinite(flat)]
        whole = values.dtype.kind in "iu" or bool((flat == np.rint(flat)).all() and flat.size and flat.max() > 1)
        return cls(np.quantile(flat, _EVERY) if flat.size else np.zeros(len(_EVERY)), whole, windowed)


class Decided(NamedTuple):
    """A range for a model, and its message."""

    range: Range | None = None
    words: str | None = None


UNDECIDED = Decided()
"""No range, and no message."""


def decide(choice: Choice, surveys: Iterable[Survey]) -> Decided:
    """Choose the range for a model from training images.

    Args:
        choice: The choice of the user. `auto` rounds the smallest and the largest value, a thousandth of every image
            left aside, outwards to a bit depth; images that all have a window of their own keep it.
        surveys: The images of more than 8 bits among them.
    """
    seen = [] if choice is None else list(surveys)
    if isinstance(choice, Range):
        return Decided(_with_clipped(choice, seen), f"Gray values {choice} are shown from black to white.")
    if not seen:
        return UNDECIDED
    return _by_images(seen)


def _by_images(seen: Sequence[Survey]) -> Decided:
    """The choice of `auto`."""
    if all(survey.windowed for survey in seen):
        return Decided(words="Every file is shown by its own window. One range for all: --range LOW..HIGH")
    low = min(float(survey.quantiles[_ROBUST].min()) for survey in seen)
    high = max(float(survey.quantiles[_ROBUST].max()) for survey in seen)
    found = f"The images have gray values from {low:g} to {high:g}"
    whole = all(survey.whole for survey in seen)
    if not whole and low >= UNIT.low and high <= UNIT.high:
        return UNDECIDED
    chosen = Range(-_power(-low) if low < 0 else 0, max(_power(high + 1), 256 if whole else 2) - 1)
    if chosen == FULL:
        return Decided(words=f"{found}: all 16 bits are shown from black to white.")
    others = " Windows of DICOM files are not used." if any(survey.windowed for survey in seen) else ""
    shown = f"{chosen} is shown from black to white, and the model stores this range"
    words = f"{found}: {shown}.{others} For another range: --range LOW..HIGH"
    return Decided(_with_clipped(chosen, seen), words)


def _with_clipped(chosen: Range, seen: Sequence[Survey]) -> Range:
    """Store the share of training pixels that the range clips."""
    shares = [chosen.outside(survey.quantiles) / len(_EVERY) for survey in seen]
    return replace(chosen, clipped=round(float(np.quantile(shares, 0.99)), 2)) if shares else chosen


def _power(value: float) -> int:
    """The smallest power of two that is not below a value."""
    return 1 << max(0, int(np.ceil(np.log2(max(value, 1)))))
