"""A medical file: header read, pixels not yet."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from PIL import Image

from uce_edge.errors import ImageError, MissingPartError
from uce_edge.images.decoder_warnings import silenced
from uce_edge.images.gray_survey import Display

__all__ = ["Bounded", "Opened", "need", "reported"]


class Opened(ABC):
    """One frame or slice: its size, then its pixels."""

    size: tuple[int, int]
    """Width and height."""
    format: str
    info: dict[str, Any]
    gray: bool
    """Whether it has no colours."""
    note: str | None = None
    """A message for the user, such as the number of frames."""

    @abstractmethod
    def decoded(self) -> tuple[Image.Image, Display | None]:
        """The pixels, and how gray values are displayed."""


class Bounded(io.BufferedIOBase):
    """A stream whose reads are bounded by its size.

    A damaged length would reserve gigabytes.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = stream.seek(0, io.SEEK_END)
        stream.seek(0)

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes, or all that follow."""
        left = max(0, self._size - self._stream.tell())
        return self._stream.read(left if size is None or size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go there."""
        return self._stream.seek(offset, whence)

    def seekable(self) -> bool:
        """It can be rewound."""
        return True

    def readable(self) -> bool:
        """It can be read."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._stream.tell()


def need(package: str, what: str) -> Any:
    """Import an optional package."""
    try:
        return import_module(package)
    except ImportError:
        raise ImageError(str(MissingPartError(what, package, "medical")), "part.missing") from None


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Turn any exception of a package into an `ImageError`."""
    from uce_edge.images.converter import damage

    try:
        with silenced():
            yield
    except ImageError:
        raise
    except MemoryError:
        raise ImageError(
            f"{name} asks for more memory than there is. Copy it again, or make it smaller.", "image.too-large"
        ) from None
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise damage(name, ValueError(words[:200])) from None
