"""Read scores and labelled decisions from a decision log."""

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
from uce_edge.contract import UNCERTAINTY
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.monitor.state import State


def lines_after(log: Path, last: str | None) -> Iterator[Line]:
    """Yield the lines of a log after the line with this hash.

    Raises:
        UceEdgeError: The log does not exist, or does not have the line.
    """
    files = hash_chain.segments(log)
    if not files:
        raise UceEdgeError(
            f"There is no log {log}. `uce-edge predict --audit {log}` writes one.", "log.missing", path=log
        )
    waiting = last is not None
    for line in hash_chain.read(files):
        if waiting:
            waiting = hash_chain.digest(line.text) != last
        else:
            yield line
    if waiting:
        raise UceEdgeError(
            f"{log} does not have the last line that the monitor has read. Give the log that it read before, or use "
            "another --state.",
            "log.another",
            path=log,
        )


def scores(line: Line, state: State) -> Mapping[str, Any] | None:
    """The scores and the decision of a line; None for an image without a prediction.

    Raises:
        UceEdgeError: The line was edited, or has another model, seed or number of passes than the reference.
    """
    document, place = line.document, f"{line.file.name}:{line.number}"
    if line.seal is Seal.EDITED:
        raise UceEdgeError(
            f"{place} was edited. See: uce-edge replay {line.file} --images FOLDER", "log.edited", place=place
        )
    if document.get("status") != "ok":
        return None
    if state.model and document.get("model_sha256") != state.model:
        raise UceEdgeError(
            f"{place} has another model file than the monitor. Use another --state, and a log of that model only.",
            "monitor.another-model",
            place=place,
        )
    if (document.get("samples"), document.get("seed")) != (state.samples, state.pass_seed):
        raise UceEdgeError(
            f"{place} has {document.get('samples')} passes and seed {document.get('seed')}, and the reference has "
            f"answers of {state.samples} and seed {state.pass_seed}. Predict without --samples, --seed and --adaptive.",
            "monitor.another-request",
            place=place,
        )
    numbers = {name: _number(document.get(name), name, place) for name in {*state.tracks, UNCERTAINTY}}
    return numbers | {name: document.get(name) for name in ("decision", "reason")}


def _number(value: Any, name: str, place: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # refuses NaN, and integers beyond float
        raise UceEdgeError(
            f"{place} has no number {name}. Predict again with the model of the reference.",
            "log.score-missing",
            place=place,
            score=name,
        )
    return float(value)


@dataclass(frozen=True)
class Labelled:
    """Logged decisions with their true labels."""

    wrong: tuple[bool, ...]
    """Whether each accepted image was wrong, in the order of the labels."""
    rejected: int
    """The number of labelled images that were rejected, which have no promise."""
    unknown: int
    """The number of labels without an image in the log."""


def labelled(log: Path, labels: Path, classes: Sequence[str]) -> Labelled:
    """Match labels with the decisions of `--reject auto` in a log.

    Args:
        log: The log.
        labels: A text file with lines `image,label`, in the order of labelling. The image is its path or name as
            logged, or its SHA-256.
        classes: The model's class names.
    """
    decisions: dict[str, tuple[str, str]] = {}
    for line in lines_after(log, None):
        document = line.document
        request, path = document.get("asked"), document.get("path")
        promised = isinstance(request, dict) and request.get("reject") == "auto"
        if line.seal is Seal.EDITED or not promised or document.get("decision") is None or not isinstance(path, str):
            continue
        decision = (str(document["decision"]), str(document.get("label")))
        for name in (path, Path(path).name, document.get("sha256")):
            if isinstance(name, str):
                decisions.setdefault(name, decision)
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
        raise UceEdgeError(
            f"Cannot read the labels {labels}: {error.strerror}. Check the name.", "labels.unreadable", path=labels
        ) from None
    except UnicodeDecodeError:
        raise UsageError(expected("`labels`", "a text file in UTF-8", str(labels), "Save it as UTF-8")) from None
    read: dict[str, str] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row or (number == 1 and row == ["image", "label"]):
            continue
        if len(row) != 2 or row[1].strip() not in classes:
            rule = f"image,label with one of the labels {', '.join(classes)}"
            raise UsageError(
                expected(f"line {number} of {labels}", rule, ",".join(row), "Correct the line"),
                "labels.row",
                path=labels,
                row=number,
            )
        read.setdefault(row[0].strip(), row[1].strip())  # an image counts once
    return list(read.items())
