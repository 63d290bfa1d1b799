"""`uce-edge evaluate`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.messages import say, show_log, table, warn
from uce_edge.cli.shared_options import (
    DataOption,
    DeviceOption,
    InferenceOption,
    JsonOption,
    MemoryOption,
    ModelArgument,
    NoVerifyOption,
    OodOption,
    RootOption,
    SamplesOption,
    SeedOption,
    TestGroupOption,
    ThreadsOption,
    check_request,
    parse_threshold,
)
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import check_threads

if TYPE_CHECKING:
    from uce_edge.evaluation import Evaluation
    from uce_edge.evaluation.class_results import Classes
    from uce_edge.evaluation.ood import OutOfDistribution
    from uce_edge.evaluation.shift import Pooled

_GATED = ("accepted with the gate", "error")
_NAME = 10  # characters of a class above a column of the confusion matrix


def evaluate(
    data: DataOption,
    model: ModelArgument = None,
    group: TestGroupOption = None,
    inference: InferenceOption = None,
    ood: OodOption = None,
    reject: Annotated[
        str | None,
        typer.Option(
            metavar="FLOAT|auto",
            help="Measure the errors among images whose uncertainty is at most this (0 to 1). Default: auto, the "
            "model's own threshold, or 0.3 if it has none.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write all results to this .html file, with charts.")] = None,
    corrupt: Annotated[
        bool, typer.Option("--corrupt", help="Also measure on damaged images: six kinds of damage, five severities.")
    ] = False,
    corrupt_images: Annotated[
        int, typer.Option(help="The largest number of images that --corrupt uses.", min=1)
    ] = 1000,
    latency: Annotated[
        bool, typer.Option(help="For --report: measure how the latency grows with the number of passes N.")
    ] = True,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    root: RootOption = None,
    no_verify: NoVerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a model file on labelled images: all metrics with intervals, and the errors that a threshold accepts.

    The test part of a dataset is used. Each metric is shown beside its value for a perfectly calibrated twin: the same
    answers, with labels drawn from the model's own probabilities. Even the twin's calibration errors are not 0. A test
    reports whether the model is overconfident, underconfident or consistent with calibration.

    Example: uce-edge evaluate digits.onnx --data digits --reject 0.3 --report report.html

    Example: uce-edge evaluate photos.onnx --data photos/ --ood elsewhere/ --ood far --corrupt --report report.html
    """
    show_log()
    threshold = parse_threshold(reject)
    model = check_request(model, samples, seed, inference)
    check_threads(threads)
    from uce_edge._util.atomic_files import replacing
    from uce_edge.evaluation.evaluation_data import EvaluationData
    from uce_edge.output.destinations import check_report
    from uce_edge.output.report import page, summary
    from uce_edge.runtime.model import Model

    if report is not None:
        check_report(report, [model])
    loaded = Model(model, device, threads=threads, max_memory=max_memory, verify=not no_verify)
    if threshold == "auto":
        loaded.reject_rule("auto")
        threshold = None
    test = EvaluationData.load(data, loaded.metadata, ood=ood or (), root=root, group=group)
    say(f"Evaluating {model} on {len(test.split):,} images: {data}, {test.part}.")
    result = test.evaluate(
        loaded,
        names=test.names,
        samples=samples,
        seed=seed,
        reject=threshold,
        corrupt=corrupt_images if corrupt else 0,
        timed=report is not None and latency,
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
    say(f"By uncertainty it is {summary.calibration(result.reliability['uncertainty'].test)}.")
    if report is not None:
        say(f"Wrote {report}")


def _print(result: "Evaluation") -> None:
    """Print the tables; the reasons for dashes go to stderr."""
    from uce_edge.output import wording

    table(
        ("metric", "value", "95 % interval", "calibrated twin", "difference"),
        [
            (
                wording.METRICS[name].title,
                wording.score(score.value, wording.METRICS[name]),
                wording.interval(score.low, score.high, wording.METRICS[name]),
                wording.score(score.twin, wording.METRICS[name]),
                wording.score(score.difference, wording.METRICS[name], signed=True),
            )
            for name, score in result.metrics.items()
        ],
    )
    table(
        ("uncertainty at most", "accepted", "error", "95 % bound", "errors accepted"),
        [
            (
                f"{wording.threshold(point.measured.threshold)} ({point.origin})",
                wording.percent(point.measured.coverage),
                wording.percent(point.measured.error),
                wording.at_most(point.measured.error_bound),
                f"{point.errors:,} of {point.errors + point.rejected_errors:,}",
            )
            for point in result.rejection
        ],
    )
    if result.kept_classes:
        table(wording.LIMITS, wording.limits(result.kept_classes))
    if result.sets is not None:
        table(wording.SETS, wording.sets(result.sets, [one.name for one in result.classes.shown]))
        say(
            "A set contains the true label with the promised probability over all images like those that fitted it. "
            "Nothing is promised for sets of one size."
        )
    _print_classes(result.classes)
    reasons = {wording.METRICS[name].title: score.why for name, score in result.metrics.items()}
    if result.gated is not None:
        table(
            ("with the gate on novelty", "own images rejected", "promised", "accepted", "error"),
            [
                (
                    result.gated.accepts,
                    wording.percent(result.gated.own_rejected),
                    wording.at_most(result.gated.level),
                    wording.percent(result.gated.coverage),
                    wording.percent(result.gated.error),
                )
            ],
        )
    for ood in result.ood:
        _print_ood(ood, result.rejection[0].measured.threshold)
        reasons |= {wording.SCORES[name]: detection.auroc.why for name, detection in ood.detection.items()}
    if result.shift is not None:
        table(
            ("damage", "accuracy", "uncertainty", "UCE", "accepted", "error", *(_GATED if result.gated else ())),
            [
                (
                    wording.marked(f"{kind} {one.severity}", result.shift.seen(kind)),
                    wording.percent(one.accuracy),
                    wording.number(one.uncertainty),
                    wording.percent(one.uce),
                    wording.percent(one.coverage),
                    wording.percent(one.error),
                    *((wording.percent(one.gated_coverage), wording.percent(one.gated_error)) if result.gated else ()),
                )
                for kind, curve in result.shift.curves.items()
                for one in curve[1:]
            ],
        )
        _print_apart(result.shift.apart, gated=result.gated is not None)
    for name, why in reasons.items():
        if why:
            say(f"{name}: {why}")


def _print_classes(classes: "Classes") -> None:
    from uce_edge.output import wording

    shown = classes.shown
    few = "" if len(shown) == len(classes.rates) else f", the {len(shown)} weakest of {len(classes.rates)}"
    table(
        (f"class{few}", "images", *(f"{title}, %" for title in wording.RATE_TITLES)),
        [
            (one.name, f"{one.images:,}", *(wording.proportion(getattr(one, rate)) for rate in wording.RATES))
            for one in shown
        ],
    )
    say(f"Intervals in the table of classes: {classes.interval}.")
    if classes.confusion is not None:
        names = [one.name for one in classes.rates]
        table(
            ("true class, by label", *(name if len(name) <= _NAME else f"{name[: _NAME - 1]}…" for name in names)),
            [
                (name, *(f"{count:,}" if count else "." for count in counts))
                for name, counts in zip(names, classes.confusion.tolist(), strict=True)
            ],
        )
    elif classes.confused:
        table(
            ("most confused: true class", "label", "images", "of the true class"),
            [(one.truth, one.label, f"{one.count:,}", wording.percent(one.share)) for one in classes.confused],
        )


def _print_ood(ood: "OutOfDistribution", threshold: float) -> None:
    from uce_edge.output import wording

    head = (f"out of distribution: {ood.name}", "AUROC", "95 % interval", "FPR at 95 %", "95 % interval")
    table(head, [wording.separation(name, detection) for name, detection in ood.detection.items()])
    gated = ood.gated is not None
    table(
        ("uncertainty at most", "out of distribution, accepted", *(("with the gate",) if gated else ())),
        [
            (
                wording.threshold(threshold),
                wording.percent(ood.accepted),
                *((wording.percent(ood.gated),) if gated else ()),
            )
        ],
    )

    if ood.kinds:
        scores = ("uncertainty", *(("both",) if gated else ()))
        table(
            (
                "kind",
                "training",
                *(f"AUROC: {wording.SCORES[score]}" for score in scores),
                "accepted",
                *(("with the gate",) if gated else ()),
            ),
            [
                (
                    kind.name,
                    wording.known(kind.seen),
                    *(wording.percent(kind.auroc[score]) for score in scores),
                    wording.percent(kind.accepted),
                    *((wording.percent(kind.gated),) if gated else ()),
                )
                for kind in (*ood.kinds, *ood.apart)
            ],
        )


def _print_apart(groups: "Sequence[Pooled]", *, gated: bool) -> None:
    from uce_edge.output import wording

    if groups:
        table(
            ("damage in all severities", "accuracy", "accepted", "error", *(_GATED if gated else ())),
            [
                (
                    f"{wording.known(group.seen)}: {', '.join(group.kinds)}",
                    *map(wording.percent, (group.accuracy, group.coverage, group.error)),
                    *(map(wording.percent, (group.gated_coverage, group.gated_error)) if gated else ()),
                )
                for group in groups
            ],
        )
