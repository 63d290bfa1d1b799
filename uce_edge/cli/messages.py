"""What commands say to a person."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from uce_edge._util import progress
from uce_edge._util.printable import shown

if TYPE_CHECKING:
    from uce_edge.metadata import Metadata
    from uce_edge.monitor import LabelCheck


def describe_auto(metadata: "Metadata") -> str | None:
    """What `--reject auto` does with a file; None when nothing is stored."""
    from uce_edge.rejection.description import describe

    return None if metadata.rule is None else describe(metadata.rule, metadata.classes)


def describe_check(check: "LabelCheck", alpha: float) -> str:
    """What labelled images say of a promised error."""
    from uce_edge.output.wording import percent

    promised = percent(check.target_error)
    counted = f"{check.errors} of {check.images:,} labelled and accepted images are wrong"
    if check.is_broken(alpha):
        told = f"the promised error of at most {promised} is BROKEN"
    elif check.is_kept(alpha):
        told = f"the promised error of at most {promised} is kept"
    else:
        told = f"these are too few to confirm or refute the promised error of at most {promised}: label more images"
    return f"Checked {check.time}: {counted}; {told} (at alpha {alpha:g})."


def quote(path: object) -> str:
    """A path as one shell word, for commands to paste."""
    import shlex

    return shlex.quote(str(path))


class Talk(StrEnum):
    """How much a command says on stderr."""

    QUIET = "quiet"
    """Errors and alarms alone."""
    NORMAL = "normal"
    """What a person wants to know."""
    VERBOSE = "verbose"
    """Also what is loaded, where it runs, and how long it takes."""


_talk = Talk.NORMAL


def set_talk(talk: Talk) -> None:
    """Choose how much is said from now on."""
    global _talk  # noqa: PLW0603 - a program has one stderr
    _talk = talk
    progress.hide(talk is Talk.QUIET)
    if talk is Talk.VERBOSE:
        show_log("uce_edge")
    else:
        hide_log("uce_edge")


class Styled(str):
    """A part of a line with its colours; what others have named is escaped in it."""

    __slots__ = ()


def styled(text: str, fg: str | None = None) -> Styled:
    """A part of a line in a colour."""
    return Styled(typer.style(shown(text), fg=fg))


def echo(*parts: str, err: bool = False, fg: str | None = None, bold: bool | None = None) -> None:
    """Print one line. All commands print here: no name of a file or class can break it or control the terminal."""
    line = "".join(part if isinstance(part, Styled) else shown(part) for part in parts)
    typer.secho(line, err=err, fg=fg, bold=bold)


def say(*lines: str) -> None:
    """Tell a person; stdout is for data."""
    if _talk is not Talk.QUIET:
        for line in lines:
            echo(line, err=True)


def detail(text: str) -> None:
    """Tell a person who wants to know more."""
    if _talk is Talk.VERBOSE:
        echo(text, err=True)


def warn(text: str) -> None:
    """Tell a person what may harm them."""
    if _talk is not Talk.QUIET:
        alarm(text)


def alarm(text: str) -> None:
    """Tell a person what they asked to be told of, even if nothing else is said."""
    echo(f"warning: {text}", err=True, fg=typer.colors.YELLOW)


def fail(text: str) -> None:
    """Tell a person what went wrong while the rest went on, even if nothing else is said."""
    echo(f"error: {text}", err=True)


def format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """A warning of Python in one line, for `warnings.formatwarning`."""
    return "" if _talk is Talk.QUIET else f"warning: {shown(str(message))}\n"


def show_log(package: str = "uce_edge.datasets") -> None:
    """Say on stderr what a package logs, once: of long work, or of the images that it found."""
    import logging

    told: set[str] = set()  # a command may read the same images again

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = self.format(record)
            if text not in told:
                told.add(text)
                (warn if record.levelno >= logging.WARNING else say)(text)

    log = logging.getLogger(package)
    log.setLevel(logging.INFO)
    log.handlers = [Said()]


def hide_log(package: str) -> None:
    """Undo `show_log`."""
    import logging

    log = logging.getLogger(package)
    log.setLevel(logging.NOTSET)
    log.handlers = []


def width(text: str) -> int:
    """The columns that a text takes on a terminal: characters of Chinese, Japanese and Korean take two."""
    text = shown(text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """A text with blanks behind it, so many columns wide."""
    return shown(text) + " " * (columns - width(text))


def again(option: str, value: str) -> str | None:
    """The command as it was typed, with another value for an option; None for one without that option."""
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
    """Columns as wide as they need to be: names to the left, numbers to the right; an empty line ends it.

    Args:
        head: The names of the columns.
        rows: Their cells.
        err: Whether it is talk rather than the result.
    """
    if err and _talk is Talk.QUIET:
        return
    lines = [head, *rows]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        cells = (" " * (wide - width(cell)) + cell for cell, wide in zip(line[1:], widths[1:], strict=True))
        echo("  ".join([pad(line[0], widths[0]), *cells]), bold=index == 0, err=err)
    echo(err=err)
