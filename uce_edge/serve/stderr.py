"""A stderr that cannot hold up a server: a pipe that nobody reads would, once it is full.

Python's messages wait in a bounded queue for a thread that writes them. C libraries write to descriptor 2 themselves,
as libtiff does for every damaged image, so that clients could fill a log or a pipe; it leads nowhere meanwhile.
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
"""Messages that wait at most; further ones are dropped."""
_LAST_SECONDS = 1.0
"""How long the end of a program waits for what was said."""


@contextmanager
def detached() -> Iterator[None]:
    """Inside the block, no message blocks, and descriptor 2 leads nowhere."""
    before = sys.stderr
    try:
        if before is not None:
            before.flush()
        kept = os.dup(_STDERR)
    except OSError:  # there is none, and Python says nothing either
        _lead_nowhere()
        yield
        return
    _lead_nowhere()
    queued = _Queued(kept)
    sys.stderr = io.TextIOWrapper(queued, "utf-8", "backslashreplace", write_through=True)
    try:
        yield
    finally:
        sys.stderr = before
        os.dup2(kept, _STDERR)
        queued.end()


def _lead_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != _STDERR:
        os.dup2(nowhere, _STDERR)
        os.close(nowhere)


class _Queued(io.RawIOBase):
    """Writes to a descriptor in a thread of its own."""

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
        """Give the thread a moment for what is left."""
        with suppress(queue.Full):
            self._messages.put_nowait(None)
        self._thread.join(_LAST_SECONDS)

    def _write(self) -> None:
        while (message := self._messages.get()) is not None:
            with suppress(OSError):  # who read it has gone
                while message:
                    message = message[os.write(self._descriptor, message) :]
        os.close(self._descriptor)
