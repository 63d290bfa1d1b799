"""Streaming JSON reader and writer for long arrays of numbers.

Python's json makes an object of every number and bracket while it holds the interpreter lock: 32 MB of `[]` took
seconds and 1.9 GB. Here an array stays text until it is needed, and is then converted in small pieces.
"""

import json
import re
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

_PIECE = 1 << 15
"""Bytes of text, or numbers, per piece: about a millisecond of work."""
_MOST_ARRAYS = 16
"""The largest number of arrays to cut out; a request has one or two."""
_KEY = b'"data"'
_START = re.compile(rb"\s*:\s*(?=\[)")
_DIGITS = b"0123456789+-.eE \t\r\n"
_ODD = re.compile(rb"[^\[,\s]\s*\[|\]\s*[^\],\s]")
"""A number that touches a bracket from outside."""


class Numbers:
    """A slice of JSON text that should be an array of numbers."""

    def __init__(self, text: bytes, start: int, end: int) -> None:
        """Refer to a slice, from the first bracket to the last."""
        self._text, self._start, self._end = text, start, end
        self.count = text.count(b",", start, end) + 1
        """The number of values, if it is such an array."""

    def __repr__(self) -> str:
        return f"[... {self.count} values ...]"

    def read(self, dtype: np.dtype[Any], shape: list[int]) -> npt.NDArray[Any]:
        """Parse the array.

        Args:
            dtype: The type that must hold every number.
            shape: The shape, whose product is `count`.

        Raises:
            ValueError: The text is not such an array.
        """
        whole = dtype.kind in "iu"
        limits = np.iinfo(dtype) if whole else np.finfo(dtype)
        nested = self._text.find(b"[", self._start + 1, self._end) >= 0
        brackets, at = _brackets(shape if nested else [self.count]), 0
        numbers, filled, start = np.empty(self.count, dtype.newbyteorder("=")), 0, self._start
        while start < self._end:
            end = self._text.find(b",", start + _PIECE, self._end) + 1 or self._end
            piece, start = self._text[start:end], end
            found = piece.translate(None, _DIGITS)
            if not brackets.startswith(found, at) or (nested and _ODD.search(piece)):
                raise ValueError
            at += len(found)
            values = np.asarray(json.loads(b"[%b]" % piece.translate(None, b"[]").rstrip(b", \t\r\n")))
            if values.dtype.kind not in ("iu" if whole else "iuf") or not (
                limits.min <= values.min() and values.max() <= limits.max
            ):
                raise ValueError
            numbers[filled : filled + len(values)] = values
            filled += len(values)
        if filled != self.count or at != len(brackets):
            raise ValueError
        return numbers.reshape(shape)


def cut(text: bytes, longest: int) -> tuple[bytes, dict[str, Numbers]] | int:
    """Cut the arrays of the keys `data` out of a JSON text.

    Args:
        text: The JSON.
        longest: The largest length of the rest.

    Returns:
        The rest with a random number in place of each array, and the arrays by that number as `parse_float` of json
        gets it: no client can guess it. If the rest is too long, only its length.
    """
    mark, parts, arrays, start, length = secrets.randbits(64), list[bytes](), dict[str, Numbers](), 0, 0
    place = text.find(_KEY)
    while place >= 0 and len(arrays) < _MOST_ARRAYS:
        begin = _START.match(text, place + len(_KEY))
        place += len(_KEY)
        if begin and text[place - len(_KEY) - 1 : place - len(_KEY)] != b"\\":
            # Numbers contain neither quotes nor braces, so the array ends before the next one.
            ends = [found for character in b'"{}' if (found := text.find(character, begin.end())) >= 0]
            place = min(ends, default=len(text))
            end = text.rfind(b"]", begin.end(), place) + 1 or begin.end()
            name = f"0.{mark}e{len(arrays)}"
            arrays[name] = Numbers(text, begin.end(), end)
            parts += [text[start : begin.end()], name.encode()]
            start = end
        place = text.find(_KEY, place)
    length = sum(map(len, parts)) + len(text) - start
    return length if length > longest else (b"".join([*parts, text[start:]]), arrays)


def dumps(document: Any) -> bytes:
    """Write a document that may contain arrays as JSON.

    Raises:
        ValueError: A number is not finite.
    """
    mark, arrays = secrets.token_hex(16), list[npt.NDArray[Any]]()

    def keep(array: npt.NDArray[Any]) -> str:
        arrays.append(array.ravel())
        return mark

    text = json.dumps(document, default=keep, allow_nan=False)
    first, *rest = text.encode().split(f'"{mark}"'.encode())
    parts = [first]
    for array, after in zip(arrays, rest, strict=True):
        pieces = (array[start : start + _PIECE].tolist() for start in range(0, len(array), _PIECE))
        parts += [b"[", b", ".join(json.dumps(piece, allow_nan=False)[1:-1].encode() for piece in pieces), b"]", after]
    return b"".join(parts)


def _brackets(shape: list[int]) -> bytes:
    """The brackets and commas of an array with this shape."""
    text = b""
    for length in reversed(shape):
        text = b"[%b]" % (text + (b"," + text) * (length - 1))
    return text
