"""What `predict` writes about each answer: a line of the log, an annotated copy, a place on the sheet."""

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from uce_edge.cli.destinations import Destinations
from uce_edge.cli.watcher import Watcher
from uce_edge.cli.words import say

if TYPE_CHECKING:
    from uce_edge.answers import Answer, Request
    from uce_edge.model import Model


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
        from uce_edge.audit import Audit
        from uce_edge.files import writable_folder

        self._save, self._sheet, log = destinations.save, destinations.sheet, destinations.audit
        if self._save is not None:
            from uce_edge.annotate import CopyNames

            writable_folder(self._save, "--save")
            self._names = CopyNames(destinations.reserved(Path(model.path)), endless=endless)
        self._watcher = None if destinations.monitor is None else Watcher(destinations.monitor, model, asked)
        self._audit = None
        if log is not None:  # last: what is refused before leaves no log open
            self._audit = Audit(log, Path(model.path), model.provider, asked, destinations.audit_bytes)
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
            from uce_edge.annotate import save_annotated

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
            from uce_edge.annotate import save_sheet

            save_sheet(self._shown, self._sheet)
            say(f"Wrote {self._sheet}")
