"""Files written per answer: annotated copies, contact sheet, audit log, monitor."""

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from uce_edge._util.atomic_files import writable_folder
from uce_edge.audit.decision_log import Audit
from uce_edge.monitor.state_file import KeptMonitor
from uce_edge.output.destinations import Destinations

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer, Request
    from uce_edge.runtime.model import Model


class AnswerFiles:
    """Writes answers to their destinations until the block ends."""

    def __init__(
        self,
        destinations: Destinations,
        model: "Model",
        request: "Request",
        *,
        endless: bool = False,
        alarm: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open the destinations, so that an unwritable one is an error before the first image.

        Args:
            destinations: Where to write; already checked.
            model: The model.
            request: The options of the predictions.
            endless: Whether the images never end, so that nothing may be stored per image.
            alarm: Called with the message of a drift alarm.
        """
        self._destinations, self._alarm = destinations, alarm
        self._model, self._reports, self._heatmaps = model, 0, 0
        if destinations.dicom_sr is not None and not destinations.dicom_sr.suffix:
            writable_folder(destinations.dicom_sr, "--dicom-sr")
        if destinations.dicom_sr is not None:
            from uce_edge.output.annotate import CopyNames

            self._report_names = CopyNames(set(), endless=endless, ending="-heatmap.dcm")
        if destinations.save is not None:
            from uce_edge.output.annotate import CopyNames

            writable_folder(destinations.save, "--save")
            self._names = CopyNames(destinations.reserved(Path(model.path)), endless=endless)
        self._monitor = self._audit = None
        with ExitStack() as stack:
            if destinations.monitor is not None:
                self._monitor = KeptMonitor(destinations.monitor, model, request)
                stack.callback(self._monitor.close)
            if destinations.audit is not None:  # last: an error before it leaves no log open
                self._audit = Audit(destinations.audit, model, request, destinations.audit_bytes)
                stack.callback(self._audit.close)
            self._stack = stack.pop_all()
        if self._monitor is not None and self._monitor.monitor.alarm is not None:
            alarm(self._monitor.monitor.report().sentence)
        self._saved = 0
        self._on_sheet: list[Answer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, answer: "Answer") -> None:
        """Write an answer; the log is on disk when this returns."""
        if self._destinations.save is not None and answer.ok:
            from uce_edge.output.annotate import save_annotated

            save_annotated(answer, self._destinations.save, self._names)
            self._saved += 1
        if self._destinations.dicom_sr is not None and answer.ok:
            from uce_edge.output import dicom_report

            model, place = Path(self._model.path), self._destinations.dicom_sr
            files = dicom_report.write(answer, place, model, self._model.sha256, self._report_names)
            self._reports, self._heatmaps = self._reports + 1, self._heatmaps + len(files) - 1
        if self._audit is not None:
            self._audit.add(answer)
        if self._monitor is not None and self._monitor.add(answer):
            self._alarm(self._monitor.monitor.report().sentence)
        if self._destinations.sheet is not None:
            # Files are read again for the sheet; standard input cannot be.
            self._on_sheet.append(answer if answer.path == "-" else replace(answer, content=None))

    def finish(self) -> list[str]:
        """Draw the sheet; returns a line about every destination."""
        places, lines = self._destinations, []
        if places.save is not None:
            lines.append(f"Wrote {self._saved} annotated {'image' if self._saved == 1 else 'images'} to {places.save}")
        if places.dicom_sr is not None:
            noun = "structured report" if self._reports == 1 else "structured reports"
            maps = "heatmap" if self._heatmaps == 1 else "heatmaps"
            beside = f", and {self._heatmaps} {maps} beside" if self._heatmaps else ""
            lines.append(f"Wrote {self._reports} {noun} to {places.dicom_sr}{beside}")
        if self._monitor is not None:
            report = self._monitor.monitor.report()
            lines += [report.sentence, report.estimated]
            lines.append(f"Next: uce-edge monitor --state {shlex.quote(str(places.monitor))} --plot evidence.svg")
        if self._audit is not None and self._audit.lines:
            lines.append(f"Logged {self._audit.lines} decisions in {places.audit}; its last line is {self._audit.last}")
        if places.sheet is not None:
            from uce_edge.output.contact_sheet import save_sheet

            save_sheet(self._on_sheet, places.sheet)
            lines.append(f"Wrote {places.sheet}")
        return lines
