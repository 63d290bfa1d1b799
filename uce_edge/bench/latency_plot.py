"""Latency against the number of passes as a picture."""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from uce_edge._util.printable import shown
from uce_edge.bench.measurements import Report
from uce_edge.errors import MissingPartError, UsageError, expected

PICTURES = (".png", ".svg", ".pdf")
_OURS = "#1f5fa8"
_BESIDE = ("#5b9bd5", "#15855b")
_OTHERS = (("^", "#c1440e"), ("v", "#b06a1c"), ("D", "#4b7a2c"), ("X", "#7a4fa3"))


def check_plot(path: Path) -> None:
    """Check that the plot can be drawn, before measuring."""
    if path.suffix.lower() not in PICTURES:
        raise UsageError(
            expected("`plot`", f"a file name ending in {', '.join(PICTURES)}", str(path), "Use: --plot latency.png")
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPartError("Plotting", "matplotlib", "train") from None


def plot(report: Report, path: Path, beside: Sequence[Report] = ()) -> None:
    """Draw latency against N as a picture.

    Args:
        report: The measurements, whose file the others are compared with.
        path: The picture.
        beside: Measurements of other files at the same N.
    """
    from uce_edge._util.atomic_files import replacing

    check_plot(path)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    alone = [m for m in report.measurements if m.batch == 1]
    n = [m.samples for m in alone]
    lines: dict[str, tuple[list[float], str, str]] = {
        shown(Path(report.model).stem): ([m.p50_ms for m in alone], "o-", _OURS)
    }
    if report.baseline is not None:
        lines["deterministic network"] = ([m.baseline_p50_ms or 0.0 for m in alone], "s--", "#6b6b6b")
    for other, colour in zip(beside, cycle(_BESIDE), strict=False):
        by_samples = {m.samples: m.p50_ms for m in other.measurements if m.batch == 1}
        lines[shown(Path(other.model).stem)] = ([by_samples[samples] for samples in n], "o-", colour)
    engines = [name for name in alone[0].others if all(name in m.others for m in alone)]
    for name, (marker, colour) in zip(engines, cycle(_OTHERS), strict=False):
        lines[name] = ([m.others[name].p50_ms for m in alone], f"{marker}-", colour)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.fill_between(n, [m.best_ms for m in alone], [m.p95_ms for m in alone], color=_OURS, alpha=0.15, linewidth=0)
    for i, (values, style, colour) in enumerate(lines.values()):
        axes.plot(n, values, style, color=colour, linewidth=1.2 if i else 2.4, markersize=5 if i else 7)
    axes.set(xlabel="Monte Carlo passes N", ylabel="milliseconds, one image", xlim=(0, None), ylim=(0, None))
    axes.margins(x=0)
    top = axes.get_ylim()[1]
    heights = _apart([values[-1] for values, _, _ in lines.values()], 0.11 * top)
    for i, ((name, (values, _, colour)), height) in enumerate(zip(lines.items(), heights, strict=True)):
        axes.annotate(
            f"{name}\n{values[-1] / alone[-1].p50_ms:.2g}x the time" if i else name, (1, height),
            xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points", color=colour, va="center",
            weight="normal" if i else "bold", size=10, parse_math=False,
        )  # fmt: skip
    if (price := report.price()) is not None:
        figure.suptitle(price, x=0.01, ha="left", size=15)
    provider = report.provider.removesuffix("ExecutionProvider")
    note = f"median, band from best to 95th percentile; {provider}, {report.cores()}"
    axes.set_title(note, loc="left", size=9, color="#555555")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
    plt.close(figure)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights of labels, moved up so that none overlap."""
    placed = list(heights)
    below = -math.inf
    for i in sorted(range(len(placed)), key=lambda i: heights[i]):
        placed[i] = below = max(placed[i], below + gap)
    return placed
