"""A monitor over a log of decisions: start, resume, read, check labels."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from uce_edge import models
from uce_edge.audit import hash_chain
from uce_edge.audit.model_files import ModelFiles, sha256
from uce_edge.datasets import labelled
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.monitor import log_stream
from uce_edge.monitor.error_test import check
from uce_edge.monitor.log_stream import Labelled, lines_after, scores
from uce_edge.monitor.monitor import ALPHA, Monitor
from uce_edge.monitor.state import WINDOW
from uce_edge.runtime.model import Model


@dataclass(frozen=True)
class Read:
    """What a monitor could not use of a log."""

    unusable: int
    """Images without a prediction."""
    gaps: int
    """Places where lines are missing."""


def model_of(log: Path) -> Path:
    """Find the model file of a log: as logged, or a bundled one."""
    first = next((line.document for line in lines_after(log, None) if line.document), {})
    digest, name = str(first.get("model_sha256")), str(first.get("model", ""))
    path = ModelFiles(models.files()).find(digest, name)
    if path is None:
        message = f"The model of {log} was not found: {name}. Give it with --model FILE"
        raise UsageError(message, "model.missing", path=name)
    return path


def resume(
    state: Path,
    model: Path | None = None,
    alpha: float | None = None,
    every: int | None = None,
    window: int | None = None,
) -> Monitor:
    """Continue from a state file, which must have been started with the same options.

    Args:
        state: The state file.
        model: The model file; None to accept any.
        alpha: The expected alpha; None to accept any.
        every: The expected interval; None to accept any.
        window: The expected size of the window; None to accept any.
    """
    monitor = Monitor.load(state)
    stored = monitor.state
    size = "left out" if stored.window is None else stored.window.size
    given = (("alpha", alpha, stored.alpha), ("every", every, stored.every), ("window", window, size))
    for option, value, before in given:
        if value is not None and value != before:
            rule = f"{before}, the value that {state} was started with"
            raise UsageError(expected(f"`{option}`", rule, value, "Leave it out, or start with another --state"))
    if model is not None and model.is_file() and sha256(model) != stored.model:
        raise UsageError(
            f"{state} belongs to another model file than {model}. Give that file, or start with another --state.",
            "monitor.another-model",
            path=state,
        )
    return monitor


def start(
    model: Path,
    alpha: float | None = None,
    every: int | None = None,
    reference: str | None = None,
    root: Path | None = None,
    window: int | None = None,
) -> Monitor:
    """Start a monitor of a model file.

    Args:
        model: The model file.
        alpha: The largest probability of a false alarm; None for the default.
        every: Use only every Nth answer; None for all.
        reference: Reference images (a dataset, a folder or an .npz file); None for the stored reference.
        root: The folder of the public datasets.
        window: The last answers that the accuracy is estimated for; None for the default.
    """
    loaded, answers = Model(model, "cpu", spin=False), None
    if reference is not None:
        answers = loaded.predict(labelled.load_ood(reference, loaded.metadata.image, root).images)
    monitor = Monitor.of(
        loaded,
        ALPHA if alpha is None else alpha,
        usual=answers,
        every=1 if every is None else every,
        window=WINDOW if window is None else window,
    )
    if window is not None and monitor.state.window is None:
        rule = f"left out for {model}, which cannot estimate its accuracy"
        remedy = "To add the counts, run: uce-edge calibrate MODEL.onnx --data labelled/ --monitor"
        raise UsageError(expected("`window`", rule, window, remedy))
    return monitor


def read_log(monitor: Monitor, log: Path, *, shuffle: bool = False) -> Read:
    """Add the new lines of a log to the evidence.

    Args:
        monitor: The monitor.
        log: The log, with its numbered files.
        shuffle: Read in random order, which needs a monitor without images.
    """
    if shuffle and monitor.state.images:
        raise UsageError("--shuffle needs a state without images: start with another --state.", "monitor.not-new")
    lines, last = lines_after(log, monitor.state.log_line), None
    if shuffle:
        known = list(lines)
        last = hash_chain.digest(known[-1].text) if known else None
        order = np.random.default_rng(monitor.state.seed).permutation(len(known))
        lines = iter([known[index] for index in order])
        monitor.shuffle()
    unusable, gaps, state = 0, 0, monitor.state  # scores take what never changes in it
    for line in lines:
        values = scores(line, state)
        gaps += line.seal is hash_chain.Seal.GAP
        if values is None:
            unusable += 1
        else:
            monitor.add_scores(values, str(line.document.get("time", "")))
        if not shuffle:
            monitor.read_until(hash_chain.digest(line.text))
    if last is not None:
        monitor.read_until(last)
    return Read(unusable, gaps)


def check_labels(monitor: Monitor, log: Path, labels: Path, model: Path) -> Labelled:
    """Test the promised error of a model with labels of logged images."""
    metadata = Model(model, "cpu", spin=False).metadata
    target = None if metadata.promise is None else metadata.promise.target_error
    if target is None:
        message = f"{model} has no promised error. To add one: uce-edge calibrate --target-error 0.05"
        raise UceEdgeError(message, "promise.missing", path=model)
    matched = log_stream.labelled(log, labels, metadata.classes)
    monitor.checked(check(matched.wrong, target, datetime.now(UTC).isoformat(timespec="seconds")))
    return matched
