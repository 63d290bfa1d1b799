"""The paper's figure of Bernoulli and Gaussian dropout."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from uce_edge_train.choices import Dropout, Experiment
from uce_edge_train.dropout.bernoulli_layers import bernoullize
from uce_edge_train.dropout.gaussian_layers import gaussianize
from uce_edge_train.reproduce.figure_style import GRID, figure
from uce_edge_train.reproduce.result_files import Cells, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.trained_networks import Study, Subject

PASSES = 20_000
RATES = (0.05, 0.2, 0.5)
CHANNELS = (1, 16)
"""Of the input; every output of a 3x3 layer sums nine times as many values."""
_COLOURS = {Dropout.BERNOULLI: "#d97706", Dropout.GAUSSIAN: "#2563eb"}
_BINS = 80


@dataclass(frozen=True, eq=False)
class Outputs:
    """Two outputs of one layer, in many passes."""

    inputs: int
    """The number of values that each sums."""
    rate: float
    mean: float
    """The output without noise."""
    deviation: float
    """The standard deviation that the formula of Gaussian dropout gives the first output."""
    drawn: dict[Dropout, npt.NDArray[np.float64]]
    """[passes, 2] by the kind of dropout."""

    def distance(self, kind: Dropout) -> float:
        """Kolmogorov-Smirnov distance of the first output to the normal."""
        ordered = np.sort((self.drawn[kind][:, 0] - self.mean) / self.deviation)
        normal = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in ordered])
        steps = np.arange(len(ordered) + 1) / len(ordered)
        return float(max(np.abs(normal - steps[:-1]).max(), np.abs(normal - steps[1:]).max()))

    def correlation(self, kind: Dropout) -> float:
        """Of the two outputs, which share their inputs."""
        first, second = (self.drawn[kind] - self.drawn[kind].mean(0)).T
        return float((first @ second) / math.sqrt((first @ first) * (second @ second)))


def run(study: Study) -> None:
    """Write dropout.csv, dropout.png and the section."""
    subject = study.first
    found = [draw(channels, rate, subject.setting.recipe.seed) for channels in CHANNELS for rate in RATES]
    lines: list[Cells] = [
        {
            "inputs": one.inputs, "rate": one.rate, "dropout": str(kind), "mean": float(values[:, 0].mean()),
            "deviation": float(values[:, 0].std()), "formula_mean": one.mean, "formula_deviation": one.deviation,
            "distance_to_normal": one.distance(kind), "correlation": one.correlation(kind), "passes": PASSES,
            "command": subject.setting.command(Experiment.DROPOUT, str(subject.folder)),
        }
        for one in found
        for kind, values in one.drawn.items()
    ]  # fmt: skip
    write_csv(subject.folder, Experiment.DROPOUT, lines)
    _draw(subject, found)
    write_section(subject.folder, Experiment.DROPOUT, _section(found))


def draw(channels: int, rate: float, seed: int) -> Outputs:
    """Run a random convolution with both dropout families."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        layer = nn.Conv2d(channels, 2, 3, bias=False)
        image = torch.randn(1, channels, 3, 3)
        mean = layer(image)[0, 0].item()
        variance = nn.functional.conv2d(image.square(), layer.weight.square())[0, 0].item() * rate / (1 - rate)
        batch = image.expand(PASSES, -1, -1, -1)  # every one of these has noise of its own
        weights, drawn = layer.state_dict(), {}
        for kind, make in ((Dropout.BERNOULLI, bernoullize), (Dropout.GAUSSIAN, gaussianize)):
            noisy = nn.Sequential(nn.Conv2d(channels, 2, 3, bias=False))
            noisy[0].load_state_dict(weights)
            make(noisy, rate, skip_first=False).train()
            drawn[kind] = noisy(batch)[:, :, 0, 0].double().numpy()
    return Outputs(9 * channels, rate, mean, math.sqrt(variance), drawn)


def _draw(subject: Subject, found: list[Outputs]) -> None:
    rows, columns = len(CHANNELS), len(RATES)
    with figure(subject.folder, Experiment.DROPOUT, rows, columns, 3.1 * columns, 2.5 * rows) as axes:
        for axis, one in zip(axes.flat, found, strict=True):
            reach = one.mean + 4 * one.deviation * np.array([-1, 1])
            for kind, values in one.drawn.items():
                filled = kind is Dropout.BERNOULLI
                axis.hist(
                    values[:, 0], _BINS, range=tuple(reach), density=True, color=_COLOURS[kind], linewidth=1.3,
                    histtype="stepfilled" if filled else "step", alpha=0.45 if filled else 1, label=f"{kind} dropout",
                )  # fmt: skip
            axis.set(title=f"{one.inputs} inputs, p = {one.rate:g}", yticks=[], xlim=tuple(reach))
            axis.title.set_fontsize(9)
            axis.grid(**GRID)
        for axis in axes[-1]:
            axis.set_xlabel("output of the layer")
        for across in axes:
            across[0].set_ylabel("density")
        axes[0, 0].legend(frameon=False, fontsize=7.5, loc="upper left")


def _section(found: list[Outputs]) -> str:
    rows = []
    for one in found:
        cells = [f"{one.inputs}", f"{one.rate:g}"]
        for kind in (Dropout.BERNOULLI, Dropout.GAUSSIAN):
            values = one.drawn[kind][:, 0]
            cells += [f"{values.mean():.3f} ± {values.std():.3f}", f"{one.distance(kind):.3f}"]
            cells.append(f"{one.correlation(kind):.2f}")
        rows.append(cells)
    header = [
        "inputs", "p", "Bernoulli: mean ± deviation", "distance to normal", "correlation",
        "Gaussian: mean ± deviation", "distance to normal", "correlation",
    ]  # fmt: skip
    chance = 1.36 / math.sqrt(PASSES)
    return (
        "## Bernoulli and Gaussian dropout\n\n"
        "The paper's Figure 2: one output of a 3x3 convolution with random weights and a random input, in "
        f"{PASSES:,} passes. No training takes part. Mean and deviation of both kinds agree. The more inputs an output "
        "sums, the nearer is Bernoulli dropout to the normal distribution; rare drops (small p) take more inputs. The "
        f"distance is the largest gap between the two distribution functions: below {chance:.3f} it may be chance (5 % "
        "level). "
        "The correlation is that of two outputs at the same place: with Bernoulli dropout they share their masks, with "
        "Gaussian dropout each has noise of its own.\n\n"
        f"{markdown_table(header, rows)}\n\n![Outputs of a layer with both kinds of dropout](dropout.png)\n\n"
        "Values and the command: [dropout.csv](dropout.csv)."
    )
