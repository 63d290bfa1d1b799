"""Errors and warnings, their codes and exit codes."""

import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "DeviceWarning",
    "ImageError",
    "IntegrityError",
    "IntegrityWarning",
    "MissingPartError",
    "ModelFileError",
    "TelemetryWarning",
    "UceEdgeError",
    "UceEdgeWarning",
    "UsageError",
    "argument",
    "expected",
    "naming_options",
    "noun",
]

_NOUN = re.compile(r"(?:the )?`?([A-Za-z_][\w.-]*)")

# A message shows the start of a large value.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 20


class Expectation(str):
    """A message about an argument; `fields` holds its parts."""

    fields: dict[str, object]

    __slots__ = ("fields",)


class UceEdgeError(Exception):
    """The work failed; the command line exits with 1.

    Attributes:
        code: The reason, for programs and tests: `image.unreadable`. Messages may change, codes do not.
        fields: The values in the message, by name.
    """

    exit_code = 1
    default_code = "failed"

    def __init__(self, message: str = "", code: str | None = None, **fields: object) -> None:
        super().__init__(message)
        parts = message.fields if isinstance(message, Expectation) else {}
        self.code = code or (f"argument.{noun(str(parts['argument']))}" if parts else self.default_code)
        self.fields = parts | fields


class UsageError(UceEdgeError):
    """The request is wrong; the command line exits with 2."""

    exit_code = 2
    default_code = "usage"


class ImageError(UceEdgeError):
    """One image cannot be used.

    The other images of the request still get predictions.
    """

    default_code = "image"


class ModelFileError(UceEdgeError):
    """A file is not a model for this version."""

    default_code = "model"


class IntegrityError(ModelFileError):
    """A file differs from the published one."""

    default_code = "integrity"


class UceEdgeWarning(UserWarning):
    """The work continues, but differs from the request.

    The command line prints one line.
    """


class DeviceWarning(UceEdgeWarning):
    """A model runs on the CPU; another device failed."""


class IntegrityWarning(UceEdgeWarning):
    """A file was not compared with its published digests."""


class TelemetryWarning(UceEdgeWarning):
    """ONNX Runtime was imported before its telemetry was off."""


def expected(what: str, rule: str, value: object, remedy: str) -> Expectation:
    """A message about an argument: name, rule, value and remedy.

    Args:
        what: The name in backticks, or a phrase: "the classes of data.npz".
        rule: The rule for its value.
        value: The value.
        remedy: A correct value or command; `argument` spells it.
    """
    message = Expectation(f"Expected {what} to be {rule}, but got {_SHORT.repr(value)}. {remedy}")
    message.fields = {"argument": what.strip("`"), "rule": rule, "value": value, "remedy": remedy}
    return message


def noun(phrase: str) -> str:
    """The name in a phrase about an argument.

    `data` in "the `data` of x.npz".
    """
    found = _NOUN.match(phrase)
    return phrase.strip("`") if found is None else found[1]


_options_are_named = False


@contextmanager
def naming_options(named: bool = True) -> Iterator[None]:
    """Name command-line options instead of Python arguments in messages."""
    global _options_are_named  # noqa: PLW0603 - one program has one kind of user
    before, _options_are_named = _options_are_named, named
    try:
        yield
    finally:
        _options_are_named = before


def argument(name: str, value: object = None) -> str:
    """Spell an argument for Python or for the command line.

    `samples=25` in Python is `--samples 25` on the command line; `verify=False` is `--no-verify`.

    Args:
        name: The name in Python.
        value: Its value; None names the argument alone.
    """
    if not _options_are_named:
        shown = repr(str(value)) if isinstance(value, str) else repr(value)  # enum members print as text
        return f"{name}=" if value is None else f"{name}={shown}"
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option}" if value is None else f"--{option} {value}"


class MissingPartError(UceEdgeError, ImportError):
    """A package that this work needs is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        message = f'{what} needs {package}, which is not installed. Run: pip install "uce-edge[{extra}]"'
        super().__init__(message, "part.missing", package=package, extra=extra)
