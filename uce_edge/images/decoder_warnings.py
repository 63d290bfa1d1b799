"""Silence the warnings of Pillow, pydicom and nibabel.

They are harmless, or another module reports the error.

`warnings.catch_warnings` is not for threads: two that overlap leave the filters of one to the other. Here one narrow
filter is put in front while any thread decodes, and taken away when none does; all other warnings stay as they are.
"""

import ctypes
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from PIL import _imaging

__all__ = ["silenced"]

_MODULES = re.compile(r"(PIL|pydicom|nibabel|uce_edge\.images)\b")
_FILTER = ("ignore", None, Warning, _MODULES, 0)
_lock = threading.Lock()
_decoding = 0


@contextmanager
def silenced() -> Iterator[None]:
    """Ignore the decoders' warnings in every thread."""
    global _decoding  # noqa: PLW0603 (the filters are the process's, and so is the count)
    _silence_libtiff()
    with _lock:
        _decoding += 1
        if _decoding == 1:
            warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with _lock:
            _decoding -= 1
            # The list may be another one by now: a catch_warnings that began or ended meanwhile brings its own.
            if _decoding == 0 and _FILTER in warnings.filters:
                warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]


@cache
def _silence_libtiff() -> None:
    """Remove the handlers with which libtiff writes to stderr."""
    with suppress(OSError, AttributeError):  # a Pillow without libtiff, or that does not show it
        library = ctypes.CDLL(_imaging.__file__)
        library.TIFFSetErrorHandler(None)
        library.TIFFSetWarningHandler(None)
