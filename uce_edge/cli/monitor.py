"""`uce-edge monitor`."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge._util.atomic_files import replacing, sole_writer
from uce_edge.cli.messages import describe_check, echo, say, warn
from uce_edge.cli.shared_options import InferenceOption, JsonOption, NamedModelOption, RootOption, choose_model
from uce_edge.contract import Inference
from uce_edge.errors import UceEdgeError, UsageError, expected

if TYPE_CHECKING:
    from uce_edge.monitor import Monitor


def monitor(
    log: Annotated[
        Path | None,
        typer.Argument(help="A log of `predict --audit`. Without a log, shows the state.", show_default=False),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="The file that keeps the evidence. A later run continues from it.")
    ] = None,
    model: NamedModelOption = None,
    inference: InferenceOption = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="The largest probability of ever raising a false alarm (0 to 1). Default: 0.01."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(help="Use only every Nth answer, for example for video. Default: 1, all answers.", min=1),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Read the log in random order, for an archive that may be sorted.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Usual images (a dataset, a folder or an .npz file), for a model without stored usual answers."
        ),
    ] = None,
    root: RootOption = None,
    labels: Annotated[
        Path | None, typer.Option(help="Check the promised error with these labels, a file with lines `image,label`.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the evidence over time in this .svg file.")] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 3 after an alarm, or if the promised error is exceeded.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Raise an alarm when the images no longer look like those of the calibration. No labels are needed.

    Every answer adds to the evidence that something has changed, or takes from it. If nothing has changed, the
    probability of ever raising an alarm is at most --alpha, however long the monitor runs. It is not made for every
    frame of a video, sorted folders, or changes such as day and night: see docs/monitor.md.

    Example: uce-edge monitor decisions.jsonl --state state.json --plot evidence.svg

    Example: uce-edge monitor --state state.json --alpha 0.001   (then: predict --watch incoming/ --monitor state.json)

    Example: uce-edge monitor decisions.jsonl --state state.json --labels labels.csv
    """
    _refuse(log, state, shuffle, labels, plot, model)
    file = _model_file(log, model, inference)
    shows = log is None and state is not None and state.exists()  # also while another process writes it
    with nullcontext() if state is None or shows else sole_writer(state, "--state"):
        if state is not None and state.exists():
            running = _go_on(state, file, alpha, every, reference)
            if shuffle and running.state.images:
                raise UsageError("--shuffle needs a state without images: start with another --state.")
        else:
            running = _start(file or choose_model(None), alpha, every, reference, root)
        if log is not None:
            _feed(running, log, shuffle)
        if labels is not None:
            assert log is not None
            assert file is not None
            _check(running, log, labels, file)
        if state is not None and not shows:
            running.save(state, "--state")
    if plot is not None:
        from uce_edge.monitor.evidence_plot import evidence_plot

        with replacing(plot, "--plot") as temporary:
            temporary.write_text(evidence_plot(running.state), encoding="utf-8")
        say(f"Wrote {plot}")
    report, checked = running.report(), running.state.labels
    if as_json:
        told = asdict(report) | {"sentence": report.sentence, "labels": None if checked is None else asdict(checked)}
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
    else:
        echo(report.sentence, fg=typer.colors.RED if report.alarm else None)
        if checked is not None:
            echo(describe_check(checked, running.state.alpha))
    broken = checked is not None and checked.is_broken(running.state.alpha)
    if exit_code and (report.alarm is not None or broken):
        raise typer.Exit(3)


def _refuse(
    log: Path | None, state: Path | None, shuffle: bool, labels: Path | None, plot: Path | None, model: Path | None
) -> None:
    """Wrong usage is told before anything slow happens."""
    if log is None and state is None:
        raise UsageError("Give a log (decisions.jsonl), or a state: --state state.json")
    if labels is not None and log is None:
        raise UsageError(
            "--labels needs the log of the decisions: uce-edge monitor decisions.jsonl --labels labels.csv"
        )
    if shuffle and log is None:
        raise UsageError("--shuffle needs a log: uce-edge monitor decisions.jsonl --shuffle")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(expected("`plot`", "a file name ending in .svg", str(plot), "Use: --plot evidence.svg"))
    from uce_edge.cli.predict_outputs import same_place

    kept = {"the log": log, "the labels": labels, "the model": model}
    for option, path in (("state", state), ("plot", plot)):
        for what, other in kept.items():
            if path is not None and other is not None and same_place(path, other):
                rule = f"another file than {what}, which would be overwritten"
                raise UsageError(
                    expected(f"`{option}`", rule, str(path), "Use: --state state.json --plot evidence.svg")
                )
    if state is not None and plot is not None and same_place(state, plot):
        raise UsageError(expected("`plot`", "another file than the state", str(plot), "Use: --plot evidence.svg"))


def _model_file(log: Path | None, model: Path | None, inference: Inference | None) -> Path | None:
    """The named file, or the one that the log is about; None where neither says."""
    if model is not None or inference is not None:
        return choose_model(model, inference)
    if log is None:
        return None
    from uce_edge import models
    from uce_edge.audit.model_files import ModelFiles
    from uce_edge.monitor.log_stream import lines_after

    first = next((line.document for line in lines_after(log, None) if line.document), {})
    digest, logged = str(first.get("model_sha256")), str(first.get("model", ""))
    found = ModelFiles(models.files()).find(digest, logged)
    if found is None:
        raise UsageError(f"The model of {log} was not found: {logged}. Give it with --model FILE")
    return found


def _go_on(state: Path, file: Path | None, alpha: float | None, every: int | None, reference: str | None) -> "Monitor":
    from uce_edge.audit.model_files import sha256
    from uce_edge.monitor import Monitor

    running = Monitor.load(state)
    kept = running.state
    for option, given, stored in (("alpha", alpha, kept.alpha), ("every", every, kept.every)):
        if given is not None and given != stored:
            rule = f"{stored:g}, the value that {state} was started with"
            raise UsageError(expected(f"`{option}`", rule, given, "Leave it out, or start with another --state"))
    if reference is not None:
        raise UsageError(f"{state} already has a reference. Leave --reference out, or start with another --state.")
    if file is not None and file.is_file() and sha256(file) != kept.model:
        raise UsageError(
            f"{state} belongs to another model file than {file}. Give that file, or start with another --state."
        )
    return running


def _start(file: Path, alpha: float | None, every: int | None, reference: str | None, root: Path | None) -> "Monitor":
    from uce_edge.datasets import labelled
    from uce_edge.monitor import ALPHA, Monitor
    from uce_edge.runtime.model import Model

    alpha, every = ALPHA if alpha is None else alpha, 1 if every is None else every
    loaded, usual = Model(file, "cpu", spin=False), None
    if reference is not None:  # the labels of its images do not matter
        usual = loaded.predict(labelled.load_ood(reference, loaded.metadata.image, root).images)
    return Monitor.of(loaded, alpha, usual=usual, every=every)


def _feed(running: "Monitor", log: Path, shuffle: bool) -> None:
    """Bet on what is new in a log."""
    from uce_edge.audit import hash_chain
    from uce_edge.monitor.log_stream import lines_after, scores

    new = lines_after(log, running.state.log_line)
    if shuffle:
        import numpy as np

        lines = list(new)
        last = hash_chain.digest(lines[-1].text) if lines else None
        order = np.random.default_rng(running.state.seed).permutation(len(lines))
        new = iter([lines[index] for index in order])
        running.shuffle()
    else:
        last = None
    unusable = gaps = 0
    for line in new:
        values = scores(line, running.state)
        gaps += line.seal is hash_chain.Seal.GAP
        if values is None:
            unusable += 1
        else:
            running.add_scores(values, str(line.document.get("time", "")))
        if not shuffle:
            running.read_until(hash_chain.digest(line.text))
    if last is not None:
        running.read_until(last)
    if unusable:
        say(f"Images that could not be used and are not counted: {unusable}.")
    if gaps:
        warn(f"lines of {log} are missing. To find out where, run: uce-edge replay")


def _check(running: "Monitor", log: Path, labels: Path, file: Path) -> None:
    """Test the promised error."""
    from datetime import UTC, datetime

    from uce_edge.monitor.error_test import check
    from uce_edge.monitor.log_stream import labelled
    from uce_edge.runtime.model import Model

    metadata = Model(file, "cpu", spin=False).metadata
    target = None if metadata.promise is None else metadata.promise.target_error
    if target is None:
        raise UceEdgeError(f"{file} has no promised error. To add one: uce-edge calibrate --target-error 0.05")
    found = labelled(log, labels, metadata.classes)
    if found.unknown:
        warn(f"labels ignored because {log} has no decision of --reject auto for their images: {found.unknown}.")
    if found.rejected:
        say(f"Labels ignored because their images were rejected, of which nothing is promised: {found.rejected}.")
    running.checked(check(found.wrong, target, datetime.now(UTC).isoformat(timespec="seconds")))
