"""The audit log of decisions; it survives a power cut.

One JSON line per decision, on disk before the next image is read.
"""

import hashlib
import os
import stat
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uce_edge import __version__
from uce_edge._util.atomic_files import flush_folder, lock
from uce_edge.audit import hash_chain
from uce_edge.errors import UceEdgeError, UceEdgeWarning
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.request import Request

if TYPE_CHECKING:
    from uce_edge.runtime.model import Model

_NAME = "Choose another place with --audit."
_CLOSED = -1
REPLAYED = ("samples", "seed", "reject", "adaptive", "top")
"""The fields of a request that a replay needs."""


class Audit:
    """An append-only log with a hash chain."""

    def __init__(
        self, path: Path, model: "Model", request: Request | None = None, max_bytes: int | None = None
    ) -> None:
        """Open the log.

        A last line torn by a power cut is removed: its decision was never reported.

        Args:
            path: The file; created if missing.
            model: The model.
            request: The request for all images, so that a decision can be replayed.
            max_bytes: The size from which the file is renamed with a number and a new one begins; None for never.
        """
        self._path, self._max_bytes = path, max_bytes
        self._request = request or Request()
        self._same = {
            "model": model.path,
            "model_sha256": model.sha256,
            "provider": model.provider,
            "uce_edge": __version__,
        }
        self.lines = 0
        """Decisions that this process has logged."""
        self._file, self._size, self._line, self.last = _CLOSED, 0, 0, ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._begin()
        except OSError as error:
            raise self._failed(error) from None

    def add(self, answer: Answer, request: Request | None = None) -> None:
        """Log one decision.

        The hash is that of the answer's bytes, null if they could not be read.

        Args:
            answer: The decision.
            request: The request for this image; None for that of all images.

        Raises:
            UceEdgeError: It cannot be written and is not in the log.
        """
        try:
            if self._file == _CLOSED:  # after an earlier failure
                self._begin()
        except OSError as error:
            raise self._failed(error) from None
        content = {
            "line": self._line + 1,
            "previous": self.last or self._same["model_sha256"],
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "sha256": None if answer.content is None else hashlib.sha256(answer.content).hexdigest(),
        }
        how = {"asked": _replayable(request or self._request), "part": answer.part}
        line = hash_chain.sealed(content | self._same | how | answer.as_dict())
        try:
            if self._max_bytes is not None and self._size > 0 and self._size + len(line) > self._max_bytes:
                self._rotate()
            self._append(line)
        except OSError as error:
            raise self._failed(error) from None
        self._line, self.last = self._line + 1, hash_chain.digest(line[:-1])
        self.lines += 1

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, _CLOSED
        if file != _CLOSED:
            os.close(file)

    def _begin(self) -> None:
        """Open the log and find its end.

        A file that is not a log stays unchanged.
        """
        self._file = self._open()
        try:
            self._size, self._line, self.last = self._end()
        except BaseException:
            self.close()
            raise

    def _open(self, more: int = 0) -> int:
        """Open and lock the file.

        Links are not followed and pipes not waited for: they are no logs.
        """
        with suppress(FileNotFoundError):
            self._check_is_regular(self._path.lstat().st_mode)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | more
        for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
            flags |= getattr(os, name, 0)
        file = os.open(self._path, flags, 0o666)
        try:
            self._check_is_regular(os.fstat(file).st_mode)
            lock(file)
            if not os.path.samestat(os.fstat(file), self._path.lstat()):
                raise BlockingIOError  # another process renamed it meanwhile
        except BaseException as error:
            os.close(file)
            if not isinstance(error, BlockingIOError):
                raise
            raise UceEdgeError(
                f"Another process is writing the log {self._path}, which only one process may do. {_NAME}", "log.locked"
            ) from None
        flush_folder(self._path.parent)
        return file

    def _check_is_regular(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            raise UceEdgeError(f"{self._path} is not a regular file, so it cannot be a log. {_NAME}", "log.not-a-log")

    def _append(self, line: bytes) -> None:
        """Write a whole line to disk, or nothing."""
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            try:
                os.ftruncate(self._file, self._size)
            except OSError:
                self.close()  # reopening repairs a torn line
            raise
        self._size += len(line)

    def _rotate(self) -> None:
        """Rename the full file and start a new one.

        The old lock holds until the new file has its own.
        """
        if os.name == "nt":  # Windows cannot rename an open file, and has no lock
            self.close()
        try:
            self._path.rename(hash_chain.next_segment(self._path))
            file = self._open(os.O_EXCL)
        finally:
            self.close()
        self._file, self._size = file, 0

    def _end(self) -> tuple[int, int, str]:
        """Size, last line number and last hash, after repair."""
        size = os.fstat(self._file).st_size
        with os.fdopen(os.dup(self._file), "rb") as file:
            whole, torn = hash_chain.ends(file)
        if whole is not None and not hash_chain.is_record(whole):
            raise self._not_a_log()
        line, last = self._numbered(whole)
        if not torn:
            return size, line, last
        if hash_chain.is_record(torn):  # only its end is missing
            self._size = size
            self._append(b"\n")
            return self._size, *self._numbered(torn)
        if not hash_chain.is_begun(torn, line + 1, last or None):
            raise self._not_a_log()
        os.ftruncate(self._file, size - len(torn))
        warnings.warn(
            f"the last line of {self._path} was incomplete and has been removed", UceEdgeWarning, stacklevel=5
        )
        return size - len(torn), line, last

    def _numbered(self, text: bytes | None) -> tuple[int, str]:
        """Number and hash of the last line.

        It may be in an older file; 0 and an empty text without one.
        """
        file, older = self._path, [path for path in hash_chain.segments(self._path) if path != self._path]
        while not text and older:
            file = older.pop()
            text = hash_chain.last_line(file)
        if not text:
            return 0, ""
        number = (hash_chain.parsed(text) or {}).get("line")
        if type(number) is not int:  # from before lines had numbers
            with file.open("rb") as lines:
                number = sum(line.endswith(b"\n") for line in lines)
        return number, hash_chain.digest(text)

    def _not_a_log(self) -> UceEdgeError:
        return UceEdgeError(f"{self._path} exists, but it is not a log of decisions. {_NAME}", "log.not-a-log")

    def _failed(self, error: OSError) -> UceEdgeError:
        return UceEdgeError(f"Cannot write the log {self._path}: {error.strerror or error}. {_NAME}", "log.unwritable")


def _replayable(request: Request) -> dict[str, Any]:
    """The fields that a replay needs."""
    return {name: getattr(request, name) for name in REPLAYED}
