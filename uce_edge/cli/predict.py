"""`uce-edge predict`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from uce_edge import contract
from uce_edge.cli.options import DeviceOption, JsonOption, MemoryOption, ThreadsOption, say
from uce_edge.errors import ImageError, UsageError, expected
from uce_edge.providers import Device, check_threads

if TYPE_CHECKING:
    from uce_edge.model import Model

_FIELDS = (
    "label", "class_id", "confidence", "uncertainty", "model_uncertainty", "standard_error", "error_probability",
    "decision", "samples", "seed",
)  # fmt: skip
_CHUNK = 32  # images that are decoded before the model runs

ModelOption = Annotated[Path | None, typer.Option(help="A model file made by `uce-edge export`.")]
SamplesOption = Annotated[int | None, typer.Option(help="Monte Carlo passes; default: the number stored in the model.")]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same answer (0 to 4095).")]


def predict(
    images: Annotated[
        list[str], typer.Argument(help="Image files, folders of images, or - for stdin.", show_default=False)
    ],
    model: ModelOption = None,
    reject: Annotated[
        str | None,
        typer.Option(
            metavar="FLOAT|auto",
            help="Reject images with a higher uncertainty than this (0 to 1); auto: the model's own.",
        ),
    ] = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    adaptive: Annotated[
        float | None,
        typer.Option(help="Stop drawing when the outcome is settled but for this probability, such as 0.1."),
    ] = None,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    as_json: JsonOption = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line, as it goes.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 when an image was rejected.")] = False,
) -> None:
    """Classify images, and say how far each answer can be trusted.

    Example: uce-edge predict --model digits.onnx photo.png folder/ --reject 0.3
    """
    # Wrong usage is told before anything slow happens.
    if as_json and jsonl:
        raise UsageError("Choose one of --json and --jsonl.")
    if exit_code and reject is None:
        raise UsageError("--exit-code tells of rejections and needs a threshold: add --reject 0.3")
    threshold = parse_threshold(reject)
    if adaptive is not None:
        contract.check_adaptive(adaptive)
    check_threads(threads)
    model = check_request(model, samples, seed)
    from uce_edge.images import collect
    from uce_edge.model import Model

    paths = collect(images)
    loaded = Model(model, device, threads=threads, max_memory=max_memory)
    records = []
    for record in each_record(loaded, paths, samples, seed, threshold, adaptive):
        records.append(record)
        if jsonl:
            typer.echo(json.dumps(record))
            sys.stdout.flush()
    if as_json:
        typer.echo(json.dumps(records, indent=2))
    elif not jsonl:
        print_table(records, "decision")
    failed = sum(record["status"] == "error" for record in records)
    rejected = sum(record["decision"] == "reject" for record in records)
    if failed:
        say(f"error: {failed} of {len(records)} images could not be used.")
        raise typer.Exit(1)
    if exit_code and rejected:
        raise typer.Exit(3)


def parse_threshold(text: str | None) -> "float | Literal['auto'] | None":
    """The value of --reject."""
    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return contract.check_threshold(float(text))
    except ValueError:
        raise UsageError(expected("`reject`", "between 0 and 1, or auto", text, "For example: --reject 0.3")) from None


def check_request(model: Path | None, samples: int | None, seed: int) -> Path:
    """Refuse passes that do not exist, and a missing model; returns the model."""
    contract.pass_seeds(samples if samples is not None else 1, seed)
    if model is None:
        raise UsageError(
            "No --model was given, and no model ships with this version. "
            "Make one in a minute with: uce-edge demo   (it writes demo/digits.onnx)"
        )
    return model


def each_record(
    model: "Model",
    paths: list[str],
    samples: int | None,
    seed: int,
    reject: "float | Literal['auto'] | None",
    adaptive: float | None = None,
) -> Iterator[dict[str, Any]]:
    """One record per path, in order; a bad image is a record too."""
    import numpy as np

    from uce_edge.images import load

    for start in range(0, len(paths), _CHUNK):
        chunk = paths[start : start + _CHUNK]
        errors: dict[int, str] = {}
        pixels = []
        for index, path in enumerate(chunk):
            try:
                pixels.append(load(sys.stdin.buffer.read() if path == "-" else path, model.metadata.image))
            except ImageError as error:
                errors[index] = str(error)
        results = iter(model.predict(np.stack(pixels), samples, seed, reject, adaptive) if pixels else ())
        for index, path in enumerate(chunk):
            if index in errors:
                yield {"path": path, "status": "error"} | dict.fromkeys(_FIELDS) | {"error": errors[index]}
            else:
                values = next(results).as_dict()
                yield ({"path": path, "status": "ok"} | {name: values[name] for name in _FIELDS} | {"error": None})


def print_table(records: list[dict[str, Any]], last: str) -> None:
    """A table for people: what it is, how sure, and one more field, such as what to do with it."""
    width = max([len(record["path"]) for record in records] + [5])
    names = max([len(str(record["label"])) for record in records] + [5])
    head = f"{'image':<{width}}  {'label':<{names}}  confidence  uncertainty    wrong about  {last.replace('_', ' ')}"
    typer.secho(head, bold=True)
    for record in records:
        if record["status"] == "error":
            typer.secho(f"{record['path']:<{width}}  {record['error']}", fg=typer.colors.RED)
            continue
        value = record[last]
        shown = f"{value:.3f}" if isinstance(value, float) else value or "-"
        colour = {"accept": typer.colors.GREEN, "reject": typer.colors.YELLOW}.get(shown)
        line = f"{record['path']:<{width}}  {record['label']:<{names}}  {record['confidence']:>10.1%}"
        odds = _odds(record["error_probability"])
        line += f"  {record['uncertainty']:.3f} ± {record['standard_error']:.3f}  {odds:<11}  "
        typer.echo(line + typer.style(shown, fg=colour))


def _odds(probability: float) -> str:
    """A probability of error as people say it: 1 in 12."""
    if probability < 0.001:
        return "< 1 in 1000"
    return f"1 in {1 / probability:.0f}" if probability < 0.4 else f"{probability:.0%}"
