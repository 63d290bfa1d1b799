"""Messages of commands on stderr, and escaped output on stdout."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from uce_edge._util import progress
from uce_edge._util.printable import shown

if TYPE_CHECKING:
    from uce_edge.metadata import Metadata


def describe_auto(metadata: "Metadata") -> str | None:
    """Describe the stored reject rule of a file; None without one."""
    from uce_edge.rejection.description import describe

    return None if metadata.rule is None else describe(metadata.rule, metadata.classes)


def quote(path: object) -> str:
    """Quote a path for a shell command."""
    import shlex

    return shlex.quote(str(path))


class Talk(StrEnum):
    """How much a command prints on stderr."""

    QUIET = "quiet"
    """Errors and alarms only."""
    NORMAL = "normal"
    """Also notes, warnings and progress."""
    VERBOSE = "verbose"
    """Also what is loaded, where it runs and how long it takes."""


_talk = Talk.NORMAL


def set_talk(talk: Talk) -> None:
    """Set how much is printed from now on."""
    global _talk  # noqa: PLW0603 - a program has one stderr
    _talk = talk
    progress.hide(talk is Talk.QUIET)
    progress.print_lines(say)
    if talk is Talk.VERBOSE:
        show_log("uce_edge")
    else:
        hide_log("uce_edge")


class Styled(str):
    """A coloured part of a line, already escaped."""

    __slots__ = ()


def styled(text: str, fg: str | None = None) -> Styled:
    """Colour and escape a part of a line."""
    return Styled(typer.style(shown(text), fg=fg))


def echo(*parts: str, err: bool = False, fg: str | None = None, bold: bool | None = None) -> None:
    """Print one line, escaped: no file or class name can control the terminal."""
    line = "".join(part if isinstance(part, Styled) else shown(part) for part in parts)
    typer.secho(line, err=err, fg=fg, bold=bold)


def say(*lines: str) -> None:
    """Print notes on stderr, because stdout is for data."""
    if _talk is not Talk.QUIET:
        for line in lines:
            echo(line, err=True)


def detail(text: str) -> None:
    """Print a line on stderr with --verbose."""
    if _talk is Talk.VERBOSE:
        echo(text, err=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    if _talk is not Talk.QUIET:
        alarm(text)


def alarm(text: str) -> None:
    """Print a warning on stderr, even with --quiet."""
    echo(f"warning: {text}", err=True, fg=typer.colors.YELLOW)


def fail(text: str) -> None:
    """Print an error that does not end the command, even with --quiet."""
    echo(f"error: {text}", err=True)


def format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Format a Python warning in one line, for `warnings.formatwarning`."""
    return "" if _talk is Talk.QUIET else f"warning: {shown(str(message))}\n"


def show_log(package: str = "uce_edge.datasets") -> None:
    """Print the log of a package on stderr, every line once."""
    import logging

    printed: set[str] = set()  # a command may read the same images again

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = self.format(record)
            if text not in printed:
                printed.add(text)
                (warn if record.levelno >= logging.WARNING else say)(text)

    log = logging.getLogger(package)
    log.setLevel(logging.INFO)
    log.handlers = [Handler()]


def hide_log(package: str) -> None:
    """Undo `show_log`."""
    import logging

    log = logging.getLogger(package)
    log.setLevel(logging.NOTSET)
    log.handlers = []


def width(text: str) -> int:
    """The width of a text on a terminal, where CJK characters take two columns."""
    text = shown(text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """Pad a text with spaces to a width."""
    return shown(text) + " " * (columns - width(text))


def again(option: str, value: str) -> str | None:
    """The typed command with another value of an option; None without that option."""
    import shlex
    import sys

    typed = sys.argv[1:]
    words = list(typed)
    for index, word in enumerate(words):
        if word == option and index + 1 < len(words):
            words[index + 1] = value
        elif word.startswith(f"{option}="):
            words[index] = f"{option}={value}"
    return None if words == typed else shlex.join(["uce-edge", *words])


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, err: bool = False) -> None:
    """Print a table: names to the left, numbers to the right, and an empty line.

    Args:
        head: The names of the columns.
        rows: Their cells.
        err: Whether to print on stderr.
    """
    if err and _talk is Talk.QUIET:
        return
    lines = [head, *rows]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        cells = (" " * (wide - width(cell)) + cell for cell, wide in zip(line[1:], widths[1:], strict=True))
        echo("  ".join([pad(line[0], widths[0]), *cells]), bold=index == 0, err=err)
    echo(err=err)
