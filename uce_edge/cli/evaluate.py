"""`uce-edge evaluate`."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uce_edge.cli.options import (
    DataOption,
    DeviceOption,
    InferenceOption,
    JsonOption,
    MemoryOption,
    ModelArgument,
    RootOption,
    SamplesOption,
    SeedOption,
    ThreadsOption,
    check_request,
    parse_threshold,
)
from uce_edge.cli.words import say, warn
from uce_edge.errors import UsageError, expected
from uce_edge.providers import Device, check_threads

if TYPE_CHECKING:
    import numpy.typing as npt

    from uce_edge.evaluation import Evaluation
    from uce_edge.evaluation.ood import OutOfDistribution
    from uce_edge.evaluation.shift import Pooled
    from uce_edge.metadata import ImageSpec

_PAGES = (".html", ".htm")
_GATED = ("accepted with the gate", "error")


def evaluate(
    data: DataOption,
    model: ModelArgument = None,
    inference: InferenceOption = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            help="Foreign images: a dataset's name, a folder, an .npz file, or far: noise, colours, patterns and text "
            "made on the spot; repeat it."
        ),
    ] = None,
    reject: Annotated[
        str | None,
        typer.Option(
            metavar="FLOAT|auto",
            help="A threshold on the uncertainty (0 to 1); default: the model's own (auto), or 0.3 as an example.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write everything to this .html file, with charts.")] = None,
    corrupt: Annotated[
        bool, typer.Option("--corrupt", help="Also on damaged images: six kinds, five severities.")
    ] = False,
    corrupt_images: Annotated[int, typer.Option(help="Damage at most so many images.", min=1)] = 1000,
    latency: Annotated[bool, typer.Option(help="Measure the latency against N for the report.")] = True,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a model file on labelled images: every metric with its interval, and what a threshold lets through.

    The test part of a dataset is used. Beside each metric stands its value for a perfectly calibrated twin, because
    calibration errors are not 0 even then.

    Example: uce-edge evaluate digits.onnx --data digits --reject 0.3 --report report.html

    Example: uce-edge evaluate photos.onnx --data photos/ --ood elsewhere/ --ood far --corrupt --report report.html
    """
    # Wrong usage is told before anything slow happens.
    threshold = parse_threshold(reject)
    model = check_request(model, samples, seed, inference)
    check_threads(threads)
    if report is not None:
        _check_report(report)
    from uce_edge import evaluation
    from uce_edge.datasets import far, labelled, overlap
    from uce_edge.files import replacing
    from uce_edge.model import Model
    from uce_edge.report import page, summary

    loaded = Model(model, device, threads=threads, max_memory=max_memory)
    if threshold == "auto":
        if loaded.metadata.reject is None:
            raise UsageError(f"{model} has no stored threshold. Give one: --reject 0.3")
        threshold = None
    spec = loaded.metadata.image
    own = loaded.metadata.hashes.splits
    split, part = labelled.load_test(data, spec, loaded.classes, root, own)
    say(f"Evaluating {model} on {len(split):,} images: {data}, {part}.")
    known = overlap.seen(loaded.metadata.trained_on, split.images)
    trained_on = f"About {known:,} of these images were used to train the network, which is too sure of them."
    result = evaluation.evaluate(
        loaded,
        split.images,
        split.labels,
        data=_called(data),
        part=part,
        outside={_called(name): _foreign(name, spec, root) for name in ood or ()},
        kinds={far.NAME: far.kinds()} if far.NAME in (ood or ()) else {},
        samples=samples,
        seed=seed,
        reject=threshold,
        corrupt=corrupt_images if corrupt else 0,
        timed=report is not None and latency,
        notes=[trained_on] if known else [],
    )
    if report is not None:
        with replacing(report, "--report") as temporary:
            temporary.write_text(page.render(result), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2, allow_nan=False))
    else:
        _print(result)
    for note in result.notes:
        warn(note)
    say(summary.headline(result))
    if report is not None:
        say(f"Wrote {report}")


def _check_report(report: Path) -> None:
    """Refuse a page that cannot be written, before minutes of evaluation."""
    if report.suffix.lower() not in _PAGES or report.is_dir():
        raise UsageError(expected("`report`", "a file name ending in .html", str(report), "Use: --report report.html"))
    if not report.parent.is_dir():
        remedy = f"Make the folder, or choose another: --report {report.name}"
        raise UsageError(expected("`report`", "a file in a folder that exists", str(report), remedy))
    if not os.access(report.parent, os.W_OK):
        remedy = "Choose another folder with --report"
        raise UsageError(expected("`report`", "a file in a folder you may write to", str(report), remedy))


def _foreign(name: str, spec: "ImageSpec", root: Path | None) -> "npt.NDArray[Any]":
    """The images that a word after --ood stands for."""
    from uce_edge.datasets import far, labelled

    return far.far(spec) if name == far.NAME else labelled.foreign(name, spec, root).images


def _called(source: str) -> str:
    """The name of a dataset, a file or a folder: where it lies is nobody else's business."""
    return Path(source).name or source


def _print(result: "Evaluation") -> None:
    """The tables for people; why there are dashes goes to stderr."""
    from uce_edge.report import words

    _table(
        ("metric", "value", "95 % interval", "calibrated twin", "difference"),
        [
            (
                words.METRICS[name].title,
                words.score(score.value, words.METRICS[name]),
                words.interval(score.low, score.high, words.METRICS[name]),
                words.score(score.twin, words.METRICS[name]),
                words.score(score.difference, words.METRICS[name], signed=True),
            )
            for name, score in result.metrics.items()
        ],
    )
    _table(
        ("uncertainty at most", "accepted", "error", "95 % bound", "errors let through"),
        [
            (
                f"{words.threshold(point.measured.threshold)} ({point.origin})",
                words.percent(point.measured.coverage),
                words.percent(point.measured.error),
                words.at_most(point.measured.error_bound),
                f"{point.errors:,} of {point.errors + point.rejected_errors:,}",
            )
            for point in result.rejection
        ],
    )
    reasons = {words.METRICS[name].title: score.why for name, score in result.metrics.items()}
    if result.gated is not None:
        _table(
            ("with the gate against foreign images", "own images lost", "promised", "accepted", "error"),
            [
                (
                    f"uncertainty at most {words.threshold(result.gated.threshold)}",
                    words.percent(result.gated.foreign),
                    words.at_most(result.gated.level),
                    words.percent(result.gated.coverage),
                    words.percent(result.gated.error),
                )
            ],
        )
    for outside in result.ood:
        _print_foreign(outside, result.rejection[0].measured.threshold)
        reasons |= {words.SCORES[name]: detection.auroc.why for name, detection in outside.detection.items()}
    if result.shift is not None:
        _table(
            ("damage", "accuracy", "uncertainty", "UCE", "accepted", "error", *(_GATED if result.gated else ())),
            [
                (
                    words.marked(f"{kind} {one.severity}", result.shift.seen(kind)),
                    words.percent(one.accuracy),
                    words.number(one.uncertainty),
                    words.percent(one.uce),
                    words.percent(one.coverage),
                    words.percent(one.error),
                    *((words.percent(one.gated_coverage), words.percent(one.gated_error)) if result.gated else ()),
                )
                for kind, curve in result.shift.curves.items()
                for one in curve[1:]
            ],
        )
        _print_apart(result.shift.apart, gated=result.gated is not None)
    for name, why in reasons.items():
        if why:
            say(f"{name}: {why}")


def _print_foreign(outside: "OutOfDistribution", threshold: float) -> None:
    from uce_edge.report import words

    head = (f"foreign: {outside.name}", "AUROC", "95 % interval", "FPR at 95 %", "95 % interval")
    _table(head, [words.separation(name, detection) for name, detection in outside.detection.items()])
    gated = outside.gated is not None
    _table(
        ("uncertainty at most", "foreign, accepted", *(("with the gate",) if gated else ())),
        [
            (
                words.threshold(threshold),
                words.percent(outside.accepted),
                *((words.percent(outside.gated),) if gated else ()),
            )
        ],
    )

    if outside.kinds:
        scores = ("uncertainty", *(("both",) if gated else ()))
        _table(
            (
                "kind",
                "training",
                *(f"AUROC: {words.SCORES[score]}" for score in scores),
                "accepted",
                *(("with the gate",) if gated else ()),
            ),
            [
                (
                    kind.name,
                    words.known(kind.seen),
                    *(words.percent(kind.auroc[score]) for score in scores),
                    words.percent(kind.accepted),
                    *((words.percent(kind.gated),) if gated else ()),
                )
                for kind in (*outside.kinds, *outside.apart)
            ],
        )


def _print_apart(groups: "Sequence[Pooled]", *, gated: bool) -> None:
    from uce_edge.report import words

    if groups:
        _table(
            ("damage in all severities", "accuracy", "accepted", "error", *(_GATED if gated else ())),
            [
                (
                    f"{words.known(group.seen)}: {', '.join(group.kinds)}",
                    *map(words.percent, (group.accuracy, group.coverage, group.error)),
                    *(map(words.percent, (group.gated_coverage, group.gated_error)) if gated else ()),
                )
                for group in groups
            ],
        )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need to be: names to the left, numbers to the right; an empty line ends it."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        typer.secho("  ".join([line[0].ljust(widths[0]), *cells]), bold=index == 0)
    typer.echo()
