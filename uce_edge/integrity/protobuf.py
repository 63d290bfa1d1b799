"""A strict reader of ONNX files, without the onnx package.

A file is one protobuf message: a sequence of fields, each with a tag, mostly a length, and the content. Parsers of
protobuf tolerate long forms of numbers, a message in several parts, and unknown fields. Two parsers may read these
differently, so this one accepts only what every writer of ONNX files writes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_METADATA_PROPS = 14
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_OP_TYPE = 4
_MAX_FIELDS = 5_000_000
"""Far more than any network has; reading them takes seconds."""
_DEPTH = 100
"""The nesting limit of protobuf."""
_MAX_TAG, _MAX_NUMBER = 2**32, 2**64


@dataclass(frozen=True)
class _Message:
    """The known fields of a message, by number.

    Each has a type, or the name of the message inside.
    """

    once: dict[int, int | str]
    often: dict[int, int | str]


# Messages that can hold a tensor or metadata are read; others, such as types, are bytes.
_MESSAGES = {
    "model": _Message(
        {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 7: "graph"},
        {8: _BYTES, _METADATA_PROPS: "entry", 20: "training", 25: "function", 26: _BYTES},
    ),
    "graph": _Message(
        {2: _BYTES, 10: _BYTES},
        {1: "node", 5: "tensor", 11: _BYTES, 12: _BYTES, 13: _BYTES, 14: _BYTES, 15: "sparse", 16: "entry"},
    ),
    "node": _Message(
        {3: _BYTES, 4: _BYTES, 6: _BYTES, 7: _BYTES, 8: _BYTES},
        {1: _BYTES, 2: _BYTES, 5: "attribute", 9: "entry", 10: _BYTES},
    ),
    "attribute": _Message(
        {
            1: _BYTES, 2: _FIXED32, 3: _VARINT, 4: _BYTES, 5: "tensor", 6: "graph", 13: _BYTES, 14: _BYTES,
            20: _VARINT, 21: _BYTES, 22: "sparse",
        },
        {7: _FIXED32, 8: _VARINT, 9: _BYTES, 10: "tensor", 11: "graph", 15: _BYTES, 23: "sparse"},
    ),
    "tensor": _Message(
        {2: _VARINT, 3: _BYTES, 8: _BYTES, 9: _BYTES, 12: _BYTES, _DATA_LOCATION: _VARINT},
        {
            1: _VARINT, 4: _FIXED32, 5: _VARINT, 6: _BYTES, 7: _VARINT, 10: _FIXED64, 11: _VARINT,
            _EXTERNAL_DATA: "entry", 16: "entry",
        },
    ),
    "sparse": _Message({1: "tensor", 2: "tensor"}, {3: _VARINT}),
    "function": _Message(
        {1: _BYTES, 8: _BYTES, 10: _BYTES, 13: _BYTES},
        {4: _BYTES, 5: _BYTES, 6: _BYTES, 7: "node", 9: _BYTES, 11: "attribute", 12: _BYTES, 14: "entry"},
    ),
    "training": _Message({1: "graph", 2: "graph"}, {3: "entry", 4: "entry"}),
    "entry": _Message({1: _BYTES, 2: _BYTES}, {}),
}  # fmt: skip


class WireError(ValueError):
    """The content is not an ONNX file.

    The message is a clause without a full stop.
    """


class ExternalDataError(WireError):
    """A model keeps weights in other files."""


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    number: int
    raw: memoryview
    """All of its bytes, with tag and length."""
    content: memoryview
    """The bytes of a text or of an inner message; of a number, its own."""

    @cached_property
    def entry(self) -> tuple[str, str] | None:
        """Key and value of a metadata entry, else None.

        Raises:
            WireError: It is damaged.
        """
        if self.number != _METADATA_PROPS:
            return None
        texts = {part.number: bytes(part.content) for part in fields(self.content, "entry")}
        try:
            return texts.get(1, b"").decode(), texts.get(2, b"").decode()
        except UnicodeDecodeError:
            raise WireError("a text in it is not UTF-8") from None


def fields(message: memoryview, kind: str = "model") -> Iterator[Field]:
    """The fields of a message, in order.

    Raises:
        WireError: It ends too early, or is something else.
    """
    for number, at, start, stop in _places(message, kind, 0, len(message)):
        yield Field(number, message[at:stop], message[start:stop])


def check(content: bytes) -> None:
    """Read all of a model but its numbers.

    Raises:
        WireError: It is not a model, or one that parsers may read differently.
        ExternalDataError: It keeps weights in other files.
    """
    _check(content, "model", 0, len(content), _DEPTH, count(_MAX_FIELDS, -1))


def _check(content: bytes, kind: str, at: int, end: int, depth: int, left: Iterator[int]) -> None:
    if depth == 0:
        raise WireError(f"it has more than {_DEPTH} messages inside each other")
    message = _MESSAGES[kind]
    for number, _, start, stop in _places(content, kind, at, end):
        if next(left) <= 0:
            raise WireError(f"it has more than {_MAX_FIELDS:,} fields")
        if kind == "node" and number == _OP_TYPE and content[start:stop] == b"EPContext":
            raise ExternalDataError("it keeps a compiled network in another file")
        inner = message.once.get(number) or message.often.get(number)
        if kind == "tensor" and (
            number == _EXTERNAL_DATA or (number == _DATA_LOCATION and _varint(content, start, stop)[0] != 0)
        ):
            raise ExternalDataError("it keeps weights in other files")
        if isinstance(inner, str):
            _check(content, inner, start, stop, depth - 1, left)


def _places(message: bytes | memoryview, kind: str, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of one message, as offsets.

    Number, start, start of the content, end.
    """
    known, seen = _MESSAGES[kind], set[int]()
    while at < end:
        tag, start = _varint(message, at, end, _MAX_TAG)
        number, form = tag >> 3, tag & 7
        often = number in known.often
        expected = known.often[number] if often else known.once.get(number)
        is_packed = often and form == _BYTES  # numbers in a row may be
        if expected is None or (form != (_BYTES if isinstance(expected, str) else expected) and not is_packed):
            raise WireError(f"its {kind} has a field {number} of type {form}, which ONNX does not know")
        if number in seen and not often:
            raise WireError(f"its {kind} has the field {number} twice")
        seen.add(number)
        if form == _BYTES:
            length, start = _varint(message, start, end)
            stop = start + length
        elif form == _VARINT:
            _, stop = _varint(message, start, end)
        else:
            stop = start + (8 if form == _FIXED64 else 4)
        if stop > end:
            raise WireError("it ends in the middle of a field")
        yield number, at, start, stop
        at = stop


def _varint(message: bytes | memoryview, at: int, end: int, limit: int = _MAX_NUMBER) -> tuple[int, int]:
    """A number in its shortest form, and where it ends."""
    value = shift = 0
    while True:
        if at >= end:
            raise WireError("it ends in the middle of a number")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if value >= limit or (byte == 0 and shift):
            raise WireError("a number in it is too long")
        if byte < 128:
            return value, at
        shift += 7


def with_properties(content: bytes, values: Mapping[str, str]) -> bytes:
    """Replace the metadata of a model.

    It goes to the end, in this order; every other byte stays.
    """
    others = [field.raw for field in fields(memoryview(content)) if field.number != _METADATA_PROPS]
    return b"".join([*others, *(_entry(key, value) for key, value in values.items())])


def _entry(key: str, value: str) -> bytes:
    texts = [(number, text.encode()) for number, text in ((1, key), (2, value))]
    inner = b"".join(bytes_field(number, text) for number, text in texts)
    return bytes_field(_METADATA_PROPS, inner)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field with a text or an inner message."""
    return as_varint(number << 3 | _BYTES) + as_varint(len(content)) + content


def as_varint(value: int) -> bytes:
    """A number in its shortest form."""
    low = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(part | 128 for part in low[:-1]), low[-1]])
