"""How an image gets the size that a model takes."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from uce_edge._util.field_rules import OPTIONAL, between
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SIDE, ResizeFilter, ResizeMode
from uce_edge.errors import UsageError, expected

__all__ = ["STRETCH", "Layout", "Resize", "parse"]

_RULE = "MODE[:PART...], where MODE is stretch, crop or pad"
_REMEDY = "For example: --resize stretch:bicubic, --resize crop:256, --resize crop:256:bicubic, or --resize pad:114"

_Level = Annotated[int, between(0, 255)]


class Layout(NamedTuple):
    """The size of a resized image, and where the model's image lies."""

    width: int
    height: int
    left: int
    """Columns that are cut off; negative for columns that are added."""
    top: int


@dataclass(frozen=True)
class Resize(Record):
    """How an image gets the size that a model takes."""

    mode: ResizeMode = ResizeMode.STRETCH
    size: Annotated[Annotated[int, between(1, MAX_SIDE)] | None, OPTIONAL] = None
    """Pixels of the shorter side, before the middle is cut out; of `crop` alone."""
    filter: Annotated[ResizeFilter, OPTIONAL] = ResizeFilter.BILINEAR
    fill: Annotated[_Level | tuple[_Level, ...], OPTIONAL] = 0
    """The pixels beside the image: one level or one per channel; of `pad` alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.size is None) is (self.mode is ResizeMode.CROP):
            raise self.wrong("size", "an integer for crop" if self.size is None else f"absent for {self.mode}")
        if self.fill != 0 and self.mode is not ResizeMode.PAD:
            raise self.wrong("fill", f"absent for {self.mode}")

    def __str__(self) -> str:
        fill = self.fill if isinstance(self.fill, tuple) else (self.fill,)
        number = ",".join(map(str, fill)) if self.fill != 0 else self.size
        filter_ = None if self.filter is ResizeFilter.BILINEAR else self.filter
        return ":".join(str(part) for part in (self.mode, number, filter_) if part is not None)

    def layout(self, image: tuple[int, int], model: tuple[int, int]) -> Layout:
        """Lay out an image; all sizes are width, height."""
        (w, h), (width, height) = image, model
        new = width, height
        if self.mode is ResizeMode.CROP and self.size is not None:
            new = (self.size * w // h, self.size) if w > h else (self.size, self.size * h // w)
        elif self.mode is ResizeMode.PAD and w * height >= h * width:
            new = width, max(1, (2 * h * width + w) // (2 * w))
        elif self.mode is ResizeMode.PAD:
            new = max(1, (2 * w * height + h) // (2 * h)), height
        if self.mode is ResizeMode.PAD:
            return Layout(*new, -((width - new[0]) // 2), -((height - new[1]) // 2))
        return Layout(*new, (new[0] - width) // 2, (new[1] - height) // 2)


STRETCH = Resize()
"""Bilinear: how a model without `resize` gets its image."""


def parse(text: str) -> Resize:
    """Parse the option `--resize`: `crop:256:bicubic`.

    A number is the size of crop and the fill of pad.

    Raises:
        UsageError: It is not a way to resize.
    """
    word, *parts = text.strip().lower().split(":")
    filters = [part for part in parts if part in list(ResizeFilter)]
    numbers = [part for part in parts if part not in filters]
    if word not in list(ResizeMode) or len(filters) > 1 or len(numbers) > 1 or (numbers and word == ResizeMode.STRETCH):
        raise UsageError(expected("`resize`", _RULE, text, _REMEDY))
    levels = numbers[0].split(",") if numbers else []
    if not all(level.strip().isdecimal() for level in levels) or (word == ResizeMode.CROP and len(levels) != 1):
        rule = "crop:SIZE, with the pixels of the shorter side" if word == ResizeMode.CROP else "pad[:FILL][:FILTER]"
        raise UsageError(expected("`resize`", rule, text, _REMEDY))
    values = [int(level) for level in levels]
    mode, filter_ = ResizeMode(word), ResizeFilter(filters[0]) if filters else ResizeFilter.BILINEAR
    if mode is ResizeMode.CROP:
        return Resize(mode, values[0], filter_)
    return Resize(mode, filter=filter_, fill=tuple(values) if len(values) > 1 else (values or [0])[0])
