"""`uce-edge predict`."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli import answer_text
from uce_edge.cli.answer_writer import Form, Printer
from uce_edge.cli.messages import alarm, detail, fail, say, warn
from uce_edge.cli.shared_options import (
    DeviceOption,
    InferenceOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    NoVerifyOption,
    RejectOption,
    SamplesOption,
    SeedOption,
    ThreadsOption,
    choose_model,
    parse_threshold,
)
from uce_edge.errors import UsageError, expected
from uce_edge.output.destinations import Destinations
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import check_threads

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer

_PICTURES = "Pictures and logs"


class Sort(StrEnum):
    """The order of the answers."""

    GIVEN = "given"
    """The order of the arguments."""
    UNCERTAINTY = "uncertainty"
    """The most uncertain first, unreadable images last."""


def predict(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Image files, folders of images, quoted patterns such as 'photos/**/*.png', or - for stdin.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    reject: RejectOption = None,
    inference: InferenceOption = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    adaptive: Annotated[
        float | None,
        typer.Option(
            help="Save passes: stop as soon as the outcome of an image is clear. The value (0 to 1, such as 0.1) is "
            "the largest probability that all passes would reject or label the image differently."
        ),
    ] = None,
    sort: Annotated[Sort, typer.Option(help="The order of the answers.")] = Sort.GIVEN,
    top: Annotated[int, typer.Option(help="The number of likeliest classes to list per image.", min=1)] = 3,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    no_verify: NoVerifyOption = False,
    as_json: JsonOption = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object per line, as soon as an image is done.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, one row per image.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 if an image was rejected.")] = False,
    watch: Annotated[
        Path | None,
        typer.Option(
            help="Classify the images of this folder as they arrive, until Ctrl-C.", rich_help_panel=_PICTURES
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write a copy of every image with its answer drawn on it to this folder.", rich_help_panel=_PICTURES
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            help="Draw the accepted, uncertain and out-of-distribution images in this .png file.",
            rich_help_panel=_PICTURES,
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            help="Append every decision as a line of JSON to this log, written to disk at once.",
            rich_help_panel=_PICTURES,
        ),
    ] = None,
    monitor: Annotated[
        Path | None,
        typer.Option(
            help="Raise an alarm when the images no longer look like those of the calibration. This file keeps the "
            "monitor's state.",
            rich_help_panel=_PICTURES,
        ),
    ] = None,
    dicom_sr: Annotated[
        Path | None,
        typer.Option(
            help="For DICOM files: write the answer as a structured report of the same study to this .dcm file, or for "
            "several images to this folder. A heatmap goes beside it.",
            rich_help_panel=_PICTURES,
        ),
    ] = None,
    audit_size: Annotated[
        float | None,
        typer.Option(
            help="Start a new log file when --audit reaches this many megabytes. The full file is renamed with a "
            "number.",
            rich_help_panel=_PICTURES,
        ),
    ] = None,
) -> None:
    """Classify images, and show how far each answer can be trusted.

    Without --model, the bundled model `imagenet` is used, which knows 1,000 kinds of things (see `uce-edge models`).

    Example: uce-edge predict photo.png folder/ --reject 0.3

    Example: uce-edge predict --model digits.onnx folder/ --reject auto --sort uncertainty --save annotated/

    Example: uce-edge predict "photos/**/*.png" --csv > answers.csv

    Example: uce-edge predict study.dcm --model xray.onnx --reject auto --dicom-sr report.dcm

    Example: uce-edge predict --watch incoming/ --reject 0.3 --audit decisions.jsonl --jsonl
    """
    # Wrong usage is told before anything slow happens.
    form = Form.of(as_json=as_json, jsonl=jsonl, as_csv=as_csv)
    _check_options(images, watch, form, sort, sheet)
    if exit_code and reject is None:
        raise UsageError("--exit-code needs a threshold: add --reject 0.3", "usage.no-threshold")
    from uce_edge.runtime.request import Request

    keep = any(place is not None for place in (save, audit, dicom_sr))
    request = Request(samples, seed, parse_threshold(reject), adaptive, top, keep)
    check_threads(threads)
    model = choose_model(model, inference)
    from uce_edge.images.folder_watch import arrivals
    from uce_edge.images.loader import collect
    from uce_edge.output.answer_files import AnswerFiles
    from uce_edge.rejection.description import unpromised
    from uce_edge.runtime.answers import each_answer
    from uce_edge.runtime.model import Model

    paths = collect(images or [])
    destinations = Destinations(save, sheet, audit, monitor, dicom_sr, _bytes(audit, audit_size))
    destinations.check(model, paths, watch)
    loaded = Model(model, device, threads=threads, max_memory=max_memory, spin=False, verify=not no_verify)
    plan = loaded.plan(request)  # a missing rule is an error before a log is opened
    if missing := unpromised(plan.rule):
        warn(missing)
    tally = _Tally()
    kept: list[Answer] = []
    at_once = watch is not None or (form.flows and sort is Sort.GIVEN)
    printer = Printer(form, top)

    def collect_answer(answer: "Answer") -> None:
        kept.append(replace(answer, content=None))  # the files would fill the memory

    emit = collect_answer if not at_once else answer_text.row if form is Form.TEXT else printer.print
    with (
        AnswerFiles(destinations, loaded, request, endless=watch is not None, alarm=alarm) as writer,
        _progress(len(paths), shown=not form.flows) as advance,
        _until_stopped(watch),
    ):
        batches = iter([paths]) if watch is None else arrivals(watch)
        for answer in chain.from_iterable(each_answer(loaded, batch, plan) for batch in batches):
            writer.write(answer)
            tally.add(answer)
            advance(1)
            emit(answer)
    if sort is Sort.UNCERTAINTY:
        kept.sort(key=_most_uncertain_first)
    if form is not Form.TEXT:
        printer.finish(kept)
    elif not at_once:
        _show(kept, passes=adaptive is not None)
    say(*writer.finish())
    tally.print(decided=reject is not None and form is Form.TEXT)
    if tally.failed:
        raise typer.Exit(1)
    if exit_code and tally.rejected:
        raise typer.Exit(3)


@dataclass
class _Tally:
    """Counts of images by outcome."""

    total: int = 0
    failed: int = 0
    started: float = field(default_factory=time.monotonic)
    rejected: int = 0
    ood: int = 0

    def add(self, answer: "Answer") -> None:
        self.total += 1
        self.failed += not answer.ok
        self.rejected += answer.decision == "reject"
        self.ood += answer.prediction is not None and answer.prediction.out_of_distribution

    def print(self, *, decided: bool) -> None:
        """Print a summary on stderr, with decisions if there were several."""
        took = time.monotonic() - self.started
        noun = "image" if self.total == 1 else "images"
        detail(
            f"{self.total} {noun} in {took:.2f} s: {self.total / max(took, 1e-9):.1f} images per second, including "
            "reading."
        )
        if decided and self.total > 1:
            ood = f", {self.ood} of them as out of distribution" if self.ood else ""
            say(f"{self.total - self.failed - self.rejected} accepted, {self.rejected} rejected{ood}.")
        if self.failed:
            fail(f"{self.failed} of {self.total} images could not be used.")


def _bytes(audit: Path | None, megabytes: float | None) -> int | None:
    """The value of --audit-size in bytes."""
    if megabytes is None:
        return None
    if audit is None:
        raise UsageError("--audit-size needs a log: add --audit decisions.jsonl", "usage.no-log")
    if not megabytes > 0:
        raise UsageError(expected("`audit_size`", "above 0", megabytes, "For example: --audit-size 100"))
    return max(1, round(1e6 * min(megabytes, 1e9)))


def _most_uncertain_first(answer: "Answer") -> float:
    return 1 if answer.prediction is None else -answer.prediction.uncertainty


def _show(answers: list["Answer"], *, passes: bool) -> None:
    if len(answers) == 1:
        answer_text.card(answers[0])
    else:
        answer_text.decisions(answers, passes=passes)


@contextmanager
def _until_stopped(watched: Path | None) -> Iterator[None]:
    """With a watched folder, Ctrl-C ends the command without an error."""
    if watched is None:
        yield
        return
    say(f"Watching {watched}. Stop with Ctrl-C.")
    try:
        yield
    except KeyboardInterrupt:
        say("")


def _progress(total: int, shown: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar for many images."""
    if total <= 16 or not shown:
        return nullcontext(lambda _: None)
    from uce_edge._util.progress import progress

    return progress("predicting", total)


def _check_options(images: list[str] | None, watch: Path | None, form: Form, sort: Sort, sheet: Path | None) -> None:
    if (not images) == (watch is None):
        raise UsageError(
            "Give either images (files, folders, or - for stdin) or one folder to watch: --watch incoming/",
            "usage.no-images",
        )
    if watch is not None and (form is Form.JSON or sheet is not None or sort is not Sort.GIVEN):
        message = "--watch never ends, so --json, --sheet and --sort do not work with it. Use: --jsonl"
        raise UsageError(message, "usage.watch")
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise UsageError(expected("`sheet`", "a file name ending in .png", str(sheet), "Use: --sheet answers.png"))
