"""Out of distribution: the mean uncertainty of a batch as foreign images replace its own, and detection per image."""

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.figures import COLOURS, GRID, figure
from uce_edge_train.reproduce.report import Record, markdown_table, percent, write_csv, write_section
from uce_edge_train.reproduce.subject import INFERENCES, Row, Subject

BATCH, BATCHES = 100, 200  # the paper's batch, and how many random ones are averaged
FRACTIONS = np.round(np.linspace(0, 1, 21), 2)


def run(subject: Subject) -> list[Record]:
    """All points; also writes ood.csv, ood.png and the section."""
    records: list[Record] = []
    curves = {}
    for inference in INFERENCES:
        for row in Row:
            inside, outside = (
                metrics.normalized_entropy(subject.probabilities(row, inference, split)) for split in ("test", "ood")
            )
            mean, spread = curve(inside, outside)
            curves[row, inference] = mean, spread
            for fraction, value, deviation in zip(FRACTIONS, mean, spread, strict=True):
                records.append(
                    {
                        "method": str(row), "inference": str(inference), "ood": str(subject.setting.ood),
                        "fraction": float(fraction), "mean_uncertainty": float(value), "batch_std": float(deviation),
                        "command": subject.command(row, inference),
                    }
                )  # fmt: skip
    write_csv(subject.folder, Experiment.OOD, records)
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
    write_section(subject.folder, Experiment.OOD, _section(subject))
    return records


def curve(
    inside: npt.NDArray[np.float64], outside: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation, over random batches, of the batch's mean uncertainty at every fraction."""
    rng = np.random.default_rng(0)
    means = np.empty((BATCHES, len(FRACTIONS)))
    for batch in means:
        own, foreign = rng.choice(inside, BATCH), rng.choice(outside, BATCH)
        for index, fraction in enumerate(FRACTIONS):
            replaced = round(fraction * BATCH)  # stepwise: what was replaced once stays replaced
            batch[index] = np.concatenate([foreign[:replaced], own[replaced:]]).mean()
    return means.mean(0), means.std(0, ddof=1)


def scores(subject: Subject, row: Row, inference: Inference, split: str) -> dict[str, npt.NDArray[np.float64]]:
    """Per image, what may tell foreign images from own ones; higher is more foreign."""
    table = subject.probabilities(row, inference, split)
    found = {"H": metrics.normalized_entropy(table), "max p": 1 - table.max(-1)}
    if inference is Inference.MC:
        found["model part"] = subject.model_part(row, split)
    return found


def _section(subject: Subject) -> str:
    rows = []
    for inference in INFERENCES:
        for row in Row:
            inside, outside = (scores(subject, row, inference, split) for split in ("test", "ood"))
            cells = [f"{inside['H'].mean():.3f}", f"{outside['H'].mean():.3f}"]
            for name in ("H", "max p", "model part"):
                if name in inside:
                    area = metrics.ood_auroc(inside[name], outside[name])
                    accepted = metrics.ood_fpr_at_95(inside[name], outside[name])
                    cells.append(f"{percent(area)} / {percent(accepted)}")
                else:
                    cells.append("–")
            rows.append([str(inference), str(row), *cells])
    header = ["", "", "mean H, own", "mean H, foreign", "H", "max p", "model part"]
    images = len(subject.probabilities(Row.UNCALIBRATED, Inference.MC, "ood"))
    return (
        "## Out of distribution\n\n"
        f"Trained on {subject.setting.data}, shown {images} images of {subject.setting.ood}. Left: mean uncertainty. "
        "Right, per image and score: AUROC / FPR at 95 % (the share of foreign images accepted by the threshold that "
        f"accepts 95 % of the own ones), in percent.\n\n{markdown_table(header, rows)}\n\n"
        f"Mean uncertainty of a batch of {BATCH} as foreign images replace its own, mean and standard deviation over "
        f"{BATCHES} random batches. Its expectation is a straight line between the two means above.\n\n"
        "![Mean uncertainty against the foreign share](ood.png)\n\nValues and commands: [ood.csv](ood.csv)."
    )
