"""Draw scales, axes, lines and markers as SVG."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from uce_edge.output.report.markup import Markup, element, join

WIDTH = 380
"""The width of a drawing in its own units, near that of a phone, so that text keeps its size there."""

Point = tuple[float, float]


class Series(NamedTuple):
    """The style of a line; dash and marker differ, not only the colour."""

    colour: str
    """The style sheet's class."""
    dash: str | None
    marker: str


SERIES = (
    Series("c1", None, "circle"),
    Series("c2", "7 4", "square"),
    Series("c3", "2 3", "triangle"),
    Series("c4", "9 3 2 3", "diamond"),
)

MANY = (
    *SERIES,
    Series("c5", "4 2", "cross"),
    Series("c6", "12 4", "down"),
    Series("c1", "3 3", "diamond"),
    Series("c2", "10 3 2 3 2 3", "triangle"),
    Series("c3", None, "square"),
    Series("c4", "5 5", "circle"),
    Series("c5", None, "down"),
    Series("c6", "2 2", "cross"),
)
"""Styles of more than four lines; colours repeat after six, with another dash and marker."""

_MARKERS = {
    "square": "M-3.2-3.2h6.4v6.4h-6.4z",
    "triangle": "M0-4.2L4 3H-4z",
    "diamond": "M0-4.6L4.6 0L0 4.6L-4.6 0z",
    "cross": "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "down": "M0 4.2L4-3H-4z",
}


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def ceiling(values: Iterable[float], least: float = 0.0) -> float:
    """A round number above all values, for the end of an axis."""
    top = max([value for value in values if not math.isnan(value)] + [least])
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(factor * power for factor in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * power >= top * 0.999)


@dataclass(frozen=True)
class Frame:
    """A rectangle of a drawing with its two axes."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)

    @property
    def bottom(self) -> float:
        """The y coordinate of the horizontal axis."""
        return self.top + self.height

    @property
    def right(self) -> float:
        """The x coordinate of the right edge."""
        return self.left + self.width

    def x(self, value: float) -> float:
        """The x coordinate of a value."""
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        """The y coordinate of a value."""
        low, high = self.y_range
        return self.bottom - self.height * (value - low) / (high - low)

    def axes(
        self,
        x_label: str = "",
        y_label: str = "",
        *,
        x_format: Callable[[float], str] = "{:g}".format,
        y_format: Callable[[float], str] = "{:g}".format,
        x_ticks: Sequence[float] | None = None,
        y_ticks: Sequence[float] | None = None,
    ) -> Markup:
        """Grid lines, numbers and labels; the label of the y axis is above it."""
        parts: list[Markup] = []
        for value in ticks(*self.y_range) if y_ticks is None else y_ticks:
            at = self.y(value)
            parts.append(element("line", class_="grid", x1=self.left, x2=self.right, y1=at, y2=at))
            parts.append(text(self.left - 7, at + 4, y_format(value), anchor="end", class_="tick"))
        for value in ticks(*self.x_range) if x_ticks is None else x_ticks:
            at = self.x(value)
            parts.append(element("line", class_="axis", x1=at, x2=at, y1=self.bottom, y2=self.bottom + 4))
            if x_label:
                parts.append(text(at, self.bottom + 17, x_format(value), anchor="middle", class_="tick"))
        parts.append(element("line", class_="axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom))
        if x_label:
            middle = (self.left + self.right) / 2
            parts.append(text(middle, self.bottom + 35, x_label, anchor="middle", class_="label"))
        if y_label:
            parts.append(text(4, self.top - 12, y_label, class_="label"))
        return join(parts)

    def line(self, points: Iterable[Point], series: Series, markers: bool = False, class_: str = "") -> Markup:
        """A line through points of data; NaN interrupts it."""
        path, pen = [], "M"
        placed = [(x, y) for x, y in points]
        for x, y in placed:
            if math.isnan(y):
                pen = "M"
                continue
            path.append(f"{pen}{self.x(x):.1f} {self.y(y):.1f}")
            pen = "L"
        drawn = element(
            "path", d="".join(path), class_=f"line {series.colour} {class_}".strip(), stroke_dasharray=series.dash
        )
        if not markers:
            return drawn
        there = [(x, y) for x, y in placed if not math.isnan(y)]
        return join([drawn, *(self.mark(x, y, series) for x, y in there)])

    def area(self, upper: Sequence[Point], lower: Sequence[Point], class_: str) -> Markup:
        """The area between two lines, without NaN."""
        pairs = [
            (x, high, low)
            for (x, high), (_, low) in zip(upper, lower, strict=True)
            if not (math.isnan(high) or math.isnan(low))
        ]
        if not pairs:
            return Markup()
        there = [f"{self.x(x):.1f} {self.y(high):.1f}" for x, high, _ in pairs]
        back = [f"{self.x(x):.1f} {self.y(low):.1f}" for x, _, low in reversed(pairs)]
        return element("path", d=f"M{'L'.join(there + back)}z", class_=class_)

    def mark(self, x: float, y: float, series: Series, note: str = "") -> Markup:
        """A data point with a tooltip."""
        return marker(self.x(x), self.y(y), series, note)

    def bar(self, x0: float, x1: float, y0: float, y1: float, class_: str, note: str = "") -> Markup:
        """A bar, visible unless it is empty."""
        top, bottom = sorted((self.y(y1), self.y(y0)))
        left, right = self.x(x0), self.x(x1)
        height = max(bottom - top, 1.0) if y0 != y1 else 0.0
        return element(
            "rect", note and element("title", note), x=left + 0.6, y=bottom - height if y1 >= y0 else top,
            width=max(right - left - 1.2, 0.5), height=height, class_=class_,
        )  # fmt: skip

    def vertical(self, x: float, name: str = "", row: int = 0) -> Markup:
        """A vertical line at a value, with its name in one of several rows."""
        at = self.x(x)
        flip = at > self.left + 0.6 * self.width
        line = element("line", class_="threshold", x1=at, x2=at, y1=self.top, y2=self.bottom)
        if not name:
            return line
        place, anchor = (at - 6, "end") if flip else (at + 6, "start")
        return join([line, text(place, self.top + 11 + 15 * row, name, anchor=anchor, class_="note")])

    def clipped(self, name: str, *parts: Markup) -> Markup:
        """Clip parts of a drawing at the frame."""
        edge = element("rect", x=self.left, y=self.top, width=self.width, height=self.height)
        return join(
            [element("clipPath", edge, id=f"{name}-clip"), element("g", *parts, clip_path=f"url(#{name}-clip)")]
        )


def text(x: float, y: float, content: str, *, anchor: str | None = None, class_: str | None = None) -> Markup:
    """Words in a drawing."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def marker(x: float, y: float, series: Series, note: str = "") -> Markup:
    """A marker at a position of the drawing."""
    shape = partial(element, class_=f"mark {series.colour}")
    title = note and element("title", note)
    if series.marker == "circle":
        return shape("circle", title, cx=x, cy=y, r=3.6)
    return shape("path", title, d=_MARKERS[series.marker], transform=f"translate({x:.1f} {y:.1f})")


def drawing(name: str, title: str, description: str, height: float, *parts: object, width: float = WIDTH) -> Markup:
    """A whole drawing, with title and description for screen readers."""
    name = f"chart-{name}"
    head = [element("title", title, id=f"{name}-title"), element("desc", description, id=f"{name}-desc")]
    return element(
        "svg", *head, *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", id=name,
        aria_labelledby=f"{name}-title {name}-desc",
    )  # fmt: skip


def sample(series: Series) -> Markup:
    """A short piece of a line, for legends."""
    line = element("path", d="M1 7H27", class_=f"line {series.colour}", stroke_dasharray=series.dash)
    return element("svg", line, marker(14, 7, series), viewBox="0 0 28 14", class_="sample", aria_hidden="true")
