"""Out of distribution: the mean uncertainty of a batch as foreign images replace its own, and detection per image."""

import math

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.evaluation.ood import BATCH, BATCHES, FRACTIONS, mixture
from uce_edge.report.words import percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figures import COLOURS, GRID, figure
from uce_edge_train.reproduce.report import Record, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.subject import INFERENCES, Row, Subject

SCORES = {"uncertainty": "H", "confidence": "max p", "model_uncertainty": "model part"}
"""What may tell foreign images from own ones, and the name of its columns."""


def run(subject: Subject) -> list[Record]:
    """All points; also writes ood.csv, ood.png and the section."""
    records: list[Record] = []
    curves = {}
    for inference in INFERENCES:
        for row in Row:
            inside, outside = (subject.answers(row, inference, split).uncertainty for split in ("test", "ood"))
            mean, spread = mixture(inside, outside, FRACTIONS)
            curves[row, inference] = mean, spread
            for fraction, value, deviation in zip(FRACTIONS, mean, spread, strict=True):
                records.append(
                    {
                        "method": str(row), "inference": str(inference), "ood": str(subject.setting.ood),
                        "fraction": float(fraction), "mean_uncertainty": float(value), "batch_std": float(deviation),
                        **subject.commands(Experiment.OOD, row),
                    }
                )  # fmt: skip
    write_csv(subject.folder, Experiment.OOD, records)
    detection = [_detection(subject, row, inference) for inference in INFERENCES for row in Row]
    write_csv(subject.folder, "ood-detection", detection)
    with figure(subject.folder, Experiment.OOD, 1, 2, 9.2, 3.6) as axes:
        for axis, inference, title in zip(axes[0], reversed(INFERENCES), ("Monte Carlo", "Deterministic"), strict=True):
            for row in Row:
                mean, spread = curves[row, inference]
                axis.plot(100 * FRACTIONS, mean, color=COLOURS[row], label=str(row), linewidth=1.4)
                axis.fill_between(
                    100 * FRACTIONS, mean - spread, mean + spread, color=COLOURS[row], alpha=0.12, linewidth=0
                )
            axis.set(
                xlabel=f"images of {subject.setting.ood} in the batch, %", ylabel="mean uncertainty H", title=title,
                ylim=(0, 1),
            )  # fmt: skip
            axis.grid(**GRID)
        axes[0][0].legend(frameon=False, fontsize=8)
    write_section(subject.folder, Experiment.OOD, _section(subject, detection))
    return records


def _detection(subject: Subject, row: Row, inference: Inference) -> Record:
    """Mean uncertainty of own and foreign images, and how well each score tells them apart."""
    passes = subject.setting.samples if inference is Inference.MC else 1
    inside, outside = (subject.answers(row, inference, split) for split in ("test", "ood"))
    own, foreign = inside.scores(passes), outside.scores(passes)
    record: Record = {
        "inference": str(inference), "method": str(row), "mean_own": float(inside.uncertainty.mean()),
        "mean_foreign": float(outside.uncertainty.mean()),
    }  # fmt: skip
    for score, column in SCORES.items():
        own_values, foreign_values = own[score], foreign[score]
        area = accepted = math.nan
        if own_values is not None and foreign_values is not None:
            area, accepted = (
                metric(own_values, foreign_values) for metric in (metrics.ood_auroc, metrics.ood_fpr_at_95)
            )
        record |= {f"auroc {column}": area, f"fpr95 {column}": accepted}
    return record | subject.commands(Experiment.OOD, row)


def _section(subject: Subject, detection: list[Record]) -> str:
    rows = [
        [
            r["inference"], r["method"], f"{r['mean_own']:.3f}", f"{r['mean_foreign']:.3f}",
            *(_pair(r[f"auroc {column}"], r[f"fpr95 {column}"]) for column in SCORES.values()),
        ]
        for r in detection
    ]  # fmt: skip
    header = ["", "", "mean H, own", "mean H, foreign", *SCORES.values()]
    images = len(subject.probabilities(Row.UNCALIBRATED, Inference.MC, "ood"))
    return (
        "## Out of distribution\n\n"
        f"Trained on {subject.setting.data}, shown {images} images of {subject.setting.ood}. Left: mean uncertainty. "
        "Right, per image and score: AUROC / FPR at 95 % (the share of foreign images accepted by the threshold that "
        f"accepts 95 % of the own ones), in percent.\n\n{markdown_table(header, rows)}\n\n"
        f"Mean uncertainty of a batch of {BATCH} as foreign images replace its own, mean and standard deviation over "
        f"{BATCHES} random batches. Its expectation is a straight line between the two means above.\n\n"
        "![Mean uncertainty against the foreign share](ood.png)\n\n"
        "Values and commands: [ood.csv](ood.csv), [ood-detection.csv](ood-detection.csv)."
    )


def _pair(area: float, accepted: float) -> str:
    return "–" if math.isnan(area) else f"{percentage(area)} / {percentage(accepted)}"
