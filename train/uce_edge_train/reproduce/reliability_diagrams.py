"""Reliability diagrams of confidence and uncertainty."""

from typing import Any, Literal

import numpy as np

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.output.wording import percent
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figure_style import COLOURS, GRID, figure
from uce_edge_train.reproduce.result_files import Cells, write_csv, write_section
from uce_edge_train.reproduce.trained_networks import DRAWN, Row, Study

_COLUMNS: tuple[tuple[Literal["confidence", "uncertainty"], Inference, str], ...] = (
    ("confidence", Inference.DETERMINISTIC, "deterministic confidence"),
    ("confidence", Inference.MC, "MC confidence"),
    ("uncertainty", Inference.MC, "MC uncertainty"),
)


def run(study: Study) -> None:
    """Write reliability.csv with all bins, reliability.png and the section."""
    subject = study.first
    lines: list[Cells] = []
    labels = subject.labels()
    with figure(subject.folder, Experiment.RELIABILITY, len(DRAWN), 3, 8.2, 2.45 * len(DRAWN)) as axes:
        for row, across in zip(DRAWN, axes, strict=True):
            for (kind, inference, title), axis in zip(_COLUMNS, across, strict=True):
                table = subject.probabilities(row, inference)
                curve = metrics.reliability_curve(table, labels, kind=kind)
                error = (metrics.ece if kind == "confidence" else metrics.uce)(table, labels)
                _draw(
                    axis,
                    curve,
                    f"{row}: {title}",
                    f"{'ECE' if kind == 'confidence' else 'UCE'} {percent(error)}",
                    row,
                )
                axis.set_xlabel(kind)
                axis.set_ylabel("accuracy" if kind == "confidence" else "error")
                for index, count in enumerate(curve.counts):
                    if count:
                        lines.append(
                            {
                                "method": str(row), "inference": str(inference), "kind": kind,
                                "bin_low": float(curve.edges[index]), "bin_high": float(curve.edges[index + 1]),
                                "images": int(count), "mean_score": float(curve.mean_score[index]),
                                "mean_outcome": float(curve.mean_outcome[index]), "low": float(curve.low[index]),
                                "high": float(curve.high[index]), **subject.commands(Experiment.RELIABILITY, row),
                            }
                        )  # fmt: skip
    write_csv(subject.folder, Experiment.RELIABILITY, lines)
    write_section(
        subject.folder,
        Experiment.RELIABILITY,
        "## Reliability diagrams\n\n"
        f"{subject.setting.shown}"
        "Points with 95 % Wilson intervals; bars are the share of the images in a bin. On the diagonal, confidence "
        "is the accuracy and uncertainty is the error. Above it in the right column, uncertainty underestimates the "
        "error. A perfectly calibrated model is on the diagonal on the left, not always on the right: entropy is not "
        "a probability of error.\n\n![Reliability diagrams](reliability.png)\n\n"
        "Values and commands: [reliability.csv](reliability.csv).",
    )


def _draw(axis: Any, curve: metrics.ReliabilityCurve, title: str, note: str, row: Row) -> None:
    there = curve.counts > 0
    x, y = curve.mean_score[there], curve.mean_outcome[there]
    axis.bar(
        curve.edges[:-1],
        curve.counts / curve.counts.sum(),
        np.diff(curve.edges),
        align="edge",
        color="#e5e7eb",
        zorder=1,
    )
    axis.plot([0, 1], [0, 1], color="#111827", linewidth=0.8, linestyle=":", zorder=2)
    below, above = np.maximum(y - curve.low[there], 0), np.maximum(curve.high[there] - y, 0)
    axis.errorbar(
        x, y, [below, above], color=COLOURS[row], marker="o", markersize=3.5, linewidth=1, elinewidth=0.8, zorder=3
    )
    axis.set(xlim=(0, 1), ylim=(0, 1), title=title)
    axis.title.set_fontsize(8.5)
    axis.text(0.04, 0.92, note, transform=axis.transAxes, fontsize=8)
    axis.grid(**GRID)
