"""As much of the format of an ONNX file as checking one needs, without the onnx package.

A file is one protobuf message: a sequence of fields, each a tag, for most of them a length, and the content.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_METADATA_PROPS = 14
_EXTERNAL_DATA = 13
# The messages inside a model that may lead to a tensor, by field number; a tensor is a leaf.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "training": {1: "graph", 2: "graph"},
}


class WireError(ValueError):
    """A content is not an ONNX file; the message is a clause without a full stop."""


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    number: int
    raw: memoryview
    """All of its bytes, with tag and length."""
    content: memoryview
    """The bytes of a text or of an inner message; empty for a number."""

    @cached_property
    def entry(self) -> tuple[str, str] | None:
        """Key and value, if this is a field of a model and an entry of its metadata.

        Raises:
            WireError: It is damaged.
        """
        if self.number != _METADATA_PROPS:
            return None
        texts = {part.number: bytes(part.content) for part in fields(self.content)}
        try:
            return texts.get(1, b"").decode(), texts.get(2, b"").decode()
        except UnicodeDecodeError:
            raise WireError("a text in it is not UTF-8") from None


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message, in order.

    Raises:
        WireError: It ends too early, or is something else.
    """
    at, end = 0, len(message)
    while at < end:
        tag, start = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        content = message[:0]
        if kind == _BYTES:
            length, start = _varint(message, start)
            stop = start + length
            content = message[start:stop]
        elif kind == _VARINT:
            _, stop = _varint(message, start)
        elif kind in (_FIXED64, _FIXED32):
            stop = start + (8 if kind == _FIXED64 else 4)
        else:
            raise WireError(f"a field has the type {kind}, which ONNX does not use")
        if stop > end or number == 0:
            raise WireError("it ends in the middle of a field" if number else "a field has the number 0")
        yield Field(number, message[at:stop], content)
        at = stop


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise WireError("a number in it does not end")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def has_external_data(content: bytes) -> bool:
    """Whether a model keeps numbers in other files.

    Raises:
        WireError: It is not a model.
    """
    # Such a tensor names its file under the key "location". Looking for the word is fast; reading every node is not.
    return b"location" in content and _names_a_file(memoryview(content), "model")


def _names_a_file(message: memoryview, kind: str) -> bool:
    if kind == "tensor":
        return any(field.number == _EXTERNAL_DATA for field in fields(message))
    inside = _INSIDE[kind]
    return any(
        _names_a_file(field.content, inside[field.number]) for field in fields(message) if field.number in inside
    )


def with_properties(content: bytes, values: Mapping[str, str]) -> bytes:
    """A model with this metadata and no other, in this order and at its end; every other byte stays as it is."""
    kept = [field.raw for field in fields(memoryview(content)) if field.number != _METADATA_PROPS]
    return b"".join([*kept, *(_entry(key, value) for key, value in values.items())])


def _entry(key: str, value: str) -> bytes:
    texts = [(number, text.encode()) for number, text in ((1, key), (2, value))]
    inner = b"".join(_bytes_field(number, text) for number, text in texts)
    return _bytes_field(_METADATA_PROPS, inner)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    low = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(part | 128 for part in low[:-1]), low[-1]])
