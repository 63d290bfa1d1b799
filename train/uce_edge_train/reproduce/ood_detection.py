"""Out-of-distribution detection, per batch and per image."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.evaluation.batch_mixture import BATCH, BATCHES, FRACTIONS, mixture
from uce_edge.output.wording import MISSING, percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figure_style import COLOURS, GRID, figure
from uce_edge_train.reproduce.result_files import Cells, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.trained_networks import DRAWN, INFERENCES, Row, Study, Subject

SCORES = {"uncertainty": "H", "confidence": "max p", "model_uncertainty": "model part"}
"""Detection scores, and the names of their columns."""


@dataclass(frozen=True)
class Separation:
    """How well one score separates out-of-distribution images."""

    auroc: float
    fpr_at_95: float


@dataclass(frozen=True)
class Detection:
    """Detection by one calibration method with one inference."""

    row: Row
    inference: Inference
    mean_own: float
    """Mean uncertainty of the own images."""
    mean_ood: float
    by: dict[str, Separation | None]
    """Per score, as in `SCORES`; None where one pass has no such score."""

    def line(self) -> Cells:
        """The row of a CSV file."""
        line: Cells = {
            "inference": str(self.inference), "method": str(self.row), "mean_own": self.mean_own,
            "mean_foreign": self.mean_ood,
        }  # fmt: skip
        for score, separation in self.by.items():
            area, accepted = (separation.auroc, separation.fpr_at_95) if separation else (math.nan, math.nan)
            line |= {f"auroc {SCORES[score]}": area, f"fpr95 {SCORES[score]}": accepted}
        return line


def run(study: Study) -> None:
    """Write ood.csv with all points, ood-detection.csv, ood.png and the section."""
    subject = study.first
    lines: list[Cells] = []
    curves = {}
    for inference in INFERENCES:
        for row in DRAWN:
            inside, outside = (subject.answers(row, inference, split).uncertainty for split in ("test", "ood"))
            mean, spread = mixture(inside, outside, FRACTIONS)
            curves[row, inference] = mean, spread
            for fraction, value, deviation in zip(FRACTIONS, mean, spread, strict=True):
                lines.append(
                    {
                        "method": str(row), "inference": str(inference), "ood": str(subject.setting.ood),
                        "fraction": float(fraction), "mean_uncertainty": float(value), "batch_std": float(deviation),
                        **subject.commands(Experiment.OOD, row),
                    }
                )  # fmt: skip
    write_csv(subject.folder, Experiment.OOD, lines)
    found = [_detection(subject, row, inference) for inference in INFERENCES for row in DRAWN]
    rows = [{**one.line(), **subject.commands(Experiment.OOD, one.row)} for one in found]
    write_csv(subject.folder, "ood-detection", rows)
    with figure(subject.folder, Experiment.OOD, 1, 2, 9.2, 3.6) as axes:
        for axis, inference, title in zip(axes[0], reversed(INFERENCES), ("Monte Carlo", "Deterministic"), strict=True):
            for row in DRAWN:
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
    write_section(subject.folder, Experiment.OOD, _section(subject, found))


def _detection(subject: Subject, row: Row, inference: Inference) -> Detection:
    passes = subject.setting.samples if inference is Inference.MC else 1
    inside, outside = (subject.answers(row, inference, split) for split in ("test", "ood"))
    own, ood = inside.scores(passes), outside.scores(passes)
    by = {score: _separation(own[score], ood[score]) for score in SCORES}
    return Detection(row, inference, float(inside.uncertainty.mean()), float(outside.uncertainty.mean()), by)


def _separation(own: npt.NDArray[np.float64] | None, ood: npt.NDArray[np.float64] | None) -> Separation | None:
    if own is None or ood is None:
        return None
    return Separation(metrics.ood_auroc(own, ood), metrics.ood_fpr_at_95(own, ood))


def _section(subject: Subject, found: list[Detection]) -> str:
    rows = [
        [
            str(one.inference), str(one.row), f"{one.mean_own:.3f}", f"{one.mean_ood:.3f}",
            *map(_pair, one.by.values()),
        ]
        for one in found
    ]  # fmt: skip
    header = ["", "", "mean H, own", "mean H, OOD", *SCORES.values()]
    images = len(subject.probabilities(Row.UNCALIBRATED, Inference.MC, "ood"))
    return (
        "## Out of distribution\n\n"
        f"{subject.setting.shown}"
        f"Trained on {subject.setting.data}, tested on {images} images of {subject.setting.ood} (OOD). Left: mean "
        "uncertainty. Right, per image and score: AUROC / FPR at 95 % (the share of OOD images accepted by the "
        f"threshold that accepts 95 % of the own ones), in percent.\n\n{markdown_table(header, rows)}\n\n"
        f"Mean uncertainty of a batch of {BATCH} as OOD images replace its own, mean and standard deviation over "
        f"{BATCHES} random batches. Its expectation is a straight line between the two means above.\n\n"
        "![Mean uncertainty against the OOD share](ood.png)\n\n"
        "Values and commands: [ood.csv](ood.csv), [ood-detection.csv](ood-detection.csv)."
    )


def _pair(separation: Separation | None) -> str:
    if separation is None:
        return MISSING
    return f"{percentage(separation.auroc)} / {percentage(separation.fpr_at_95)}"
