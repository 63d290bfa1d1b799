"""Non-blocking stderr for a server: a full pipe without a reader must not block it.

Python's messages wait in a bounded queue for a writer thread. C libraries write to descriptor 2 directly, as libtiff
does for every damaged image, so clients could fill a log; descriptor 2 is therefore redirected to /dev/null.
"""

import io
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_STDERR = 2
_WAITING = 256
"""The largest number of waiting messages; further ones are dropped."""
_LAST_SECONDS = 1.0
"""Seconds that the end of the program waits for the last messages."""


@contextmanager
def detached() -> Iterator[None]:
    """Inside the block, messages never block and descriptor 2 is redirected."""
    before = sys.stderr
    try:
        if before is not None:
            before.flush()
        original = os.dup(_STDERR)
    except OSError:  # the process has no stderr
        _redirect()
        yield
        return
    _redirect()
    queued = _Queued(original)
    sys.stderr = io.TextIOWrapper(queued, "utf-8", "backslashreplace", write_through=True)
    try:
        yield
    finally:
        sys.stderr = before
        os.dup2(original, _STDERR)
        queued.end()


def _redirect() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    if null != _STDERR:
        os.dup2(null, _STDERR)
        os.close(null)


class _Queued(io.RawIOBase):
    """A stream that writes to a descriptor in its own thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._messages: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._write, name="uce-edge-stderr", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        with suppress(queue.Full):
            self._messages.put_nowait(bytes(data))
        return len(data)

    def end(self) -> None:
        """Wait a moment for the last messages."""
        with suppress(queue.Full):
            self._messages.put_nowait(None)
        self._thread.join(_LAST_SECONDS)

    def _write(self) -> None:
        while (message := self._messages.get()) is not None:
            with suppress(OSError):  # the reader has left
                while message:
                    message = message[os.write(self._descriptor, message) :]
        os.close(self._descriptor)
