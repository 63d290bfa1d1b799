"""A log of decisions that survives a power cut: one JSON line each, on the disk before the next image is read."""

import hashlib
import os
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uce_edge import __version__, chain
from uce_edge.answers import Answer, Request
from uce_edge.errors import UceEdgeError, UceEdgeWarning
from uce_edge.files import flush_folder, lock

if TYPE_CHECKING:
    from uce_edge.model import Model

_NAME = "Choose another place with --audit."


class Audit:
    """Appends to a file; lines that are there stay, and every line holds the one before it (see `chain`)."""

    def __init__(self, path: Path, model: "Model", asked: Request | None = None, max_bytes: int | None = None) -> None:
        """Open the log. A last line that a power cut tore is removed: its decision was never told.

        Args:
            path: The file; it is made when it is not there.
            model: The model that answers.
            asked: How the images are asked about, so that a decision can be computed again.
            max_bytes: The size from which the file is set aside under a number, and a new one begun; None for never.
        """
        self._path, self._max_bytes = path, max_bytes
        self._asked = asked or Request()
        self._same = {
            "model": model.path,
            "model_sha256": model.sha256,
            "provider": model.provider,
            "uce_edge": __version__,
        }
        self.lines = 0
        """Decisions that this process has logged."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():  # before it is opened: a file of somebody else stays as it is
                self._check_is_log()
            self._file = self._open()
            try:
                self._size = self._whole_lines()
                self._line, self.last = self._end()
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            raise self._failed(error) from None

    def add(self, answer: Answer, asked: Request | None = None) -> None:
        """Log one decision; the hash is that of the bytes that the answer has kept, null if they could not be read.

        Args:
            answer: The decision.
            asked: How this image was asked about; None for what holds for all of them.

        Raises:
            UceEdgeError: It cannot be written, and is not in the log.
        """
        content = {
            "line": self._line + 1,
            "previous": self.last or self._same["model_sha256"],
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "sha256": None if answer.content is None else hashlib.sha256(answer.content).hexdigest(),
        }
        how = {"asked": _told(asked or self._asked)}
        line = chain.sealed(content | self._same | how | answer.as_dict())
        try:
            if self._max_bytes is not None and self._size > 0 and self._size + len(line) > self._max_bytes:
                self._rotate()
            self._append(line)
        except OSError as error:
            raise self._failed(error) from None
        self._line, self.last = self._line + 1, chain.digest(line[:-1])
        self.lines += 1

    def close(self) -> None:
        """Nothing more will be logged."""
        os.close(self._file)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        file = os.open(self._path, flags, 0o666)
        try:
            lock(file)
        except OSError:
            os.close(file)
            raise UceEdgeError(
                f"Another process is writing the log {self._path}, which only one process may do. {_NAME}"
            ) from None
        flush_folder(self._path.parent)
        return file

    def _append(self, line: bytes) -> None:
        """All of a line on the disk, or nothing of it."""
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def _rotate(self) -> None:
        os.close(self._file)
        self._path.rename(chain.next_segment(self._path))
        self._file, self._size = self._open(), 0

    def _check_is_log(self) -> None:
        """Refuse to append to what is no log."""
        if not (self._path.is_file() or self._path.is_dir()):  # a pipe would wait for ever; a folder is told below
            raise UceEdgeError(f"{self._path} is not a regular file. {_NAME}")
        with self._path.open("rb") as file:
            start = file.read(1)
        last = chain.last_line(self._path)
        if start not in (b"", b"{") or (last[:1] not in (b"", b"{", b"\0") and chain.parsed(last) is None):
            raise UceEdgeError(f"{self._path} exists, but it is not a log of decisions. {_NAME}")

    def _whole_lines(self) -> int:
        """The size of the file without what a power cut left of a line."""
        size = os.fstat(self._file).st_size
        if not size:
            return 0
        os.lseek(self._file, -1, os.SEEK_END)
        last = chain.last_line(self._path)
        if os.read(self._file, 1) == b"\n":
            return size
        self._size = size
        if chain.parsed(last) is not None:  # only its end is missing
            self._append(b"\n")
            return self._size
        warnings.warn(
            f"the last line of {self._path} was incomplete and has been removed", UceEdgeWarning, stacklevel=4
        )
        os.ftruncate(self._file, size - len(last))
        return size - len(last)

    def _end(self) -> tuple[int, str]:
        """Number and hash of the last line, which may stand in a file that was set aside; 0 and nothing without one."""
        for file in reversed(chain.segments(self._path)):
            text = chain.last_line(file)
            if not text:
                continue
            number = (chain.parsed(text) or {}).get("line")
            if type(number) is not int:  # from before lines had numbers
                with file.open("rb") as lines:
                    number = sum(1 for _ in lines)
            return number, chain.digest(text)
        return 0, ""

    def _failed(self, error: OSError) -> UceEdgeError:
        return UceEdgeError(f"Cannot write the log {self._path}: {error.strerror or error}. {_NAME}")


def _told(asked: Request) -> dict[str, Any]:
    """What it takes to compute a decision again."""
    return {name: getattr(asked, name) for name in ("samples", "seed", "reject", "adaptive", "top")}
