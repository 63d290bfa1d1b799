"""Training log: console lines, `log.csv`, optional TensorBoard files."""

import csv
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uce_edge._util.atomic_files import replacing
from uce_edge.errors import MissingPartError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG, SECOND_LOG = "log.csv", "log-all.csv"
"""The log of a run, and of the stage that trains all layers after the tail."""
_log = logging.getLogger(__name__)
_INTERVAL = 30.0  # seconds between two console lines when no progress bar is drawn


class Journal:
    """The record of a training, one row per epoch."""

    def __init__(self, file: Path, epochs: int, events: "SummaryWriter | None") -> None:
        self._file = file
        self._epochs = epochs
        self._events = events
        self._started = self._reported = time.monotonic()
        self._first: int | None = None

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write all rows so far; the last is new."""
        with replacing(self._file) as path, path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        row = rows[-1]
        if self._events is not None:
            for tag, value in row.items():
                if tag != "epoch":
                    self._events.add_scalar(tag, float(value), int(row["epoch"]))
            self._events.flush()  # a killed training loses no epoch
        self._report(row)

    def _report(self, row: dict[str, Any]) -> None:
        """Log a line every 30 s without a progress bar."""
        now = time.monotonic()
        first = self._first = row["epoch"] if self._first is None else self._first
        if sys.stderr.isatty() or now - self._reported < _INTERVAL:
            return
        self._reported = now
        left = (now - self._started) / (row["epoch"] - first + 1) * (self._epochs - row["epoch"])
        _log.info(
            f"epoch {row['epoch']}/{self._epochs}: NLL {row['train_nll']:.3f}, held-out NLL {row['held_out_nll']:.3f}, "
            f"accuracy {row['held_out_accuracy']:.1%}; {left / 60:.0f} min left"
        )


def kept_epoch(folder: Path, *, best: bool) -> dict[str, Any]:
    """The logged epoch whose weights are kept: that of the lowest held-out NLL, or the last."""
    with (folder / LOG).open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    kept = min(rows, key=lambda row: row["held_out_nll"]) if best else rows[-1]
    return kept | {"epoch": int(kept["epoch"])}


@contextmanager
def open_journal(
    folder: Path, epochs: int, tensorboard: bool, done: int = 0, *, second: bool = False
) -> Iterator[Journal]:
    """Open the journal of a run.

    Args:
        folder: The run's folder.
        epochs: Epochs of the whole training.
        tensorboard: Also write TensorBoard's event files.
        done: Epochs in the checkpoint; TensorBoard drops later steps of a killed training.
        second: Whether this is the second stage of the training.

    Raises:
        MissingPartError: TensorBoard is requested and not installed.
    """
    file = folder / (SECOND_LOG if second else LOG)
    if not tensorboard:
        yield Journal(file, epochs, None)
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingPartError("--tensorboard", "tensorboard", "tensorboard") from None
    events_folder = folder / "all" if second else folder
    with SummaryWriter(events_folder, purge_step=done + 1 if done else None) as events:
        yield Journal(file, epochs, events)
