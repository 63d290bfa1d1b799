"""What is told of a training while it runs: a line per epoch, `log.csv`, and TensorBoard's files on request."""

import csv
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uce_edge._util.atomic_files import replacing
from uce_edge_train.loop.event_log import EventLog

LOG = "log.csv"
_log = logging.getLogger(__name__)
_QUIET = 30.0  # seconds between two lines, where no bar is drawn


class Journal:
    """The record of a training, one row per epoch."""

    def __init__(self, folder: Path, epochs: int, events: EventLog | None) -> None:
        self._folder = folder
        self._epochs = epochs
        self._events = events
        self._started = self._said = time.monotonic()
        self._first: int | None = None

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write all rows so far; the last is new."""
        with replacing(self._folder / LOG) as path, path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        row = rows[-1]
        if self._events is not None:
            for tag, value in row.items():
                if tag != "epoch":
                    self._events.scalar(tag, float(value), int(row["epoch"]))
        self._say(row)

    def _say(self, row: dict[str, Any]) -> None:
        """In a terminal the bar tells enough; in a log file a line every half minute does."""
        now = time.monotonic()
        first = self._first = row["epoch"] if self._first is None else self._first
        if sys.stderr.isatty() or now - self._said < _QUIET:
            return
        self._said = now
        left = (now - self._started) / (row["epoch"] - first + 1) * (self._epochs - row["epoch"])
        _log.info(
            f"epoch {row['epoch']}/{self._epochs}: NLL {row['train_nll']:.3f}, held-out NLL {row['held_out_nll']:.3f}, "
            f"accuracy {row['held_out_accuracy']:.1%}; {left / 60:.0f} min left"
        )


@contextmanager
def open_journal(folder: Path, epochs: int, tensorboard: bool) -> Iterator[Journal]:
    """A journal in a run's folder."""
    if not tensorboard:
        yield Journal(folder, epochs, None)
        return
    with EventLog(folder) as events:
        yield Journal(folder, epochs, events)
