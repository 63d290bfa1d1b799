"""Progress on stderr: stdout is data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(task: str, total: int, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Draw a bar on stderr while the block runs (only on a terminal); yields the function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        identifier = bar.add_task(task, total=total)
        yield lambda steps: bar.advance(identifier, steps)
