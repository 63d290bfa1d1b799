"""Runs command lines in forks of one warm process, each of which may be killed at a chosen moment.

A fork starts in a few milliseconds, where a command of its own takes a second to import what it needs. Requests and
answers are lines of JSON.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Request:
    """A command, and when it is killed."""

    arguments: list[str]
    folder: str
    rename: int | None = None
    """Kill it at this rename, counted from 1."""
    done: bool = False
    """Whether that rename is done before."""
    after: float | None = None
    """Kill it after so many seconds, if it still runs."""


@dataclass(frozen=True)
class Ended:
    """What became of it."""

    code: int
    """As of `subprocess`: below zero for a signal."""
    renames: int
    said: str

    @property
    def killed(self) -> bool:
        """Whether the signal that cannot be caught ended it."""
        return self.code == -signal.SIGKILL


class Zygote:
    """The warm process."""

    def __init__(self, *prefix: str) -> None:
        """Start it; the prefix is a command that runs it, such as one that mounts a disk first."""
        command = [*prefix, sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.root = Path(f"/proc/{self._process.pid}/root")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run(self, request: Request) -> Ended:
        """Run a command to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


def _forked(request: Request) -> Ended:
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as count:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            os._exit(_command(request, count.fileno()))
        ended = _waited(pid, request.after)
        said.seek(0)
        count.seek(0)
        return Ended(ended, len(count.read()), said.read().decode(errors="replace"))


def _command(request: Request, count: int) -> int:
    from uce_edge import cli

    os.chdir(request.folder)
    renamed = os.replace

    def replace(*arguments: object, **options: object) -> None:
        os.write(count, b".")
        here = os.fstat(count).st_size == request.rename
        if here and not request.done:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            renamed(*arguments, **options)  # type: ignore[arg-type]
        finally:
            if here:
                os.kill(os.getpid(), signal.SIGKILL)

    os.replace = os.rename = replace  # pathlib calls them by these names
    try:
        cli.main(request.arguments)
    except SystemExit as stop:
        sys.stdout.flush()
        return int(stop.code or 0)
    return 0


def _waited(pid: int, after: float | None) -> int:
    if after is not None:
        with contextlib.closing(os.fdopen(os.pidfd_open(pid), "rb", closefd=True)) as handle:
            if not select.select([handle], [], [], after)[0]:
                os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Import what commands need, without starting a thread, and serve."""
    from uce_edge.runtime.providers import onnxruntime

    onnxruntime()
    with contextlib.suppress(ImportError):
        pass

    for line in sys.stdin:
        print(json.dumps(asdict(_forked(Request(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
