"""Table 1: classwise ECE and UCE of every calibration method."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference, Method
from uce_edge.output.wording import percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figure_style import COLOURS, GRID, figure
from uce_edge_train.reproduce.paper_table import COLUMNS, PUBLISHED
from uce_edge_train.reproduce.result_files import Cells, interval, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.seed_intervals import measure
from uce_edge_train.reproduce.trained_networks import INFERENCES, Row, Study, Subject, rows_of

Table = npt.NDArray[np.float64]

SCORES = {
    "cece": metrics.classwise_ece,
    "cuce": metrics.classwise_uce,
    "ece": metrics.ece,
    "uce": metrics.uce,
    "tuce": metrics.tuce,
    "ctuce": metrics.classwise_tuce,
}


NAMES = {"cece": "cECE", "cuce": "cUCE", "ece": "ECE", "uce": "UCE", "tuce": "T-UCE", "ctuce": "cT-UCE"}


@dataclass(frozen=True)
class Scored:
    """One metric of one cell."""

    interval: metrics.Interval
    twin: float
    """The score of a perfectly calibrated model with the same probabilities."""


@dataclass(frozen=True)
class Cell:
    """One calibration method with one inference: means over the seeds."""

    row: Row
    inference: Inference
    samples: int
    seeds: int
    test_images: int
    accuracy: float
    nll: float
    train_accuracy: float
    """Of the network without noise and map, on its training images."""
    rates: dict[str, float]
    """The dropout rate of every layer with noise; empty for a deterministic network."""
    temperature: float | None
    label_flips: float
    """Of the calibration images."""
    scores: dict[str, Scored]
    """As in `SCORES`."""
    empty_classes: float

    @property
    def rates_in_words(self) -> str:
        """One number, or one by layer."""
        found = set(self.rates.values())
        if len(found) == 1:
            return f"{found.pop():g}"
        return " ".join(f"{name}={p:g}" for name, p in self.rates.items())

    def line(self) -> Cells:
        """The row of a CSV file."""
        line: Cells = {
            "inference": str(self.inference),
            "method": str(self.row),
            "samples": self.samples,
            "seeds": self.seeds,
            "test_images": self.test_images,
            "accuracy": self.accuracy,
            "nll": self.nll,
            "train_accuracy": self.train_accuracy,
            "rates": self.rates_in_words,
            "temperature": "" if self.temperature is None else self.temperature,
            "label_flips_calibration": self.label_flips,
        }
        for name, score in self.scores.items():
            line |= {
                name: score.interval.value,
                f"{name}_low": score.interval.low,
                f"{name}_high": score.interval.high,
                f"{name}_twin": score.twin,
            }
        return line | {"empty_classes": self.empty_classes}


def run(study: Study) -> None:
    """Write table1.csv with all cells, table1.png and the section."""
    cells = [_cell(study, row, inference) for inference in INFERENCES for row in rows_of(inference)]
    lines = [
        {"arch": study.setting.recipe.arch, **cell.line(), **study.first.commands(Experiment.TABLE1, cell.row)}
        for cell in cells
    ]
    write_csv(study.folder, Experiment.TABLE1, lines)
    _draw(study, cells)
    write_section(study.folder, Experiment.TABLE1, _section(study, cells))


def _cell(study: Study, row: Row, inference: Inference) -> Cell:
    labels, subjects = study.first.labels(), study.subjects
    tables = [subject.probabilities(row, inference) for subject in subjects]

    def mean(score: Callable[[Subject, Table], float]) -> float:
        return float(np.mean([score(*pair) for pair in zip(subjects, tables, strict=True)]))

    def temperature(subject: Subject, _: Table) -> float:
        found = subject.calibration(row, inference).temperature
        return math.nan if found is None else found

    return Cell(
        row=row,
        inference=inference,
        samples=study.setting.samples if inference is Inference.MC else 1,
        seeds=len(subjects),
        test_images=len(labels),
        accuracy=mean(lambda _, table: metrics.accuracy(table, labels)),
        nll=mean(lambda _, table: metrics.nll(table, labels)),
        train_accuracy=mean(lambda subject, _: subject.train_accuracy(row)),
        rates={} if inference is Inference.DETERMINISTIC else _rates(study, row),
        temperature=mean(temperature) if row.method is Method.TEMPERATURE else None,
        label_flips=mean(lambda subject, _: subject.label_flips(row, inference)),
        scores={
            name: Scored(
                measure(study, metric, (row, inference)),
                float(np.mean([metrics.calibrated_twin(metric, table).value for table in tables])),
            )
            for name, metric in SCORES.items()
        },
        empty_classes=mean(lambda _, table: metrics.classwise(table, labels, metric="uce").empty_classes),
    )


def _rates(study: Study, row: Row) -> dict[str, float]:
    """Means over the seeds."""
    found = [subject.rates(row) for subject in study.subjects]
    return {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}


def beside_the_paper(study: Study, cells: list[Cell]) -> str:
    """Our cECE and cUCE in the layout of the paper's table."""
    found = {cell.row: cell.scores for cell in cells if cell.inference is Inference.MC}
    ours = []
    for row in COLUMNS:
        ours += [percentage(found[row][name].interval.value, 2) for name in ("cece", "cuce")]
    rows = [["this run", study.setting.recipe.arch, *ours]]
    for network, published in PUBLISHED.get(study.setting.data, {}).items():
        rows.append(["the paper", network, *(f"{number:g}" for pair in published for number in pair)])
    header = ["", "network", *(f"{row}: {name}" for row in COLUMNS for name in ("cECE", "cUCE"))]
    return markdown_table(header, rows)


def _section(study: Study, cells: list[Cell]) -> str:
    setting, seeds = study.setting, len(study.subjects)
    trained = len(study.first.dataset.splits["train"])
    text = [
        "## Table 1: classwise calibration error",
        "",
        f"{setting.recipe.arch} on {trained:,} images of {setting.data}, {setting.recipe.epochs} epochs, "
        f"p = {setting.recipe.p}, {'one seed' if seeds == 1 else f'means of {seeds} seeds'}; maps fitted on "
        f"{len(study.first.dataset.splits['calibration']):,} calibration images, scores on {cells[0].test_images:,} "
        "test images, 15 bins, classes by predicted label. Without noise, the networks have an accuracy of "
        f"{' and '.join(_trained(cells))} on their training images. In percent.",
        "",
        f"Monte Carlo with N = {setting.samples}, in the layout of the paper:",
        "",
        beside_the_paper(study, cells),
        "",
        "All cells: the value, its 95 % interval over images and seeds, and *what a perfectly calibrated model with "
        "the same probabilities would score* (the twin). An ECE is good when it is near its twin's. A UCE near or "
        "below its twin's can also be that of an overconfident model: T-UCE compares the error with the twin's in "
        "every bin. The bins are (low, high]; an uncertainty of exactly 0 is in the first bin, which the authors' code "
        "leaves out. Classes that are never predicted are left out of a classwise mean (`empty_classes`). "
        "Commands, unrounded values: [table1.csv](table1.csv).",
    ]
    titles = {Inference.DETERMINISTIC: "Deterministic", Inference.MC: f"Monte Carlo, N = {setting.samples}"}
    for inference, title in titles.items():
        rows = [
            [
                str(cell.row),
                percentage(cell.accuracy),
                f"{cell.nll:.4f}",
                "" if cell.temperature is None else f"{cell.temperature:.2f}",
                cell.rates_in_words,
                *(f"{interval(score.interval)}, *{percentage(score.twin, 2)}*" for score in cell.scores.values()),
            ]
            for cell in cells
            if cell.inference is inference
        ]
        text += ["", f"### {title}", "", markdown_table(["", "accuracy", "NLL", "T", "p", *NAMES.values()], rows)]
    text += ["", "![Distance of every value to its twin](table1.png)"]
    return "\n".join(text)


def _trained(cells: list[Cell]) -> list[str]:
    found = {cell.row.trained_as: cell.train_accuracy for cell in cells}
    return [f"{percentage(accuracy)} % ({kind})" for kind, accuracy in found.items()]


def _draw(study: Study, cells: list[Cell]) -> None:
    """Draw the difference of every value to its twin."""
    with figure(study.folder, Experiment.TABLE1, 1, len(SCORES), 14.6, 3.4) as axes:
        for axis, name in zip(axes[0], SCORES, strict=True):
            for cell in cells:
                place = list(Row).index(cell.row)
                row, mc, score = cell.row, cell.inference is Inference.MC, cell.scores[name]
                ends = (score.interval.low, score.interval.value, score.interval.high)
                low, value, high = (100 * (end - score.twin) for end in ends)
                axis.errorbar(
                    value, -place - (0.18 if mc else -0.18), xerr=[[value - low], [high - value]],
                    color=COLOURS[row], marker="o" if mc else "s", markersize=4.5, elinewidth=1.1,
                    markerfacecolor=COLOURS[row] if mc else "white",
                )  # fmt: skip
            axis.axvline(0, color="#111827", linewidth=0.8, linestyle=":")
            axis.set_yticks([-index for index in range(len(Row))], list(Row) if axis is axes[0][0] else [])
            axis.set(title=NAMES[name], xlabel="value minus twin, %")
            axis.grid(axis="x", **GRID)
        beside = axes[0][-1]
        beside.plot([], [], "o", color="#374151", label="Monte Carlo")
        beside.plot([], [], "s", color="#374151", markerfacecolor="white", label="deterministic")
        beside.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
