"""Table 1: classwise ECE and UCE of every calibration method."""

from dataclasses import dataclass

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.output.wording import percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figure_style import COLOURS, GRID, figure
from uce_edge_train.reproduce.result_files import Cells, interval, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.trained_networks import INFERENCES, Row, Subject

SCORES = {
    "cece": metrics.classwise_ece,
    "cuce": metrics.classwise_uce,
    "ece": metrics.ece,
    "uce": metrics.uce,
}


NAMES = {"cece": "cECE", "cuce": "cUCE", "ece": "ECE", "uce": "UCE"}


@dataclass(frozen=True)
class Scored:
    """One metric of one cell."""

    interval: metrics.Interval
    twin: float
    """The score of a perfectly calibrated model with the same probabilities."""


@dataclass(frozen=True)
class Cell:
    """One calibration method with one inference."""

    row: Row
    inference: Inference
    samples: int
    test_images: int
    accuracy: float
    nll: float
    temperature: float | None
    label_flips: int
    """Of the calibration images."""
    scores: dict[str, Scored]
    """As in `SCORES`."""
    empty_classes: int

    def line(self) -> Cells:
        """The row of a CSV file."""
        line: Cells = {
            "inference": str(self.inference),
            "method": str(self.row),
            "samples": self.samples,
            "test_images": self.test_images,
            "accuracy": self.accuracy,
            "nll": self.nll,
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


def run(subject: Subject) -> None:
    """Write table1.csv with all cells, table1.png and the section."""
    cells = [_cell(subject, row, inference) for inference in INFERENCES for row in Row]
    lines = [{**cell.line(), **subject.commands(Experiment.TABLE1, cell.row)} for cell in cells]
    write_csv(subject.folder, Experiment.TABLE1, lines)
    _draw(subject, cells)
    write_section(subject.folder, Experiment.TABLE1, _section(subject, cells))


def _cell(subject: Subject, row: Row, inference: Inference) -> Cell:
    table, labels = subject.probabilities(row, inference), subject.labels()
    fitted = subject.calibration(row, inference)
    return Cell(
        row=row,
        inference=inference,
        samples=subject.setting.samples if inference is Inference.MC else 1,
        test_images=len(labels),
        accuracy=metrics.accuracy(table, labels),
        nll=metrics.nll(table, labels),
        temperature=fitted.temperature,
        label_flips=fitted.outcome.label_flips,
        scores={
            name: Scored(metrics.bootstrap(metric, table, labels), metrics.calibrated_twin(metric, table).value)
            for name, metric in SCORES.items()
        },
        empty_classes=metrics.classwise(table, labels, metric="uce").empty_classes,
    )


def _section(subject: Subject, cells: list[Cell]) -> str:
    setting = subject.setting
    text = [
        "## Table 1: classwise calibration error",
        "",
        f"{setting.recipe.arch} on {setting.data}, {setting.recipe.epochs} epochs, p = {setting.recipe.p}, "
        f"N = {setting.samples}; maps fitted on {len(subject.dataset.splits['calibration'])} calibration images, "
        f"scores on {cells[0].test_images} test images, 15 bins, classes by predicted "
        "label. In percent: the value, its "
        "95 % bootstrap interval, and *what a perfectly calibrated model with the same probabilities would score* (the "
        "twin). An ECE is good when it is near its twin's. A UCE near or below its twin's can also be that of an "
        "overconfident model: the scorecard judges by T-UCE. Classes that are "
        "never predicted are left out of a classwise mean (`empty_classes`). Commands, unrounded values: "
        "[table1.csv](table1.csv).",
    ]
    titles = {Inference.DETERMINISTIC: "Deterministic", Inference.MC: f"Monte Carlo, N = {setting.samples}"}
    for inference, title in titles.items():
        rows = [
            [
                str(cell.row),
                percentage(cell.accuracy),
                f"{cell.nll:.4f}",
                *(f"{interval(score.interval)}, *{percentage(score.twin, 2)}*" for score in cell.scores.values()),
            ]
            for cell in cells
            if cell.inference is inference
        ]
        text += ["", f"### {title}", "", markdown_table(["", "accuracy", "NLL", *NAMES.values()], rows)]
    text += ["", "![Distance of every value to its twin](table1.png)"]
    return "\n".join(text)


def _draw(subject: Subject, cells: list[Cell]) -> None:
    """Draw the difference of every value to its twin."""
    with figure(subject.folder, Experiment.TABLE1, 1, len(SCORES), 10.6, 2.9) as axes:
        for axis, name in zip(axes[0], SCORES, strict=True):
            for place, cell in enumerate(cells):
                row, mc, score = cell.row, cell.inference is Inference.MC, cell.scores[name]
                ends = (score.interval.low, score.interval.value, score.interval.high)
                low, value, high = (100 * (end - score.twin) for end in ends)
                axis.errorbar(
                    value, -(place % len(Row)) - (0.18 if mc else -0.18), xerr=[[value - low], [high - value]],
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
