"""Long arrays of numbers in JSON, read and written piece by piece.

Python's json makes an object of every number and every bracket, and nothing else runs meanwhile: 32 MB of `[]` took
seconds and 1.9 GB. Here an array stays text until it is needed, and then a small piece at a time becomes numbers.
"""

import json
import re
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

_PIECE = 1 << 15
"""Bytes of text, or numbers, that are converted at a time: about a millisecond."""
_DATA = re.compile(rb'(?<!\\)"data"\s*:\s*(?=\[)')
_AFTER = re.compile(rb'[}"{]')
_DIGITS = b"0123456789+-.eE \t\r\n"
_ODD = re.compile(rb"[^\[,\s]\s*\[|\]\s*[^\],\s]")
"""A number that touches a bracket from outside."""


class Numbers:
    """The text of a JSON array that should have numbers alone."""

    def __init__(self, text: bytes) -> None:
        """Take the text, from its first bracket to its last."""
        self._text = text
        self.count = text.count(b",") + 1
        """How many numbers it has, if it is one."""

    def __repr__(self) -> str:
        return f"[... {self.count} values ...]"

    def read(self, dtype: np.dtype[Any], shape: list[int]) -> npt.NDArray[Any]:
        """The array.

        Args:
            dtype: What the numbers must fit into.
            shape: The lengths of the dimensions, of which the product is `count`.

        Raises:
            ValueError: It is something else; the text is a rule for it.
        """
        whole = dtype.kind in "iu"
        kinds, rule = ("iu", "whole numbers") if whole else ("iuf", "finite numbers")
        rule += f" that fit into {dtype.name}, in a row or nested as its shape says"
        brackets, row = self._text.translate(None, _DIGITS), _brackets([self.count])
        nested = brackets != row
        if nested and brackets != _brackets(shape):
            raise ValueError(rule)
        limits = np.iinfo(dtype) if whole else np.finfo(dtype)
        inner, parts, start = self._text if nested else self._text[1:-1], [], 0
        while start < len(inner):
            end = inner.find(b",", start + _PIECE)
            piece = inner[start : len(inner) if end < 0 else end]
            start += len(piece) + 1
            if nested:
                if _ODD.search(piece):
                    raise ValueError(rule)
                piece = piece.translate(None, b"[]")
            try:
                values = np.asarray(json.loads(b"[%b]" % piece))
            except (ValueError, OverflowError):
                raise ValueError(rule) from None
            if values.dtype.kind not in kinds or values.min() < limits.min or values.max() > limits.max:
                raise ValueError(rule)
            parts.append(values.astype(dtype.newbyteorder("=")))
        found = np.concatenate(parts) if parts else np.empty(0)
        if len(found) != self.count:
            raise ValueError(rule)
        return found.reshape(shape)


def cut(text: bytes) -> tuple[bytes, dict[str, Numbers]]:
    """JSON without the arrays of its keys `data`.

    Returns:
        The rest, which has an odd number in place of each array; and the arrays by these numbers, as `parse_float` of
        json gets them. No client can guess them.
    """
    mark, parts, arrays, start = secrets.randbits(64), [], dict[str, Numbers](), 0
    for found in _DATA.finditer(text):
        if found.end() < start:
            continue
        after = _AFTER.search(text, found.end())
        array = text[found.end() : after.start() if after else len(text)].rstrip(b", \t\r\n")
        name = f"0.{mark}e{len(arrays)}"
        arrays[name] = Numbers(array)
        parts += [text[start : found.end()], name.encode()]
        start = found.end() + len(array)
    return b"".join([*parts, text[start:]]), arrays


def dumps(document: Any) -> bytes:
    """JSON of a document, in which there may be arrays of numbers: each becomes a list.

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
    """Brackets and commas of an array."""
    text = b""
    for length in reversed(shape):
        text = b"[%b]" % (text + (b"," + text) * (length - 1))
    return text
