"""From a log of decisions to what the monitor bets on, and to what labels say of a promised error."""

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uce_edge._util.atomic_files import read_regular
from uce_edge.audit import hash_chain
from uce_edge.audit.hash_chain import Line, Seal
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.monitor.state import State


def lines_after(log: Path, last: str | None) -> Iterator[Line]:
    """The lines of a log, its numbered files first, that come after the one with this hash; all of them for None.

    Raises:
        UceEdgeError: There is no log, or the line is not in it.
    """
    files = hash_chain.segments(log)
    if not files:
        raise UceEdgeError(f"There is no log {log}. `uce-edge predict --audit {log}` writes one.")
    waiting = last is not None
    for line in hash_chain.read(files):
        if waiting:
            waiting = hash_chain.digest(line.text) != last
        else:
            yield line
    if waiting:
        raise UceEdgeError(
            f"{log} does not have the line up to which the monitor has read. Name the log that it read before, or "
            "start anew with another --state."
        )


def scores(line: Line, state: State) -> Mapping[str, float | None] | None:
    """The scores of a line; None for an image that could not be used.

    Raises:
        UceEdgeError: It is not about the model, the passes or the seed of the reference, or was edited.
    """
    document, place = line.document, f"{line.file.name}:{line.number}"
    if line.seal is Seal.EDITED:
        raise UceEdgeError(f"{place} was edited. See: uce-edge replay {line.file} --images FOLDER")
    if document.get("status") != "ok":
        return None
    if state.model and document.get("model_sha256") != state.model:
        raise UceEdgeError(
            f"{place} belongs to another model file than the monitor's. Start with another --state and a log of it."
        )
    if (document.get("samples"), document.get("seed")) != (state.samples, state.pass_seed):
        raise UceEdgeError(
            f"{place} has {document.get('samples')} passes and seed {document.get('seed')}, and the reference has "
            f"answers of {state.samples} and seed {state.pass_seed}. Predict without --samples, --seed and --adaptive."
        )
    return {name: _number(document.get(name), name, place) for name in state.tracks}


def _number(value: Any, name: str, place: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # nor NaN, nor an integer that no float holds
        raise UceEdgeError(f"{place} has no number {name}. Predict again with the model of the reference.")
    return float(value)


@dataclass(frozen=True)
class Labelled:
    """What labels say of logged decisions."""

    wrong: tuple[bool, ...]
    """Of the accepted images, in the order of the labels."""
    rejected: int
    """Labelled images that were rejected: nothing is promised of them."""
    unknown: int
    """Labels of images that are not in the log."""


def labelled(log: Path, labels: Path, classes: Sequence[str]) -> Labelled:
    """Match labels with the decisions of a log that `--reject auto` made.

    Args:
        log: The log.
        labels: A text file with a line `image,label` for each: its path or name as logged, or its SHA-256. Later labels
            come at its end.
        classes: The model's class names.
    """
    decisions: dict[str, tuple[str, str]] = {}
    for line in lines_after(log, None):
        document = line.document
        asked, path = document.get("asked"), document.get("path")
        promised = isinstance(asked, dict) and asked.get("reject") == "auto"
        if line.seal is Seal.EDITED or not promised or document.get("decision") is None or not isinstance(path, str):
            continue
        told = (str(document["decision"]), str(document.get("label")))
        for name in (path, Path(path).name, document.get("sha256")):
            if isinstance(name, str):
                decisions.setdefault(name, told)
    wrong, rejected, unknown = [], 0, 0
    for name, label in _read(labels, classes):
        if name not in decisions:
            unknown += 1
        elif decisions[name][0] == "accept":
            wrong.append(decisions[name][1] != label)
        else:
            rejected += 1
    return Labelled(tuple(wrong), rejected, unknown)


def _read(labels: Path, classes: Sequence[str]) -> list[tuple[str, str]]:
    try:
        text = read_regular(labels).decode("utf-8-sig")
    except OSError as error:
        raise UceEdgeError(f"Cannot read the labels {labels}: {error.strerror}. Check the name.") from None
    except UnicodeDecodeError:
        raise UsageError(expected("`labels`", "a text file in UTF-8", str(labels), "Save it as UTF-8")) from None
    read: dict[str, str] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row or (number == 1 and row == ["image", "label"]):
            continue
        if len(row) != 2 or row[1].strip() not in classes:
            rule = f"image,label with one of the labels {', '.join(classes)}"
            raise UsageError(expected(f"line {number} of {labels}", rule, ",".join(row), "Correct the line"))
        read.setdefault(row[0].strip(), row[1].strip())  # an image counts once
    return list(read.items())
