"""Table 1: classwise ECE and UCE of every calibration method, deterministic and Monte Carlo."""

from uce_edge import metrics
from uce_edge.contract import Inference, Method
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.report import Record, markdown_table, percent, write_csv, write_section
from uce_edge_train.reproduce.subject import INFERENCES, Row, Subject

SCORES = {
    "cece": metrics.classwise_ece,
    "cuce": metrics.classwise_uce,
    "ece": metrics.ece,
    "uce": metrics.uce,
}


def run(subject: Subject) -> list[Record]:
    """All cells; also writes table1.csv and the section."""
    records = [_cell(subject, row, inference) for inference in INFERENCES for row in Row]
    write_csv(subject.folder, Experiment.TABLE1, records)
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
        "temperature": fitted.parameters["temperature"][0] if row.method is Method.TEMPERATURE else "",
        "label_flips_calibration": fitted.report["label_flips"],
    }
    for name, metric in SCORES.items():
        interval = metrics.bootstrap(metric, table, labels)
        record |= {
            name: interval.value,
            f"{name}_low": interval.low,
            f"{name}_high": interval.high,
            f"{name}_twin": metrics.calibrated_twin(metric, table).value,
        }
    return record | {"command": subject.command(row, inference)}


def _section(subject: Subject, records: list[Record]) -> str:
    setting = subject.setting
    text = [
        "## Table 1: classwise calibration error",
        "",
        f"{setting.recipe.arch} on {setting.data}, {setting.recipe.epochs} epochs, p = {setting.recipe.p}, "
        f"N = {setting.samples}; maps fitted on {len(subject.dataset.splits['calibration'])} calibration images, "
        f"scores on {records[0]['test_images']} test images, 15 bins, classes by predicted "
        "label. In percent: the value, its "
        "95 % bootstrap interval, and *the value of a perfectly calibrated twin* with the same probabilities, below "
        "which no honest model can be expected to score. Commands and unrounded values: [table1.csv](table1.csv).",
    ]
    titles = {Inference.DETERMINISTIC: "Deterministic", Inference.MC: f"Monte Carlo, N = {setting.samples}"}
    for inference, title in titles.items():
        rows = [
            [
                record["method"],
                percent(record["accuracy"]),
                f"{record['nll']:.4f}",
                *(
                    f"{percent(record[name], 2)} ({percent(record[f'{name}_low'], 2)} to "
                    f"{percent(record[f'{name}_high'], 2)}), *{percent(record[f'{name}_twin'], 2)}*"
                    for name in SCORES
                ),
            ]
            for record in records
            if record["inference"] == inference
        ]
        text += ["", f"### {title}", "", markdown_table(["", "accuracy", "NLL", "cECE", "cUCE", "ECE", "UCE"], rows)]
    return "\n".join(text)
