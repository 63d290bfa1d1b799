"""Replay logged decisions, and report those that differ."""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from uce_edge import contract
from uce_edge.audit import hash_chain
from uce_edge.audit.decision_log import REPLAYED
from uce_edge.audit.hash_chain import Line, Seal
from uce_edge.audit.model_files import ModelFiles, sha256
from uce_edge.errors import UceEdgeError, UceEdgeWarning, UsageError, argument, expected
from uce_edge.images import medical
from uce_edge.rejection.rule import Reason
from uce_edge.runtime.answers import CHUNK, FIELDS, each_answer
from uce_edge.runtime.model import Model
from uce_edge.runtime.request import Request

TOLERANCE = 1e-4
"""The tolerance for numbers, because processors round differently."""

_CLOSE = ("confidence", *contract.NUMBERS)
_EXACT = ("status", *(name for name in FIELDS if name not in (*_CLOSE, "top")))
_RENAMED = {"foreign": Reason.OUT_OF_DISTRIBUTION}
"""Reasons as older versions logged them."""


class Outcome(StrEnum):
    """The result of replaying a logged decision."""

    SAME = "same"
    """The replay gives the same decision."""
    DIFFERS = "differs"
    """The replay gives another decision."""
    MISSING = "missing"
    """The image is missing, or lines of the log before this one are."""
    EDITED = "edited"
    """The line was changed after it was written."""
    UNCHECKED = "unchecked"
    """It cannot be replayed: the image was unreadable when logged, or the model is missing."""


@dataclass(frozen=True)
class Finding:
    """The result for one line."""

    outcome: Outcome
    file: str
    line: int
    """Of the line in its file, from 1."""
    path: str | None
    """The logged name of the image."""
    why: str = ""
    """The problem, in words."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "outcome": self.outcome.value,
            "file": self.file,
            "line": self.line,
            "path": self.path,
            "why": self.why or None,
        }


def replay(log: Path, images: Path, models: ModelFiles, tolerance: float = TOLERANCE) -> Iterator[Finding]:
    """Replay every line of a log.

    Its numbered files come first.

    Args:
        log: The file that `--audit` named.
        images: A folder with the images, under any names: they are found by their hashes.
        models: The model files.
        tolerance: The tolerance for numbers, relative above 1.
    """
    if not 0 <= tolerance < 1:
        raise UsageError(
            expected("`tolerance`", "between 0 and 1", tolerance, f"For example: {argument('tolerance', 1e-4)}")
        )
    files = hash_chain.segments(log)
    if not files:
        raise UceEdgeError(f"There is no log {log}. `uce-edge predict --audit {log}` writes one.", "log.missing")
    loaded = _Models(models)
    by_hash, names = _index(images, files)
    every = hash_chain.read(files)
    first = next(every, None)
    if first is None:
        raise UceEdgeError(
            f"The log {log} is empty, so it has no decision to compute again. Restore it from a copy.", "log.empty"
        )
    every = itertools.chain([first], every)
    while lines := list(itertools.islice(every, CHUNK)):
        findings: dict[int, Finding] = {}
        jobs: dict[tuple[str, Request], list[tuple[int, Line, Path]]] = {}
        for place, line in enumerate(lines):
            found = _cannot(line, loaded, by_hash, names)
            if isinstance(found, Finding):
                findings[place] = found
                continue
            try:
                key = (line.document["model_sha256"], _request(line.document))
            except UsageError as error:
                findings[place] = _impossible(line, error)
            else:
                jobs.setdefault(key, []).append((place, line, found))
        for (digest, request), job in jobs.items():
            findings |= _computed(loaded.get(digest, ""), request, job, tolerance)
        yield from (findings[place] for place in sorted(findings))


class _Models:
    """Models by file digest, loaded on first use."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._loaded: dict[str, Model] = {}

    def get(self, digest: str, logged: str) -> Model | None:
        path = self._files.find(digest, logged)
        if path is not None and digest not in self._loaded:
            model = Model(path, "cpu")
            if model.sha256 == digest:  # not replaced since
                self._loaded[digest] = model
        return self._loaded.get(digest)


def _index(folder: Path, but: Iterable[Path]) -> tuple[dict[str, Path], set[str]]:
    """The files of a folder by digest, and their names."""
    if not folder.is_dir():
        raise UsageError(expected("`images`", "a folder", str(folder), f"Use: {argument('images', 'incoming/')}"))
    skipped = {path.resolve() for path in but}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.resolve() not in skipped]
    by_hash = {}
    for path in files:
        with suppress(OSError):  # unreadable files are missing
            by_hash[sha256(path)] = path
    return by_hash, {path.name for path in files}


def _cannot(line: Line, models: _Models, by_hash: Mapping[str, Path], names: set[str]) -> Finding | Path:
    """The image of a line, or why there is none."""
    document = line.document
    path = _path(document)
    place = (line.file.name, line.number, path)
    if line.seal is Seal.EDITED:
        return Finding(Outcome.EDITED, *place, "the line was changed after it was written")
    if line.seal is Seal.GAP:
        count = f"{line.absent} {'line' if line.absent == 1 else 'lines'}" if line.absent else "lines"
        return Finding(
            Outcome.MISSING, *place, f"{count} before it {'is' if line.absent == 1 else 'are'} missing from the log"
        )
    digest, logged = document.get("model_sha256"), str(document.get("model", ""))
    if not isinstance(digest, str) or models.get(digest, logged) is None:
        return Finding(Outcome.UNCHECKED, *place, f"its model file was not found: {logged}. Name it with --model")
    if document.get("sha256") is None:
        return Finding(Outcome.UNCHECKED, *place, "its image could not be read when it was logged")
    found = by_hash.get(str(document["sha256"]))
    if found is None:
        changed = path is not None and bool({Path(path).name, Path(path.rpartition("#")[0]).name} & names)
        return Finding(
            Outcome.MISSING, *place, "the image of that name has another content" if changed else "no such image"
        )
    part = _part(document)
    return found if part is None else Path(f"{found}#{part}")


def _path(document: dict[str, Any]) -> str | None:
    """The name of the image, or None."""
    path = document.get("path")
    return path if isinstance(path, str) else None


def _part(document: dict[str, Any]) -> str | None:
    """The frame or slice of the image.

    Older logs have it in the name alone.
    """
    part = document["part"] if "part" in document else (_path(document) or "").rpartition("#")[2]
    return part if isinstance(part, str) and medical.is_part(part) else None


def _request(document: dict[str, Any]) -> Request:
    """The logged request.

    Older logs imply it by the outcome.
    """
    logged = document.get("asked")
    if not isinstance(logged, dict):
        reject = document.get("threshold") if document.get("cutoff") is None else "auto"
        logged = {"samples": document.get("samples"), "seed": document.get("seed") or 0, "reject": reject}
    values: dict[str, Any] = {
        name: logged[name] for name in REPLAYED if isinstance(logged.get(name), int | float | str)
    }
    return Request(**values)


def _computed(
    model: Model | None, request: Request, job: list[tuple[int, Line, Path]], tolerance: float
) -> dict[int, Finding]:
    """Predict again for one request, and compare."""
    assert model is not None
    paths = [path for _, _, path in job]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UceEdgeWarning)  # about passes and promises: shown when it was logged
            answers = list(each_answer(model, paths, model.plan(request)))
    except UceEdgeError as error:
        return {place: _impossible(line, error) for place, line, _ in job}
    findings = {}
    for (place, line, _), answer in zip(job, answers, strict=True):
        document = line.document
        wrong = _differences(document, answer.as_dict(), tolerance)
        outcome = Outcome.DIFFERS if wrong else Outcome.SAME
        findings[place] = Finding(outcome, line.file.name, line.number, _path(document), ", ".join(wrong))
    return findings


def _impossible(line: Line, error: UceEdgeError) -> Finding:
    why = f"the logged request is impossible: {error}"
    return Finding(Outcome.EDITED, line.file.name, line.number, _path(line.document), why)


def _differences(logged: dict[str, Any], now: dict[str, Any], tolerance: float) -> list[str]:
    """The values that differ, logged and now."""
    logged = logged | {"reason": _RENAMED.get(str(logged.get("reason")), logged.get("reason"))}
    names = [name for name in _EXACT if logged.get(name) != now[name]]
    names += [name for name in _CLOSE if not _is_close(logged.get(name), now[name], tolerance)]
    return [f"{name}: {logged.get(name)!r} logged, {now[name]!r} now" for name in names]


def _is_close(one: object, other: object, tolerance: float) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        with suppress(OverflowError):  # an integer that no float holds
            return abs(one - other) <= tolerance * max(1, abs(one))
    return one == other
