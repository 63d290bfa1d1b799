"""Bound the memory of decoding, per file and per process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from uce_edge.contract import MAX_SIDE
from uce_edge.errors import ImageError

__all__ = ["MAX_PIXELS", "taken", "too_large"]

MAX_PIXELS = 100_000_000
"""Larger images are rejected by their header. Phones have 12 to 50 megapixels, a scan of A4 35."""
MAX_BYTES = 800_000_000
"""The most that decoding may hold: a small file may need gigabytes."""

# Bytes per pixel, measured: Pillow's own image has up to 4, and some decoders hold it several times.
_PLAIN, _PROGRESSIVE = 5, 13
_BY_FORMAT = {"WEBP": 17, "JPEG2000": 25, "DICOM": 20, "DICOM in colour": 32, "NIFTI": 16}


class Sized(Protocol):
    """An image that was opened, and not loaded."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""

    @property
    def format(self) -> str | None:
        """Which decoder reads it."""

    @property
    def info(self) -> dict[Any, Any]:
        """`progressive` for JPEGs; `held`, bytes beside the image."""


_change = threading.Condition()
_held = 0


@contextmanager
def taken(image: Sized, name: str) -> Iterator[None]:
    """Reserve memory to decode an image.

    The thread waits until other threads release enough.

    Args:
        image: An image that was opened, and not loaded.
        name: The name of the image in messages.

    Raises:
        ImageError: It is too large, or has no pixels.
    """
    global _held  # noqa: PLW0603 (the memory is the process's)
    width, height = image.size
    each = _PROGRESSIVE if image.info.get("progressive") else _BY_FORMAT.get(image.format or "", _PLAIN)
    held = int(image.info.get("held", 0))
    if held > MAX_BYTES // 2:
        raise ImageError(
            f"{name} lies across a volume of {held / 1e6:.0f} MB, and at most {MAX_BYTES // 2_000_000} are read for "
            "one slice. Choose slices across the last axis.",
            "image.too-large",
        )
    limit = min(MAX_PIXELS, (MAX_BYTES - held) // each)
    if width * height > limit:
        raise ImageError(too_large(name, width * height, limit), "image.too-large")
    # An image of 1 x 100,000,000 pixels would be made wider before it is made lower.
    if max(width, height) > MAX_SIDE:
        raise ImageError(
            f"{name} is {width} x {height} pixels, and at most {MAX_SIDE} on a side are read. Make it smaller first.",
            "image.too-large",
        )
    if width * height == 0:
        raise ImageError(
            f"{name} has no pixels: it is {width} x {height}. Use one of at least 1 x 1.", "image.no-pixels"
        )
    needed = width * height * each + held
    with _change:
        _change.wait_for(lambda: _held + needed <= MAX_BYTES)
        _held += needed
    try:
        yield
    finally:
        with _change:
            _held -= needed
            _change.notify_all()


def too_large(name: str, pixels: int, limit: int) -> str:
    """The message about an image that is too large."""
    return f"{name} has {pixels / 1e6:.0f} megapixels, and at most {limit / 1e6:.0f} are read. Make it smaller first."
