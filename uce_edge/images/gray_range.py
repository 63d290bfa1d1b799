"""Ranges of gray values: which are black and white."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from uce_edge._util.field_rules import OPTIONAL, Share
from uce_edge._util.records import Record
from uce_edge.errors import UsageError, expected

if TYPE_CHECKING:
    import numpy.typing as npt

    Values = npt.NDArray[Any]

__all__ = ["FULL", "UNIT", "Choice", "Range", "parse"]

BITS = range(8, 17)
_RULE = "auto, full, a bit depth such as 12bit, or LOW..HIGH"
_REMEDY = "For example: --range 12bit, or --range -1000..400"


@dataclass(frozen=True)
class Range(Record):
    """The raw values that become 0 and 255.

    Values outside are clipped.
    """

    low: float
    high: float
    clipped: Annotated[Share, OPTIONAL] = 0.0
    """The share of pixels outside it in training images: the 99th percentile over images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise self.wrong("high", f"above `low` ({self.low:g})")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def shown(self, values: "Values") -> "Values":
        """Scale to 0..255, not rounded.

        In float64, (v - low) * 255 / (high - low), then clipped.
        """
        result = values.astype("float64")
        result -= self.low
        result *= 255
        result /= self.high - self.low
        return result.clip(0, 255, out=result)

    def outside(self, values: "Values") -> int:
        """The number of values that it clips."""
        return int((values < self.low).sum() + (values > self.high).sum())


FULL = Range(0, 65535)
"""The range of 16 bits, for an absent range."""
UNIT = Range(0, 1)
"""The range of float pixels, for an absent range."""

Choice = Range | Literal["auto"] | None
"""The choice of the user. None stores no range: every file is read by its own type or window."""


def parse(text: str) -> Choice:
    """Parse the option `--range`.

    Raises:
        UsageError: It is not a range.
    """
    word = text.strip().lower()
    if word == "auto":
        return "auto"
    if word == "full":
        return None
    number = word.removesuffix("bit")
    if number != word and number.isdecimal() and int(number) in BITS:
        return Range(0, 2 ** int(number) - 1)
    low, dots, high = word.partition("..")
    try:
        return Range(_number(low), _number(high)) if dots else _wrong(text)
    except (ValueError, UsageError):
        return _wrong(text)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _wrong(text: str) -> Choice:
    raise UsageError(expected("`range`", _RULE, text, _REMEDY))
