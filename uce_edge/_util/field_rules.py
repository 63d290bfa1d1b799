"""Validate values by their annotation: `Annotated[float, between(0, 1)]`."""

import functools
import math
import numbers
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

from uce_edge.errors import UsageError, expected

DEPTH = 64
"""The nesting limit of a document, far below Python's own."""
_HELP = "docs/contract.md says what it holds."


class RecordError(UsageError):
    """A record cannot hold this value."""

    def __init__(self, key: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(expected(f"`{key}`", rule, value, remedy))
        self.key, self.rule, self.value, self.remedy = key, rule, value, remedy

    def inside(self, place: str) -> "RecordError":
        """The same error, inside an outer field."""
        key = place + self.key if self.key[:1] in ("", "[") else f"{place}.{self.key}"
        return RecordError(key, self.rule, self.value, self.remedy)

    def told(self, remedy: str) -> str:
        """The message with another remedy."""
        return expected(f"`{self.key}`", self.rule, self.value, remedy)


@dataclass(frozen=True)
class Rule:
    """A rule beside the type; used in `Annotated`."""

    words: str
    """They follow the type: "a number" + "between 0 and 1"."""
    holds: Callable[[Any], bool]


def between(low: float, high: float) -> Rule:
    """Both ends are allowed."""
    return Rule(f"between {low} and {high}", lambda value: low <= value <= high)


def strictly_between(low: float, high: float) -> Rule:
    """Neither end is allowed."""
    return Rule(f"strictly between {low} and {high}", lambda value: low < value < high)


def at_least(low: int) -> Rule:
    """A lower end alone."""
    return Rule(f"of at least {low}", lambda value: value >= low)


def many(least: int, what: str) -> Rule:
    """A list with so many entries at least."""
    return Rule(f"of at least {least} {what}", lambda values: len(values) >= least)


ABOVE_ZERO = Rule("above 0", lambda value: value > 0)
NOT_EMPTY = Rule("that is not empty", bool)

Share = Annotated[float, between(0, 1)]
Count = Annotated[int, at_least(0)]
Positive = Annotated[int, at_least(1)]

OPTIONAL = "optional"
"""Marks a field that the document leaves out while it has its default."""
NONE_AS_EMPTY = "none as empty"
"""Marks a field whose None is `{}` in the document."""


class Refused(Exception):
    """A value does not fit its annotation."""


@dataclass(frozen=True)
class Reader:
    """Checks and converts values of one annotation."""

    words: str
    read: Callable[[Any], Any]
    """Returns the converted value; raises `Refused`, or a `RecordError` about a part."""
    marks: tuple[object, ...] = ()


def checked(name: str, hint: Any, value: object, remedy: str) -> Any:
    """Validate an argument by its annotation.

    Raises:
        UsageError: It does not fit, such as a text for a number.
    """
    reader = reader_of(hint)
    try:
        return reader.read(value)
    except Refused:
        raise UsageError(expected(f"`{name}`", reader.words, value, remedy)) from None


@functools.cache
def reader_of(hint: Any) -> Reader:
    """The reader of an annotation."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    arguments = get_args(hint)
    match get_origin(hint):
        case None if issubclass(hint, Enum):
            words = f"one of {', '.join(str(member.value) for member in hint)}"
            reader = Reader(words, functools.partial(_choice, hint))
        case None:
            reader = Reader("an object", functools.partial(_record, hint))
        case origin if origin is Annotated:
            reader = _annotated(reader_of(arguments[0]), arguments[1:])
        case origin if origin in (Union, types.UnionType):
            reader = _either([reader_of(argument) for argument in arguments])
        case origin if origin is dict:
            reader = _mapping(reader_of(arguments[1]))
        case origin:
            one_kind = origin is list or arguments[-1] is ...
            reader = _list(reader_of(arguments[0]), None if one_kind else len(arguments), origin)
    return reader


def _annotated(inner: Reader, marks: tuple[object, ...]) -> Reader:
    checks = [mark for mark in marks if isinstance(mark, Rule)]

    def read(value: Any) -> Any:
        if NONE_AS_EMPTY in marks and isinstance(value, Mapping) and not value:
            return None
        result = inner.read(value)
        if not all(check.holds(result) for check in checks):
            raise Refused
        return result

    return Reader(" ".join([inner.words, *(check.words for check in checks)]), read, marks)


def _either(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        wrong_inside = None
        for reader in readers:
            try:
                return reader.read(value)
            except Refused:
                continue
            except RecordError as error:
                wrong_inside = error
        raise wrong_inside or Refused

    # A message about a present value need not mention None.
    return Reader(" or ".join(reader.words for reader in readers if reader is not _PLAIN[type(None)]), read)


def _list(entry: Reader, length: int | None, kind: Callable[..., Any]) -> Reader:
    def read(values: Any) -> Any:
        if not isinstance(values, list | tuple) or length not in (None, len(values)):
            raise Refused
        try:
            return kind(map(entry.read, values))
        except (Refused, RecordError):  # find the wrong entry only now
            return kind(_entry(entry, f"[{index}]", value) for index, value in enumerate(values))

    return Reader("a list" if length is None else f"a list of {length}, each {entry.words}", read)


def _mapping(entry: Reader) -> Reader:
    def read(values: Any) -> dict[str, Any]:
        if not isinstance(values, Mapping):
            raise Refused
        return {_text(name): _entry(entry, name, value) for name, value in values.items()}

    return Reader("an object", read)


def _entry(reader: Reader, place: str, value: object) -> object:
    try:
        return reader.read(value)
    except Refused:
        raise RecordError(place, reader.words, value, _HELP) from None
    except RecordError as error:
        raise error.inside(place) from None


def _record(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise Refused
    return kind.from_document(value)


def _choice(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise Refused from None


def _null(value: Any) -> None:
    if value is not None:
        raise Refused


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise Refused
    return int(value)


def _number(value: Any) -> float:
    """A finite number; integers stay integers.

    So the document does not change. Scalars of numpy become Python's.
    """
    if type(value) is float and math.isfinite(value):  # nearly always: a map may have a million of them
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Refused
    try:
        number = float(value)
    except OverflowError:
        raise Refused from None
    if not math.isfinite(number):
        raise Refused
    return int(value) if isinstance(value, numbers.Integral) else number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Refused
    return value


def _plain(value: Any, depth: int = DEPTH) -> Any:
    """A free-form value, if JSON can hold it."""
    if depth == 0:
        raise Refused
    if isinstance(value, Mapping):
        return {_text(name): _plain(inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth - 1) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    return _text(value) if isinstance(value, str) else _number(value)


_PLAIN = {
    bool: Reader("true or false", _bool),
    int: Reader("an integer", _integer),
    float: Reader("a number", _number),
    str: Reader("text", _text),
    type(None): Reader("null", _null),
    Any: Reader(f"plain JSON values, at most {DEPTH} deep", _plain),
}
