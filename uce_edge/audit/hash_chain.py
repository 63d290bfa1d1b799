"""A hash chain over the lines of a log.

A line is one JSON object. Its last key, `line_sha256`, is the SHA-256 of the text before that key. `previous` is the
`line_sha256` of the line before; in the first line it is the SHA-256 of the model file. So an edited line does not
match its own hash, and a removed, inserted or moved line does not match its neighbours. Lines cut off the end show only
against a hash stored elsewhere.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from uce_edge.errors import UceEdgeError

_SEALED = re.compile(rb'(\{.*), "line_sha256": "([0-9a-f]{64})"\}', re.DOTALL)
_TAIL = 1 << 16  # bytes that are read at once, from the end
_LONGEST = 1 << 24  # longer than any record, in bytes
_RECORD = {"model_sha256": str, "uce_edge": str, "path": str, "status": str}
_FIRST = b'{"line": '
_HEX = re.compile(rb"[0-9a-f]*")


class Seal(StrEnum):
    """The result of checking the hashes of a line."""

    INTACT = "intact"
    UNSEALED = "unsealed"
    """It has no hash, nor has any line before it: an older version wrote it."""
    EDITED = "edited"
    """Its text does not match its hash."""
    GAP = "gap"
    """It matches its hash, but not the line before: lines were removed, inserted or moved."""


@dataclass(frozen=True)
class Line:
    """One line of a log, as it lies on disk."""

    file: Path
    number: int
    """Of the line in its file, from 1."""
    text: bytes
    """Without the line's end."""
    seal: Seal
    absent: int = 0
    """The number of lines missing before it, if known."""
    position: int = 0
    """Of the line in the whole log, from 1: as it states, or one more than the line before."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """Its JSON object, or an empty one."""
        return parsed(self.text) or {}


def sealed(content: dict[str, Any]) -> bytes:
    """A line with its hash, and its end."""
    text = json.dumps(content, allow_nan=False)[:-1].encode()
    return text + b', "line_sha256": "' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'


def digest(text: bytes) -> str:
    """The hash that the next line refers to.

    The one that a line states, or that of the whole line.
    """
    match = _SEALED.fullmatch(text)
    return hashlib.sha256(text).hexdigest() if match is None else match[2].decode()


def parsed(text: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # of bytes that are no UTF-8, too
        return None
    return document if isinstance(document, dict) else None


def segments(log: Path) -> list[Path]:
    """The files of a log, the oldest first.

    NAME.000001.SUFFIX, ..., and the current one, if it exists.
    """
    numbered = _numbered(log)
    return [path for path in (*(numbered[number] for number in sorted(numbered)), log) if path.is_file()]


def next_segment(log: Path) -> Path:
    """The name for a full file."""
    return log.with_name(f"{log.stem}.{max(_numbered(log), default=0) + 1:06d}{log.suffix}")


def _numbered(log: Path) -> dict[int, Path]:
    """Full files by their number."""
    pattern = re.compile(re.escape(log.stem) + r"\.(\d{6,})" + re.escape(log.suffix))
    paths = log.parent.iterdir() if log.parent.is_dir() else ()
    return {int(match[1]): path for path in paths if (match := pattern.fullmatch(path.name))}


def ends(file: BinaryIO) -> tuple[bytes | None, bytes]:
    """The last whole line, and a torn line behind it.

    Both without line ends. Of a line longer than any record, only the end is read.

    Of what is longer than any record, only the end is read.
    """
    size, length = file.seek(0, 2), _TAIL
    while True:
        start = max(0, size - length)
        file.seek(start)
        whole, end, torn = file.read(size - start).rpartition(b"\n")
        if start == 0 or b"\n" in whole or length > _LONGEST:
            return whole.rpartition(b"\n")[2] if end else None, torn
        length *= 4


def last_line(path: Path) -> bytes:
    """The last line of a file, whole or torn."""
    with path.open("rb") as file:
        whole, torn = ends(file)
    return torn or whole or b""


def is_record(text: bytes) -> bool:
    """Whether a line is a logged decision, of any version."""
    document = parsed(text) or {}
    return all(isinstance(document.get(name), kind) for name, kind in _RECORD.items())


def is_begun(text: bytes, number: int, previous: str | None) -> bool:
    """Whether a text is the start of a torn record.

    Some disks leave NULs behind it.

    Args:
        text: The text.
        number: The number that the record would have.
        previous: The hash of the record before it; None for the first record, which has that of any model.
    """
    text, head, after = text.rstrip(b"\0"), f'{{"line": {number}, "previous": "'.encode(), b'", "time": "'
    if not text.startswith(head):
        # Without a record before it, a bracket alone proves nothing.
        return head.startswith(text) and (previous is not None or len(text) >= len(_FIRST))
    prefix, rest = text[len(head) : len(head) + 64], text[len(head) + 64 :]
    is_hash = _HEX.fullmatch(prefix) is not None if previous is None else previous.encode().startswith(prefix)
    return is_hash and (rest.startswith(after) or after.startswith(rest))


def read(files: Iterable[Path]) -> Iterator[Line]:
    """Read every line of a log, with its seal.

    The files come in the order of writing.
    """
    before: Line | None = None
    for file in files:
        try:
            lines = file.open("rb")
        except OSError as error:
            raise UceEdgeError(
                f"Cannot read the log {file}: {error.strerror}. Check its permissions.", "log.unreadable"
            ) from None
        with lines:
            for number, text in enumerate(_lines(lines), 1):
                line = _judged(file, number, text.rstrip(b"\r\n"), before)
                yield line
                before = line


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, cut at the longest record."""
    while text := file.readline(_LONGEST):
        rest = text
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(_LONGEST)
        yield text


def _judged(file: Path, number: int, text: bytes, before: Line | None) -> Line:
    match, document = _SEALED.fullmatch(text), parsed(text)
    last = 0 if before is None else before.position
    position = _number(document or {}) or last + 1

    def judged(seal: Seal, absent: int = 0) -> Line:
        return Line(file, number, text, seal, absent, position)

    if document is None or (match is not None and hashlib.sha256(match[1]).hexdigest() != match[2].decode()):
        return judged(Seal.EDITED)
    if match is None:
        chained = before is not None and before.seal is not Seal.UNSEALED
        return judged(Seal.EDITED if chained or "line_sha256" in document else Seal.UNSEALED)
    expected = document.get("model_sha256") if before is None else digest(before.text)
    absent = position - 1 - last
    # After an edited line the hash cannot match: that line is reported, and only a jump in the numbers is a gap.
    if document.get("previous") == expected or (before is not None and before.seal is Seal.EDITED and absent <= 0):
        return judged(Seal.INTACT)
    return judged(Seal.GAP, max(0, absent))


def _number(document: dict[str, Any]) -> int:
    number = document.get("line")
    return number if type(number) is int else 0
