"""Convert a decoded image for a model, in little memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge.contract import MAX_SIDE
from uce_edge.errors import ImageError
from uce_edge.images.decoder_warnings import silenced
from uce_edge.images.gray_range import FULL, UNIT, Range
from uce_edge.images.gray_survey import Display, Extent, Survey
from uce_edge.images.resize import Layout
from uce_edge.metadata import ImageSpec

__all__ = ["Pixels", "View", "damage", "is_wide"]

BACKGROUND = "white"
"""The colour behind transparent pixels, as in browsers and prints."""

_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = {_UPRIGHT[number] for number in (5, 6, 7, 8)}
"""Upright rows are stored as columns."""
_FROM_THE_END = {_UPRIGHT[number] for number in (3, 4, 7, 8)}
"""The upright image begins where the stored one ends."""
_STRIP = 4_000_000  # pixels that are converted at a time
_SURVEYED = 100_000  # pixels of a whole image to survey
_BLOCK = 500_000  # of these, pixels that are scaled at a time, in float64

Pixels = npt.NDArray[Any]


class View:
    """An upright image.

    It is converted in strips, because whole copies would fill the memory.
    """

    def __init__(self, image: Image.Image, display: Display | None = None, *, name: str) -> None:
        """Decode all of it; a truncated file fails here.

        Args:
            image: The image.
            display: How its gray values are displayed, if the file says so.
            name: The name of the image in messages.
        """
        self._image, self._name = image, name
        self._display = display or Display(None)
        self.note: str | None = None
        """A warning about its gray values, set by `resized`."""
        with self._reported():
            # Not Pillow's draft mode for JPEGs, which gives other pixels and so other answers (docs/contract.md).
            image.load()
        self._turn = _orientation(image)
        self.width, self.height = reversed(image.size) if self._turn in _ON_ITS_SIDE else image.size

    def resized(self, spec: ImageSpec, method: Image.Resampling | None = None) -> list[Image.Image]:
        """The image at the model's size, or smaller where it is padded.

        One L or RGB image for uint8, one F image per channel for float32.

        Args:
            spec: The image that the model takes.
            method: Another filter than that of the spec.
        """
        layout = self.layout(spec)
        by = Image.Resampling[spec.resize.filter.name] if method is None else method
        columns, rows = max(0, layout.left), max(0, layout.top)
        across = columns, columns + min(spec.width, layout.width)
        down = rows, rows + min(spec.height, layout.height)
        with self._reported():
            scale = self._scale(spec) if is_wide(self._image) else None
            narrow = [
                [
                    _columns(_resized(band, (layout.width, band.height), by), *across)
                    for band in _bands(strip, spec, scale)
                ]
                for strip in self._strips(max(self.width, layout.width))
            ]
            # Rows, rounded, and then columns, as docs/contract.md says: one call of Pillow may take the columns first.
            bands = [_stacked(parts) for parts in zip(*narrow, strict=True)]
            return [_rows(_resized(band, (band.width, layout.height), by), *down) for band in bands]

    def layout(self, spec: ImageSpec) -> Layout:
        """The size of the resized image, and where the model's image lies."""
        layout = spec.resize.layout((self.width, self.height), (spec.width, spec.height))
        if max(layout.width, layout.height) > MAX_SIDE:
            raise ImageError(
                f"{self._name} is {self.width} x {self.height} pixels, and would be {layout.width} x {layout.height} "
                f"after {spec.resize}; at most {MAX_SIDE} on a side are made. Cut out a less narrow part first.",
                "image.too-narrow",
            )
        return layout

    def survey(self) -> Survey:
        """Survey the gray values of more than 8 bits."""
        with self._reported():
            step = max(1, self.width * self.height // _SURVEYED)
            parts = [_values(strip).ravel()[::step] for strip in self._strips()]
            return Survey.of(np.concatenate(parts), windowed=self._display.windowed)

    def _strips(self, width: int | None = None) -> Iterator[Image.Image]:
        """The image from top to bottom, upright.

        Args:
            width: The columns that a strip has or gets, if not those of the image.
        """
        step = max(1, _STRIP // (width or self.width))
        for top in range(0, self.height, step):
            box = self._box(top, min(top + step, self.height))
            strip = self._image if box == (0, 0, *self._image.size) else self._image.crop(box)
            yield strip if self._turn is None else strip.transpose(self._turn)

    def _box(self, top: int, bottom: int) -> tuple[int, int, int, int]:
        """Where rows of the upright image are stored."""
        if self._turn in _FROM_THE_END:
            top, bottom = self.height - bottom, self.height - top
        return (top, 0, bottom, self.width) if self._turn in _ON_ITS_SIDE else (0, top, self.width, bottom)

    def _scale(self, spec: ImageSpec) -> "_Scale":
        """The scaling of its gray values.

        Values without a defined brightness are an error.
        """
        is_float = self._image.mode == "F"
        given = spec.range or self._display.range
        applied = given or (UNIT if is_float else FULL)
        extent = self._extent(applied)
        if not np.isfinite(extent[:2]).all():
            raise ImageError(
                f"{self._name} has pixels that are not finite numbers. Replace NaN and infinity first.",
                "image.not-finite",
            )
        if given is None and spec.dtype == "uint8" and not applied.low <= extent.low <= extent.high <= applied.high:
            raise ImageError(
                f"{self._name} has {'float' if is_float else '32-bit'} pixels from {extent.low:g} to {extent.high:g}, "
                f"and only 0 to {applied.high} has a defined brightness. Scale them, save the image with 8 or 16 bits, "
                "or train the model with --range LOW..HIGH.",
                "image.range",
            )
        if spec.range is not None or (spec.dtype == "uint8" and not self._display.windowed):
            self.note = extent.note(self._name, applied, stored=spec.range is not None)
        unchanged = given is None and spec.dtype != "uint8"
        return _Scale(None if unchanged else applied, self._display.inverted)

    def _extent(self, applied: Range) -> Extent:
        """The extent of its gray values.

        The smallest and the largest, NaN if there is one, and the share outside the range.
        """
        strips = [(values.min(), values.max(), applied.outside(values)) for values in map(_values, self._strips())]
        lows, highs, outside = zip(*strips, strict=True)
        return Extent(float(np.min(lows)), float(np.max(highs)), sum(outside) / (self.width * self.height))

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn any exception of a plugin into an `ImageError`."""
        try:
            with silenced():
                yield
        except ImageError:
            raise
        except Exception as error:
            raise damage(self._name, error) from None


def _orientation(image: Image.Image) -> Image.Transpose | None:
    # Not ImageOps.exif_transpose: it rewrites the EXIF block, and fails on unrelated tags.
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # viewers show an image with an unreadable EXIF block as stored
        return None


def _resized(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    return image if image.size == size else image.resize(size, method)  # `resize` always copies


def _columns(image: Image.Image, start: int, end: int) -> Image.Image:
    return image if (start, end) == (0, image.width) else image.crop((start, 0, end, image.height))


def _rows(image: Image.Image, start: int, end: int) -> Image.Image:
    return image if (start, end) == (0, image.height) else image.crop((0, start, image.width, end))


def _stacked(parts: Sequence[Image.Image]) -> Image.Image:
    """Strips, one below the other."""
    if len(parts) == 1:
        return parts[0]
    whole, top = Image.new(parts[0].mode, (parts[0].width, sum(part.height for part in parts))), 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    return whole


@dataclass(frozen=True)
class _Scale:
    """The scaling of gray values of more than 8 bits."""

    range: Range | None
    """The values that become 0 and 255; None leaves all unchanged."""
    inverted: bool

    def of(self, values: Pixels, dtype: str) -> Pixels:
        """The values, scaled; block by block, because float64 takes room."""
        if self.range is None:
            return values.astype(np.float32)
        if self.range is UNIT and dtype == "uint8":  # to the bit as in earlier versions: float32, halves to even
            return np.rint(values * np.float32(255)).astype(np.uint8)
        flat, scaled = values.ravel(), np.empty(values.size, dtype)
        for start in range(0, values.size, _BLOCK):
            block = self.range.shown(flat[start : start + _BLOCK])
            if self.inverted:
                np.subtract(255, block, out=block)
            scaled[start : start + _BLOCK] = np.floor(block + 0.5, out=block) if dtype == "uint8" else block
        return scaled.reshape(values.shape)


def _bands(image: Image.Image, spec: ImageSpec, scale: _Scale | None) -> list[Image.Image]:
    """The image as L or RGB.

    For a float32 model, one F image per channel.
    """
    image = _to_mode(image, spec) if scale is None else Image.fromarray(scale.of(_values(image), spec.dtype))
    return [image] if spec.dtype == "uint8" else [band.convert("F") for band in image.split()]


def _to_mode(image: Image.Image, spec: ImageSpec) -> Image.Image:
    if image.has_transparency_data:
        top = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", top.size, BACKGROUND), top)
    mode = "L" if spec.channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)  # `convert` always copies


def is_wide(image: Image.Image) -> bool:
    """Whether it is gray of more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _values(image: Image.Image) -> Pixels:
    """Gray of more than 8 bits."""
    values = np.array(image)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):  # 16-bit PNG marks transparent pixels by one gray value
        values[values == transparent] = np.uint16(65535)
    return values


def damage(name: str, error: Exception) -> ImageError:
    """The error about a file that cannot be decoded."""
    if "truncated" in str(error).lower():
        return ImageError(
            f"{name} is truncated: its data ends before the image does. Copy or download it again.", "image.truncated"
        )
    return ImageError(
        f"{name} cannot be decoded ({error}). Copy or download it again, or save it as PNG.", "image.damaged"
    )
