"""Rejection: error of accepted images against the threshold."""

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.evaluation.threshold_curves import THRESHOLDS
from uce_edge.output.wording import percent, percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figure_style import COLOURS, GRID, figure
from uce_edge_train.reproduce.result_files import Cells, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.trained_networks import DRAWN, INFERENCES, Row, Study, Subject


def run(study: Study) -> None:
    """Write rejection.csv with all points, rejection-areas.csv, rejection.png and the section."""
    subject = study.first
    labels = subject.labels()
    lines: list[Cells] = []
    for inference in INFERENCES:
        for row in DRAWN:
            table = subject.probabilities(row, inference)
            for score in ("uncertainty", "confidence"):
                kept = metrics.error_at(table, labels, thresholds=THRESHOLDS, score=score)
                for threshold, coverage, error in zip(THRESHOLDS, kept.coverage, kept.risk, strict=True):
                    lines.append(
                        {
                            "method": str(row), "inference": str(inference), "score": score,
                            "threshold": float(threshold), "coverage": float(coverage), "error": float(error),
                            **subject.commands(Experiment.REJECTION, row),
                        }
                    )  # fmt: skip
    write_csv(subject.folder, Experiment.REJECTION, lines)
    areas: list[Cells] = [
        {"method": str(row), **_areas(subject, row), **subject.commands(Experiment.REJECTION, row)} for row in DRAWN
    ]
    write_csv(subject.folder, "rejection-areas", areas)
    _draw(subject)
    write_section(subject.folder, Experiment.REJECTION, _section(subject))


def _draw(subject: Subject) -> None:
    labels = subject.labels()
    with figure(subject.folder, Experiment.REJECTION, 1, 2, 9.2, 3.6) as axes:
        left, right = axes[0]
        for row in DRAWN:
            table = subject.probabilities(row, Inference.MC)
            kept = metrics.error_at(table, labels, thresholds=THRESHOLDS)
            left.plot(THRESHOLDS, 100 * kept.risk, color=COLOURS[row], label=str(row), linewidth=1.4)
        left.set(xlabel="threshold on the uncertainty, H_max", ylabel="error of what is kept, %", title="Monte Carlo")
        left.legend(frameon=False, fontsize=8)
        scores = (
            (Inference.MC, "uncertainty", "MC, uncertainty H", "-"),
            (Inference.MC, "confidence", "MC, max probability", "--"),
            (Inference.DETERMINISTIC, "uncertainty", "deterministic, H", "-"),
            (Inference.DETERMINISTIC, "confidence", "deterministic, max probability", "--"),
        )
        for inference, score, label, line in scores:
            table = subject.probabilities(Row.TEMPERATURE, inference)
            curve = metrics.risk_coverage(table, labels, score=score)
            area = metrics.aurc(table, labels, score=score)
            colour = COLOURS[Row.TEMPERATURE] if inference is Inference.MC else COLOURS[Row.UNCALIBRATED]
            right.plot(
                100 * curve.coverage, 100 * curve.risk, line, color=colour, linewidth=1.4,
                label=f"{label} (AURC {percent(area, 2)})",
            )  # fmt: skip
        curve = metrics.risk_coverage(
            subject.probabilities(Row.TEMPERATURE, Inference.MC),
            labels,
            score=subject.model_part(Row.TEMPERATURE, "test"),
        )
        right.plot(100 * curve.coverage, 100 * curve.risk, ":", color=COLOURS[Row.AUX], label="MC, model part alone")
        right.set(xlabel="coverage, %", ylabel="error of what is kept, %", title="Temperature scaling: which score?")
        right.legend(frameon=False, fontsize=8)
        for axis in (left, right):
            axis.set_ylim(bottom=0)
            axis.grid(**GRID)


def _section(subject: Subject) -> str:
    labels = subject.labels()
    rows = []
    for row in DRAWN:
        table = subject.probabilities(row, Inference.MC)
        kept = metrics.error_at(table, labels, thresholds=[0.1, 0.3, 0.5, 1.0])
        cells = [f"{percentage(e)} ({percentage(c, 0)})" for e, c in zip(kept.risk, kept.coverage, strict=True)]
        rows.append([str(row), *cells, *(percentage(area, 2) for area in _areas(subject, row).values())])
    header = [
        "", "H ≤ 0.1", "H ≤ 0.3", "H ≤ 0.5", "all", "AURC: MC, H", "MC, max p", "MC, model part",
        "det., H", "det., max p",
    ]  # fmt: skip
    return (
        "## Rejection\n\n"
        f"{subject.setting.shown}"
        f"Error of the images that are kept, in percent (and how many are kept), Monte Carlo with N = "
        f"{subject.setting.samples}; then the area under the "
        "risk-coverage curve, lower is better, for each score by which images can be rejected.\n\n"
        f"{markdown_table(header, rows)}\n\n"
        "![Error against the threshold, and risk against coverage](rejection.png)\n\n"
        "Values and commands: [rejection.csv](rejection.csv), [rejection-areas.csv](rejection-areas.csv)."
    )


def _areas(subject: Subject, row: Row) -> dict[str, float]:
    """Area under the risk-coverage curve, by score."""
    labels = subject.labels()
    sampled, deterministic = (subject.probabilities(row, kind) for kind in (Inference.MC, Inference.DETERMINISTIC))
    return {
        "mc_uncertainty": metrics.aurc(sampled, labels),
        "mc_confidence": metrics.aurc(sampled, labels, score="confidence"),
        "mc_model_part": metrics.aurc(sampled, labels, score=subject.model_part(row, "test")),
        "deterministic_uncertainty": metrics.aurc(deterministic, labels),
        "deterministic_confidence": metrics.aurc(deterministic, labels, score="confidence"),
    }
