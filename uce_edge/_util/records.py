"""Records: validated frozen dataclasses, and their JSON documents.

A record that is made in Python and one that is read from a file pass the same checks:

    @dataclass(frozen=True)
    class Promise(Record):
        target_error: Annotated[float, strictly_between(0, 1)]

    Promise.from_document({"target_error": 5})   # Expected `target_error` to be a number strictly between 0 and 1, ...
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self, get_type_hints

from uce_edge._util.field_rules import DEPTH, NONE_AS_EMPTY, OPTIONAL, Reader, RecordError, Refused, reader_of

_TOO_DEEP = "it is nested too deeply"


class DocumentError(ValueError):
    """A text is not a JSON object."""


@dataclass(frozen=True)
class Record:
    """A frozen dataclass that validates its fields.

    Enums and lists are converted as the annotations say.
    """

    REMEDY: ClassVar[str] = "docs/contract.md says what it holds."

    def __post_init__(self) -> None:
        for name, reader in _readers(type(self)).items():
            value = getattr(self, name)
            read = self._read(name, reader, value)
            if read is not value:
                object.__setattr__(self, name, read)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read parsed JSON.

        Unknown keys are ignored; keys with a default may be missing.

        Raises:
            RecordError: A value is not what it should be.
        """
        make: Callable[..., Self] = cls
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, field in fields.items():
            if name not in document and field.default is field.default_factory is dataclasses.MISSING:
                raise RecordError(name, _readers(cls)[name].words, _ABSENT, cls.REMEDY)
        return make(**{name: document[name] for name in fields if name in document})

    def to_document(self) -> dict[str, Any]:
        """As JSON holds it, in the order of the fields."""
        document = {}
        for field in dataclasses.fields(self):
            value, marks = getattr(self, field.name), _readers(type(self))[field.name].marks
            if OPTIONAL in marks and value == _default(field):
                continue
            document[field.name] = {} if value is None and NONE_AS_EMPTY in marks else _document(value)
        return document

    def to_json(self, indent: int | None = None, *, sort_keys: bool = True) -> str:
        """The document as text.

        With sorted keys, equal records give equal bytes.
        """
        return json.dumps(self.to_document(), sort_keys=sort_keys, allow_nan=False, indent=indent)

    def wrong(self, name: str, rule: str) -> RecordError:
        """The error about a field that contradicts others."""
        return RecordError(name, rule, _document(getattr(self, name)), self.REMEDY)

    @classmethod
    def _read(cls, name: str, reader: Reader, value: object) -> object:
        try:
            return reader.read(value)
        except Refused:
            raise RecordError(name, reader.words, value, cls.REMEDY) from None
        except RecordError as error:
            raise error.inside(name) from None


def parse(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object whose numbers are finite.

    Raises:
        DocumentError: It is something else; the message is a clause without a full stop.
        RecordError: A number is NaN or infinite.
    """
    try:
        document = json.loads(text)
        _check(document, DEPTH)
    except RecursionError:
        raise DocumentError(_TOO_DEEP) from None
    except UnicodeDecodeError:
        raise DocumentError("it is not UTF-8") from None
    except ValueError as error:
        raise DocumentError(str(error)) from None
    if not isinstance(document, dict):
        raise DocumentError("it is not a JSON object")
    return document


def _check(value: Any, depth: int) -> None:
    """Reject NaN, Infinity, 1e999 and deep nesting."""
    if depth == 0:
        raise DocumentError(_TOO_DEEP)
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError("", "a finite number", value, Record.REMEDY)
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = ((f"[{index}]", inner) for index, inner in enumerate(value))
    for place, inner in parts:
        try:
            _check(inner, depth - 1)
        except RecordError as error:
            raise error.inside(place) from None


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _readers(kind: type[Record]) -> dict[str, Reader]:
    if kind not in _KNOWN:
        hints = get_type_hints(kind, include_extras=True)
        _KNOWN[kind] = {field.name: reader_of(hints[field.name]) for field in dataclasses.fields(kind)}
    return _KNOWN[kind]


_KNOWN: dict[type[Record], dict[str, Reader]] = {}


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _document(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_document()
    if isinstance(value, dict):
        return {name: _document(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_document(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value
