"""What commands write about answers: on stdout for programs, a line of the log, a copy, a place on the sheet."""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from uce_edge._util.printable import cell
from uce_edge.cli.drift_watcher import Watcher
from uce_edge.cli.messages import say
from uce_edge.errors import UsageError
from uce_edge.output.destinations import Destinations

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer, Request
    from uce_edge.runtime.model import Model


class Form(StrEnum):
    """How answers are printed."""

    TEXT = "text"
    """For people."""
    JSON = "json"
    """One document of all answers."""
    JSONL = "jsonl"
    """An object per line, which can be printed as it goes."""
    CSV = "csv"
    """A row per image as RFC 4180 has it, below the names of the columns; rows can be printed as it goes."""

    @property
    def flows(self) -> bool:
        """Whether an answer can be printed before the next is known."""
        return self in (Form.JSONL, Form.CSV)

    @classmethod
    def of(cls, *, as_json: bool, jsonl: bool, as_csv: bool) -> "Form":
        """The one that was asked for."""
        asked = [form for form, given in ((cls.JSON, as_json), (cls.JSONL, jsonl), (cls.CSV, as_csv)) if given]
        if len(asked) > 1:
            raise UsageError("Choose one of --json, --jsonl and --csv.")
        return asked[0] if asked else cls.TEXT


class Printer:
    """Prints answers on stdout for programs."""

    def __init__(self, form: Form, top: int = 3, columns: Sequence[str] | None = None) -> None:
        """Choose how.

        Args:
            form: Any but `TEXT`.
            top: The likeliest classes that a row of CSV has columns for.
            columns: Those of CSV; None for all that an answer has.
        """
        self._form, self._top, self._columns = form, top, columns
        self._has_head = False

    def print(self, answer: "Answer") -> None:
        """One answer, at once."""
        if self._form is Form.JSONL:
            _print(_json(answer.as_dict()) + "\n")
        else:
            row = answer.as_row(self._top)
            self._head(row)
            _print(_csv(row[column] for column in self._columns or row))
        sys.stdout.flush()

    def finish(self, answers: Iterable["Answer"] = ()) -> None:
        """Print what is left; a table without rows has the names of its columns, too."""
        if self._form is Form.JSON:
            _print(_json([answer.as_dict() for answer in answers], indent=2) + "\n")
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


def _json(document: object, indent: int | None = None) -> str:
    import json

    return json.dumps(document, indent=indent, allow_nan=False)


def _csv(values: Iterable[object]) -> str:
    """A line with CR LF at its end; what needs quotes has them, and nothing is an empty field."""
    import csv

    line = io.StringIO(newline="")
    csv.writer(line).writerow(map(cell, values))
    return line.getvalue()


def _print(text: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(newline="")  # Windows would write CR CR LF
    sys.stdout.write(text)


class Writer:
    """Writes answers to their destinations, until its block ends."""

    def __init__(self, destinations: Destinations, model: "Model", asked: "Request", *, endless: bool = False) -> None:
        """Open the destinations, so that one that cannot be written is told before the first image.

        Args:
            destinations: Where to write; they are checked already.
            model: What answers.
            asked: How it is asked.
            endless: Whether images come for ever, so that nothing may be remembered of each.
        """
        from uce_edge._util.atomic_files import writable_folder
        from uce_edge.audit.decision_log import Audit

        self._save, self._sheet, log = destinations.save, destinations.sheet, destinations.audit
        if self._save is not None:
            from uce_edge.output.annotate import CopyNames

            writable_folder(self._save, "--save")
            self._names = CopyNames(destinations.reserved(Path(model.path)), endless=endless)
        self._watcher = None if destinations.monitor is None else Watcher(destinations.monitor, model, asked)
        self._audit = None
        if log is not None:  # last: what is refused before leaves no log open
            self._audit = Audit(log, model, asked, destinations.audit_bytes)
        self._log = log
        self._saved = 0
        self._shown: list[Answer] = []

    @property
    def needs_content(self) -> bool:
        """Whether an answer must come with the bytes that it is about."""
        return self._save is not None or self._audit is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.close()
        if self._audit is not None:
            self._audit.close()

    def write(self, answer: "Answer") -> None:
        """Write all there is to write about an answer; once it returns, the log is safe on disk."""
        if self._save is not None and answer.ok:
            from uce_edge.output.annotate import save_annotated

            save_annotated(answer, self._save, self._names)
            self._saved += 1
        if self._audit is not None:
            self._audit.add(answer)
        if self._watcher is not None:
            self._watcher.add(answer)
        if self._sheet is not None:
            # A file is read again when the sheet is drawn; standard input cannot be.
            self._shown.append(answer if answer.path == "-" else replace(answer, content=None))

    def finish(self) -> None:
        """Draw the sheet, and tell what was written."""
        if self._save is not None:
            say(f"Wrote {self._saved} annotated {'image' if self._saved == 1 else 'images'} to {self._save}")
        if self._watcher is not None:
            self._watcher.finish()
        if self._audit is not None and self._audit.lines:
            say(f"Logged {self._audit.lines} decisions in {self._log}; its last line is {self._audit.last}")
        if self._sheet is not None:
            from uce_edge.output.annotate import save_sheet

            save_sheet(self._shown, self._sheet)
            say(f"Wrote {self._sheet}")
