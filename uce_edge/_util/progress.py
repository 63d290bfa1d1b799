"""Progress on stderr: stdout is data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_is_hidden = False


def hide(hidden: bool) -> None:
    """Choose whether bars are drawn from now on."""
    global _is_hidden  # noqa: PLW0603 - a program has one stderr
    _is_hidden = hidden


@contextmanager
def progress(task: str, total: int, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar on stderr, on a terminal.

    Yields the function that advances it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    drawn = shown and not _is_hidden and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not drawn) as bar:
        identifier = bar.add_task(task, total=total)
        yield lambda steps: bar.advance(identifier, steps)
