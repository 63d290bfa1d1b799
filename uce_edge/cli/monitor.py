"""`uce-edge monitor`."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge._util.atomic_files import replacing, sole_writer
from uce_edge.cli.messages import echo, say, warn
from uce_edge.cli.shared_options import InferenceOption, JsonOption, NamedModelOption, RootOption, choose_model
from uce_edge.errors import UsageError, expected
from uce_edge.monitor.state import LARGEST_WINDOW

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
    window: Annotated[
        int | None,
        typer.Option(help="Estimate the accuracy for so many last answers. Default: 1000.", min=1, max=LARGEST_WINDOW),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Read the log in random order, for an archive that may be sorted.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Reference images (a dataset, a folder or an .npz file), for a model without a stored reference."
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

    It also estimates, for the last --window answers, how many labels are right, how many accepted ones are wrong, and
    how many prediction sets contain the true label, each with a 95 % interval. The estimate compares with held-out
    images of equal uncertainty. After an alarm, or when the gate rejects more images than it should, the estimate must
    not be believed, and the report says so.

    Example: uce-edge monitor decisions.jsonl --state state.json --plot evidence.svg

    Example: uce-edge monitor --state state.json --alpha 0.001   (then: predict --watch incoming/ --monitor state.json)

    Example: uce-edge monitor decisions.jsonl --state state.json --labels labels.csv
    """
    _check_options(log, state, shuffle, labels, plot, model)
    from uce_edge.monitor import log_monitor

    file = choose_model(model, inference) if model is not None or inference is not None else None
    if file is None and log is not None:
        file = log_monitor.model_of(log)
    shows = log is None and state is not None and state.exists()  # also while another process writes it
    with nullcontext(state) if state is None or shows else sole_writer(state, "--state") as place:
        if state is not None and state.exists():
            if reference is not None:
                message = f"{state} already has a reference. Leave --reference out, or start with another --state."
                raise UsageError(message, "monitor.not-new")
            running = log_monitor.resume(state, file, alpha, every, window)
        else:
            running = log_monitor.start(file or choose_model(None), alpha, every, reference, root, window)
        if log is not None:
            _update(running, log, shuffle, labels, file)
        if place is not None and not shows:
            running.save(place, "--state")
    if plot is not None:
        from uce_edge.monitor.evidence_plot import evidence_plot

        with replacing(plot, "--plot") as temporary:
            temporary.write_text(evidence_plot(running.state), encoding="utf-8")
        say(f"Wrote {plot}")
    report, checked = running.report(), running.state.labels
    _print(running, as_json=as_json)
    broken = checked is not None and checked.is_broken(running.state.alpha)
    if exit_code and (report.alarm is not None or broken):
        raise typer.Exit(3)


def _check_options(
    log: Path | None, state: Path | None, shuffle: bool, labels: Path | None, plot: Path | None, model: Path | None
) -> None:
    """Raise an error for options that contradict each other."""
    if log is None and state is None:
        raise UsageError("Give a log (decisions.jsonl), or a state: --state state.json", "monitor.no-log")
    if labels is not None and log is None:
        raise UsageError(
            "--labels needs the log of the decisions: uce-edge monitor decisions.jsonl --labels labels.csv",
            "monitor.no-log",
        )
    if shuffle and log is None:
        raise UsageError("--shuffle needs a log: uce-edge monitor decisions.jsonl --shuffle", "monitor.no-log")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(expected("`plot`", "a file name ending in .svg", str(plot), "Use: --plot evidence.svg"))
    from uce_edge.output.destinations import same_place

    inputs = {"the log": log, "the labels": labels, "the model": model}
    for option, path in (("state", state), ("plot", plot)):
        for what, other in inputs.items():
            if path is not None and other is not None and same_place(path, other):
                rule = f"another file than {what}, which would be overwritten"
                raise UsageError(
                    expected(f"`{option}`", rule, str(path), "Use: --state state.json --plot evidence.svg")
                )
    if state is not None and plot is not None and same_place(state, plot):
        raise UsageError(expected("`plot`", "another file than the state", str(plot), "Use: --plot evidence.svg"))


def _update(running: "Monitor", log: Path, shuffle: bool, labels: Path | None, file: Path | None) -> None:
    """Read the log, and check the labels."""
    from uce_edge.monitor import log_monitor

    read = log_monitor.read_log(running, log, shuffle=shuffle)
    if read.unusable:
        say(f"Images that could not be used and are not counted: {read.unusable}.")
    if read.gaps:
        warn(f"lines of {log} are missing. To find out where, run: uce-edge replay")
    if labels is not None:
        assert file is not None
        matched = log_monitor.check_labels(running, log, labels, file)
        if matched.unknown:
            warn(f"{log} has no decision of --reject auto for {matched.unknown} labelled images: ignored.")
        if matched.rejected:
            say(f"Labels ignored because their images were rejected, without a promise: {matched.rejected}.")


def _print(running: "Monitor", *, as_json: bool) -> None:
    from uce_edge.output.model_summary import describe_check

    report, checked = running.report(), running.state.labels
    if as_json:
        document = asdict(report)
        document |= {
            "sentence": report.sentence,
            "estimate_sentence": report.estimated,
            "labels": None if checked is None else asdict(checked),
        }
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        echo(report.sentence, fg=typer.colors.RED if report.alarm else None)
        echo(report.estimated, fg=typer.colors.RED if report.estimate is not None and report.estimate.doubts else None)
        if checked is not None:
            echo(describe_check(checked, running.state.alpha))
