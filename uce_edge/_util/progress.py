"""Progress on stderr: stdout is data.

A terminal gets a bar. Elsewhere, a program gets a line now and then, if it asks for lines.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

EVERY = 10.0
"""Seconds between two lines, at least."""

_AT_ONCE = 0.01  # seconds
_is_hidden = False
_is_drawn = False  # a terminal has one bar at a time
_status: "Status | None" = None  # of work without steps, which makes room for a bar
_print_line: Callable[[str], None] | None = None
_last_line = time.monotonic()
_open: list[Callable[[], str]] = []  # what can print lines now, the innermost task last


def hide(hidden: bool) -> None:
    """Choose whether progress is shown from now on."""
    global _is_hidden  # noqa: PLW0603 - a program has one stderr
    _is_hidden = hidden


def print_lines(by: Callable[[str], None] | None) -> None:
    """Choose what prints lines where there is no terminal; None for no lines, as in a library."""
    global _print_line, _last_line
    _print_line, _last_line = by, time.monotonic()


@contextmanager
def progress(task: str, total: int, shown: bool = True, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show progress on stderr, with the time that is left.

    Yields the function that advances it.

    Args:
        task: The work, as in "calibrating".
        total: The number of steps.
        shown: Whether to show anything.
        unit: The name of a step in the plural, for lines.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not shown or _is_hidden or _is_drawn:
        yield lambda steps: None
    elif not console.is_terminal:
        lines = _Lines(task, total, unit)
        with _repeating(lines.text):  # in the middle of long steps
            yield lines
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with _drawn(), _without_status(), Progress(*columns, console=console, transient=True) as bar:
            identifier = bar.add_task(task, total=total)
            yield lambda steps: bar.advance(identifier, steps)


@contextmanager
def working(task: str) -> Iterator[None]:
    """Report work that has no steps, and the time it has taken.

    Steps inside of it are shown instead, for as long as they last.

    Args:
        task: The work, as in "tracing the network".
    """
    from rich.console import Console

    global _status  # noqa: PLW0603 - a program has one terminal
    console = Console(stderr=True)
    if _is_hidden or _is_drawn or _status is not None:
        yield
    elif console.is_terminal:
        try:
            with console.status(task) as _status:
                yield
        finally:
            _status = None
    else:
        started = time.monotonic()
        with _repeating(lambda: f"{task}: {_duration(time.monotonic() - started)} so far"):
            yield


@contextmanager
def _repeating(text: Callable[[], str]) -> Iterator[None]:
    """Print a line whenever the last one is long ago."""
    if _print_line is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_repeat, args=(text, ended), daemon=True)
    _open.append(text)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _open.remove(text)


def _repeat(text: Callable[[], str], ended: threading.Event) -> None:
    global _last_line  # noqa: PLW0603 - all tasks share one stderr
    while not ended.wait(max(_last_line + EVERY - time.monotonic(), _AT_ONCE)):
        now = time.monotonic()
        if _print_line is not None and now - _last_line >= EVERY and _open[-1] == text:
            _last_line = now
            _print_line(text())


@contextmanager
def _drawn() -> Iterator[None]:
    global _is_drawn  # noqa: PLW0603 - a program has one terminal
    _is_drawn = True
    try:
        yield
    finally:
        _is_drawn = False


@contextmanager
def _without_status() -> Iterator[None]:
    """Make room for a bar."""
    if _status is None:
        yield
        return
    _status.stop()
    try:
        yield
    finally:
        _status.start()


class _Lines:
    """Prints a line where the last one is long ago."""

    def __init__(self, task: str, total: int, unit: str) -> None:
        self._task, self._total, self._unit = task, total, unit
        self._done, self._first = 0, 0
        self._started = self._stepped = time.monotonic()

    def __call__(self, steps: int) -> None:
        global _last_line  # noqa: PLW0603 - all tasks share one stderr
        self._done += steps
        self._stepped = now = time.monotonic()
        if now - self._started < _AT_ONCE:  # steps of an earlier process, which a resumed task skips
            self._first = self._done
        if _print_line is not None and self._first < self._done < self._total and now - _last_line >= EVERY:
            _last_line = now
            _print_line(self.text())

    def text(self) -> str:
        """The steps that are done, and the time that is left."""
        now = time.monotonic()
        if not self._first < self._done < self._total:
            return f"{self._task}: {_duration(now - self._started)} so far"
        rest = (self._stepped - self._started) / (self._done - self._first) * (self._total - self._done)
        left, unit = rest - (now - self._stepped), self._unit and f" {self._unit}"
        return f"{self._task}: {self._done:,} of {self._total:,}{unit}, about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
