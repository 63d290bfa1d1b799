"""`uce-edge bench`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.options import DeviceOption, JsonOption, say
from uce_edge.contract import Inference, pass_seeds
from uce_edge.errors import UsageError, expected
from uce_edge.providers import Device

if TYPE_CHECKING:
    from uce_edge.bench import Report


def bench(
    model: Annotated[Path, typer.Option(help="A model file made by `uce-edge export`.", show_default=False)],
    samples: Annotated[str, typer.Option(help="Numbers of passes to measure.")] = "1,5,10,25,50,100",
    baseline: Annotated[
        Path | None, typer.Option(help="The deterministic twin; it runs N images for N passes.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of ONNX Runtime; default: all cores.")] = None,
    device: DeviceOption = Device.AUTO,
    as_json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of latency against N.")] = None,
) -> None:
    """Measure what one more Monte Carlo pass costs.

    Example: uce-edge bench --model digits.onnx --samples 1,5,10,25,50,100
    """
    counts = _counts(samples)
    if threads is not None and threads < 1:
        raise UsageError(expected("`threads`", "at least 1", threads, "Leave it out to use all cores"))
    from uce_edge import bench as engine
    from uce_edge.model import Model

    if plot is not None:
        engine.check_plot(plot)
    # A wrong file is told here, in this process, and in full.
    if Model(model, device).metadata.inference is Inference.DETERMINISTIC and counts != [1]:
        raise UsageError(expected("`samples`", "1 for a deterministic model", samples, "Use: --samples 1"))
    if baseline is not None and Model(baseline, device).metadata.inference is not Inference.DETERMINISTIC:
        raise UsageError(
            f"The baseline {baseline} is not deterministic. Make one with: uce-edge export --inference deterministic"
        )
    report = engine.sweep(model, counts, baseline=baseline, device=str(device), threads=threads)
    if plot is not None:
        engine.plot(report, plot)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        print_report(report)
    if plot is not None:
        say(f"Wrote {plot}")


def print_report(report: "Report") -> None:
    """The sweep as a table."""
    ratio = "  ratio to twin" if report.baseline else ""
    typer.secho(f"{'N':>5}  {'p50 ms':>9}  {'p95 ms':>9}  {'images/s':>9}  {'peak MB':>8}{ratio}", bold=True)
    for m in report.measurements:
        line = f"{m.samples:>5}  {m.p50_ms:>9.3f}  {m.p95_ms:>9.3f}  {m.images_per_second:>9.1f}  "
        line += f"{m.peak_mb:>8.1f}" if m.peak_mb is not None else f"{'-':>8}"
        typer.echo(line + (f"  {m.ratio:>13.2f}" if m.ratio is not None else ""))
    threads = f"{report.threads} threads" if report.threads else "all cores"
    if report.ms_per_extra_pass is not None:
        typer.echo(f"One more pass costs {report.ms_per_extra_pass:.3g} ms ({report.provider}, {threads}).")


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            expected("`samples`", "whole numbers separated by commas", text, "For example: --samples 1,5,25")
        ) from None
    for count in counts:
        pass_seeds(count, 0)
    return counts
