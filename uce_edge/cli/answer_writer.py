"""Answers on stdout in machine formats: JSON, JSON Lines, CSV."""

import io
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from uce_edge._util.printable import cell
from uce_edge.errors import UsageError

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer


class Form(StrEnum):
    """The output format of answers."""

    TEXT = "text"
    """Text for people."""
    JSON = "json"
    """One document with all answers."""
    JSONL = "jsonl"
    """One object per line, printed at once."""
    CSV = "csv"
    """One row per image (RFC 4180) below a header, printed at once."""

    @property
    def flows(self) -> bool:
        """Whether answers are printed one by one."""
        return self in (Form.JSONL, Form.CSV)

    @classmethod
    def of(cls, *, as_json: bool, jsonl: bool, as_csv: bool) -> "Form":
        """Choose the format from the options."""
        chosen = [form for form, given in ((cls.JSON, as_json), (cls.JSONL, jsonl), (cls.CSV, as_csv)) if given]
        if len(chosen) > 1:
            raise UsageError("Choose one of --json, --jsonl and --csv.", "usage.two-formats")
        return chosen[0] if chosen else cls.TEXT


class Printer:
    """Prints answers on stdout in a machine format."""

    def __init__(self, form: Form, top: int = 3, columns: Sequence[str] | None = None) -> None:
        """Choose the format.

        Args:
            form: Any format except `TEXT`.
            top: The number of likeliest classes in a CSV row.
            columns: The columns of CSV; None for all.
        """
        self._form, self._top, self._columns = form, top, columns
        self._has_head = False

    def print(self, answer: "Answer") -> None:
        """Print one answer at once."""
        if self._form is Form.JSONL:
            _print(_json(_document(answer)) + "\n")
        else:
            row = answer.as_row(self._top)
            self._head(row)
            _print(_csv(row[column] for column in self._columns or row))
        sys.stdout.flush()

    def finish(self, answers: Iterable["Answer"] = ()) -> None:
        """Print further answers, and the header of an empty table."""
        if self._form is Form.JSON:
            _print(_json([_document(answer) for answer in answers], indent=2) + "\n")
            return
        for answer in answers:
            self.print(answer)
        if self._form is Form.CSV:
            from uce_edge.runtime.answers import Answer

            self._head(Answer("", None, "").as_row(self._top))

    def _head(self, row: dict[str, object]) -> None:
        if not self._has_head:
            _print(_csv(self._columns or row))
            self._has_head = True


def _document(answer: "Answer") -> dict[str, object]:
    """An answer, and where the model looked if its file shows that."""
    prediction = answer.prediction
    looked = {} if prediction is None or prediction.heatmap is None else {"looked_at": prediction.looked_at}
    return answer.as_dict() | looked


def _json(document: object, indent: int | None = None) -> str:
    import json

    return json.dumps(document, indent=indent, allow_nan=False)


def _csv(values: Iterable[object]) -> str:
    """Format a line with CR LF at its end; None is an empty field."""
    import csv

    line = io.StringIO(newline="")
    csv.writer(line).writerow(map(cell, values))
    return line.getvalue()


def _print(text: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(newline="")  # Windows would write CR CR LF
    sys.stdout.write(text)
