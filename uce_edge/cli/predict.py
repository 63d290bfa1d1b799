"""`uce-edge predict`."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uce_edge import contract
from uce_edge.cli import show
from uce_edge.cli.options import (
    DeviceOption,
    InferenceOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    SamplesOption,
    SeedOption,
    ThreadsOption,
    check_request,
    parse_threshold,
)
from uce_edge.cli.records import Request, each_answer
from uce_edge.cli.words import say
from uce_edge.errors import UsageError, expected
from uce_edge.providers import Device, check_threads

if TYPE_CHECKING:
    from uce_edge.model import Model

_PICTURES = "Pictures and logs"


class Sort(StrEnum):
    """The order of the answers."""

    GIVEN = "given"
    """As the images were named."""
    UNCERTAINTY = "uncertainty"
    """The most uncertain first; what could not be read comes last."""


def predict(
    images: Annotated[
        list[str] | None, typer.Argument(help="Image files, folders of images, or - for stdin.", show_default=False)
    ] = None,
    model: ModelOption = None,
    reject: Annotated[
        str | None,
        typer.Option(
            metavar="FLOAT|auto",
            help="Reject images with a higher uncertainty than this (0 to 1); auto: the model's own.",
        ),
    ] = None,
    inference: InferenceOption = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    adaptive: Annotated[
        float | None,
        typer.Option(help="Stop drawing when the outcome is settled but for this probability, such as 0.1."),
    ] = None,
    sort: Annotated[Sort, typer.Option(help="The order of the answers.")] = Sort.GIVEN,
    top: Annotated[int, typer.Option(help="List so many of the likeliest classes.", min=1)] = 3,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    as_json: JsonOption = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line, as it goes.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 when an image was rejected.")] = False,
    watch: Annotated[
        Path | None,
        typer.Option(help="Answer for the images of a folder as they arrive, until Ctrl-C.", rich_help_panel=_PICTURES),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write a copy of every image with its answer.", rich_help_panel=_PICTURES)
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(help="Draw accepted and rejected images side by side in this .png.", rich_help_panel=_PICTURES),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="Append a line of JSON for every decision, safe on disk.", rich_help_panel=_PICTURES),
    ] = None,
) -> None:
    """Classify images, and say how far each answer can be trusted.

    Without --model, the bundled model answers: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Example: uce-edge predict photo.png folder/ --reject 0.3

    Example: uce-edge predict --model digits.onnx folder/ --reject auto --sort uncertainty --save annotated/

    Example: uce-edge predict --watch incoming/ --reject 0.3 --audit decisions.jsonl --jsonl
    """
    # Wrong usage is told before anything slow happens.
    _refuse(images, watch, as_json, jsonl, sort, sheet)
    if exit_code and reject is None:
        raise UsageError("--exit-code tells of rejections and needs a threshold: add --reject 0.3")
    request = Request(samples, seed, parse_threshold(reject), adaptive, top)
    if adaptive is not None:
        contract.check_adaptive(adaptive)
    check_threads(threads)
    model = check_request(model, samples, seed, inference)
    from uce_edge.images import collect
    from uce_edge.model import Model

    paths = collect(images or [])
    _spare_inputs(paths, watch, save, sheet)
    loaded = Model(model, device, threads=threads, max_memory=max_memory)
    threshold = loaded.threshold(request.reject)
    with closing(_Answers(loaded, request, save, audit, keep=sheet is not None)) as answers:
        if watch is not None:
            records = _watched(answers, watch, jsonl)
        else:
            records = []
            with _progress(len(paths), shown=not jsonl) as advance:
                for record in answers.of(paths):
                    advance(1)
                    records.append(record)
                    if jsonl and sort is Sort.GIVEN:
                        _line(record)
            if sort is Sort.UNCERTAINTY:
                records.sort(key=lambda record: record["uncertainty"] if record["status"] == "ok" else -1, reverse=True)
            _print(
                records, threshold, as_json, jsonl and sort is not Sort.GIVEN, silent=jsonl, passes=adaptive is not None
            )
    if save is not None:
        say(f"Wrote {answers.saved} annotated {'image' if answers.saved == 1 else 'images'} to {save}")
    if sheet is not None:
        from uce_edge.annotate import save_sheet

        save_sheet(answers.kept, threshold, sheet)
        say(f"Wrote {sheet}")
    failed = sum(record["status"] == "error" for record in records)
    rejected = sum(record["decision"] == "reject" for record in records)
    if threshold is not None and len(records) > 1 and not (as_json or jsonl):
        say(f"{len(records) - failed - rejected} accepted, {rejected} rejected.")
    if failed:
        say(f"error: {failed} of {len(records)} images could not be used.")
        raise typer.Exit(1)
    if exit_code and rejected:
        raise typer.Exit(3)


class _Answers:
    """Answers, and what is written about each of them."""

    def __init__(
        self,
        model: "Model",
        request: Request,
        save: Path | None,
        audit: Path | None,
        *,
        keep: bool,
    ) -> None:
        from uce_edge.audit import Audit
        from uce_edge.files import writable_folder

        if save is not None:
            writable_folder(save, "--save")
        self._model, self._request, self._save, self._keep = model, request, save, keep
        self._audit = None if audit is None else Audit(audit, Path(model.path), model.provider)
        self._names: set[str] = set()
        self.kept: list[tuple[dict[str, Any], bytes | None]] = []

    @property
    def saved(self) -> int:
        """How many annotated copies were written."""
        return len(self._names)

    def close(self) -> None:
        """Nothing more will be answered."""
        if self._audit is not None:
            self._audit.close()

    def of(self, paths: list[str]) -> Iterator[dict[str, Any]]:
        """One record per path, once everything about it is written."""
        keep = self._audit is not None or self._save is not None
        for record, content in each_answer(self._model, paths, self._request, keep=keep):
            if self._save is not None and record["status"] == "ok":
                from uce_edge.annotate import save_annotated

                save_annotated(record, content, self._save, self._names)
            if self._audit is not None:
                self._audit.add(record, content)
            if self._keep:
                self.kept.append((record, content if record["path"] == "-" else None))
            yield record


def _watched(answers: _Answers, folder: Path, jsonl: bool) -> list[dict[str, Any]]:
    """Answer until somebody stops it."""
    from uce_edge.watch import arrivals, list_images

    records: list[dict[str, Any]] = []
    list_images(folder)  # a wrong name is told before it is watched
    say(f"Watching {folder}; Ctrl-C ends it.")
    try:
        for paths in arrivals(folder):
            for record in answers.of(paths):
                records.append({name: record[name] for name in ("status", "decision")})
                _line(record) if jsonl else show.row(record)
    except KeyboardInterrupt:
        say("")
    return records


def _line(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(record))
    sys.stdout.flush()


def _print(
    records: list[dict[str, Any]], threshold: float | None, as_json: bool, lines: bool, *, silent: bool, passes: bool
) -> None:
    if as_json:
        typer.echo(json.dumps(records, indent=2))
    elif lines:
        for record in records:
            _line(record)
    elif silent:
        return
    elif len(records) == 1:
        show.card(records[0], threshold)
    else:
        show.table(records, "decision", threshold, passes=passes)


def _progress(total: int, shown: bool) -> Any:
    """A bar for many images; one or two need none."""
    from contextlib import nullcontext

    if total <= 16 or not shown:
        return nullcontext(lambda _: None)
    from uce_edge.progress import progress

    return progress("predicting", total)


def _refuse(
    images: list[str] | None, watch: Path | None, as_json: bool, jsonl: bool, sort: Sort, sheet: Path | None
) -> None:
    if as_json and jsonl:
        raise UsageError("Choose one of --json and --jsonl.")
    if (not images) == (watch is None):
        raise UsageError("Name images, folders or - for stdin; or watch one folder: --watch incoming/")
    if watch is not None and (as_json or sheet is not None or sort is not Sort.GIVEN):
        raise UsageError("--watch never ends, so --json, --sheet and --sort do not go with it. Use: --jsonl")
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise UsageError(expected("`sheet`", "a file name ending in .png", str(sheet), "Use: --sheet answers.png"))


def _spare_inputs(paths: list[str], watch: Path | None, save: Path | None, sheet: Path | None) -> None:
    """Refuse to write over the images: an annotated copy has the name of its image."""
    files = [Path(path) for path in paths if path != "-"]
    folders = {path.parent.resolve() for path in files} | ({watch.resolve()} if watch is not None else set())
    if save is not None and save.resolve() in folders:
        rule = "another folder than that of the images, which would be overwritten"
        raise UsageError(expected("`save`", rule, str(save), "Use: --save annotated/"))
    if sheet is not None and sheet.resolve() in {path.resolve() for path in files}:
        rule = "another file than the images, one of which would be overwritten"
        raise UsageError(expected("`sheet`", rule, str(sheet), "Use: --sheet answers.png"))
