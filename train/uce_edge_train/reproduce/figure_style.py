"""The style of all figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uce_edge._util.atomic_files import replacing
from uce_edge.errors import MissingPartError
from uce_edge_train.reproduce.trained_networks import Row

COLOURS = {
    Row.UNCALIBRATED: "#6b7280",
    Row.PENALTY: "#d97706",
    Row.TEMPERATURE: "#2563eb",
    Row.VECTOR: "#0d9488",
    Row.PAPER_AUX: "#dc2626",
    Row.AUX: "#9333ea",
    Row.TUNED_MODEL: "#1e3a8a",
    Row.TUNED_LAYER: "#38bdf8",
}
GRID = {"color": "#e5e7eb", "linewidth": 0.8}


@contextmanager
def figure(folder: Path, name: str, rows: int, columns: int, width: float, height: float) -> Iterator[Any]:
    """Axes of a figure; the block's end writes `name`.png."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingPartError("Drawing figures", "matplotlib", "train") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    with mpl.rc_context(style):
        drawn, axes = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
        try:
            yield axes
            with replacing(folder / f"{name}.png") as path:
                drawn.savefig(path, dpi=130)
        finally:
            pyplot.close(drawn)
