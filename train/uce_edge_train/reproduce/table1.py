"""Table 1: classwise ECE and UCE of every calibration method, deterministic and Monte Carlo."""

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.report.words import percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figures import COLOURS, GRID, figure
from uce_edge_train.reproduce.report import Record, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.subject import INFERENCES, Row, Subject

SCORES = {
    "cece": metrics.classwise_ece,
    "cuce": metrics.classwise_uce,
    "ece": metrics.ece,
    "uce": metrics.uce,
}


NAMES = {"cece": "cECE", "cuce": "cUCE", "ece": "ECE", "uce": "UCE"}


def run(subject: Subject) -> list[Record]:
    """All cells; also writes table1.csv and the section."""
    records = [_cell(subject, row, inference) for inference in INFERENCES for row in Row]
    write_csv(subject.folder, Experiment.TABLE1, records)
    _draw(subject, records)
    write_section(subject.folder, Experiment.TABLE1, _section(subject, records))
    return records


def _cell(subject: Subject, row: Row, inference: Inference) -> Record:
    table, labels = subject.probabilities(row, inference), subject.labels()
    fitted = subject.calibration(row, inference)
    record: Record = {
        "inference": str(inference),
        "method": str(row),
        "samples": subject.setting.samples if inference is Inference.MC else 1,
        "test_images": len(labels),
        "accuracy": metrics.accuracy(table, labels),
        "nll": metrics.nll(table, labels),
        "temperature": "" if fitted.temperature is None else fitted.temperature,
        "label_flips_calibration": fitted.outcome.label_flips,
    }
    for name, metric in SCORES.items():
        interval = metrics.bootstrap(metric, table, labels)
        record |= {
            name: interval.value,
            f"{name}_low": interval.low,
            f"{name}_high": interval.high,
            f"{name}_twin": metrics.calibrated_twin(metric, table).value,
        }
    empty = metrics.classwise(table, labels, metric="uce").empty_classes
    return record | {"empty_classes": empty} | subject.commands(Experiment.TABLE1, row)


def _section(subject: Subject, records: list[Record]) -> str:
    setting = subject.setting
    text = [
        "## Table 1: classwise calibration error",
        "",
        f"{setting.recipe.arch} on {setting.data}, {setting.recipe.epochs} epochs, p = {setting.recipe.p}, "
        f"N = {setting.samples}; maps fitted on {len(subject.dataset.splits['calibration'])} calibration images, "
        f"scores on {records[0]['test_images']} test images, 15 bins, classes by predicted "
        "label. In percent: the value, its "
        "95 % bootstrap interval, and *what a perfectly calibrated model with the same probabilities would score* (the "
        "twin). A value is good when it is near its twin's, which for UCE can be above or below. Classes that are "
        "never predicted are left out of a classwise mean (`empty_classes`). Commands, unrounded values: "
        "[table1.csv](table1.csv).",
    ]
    titles = {Inference.DETERMINISTIC: "Deterministic", Inference.MC: f"Monte Carlo, N = {setting.samples}"}
    for inference, title in titles.items():
        rows = [
            [
                record["method"],
                percentage(record["accuracy"]),
                f"{record['nll']:.4f}",
                *(
                    f"{percentage(record[name], 2)} ({percentage(record[f'{name}_low'], 2)} to "
                    f"{percentage(record[f'{name}_high'], 2)}), *{percentage(record[f'{name}_twin'], 2)}*"
                    for name in SCORES
                ),
            ]
            for record in records
            if record["inference"] == inference
        ]
        text += ["", f"### {title}", "", markdown_table(["", "accuracy", "NLL", *NAMES.values()], rows)]
    text += ["", "![Distance of every value to its twin](table1.png)"]
    return "\n".join(text)


def _draw(subject: Subject, records: list[Record]) -> None:
    """How far every value is from its twin's, with the interval."""
    with figure(subject.folder, Experiment.TABLE1, 1, len(SCORES), 10.6, 2.9) as axes:
        for axis, name in zip(axes[0], SCORES, strict=True):
            for place, record in enumerate(records):
                row, mc = Row(record["method"]), record["inference"] == Inference.MC
                low, value, high = (
                    100 * (record[key] - record[f"{name}_twin"]) for key in (f"{name}_low", name, f"{name}_high")
                )
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
