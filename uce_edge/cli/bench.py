"""`uce-edge bench`."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uce_edge.cli.bench_engines import ENGINES
from uce_edge.cli.command import Command
from uce_edge.cli.extras import need_torch_export
from uce_edge.cli.messages import echo, say
from uce_edge.cli.shared_options import (
    DeviceOption,
    InferenceOption,
    JsonOption,
    ModelOption,
    ThreadsOption,
    choose_model,
)
from uce_edge.contract import Inference, pass_seeds
from uce_edge.errors import UsageError, expected
from uce_edge.output.destinations import check_apart
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import check_threads

if TYPE_CHECKING:
    from uce_edge.bench.engine import Engine
    from uce_edge.bench.measurements import Report
    from uce_edge.metadata import Metadata

_MADE = Path("made here")
_SAMPLES = "1,5,10,25,50,100"


class BenchCommand(Command):
    """Accepts `--baseline` without a value, which Typer cannot express."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the value of a bare `--baseline`."""
        following = [*args, "--"][1:]
        given = [
            f"{word}={_MADE}" if word == "--baseline" and then.startswith("--") else word
            for word, then in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, given)


def bench(
    model: ModelOption = None,
    samples: Annotated[
        str | None,
        typer.Option(
            help=f"The numbers of passes N to measure, separated by commas. Default: {_SAMPLES}, or the number of a "
            "file that cannot draw more."
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="The numbers of images per request to measure, separated by commas.")
    ] = "1",
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this deterministic file of the same network, which runs N images where the model runs N "
            "passes (one image for moments). Without a file, one with random weights is made."
        ),
    ] = None,
    inference: InferenceOption = None,
    compare: Annotated[
        str | None, typer.Option(help=f"Also measure these engines, separated by commas: {', '.join(ENGINES)}.")
    ] = None,
    threads: ThreadsOption = None,
    device: DeviceOption = Device.AUTO,
    as_json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of the latency by N to this image file.")] = None,
) -> None:
    """Measure what one more Monte Carlo pass costs.

    Example: uce-edge bench --model digits.onnx --samples 1,5,10,25,50,100

    Example: uce-edge bench --model m.onnx --baseline --compare pytorch,naive --threads 2 --plot latency.png
    """
    counts = _counts(samples or _SAMPLES)
    batches = _whole("batch", batch, "1,8,32")
    check_threads(threads)
    model = choose_model(model, inference)
    others = _engines(compare)
    if 1 not in batches and (others or plot is not None):
        remedy = f"Use: --batch 1,{batch}"
        raise UsageError(expected("`batch`", "a list with 1 in it for --compare and --plot", batch, remedy))
    from uce_edge.bench import latency_plot as picture
    from uce_edge.bench import sweep
    from uce_edge.runtime.model import Model

    if plot is not None:
        picture.check_plot(plot)
        check_apart("plot", plot, [model])
    # Errors of the file are reported here rather than in a worker process.
    metadata = Model(model, device).metadata
    if samples is None and not metadata.takes_seeds:
        counts = [metadata.samples]
    elif not metadata.takes_seeds and counts != [metadata.samples]:
        rule = f"{metadata.samples} for a model with a fixed number of passes"
        raise UsageError(expected("`samples`", rule, samples, f"Use: --samples {metadata.samples}"))
    if baseline not in (None, _MADE) and Model(baseline, device).metadata.inference is not Inference.DETERMINISTIC:
        remedy = "Make one with: uce-edge export --inference deterministic"
        raise UsageError(expected("`baseline`", "a deterministic model", str(baseline), remedy))
    with tempfile.TemporaryDirectory() as folder:
        report = sweep.sweep(
            model,
            counts,
            batches=batches,
            baseline=_deterministic(metadata, Path(folder)) if baseline == _MADE else baseline,
            compare=others,
            device=str(device),
            threads=threads,
            rounds=sweep.ROUNDS,
        )
    if plot is not None:
        picture.plot(report, plot)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        print_report(report)
    if plot is not None:
        say(f"Wrote {plot}")


def _deterministic(metadata: "Metadata", folder: Path) -> Path:
    """Export the same architecture as deterministic, with random weights."""
    from uce_edge_train.choices import Architecture

    name = metadata.architecture.removesuffix(" (untrained)")
    if name not in list(Architecture):
        rule = f"a file, because the network is not a built-in one ({metadata.architecture or 'it has no name'})"
        raise UsageError(expected("`baseline`", rule, None, "Use: --baseline deterministic.onnx"))
    need_torch_export("A baseline without a file")
    from uce_edge_export.options import FileKind
    from uce_edge_train.networks.untrained import export_untrained

    options, out = FileKind(Inference.DETERMINISTIC), folder / f"{name}-deterministic.onnx"
    return export_untrained(name, out, options, classes=len(metadata.classes), image=metadata.image).path


def print_report(report: "Report") -> None:
    """Print the sweep as a table."""
    batched = {m.batch for m in report.measurements} != {1}
    ratio = "  ratio to baseline" if report.baseline else ""
    images = "  images" if batched else ""
    names = list(dict.fromkeys(name for m in report.measurements for name in m.others))
    others = "".join(f"  {name:>14}" for name in names)
    head = f"{'N':>5}{images}  {'p50 ms':>9}  {'p95 ms':>9}  {'images/s':>9}  {'peak MB':>8}{ratio}{others}"
    echo(head, bold=True)
    for m in report.measurements:
        line = f"{m.samples:>5}" + (f"  {m.batch:>6}" if batched else "")
        line += f"  {m.p50_ms:>9.3f}  {m.p95_ms:>9.3f}  {m.images_per_second:>9.1f}  "
        line += f"{m.peak_mb:>8.1f}" if m.peak_mb is not None else f"{'-':>8}"
        line += f"  {m.ratio:>17.2f}" if m.ratio is not None else ""
        for name in names:
            other = m.others.get(name)
            line += f"  {f'{other.p50_ms:.1f} ms {other.speedup:.1f}x':>14}" if other else f"  {'-':>14}"
        echo(line)
    if (price := report.price()) is not None and report.slope_interval is not None:
        low, high = report.slope_interval
        interval = f", 95 % interval {low:.3g} to {high:.3g}" if high > 0 else ""  # a negative price is noise
        echo(f"{price}{interval} ({report.provider}, {report.cores()}).")
    for name, reason in report.skipped.items():
        say(f"{name} was skipped: {reason}")


def _engines(text: str | None) -> "list[Engine]":
    try:
        return [ENGINES[name] for name in text.split(",")] if text else []
    except KeyError:
        remedy = f"Choose among {', '.join(ENGINES)}"
        raise UsageError(expected("`compare`", "names separated by commas", text, remedy)) from None


def _counts(text: str) -> list[int]:
    counts = _whole("samples", text, "1,5,25")
    for count in counts:
        pass_seeds(count, 0)
    return counts


def _whole(argument: str, text: str, example: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        remedy = f"For example: --{argument} {example}"
        raise UsageError(expected(f"`{argument}`", "whole numbers separated by commas", text, remedy)) from None
    if argument == "batch" and min(numbers) < 1:
        raise UsageError(expected("`batch`", "at least 1", min(numbers), "For example: --batch 1,8,32"))
    return numbers
