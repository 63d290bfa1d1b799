"""TensorBoard event files without TensorBoard: TFRecord frames around hand-encoded protobuf messages."""

import math
import socket
import struct
import time
from functools import cache
from io import FileIO
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from uce_edge.errors import UceEdgeError

# Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_SUMMARY_VALUE, _TAG, _SIMPLE_VALUE, _SESSION_STATUS = 1, 1, 2, 1
_SESSION_START = 1


class EventLog:
    """A new event file in a folder; TensorBoard reads all the files of a folder as one run.

    Every value is on disk when `scalar` returns, so a killed training loses none.

    Args:
        folder: Where `tensorboard --logdir` looks; it is made if need be.
        resume_at: A resumed training's first step: TensorBoard then drops what older files say of it and later steps.

    Example:
        >>> with EventLog("runs/digits") as log:
        ...     log.scalar("loss/train", 0.31, step=1)
    """

    def __init__(self, folder: str | Path, resume_at: int | None = None) -> None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = _open_new(Path(folder))
        except OSError as error:
            raise UceEdgeError(f"Cannot write an event log to {folder}: {error.strerror}.") from None
        self.path = Path(self._file.name)
        self._write(_bytes(_FILE_VERSION, b"brain.Event:2"))
        if resume_at is not None:
            start = _integer(_SESSION_STATUS, _SESSION_START)
            self._write(_integer(_STEP, resume_at) + _bytes(_SESSION_LOG, start))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add one point to the curve called `tag`."""
        point = _bytes(_TAG, tag.encode()) + _float(_SIMPLE_VALUE, value)
        self._write(_integer(_STEP, step) + _bytes(_SUMMARY, _bytes(_SUMMARY_VALUE, point)))

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, event: bytes) -> None:
        try:
            self._file.write(_record(_double(_WALL_TIME, time.time()) + event))
        except OSError as error:
            raise UceEdgeError(f"Cannot write {self.path}: {error.strerror}.") from None


def _open_new(folder: Path) -> FileIO:
    """A file named after this second; TensorBoard reads the files of a folder in the order of their names."""
    stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
    for number in count():
        try:
            return (folder / (f"{stem}.{number}" if number else stem)).open("xb", buffering=0)
        except FileExistsError:
            continue
    raise AssertionError("unreachable")


def _record(content: bytes) -> bytes:
    """A TFRecord: length, its checksum, content, its checksum."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", _masked(length)) + content + struct.pack("<I", _masked(content))


def _masked(content: bytes) -> int:
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        return value

    return tuple(entry(byte) for byte in range(256))


def _varint(value: int) -> bytes:
    value = int(value) & (2**64 - 1)  # a negative int64 is its two's complement
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


# A field is its number and wire type (0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes), then its content.


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _varint(field << 3 | 5) + packed
