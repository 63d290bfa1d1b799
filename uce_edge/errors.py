"""What a user is told when something cannot be done, or is done otherwise; and the exit code that goes with it."""

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
]

# A message shows a value, not a megabyte of it.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 20


class Expectation(str):
    """A message about an argument; `fields` holds its parts."""

    fields: dict[str, object]

    __slots__ = ("fields",)


class UceEdgeError(Exception):
    """The work failed for a reason the user can understand; the command line exits with 1.

    Attributes:
        code: What failed, for programs and tests: `image.unreadable`. Messages may change, codes do not.
        fields: What the message names, by field.
    """

    exit_code = 1
    default_code = "failed"

    def __init__(self, message: str = "", code: str | None = None, **fields: object) -> None:
        super().__init__(message)
        parts = message.fields if isinstance(message, Expectation) else {}
        self.code = code or (f"argument.{parts['argument']}" if parts else self.default_code)
        self.fields = parts | fields


class UsageError(UceEdgeError):
    """The request itself is wrong; the command line exits with 2."""

    exit_code = 2
    default_code = "usage"


class ImageError(UceEdgeError):
    """One image cannot be used. The other images of the same request are still answered."""

    default_code = "image"


class ModelFileError(UceEdgeError):
    """A file is not a model this version can run."""

    default_code = "model"


class IntegrityError(ModelFileError):
    """A file is not the one that was published."""

    default_code = "integrity"


class UceEdgeWarning(UserWarning):
    """The work continues, but differs from what the user may expect. The command line prints one line on stderr."""


class DeviceWarning(UceEdgeWarning):
    """A model runs on the CPU because another device did not work."""


class IntegrityWarning(UceEdgeWarning):
    """A file was not compared with what was published."""


class TelemetryWarning(UceEdgeWarning):
    """ONNX Runtime was imported before this package could switch its telemetry off."""


def expected(what: str, rule: str, value: object, remedy: str) -> Expectation:
    """The one shape of a message about an argument: its name, the rule, the value and the way out.

    Args:
        what: The name, as in `samples`.
        rule: What its value must be.
        value: What it is.
        remedy: What to write instead, which `argument` spells.
    """
    message = Expectation(f"Expected {what} to be {rule}, but got {_SHORT.repr(value)}. {remedy}")
    message.fields = {"argument": what.strip("`"), "rule": rule, "value": value, "remedy": remedy}
    return message


_options_are_named = False


@contextmanager
def naming_options(named: bool = True) -> Iterator[None]:
    """Inside the block, messages name the options of the command line instead of Python's arguments."""
    global _options_are_named  # noqa: PLW0603 - all threads of a program talk to the same person
    before, _options_are_named = _options_are_named, named
    try:
        yield
    finally:
        _options_are_named = before


def argument(name: str, value: object = None) -> str:
    """An argument as whoever reads the message writes it: `samples=25` in Python, `--samples 25` on the command line.

    Args:
        name: As Python spells it.
        value: What to give it; None names the argument alone. False is a switch on the command line: `--no-verify`.
    """
    if not _options_are_named:
        shown = repr(str(value)) if isinstance(value, str) else repr(value)  # an enum's member is its text
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
