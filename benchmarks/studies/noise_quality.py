"""Measure the noise table and write docs/noise.md: moments, correlations, and the bias of the uncertainty.

Run: make noise
"""

import math
import tempfile
from pathlib import Path

import numpy as np

from uce_edge.calibration.maps import probabilities
from uce_edge.contract import MAX_SAMPLES, Method
from uce_edge.datasets import splits
from uce_edge.metrics import normalized_entropy
from uce_edge.runtime.model import Model
from uce_edge_export.noise import noise_table
from uce_edge_export.noise.perturbations.bernoulli import threshold
from uce_edge_train import calibration
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.export import export_run
from uce_edge_train.loop import training
from uce_edge_train.runs import Run, load_model

RESNET20 = (16384,) * 6 + (8192,) * 7 + (4096,) * 7 + (10,)  # outputs of its noisy layers on 32x32 images
PASSES = 4096
SEEDS = 60

INTRODUCTION = """# The noise of a Monte Carlo pass

This page says where the random numbers of a uce-edge file come from, and how close they are to ideal ones.

Gaussian dropout needs one standard normal for every output of every noisy layer, anew in every pass. ONNX has
`RandomNormalLike` for that, but it cannot be seeded per call, it runs serially in ONNX Runtime, and it differs between
runtimes. A uce-edge file therefore carries a constant table of {rows} rows of {width} normals. A pass copies rows of
this table. The seed of the pass decides which:

    row(b) = (u + j v) mod {rows}      for block b = {steps} i + j of {width} values of the model's noise

Hash number i turns the seed into u and v. Over all seeds, (u, v) takes every pair of values exactly once. So every row
is equally frequent in every block, and neighbouring blocks have independent rows.

**The table.** It is made from an orthogonal array: in any two of its columns, each of the {levels} x {levels} pairs of
levels is equally frequent. So two values of a block are not only uncorrelated but independent, up to the width of a
level. By construction, the columns have mean 0, variance 1 and no correlation.

**The hash.** It is a Feistel network of {rounds} rounds on the two 12-bit halves of the seed. A round adds a key and
the middle bits of a square, in int32. Every hash has its own keys. All numbers are below 2^24 and not negative, so a
runtime that divides integers as float32 computes the same rows, and an engine that lowers float32 to half precision
leaves them alone. How white the noise is between hashes, layers and passes depends on the quality of the hash, which
is measured below.

**One noise for all images.** All images of a pass share its noise, so an answer does not depend on its batch.

**Masks.** Bernoulli dropout keeps a value when its normal is above the p-quantile, a float32 constant. Masks therefore
use the same seeds, blocks and rows. Dropout of whole channels takes one normal per channel.

**Limits.** The values of the table end at {largest:.2f} standard deviations, as those of an ideal sample of {rows} rows
do. Two passes have the same row in a given block once in {rows} times.

**Other noise.** The metadata calls this noise `table-2`. Older files have `table`: 1021 rows of 256 normals, at the
index (a + b k + c k^2) mod 1021. Their answers have not changed. A quadratic index repeats its values in reverse
order, so rows repeat in some passes and not in others. With that table, a sum over a layer of 65,536 outputs with equal
weights had an excess kurtosis of 0.30 and exceeded 3 standard deviations in 0.48 % of the passes instead of 0.27 %.
`--noise randn` uses the generator of the runtime instead; no pass can be replayed then. `--noise input` turns the noise
into inputs of the graph.

## Measured

`make noise` measures everything below and writes this page. "Control" is the same statistic for NumPy's generator. z
counts standard errors. The largest of m independent standard normals is expected near sqrt(2 ln m).

"""


MASKS = """Between blocks and between passes, masks are as independent as those of NumPy's generator. Within a block
they are nearly independent: a quantile lies inside one of the {levels} levels, whose values are dealt to rows at
random. The fourth column says by how much the variance of a sum of {width} masked values of one block, with random
weights, is off (one standard deviation over the weights). Over several blocks these errors average out."""

SUMS = """Rows that repeat within a pass add up most in a sum over one column of every block of a layer, with equal
weights. "Repeats" is the share of the passes in which more than a quarter of the blocks have the row of another block.
The control of that column draws independent, uniform rows."""


def largest_z(left: np.ndarray, right: np.ndarray | None) -> tuple[float, int]:
    """Largest correlation between columns of two [passes, values] samples in standard errors, and their number.

    Without a second sample, between the columns of the first.
    """
    if right is None:
        z = (left.T @ left / math.sqrt(len(left)))[np.triu_indices(left.shape[1], 1)]
    else:
        z = left.T @ right / math.sqrt(len(left))
    return float(np.abs(z).max()), z.size


def correlations() -> list[str]:
    plan = noise_table.Plan(RESNET20)
    layers = noise_table.layer_noise(range(PASSES), plan)
    control = np.random.default_rng(0)
    columns = np.random.default_rng(1).choice(16384, 64, replace=False)
    first, second, deep = layers[0], layers[1], layers[10]
    plane = 32 * 32  # outputs of one channel

    def normal(like: np.ndarray) -> np.ndarray:
        return control.standard_normal(like.shape)

    following = noise_table.layer_noise(range(MAX_SAMPLES, MAX_SAMPLES + PASSES), plan)[0]
    cases = {
        "outputs of one layer": (first[:, columns], None),
        "the same pixel in different channels": (first[:, 5::plane], None),
        "blocks of one layer, same column": (first[:, 7 :: noise_table.WIDTH], None),
        "two layers, same outputs": (first[:, columns], second[:, columns]),
        "two layers of different size": (first[:, columns], deep[:, columns % 8192]),
        "consecutive passes": (first[1:, columns], first[:-1, columns]),
        "passes 64 apart": (first[64:, columns], first[:-64, columns]),
        "a pass and the same pass of the next seed": (first[:, columns], following[:, columns]),
    }
    lines = [
        "| correlation between | pairs | expected largest z | table | control |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (left, right) in cases.items():
        found, count = largest_z(left, right)
        reference, _ = largest_z(normal(left), None if right is None else normal(right))
        lines.append(f"| {name} | {count} | {math.sqrt(2 * math.log(count)):.1f} | {found:.1f} | {reference:.1f} |")
    return lines


def moments() -> list[str]:
    values = np.concatenate(
        [layer[:512].ravel() for layer in noise_table.layer_noise(range(512), noise_table.Plan(RESNET20))]
    )
    control = np.random.default_rng(2).standard_normal(values.size)
    lines = ["| moment | ideal | table | control |", "| --- | --- | --- | --- |"]
    for name, power, ideal in (("mean", 1, 0), ("variance", 2, 1), ("skewness", 3, 0), ("kurtosis", 4, 3)):
        ours, theirs = (float((x.astype(np.float64) ** power).mean()) for x in (values, control))
        lines.append(f"| {name} | {ideal} | {ours:+.5f} | {theirs:+.5f} |")
    return [f"{values.size:,} values: the noise of 512 passes of ResNet-20.", "", *lines]


def masks() -> list[str]:
    """How far masks are from independent ones, in two blocks of values."""
    width = noise_table.WIDTH
    (normals,) = noise_table.layer_noise(range(PASSES), noise_table.Plan((2 * width,)))
    drawn = np.random.default_rng(3).standard_normal(normals.shape)
    table = noise_table.table()
    lines = [
        "| p | largest error of a rate | correlation within a block (rms) | variance of a sum | "
        "largest z between blocks | between passes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    weights = np.random.default_rng(4).standard_normal((2000, width))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    for p in (0.05, 0.1, 0.2, 0.5):
        exact = _standard(table > threshold(p))
        within = exact.T @ exact / len(exact)
        off = math.sqrt((within[np.triu_indices(width, 1)] ** 2).mean())
        spread = ((weights @ within) * weights).sum(axis=1).std()
        rate = np.abs((table > threshold(p)).mean(axis=0) - (1 - p)).max()
        z = []
        for values in (normals, drawn):
            kept = _standard(values > threshold(p))
            z.append((largest_z(kept[:, :width], kept[:, width:])[0], largest_z(kept[:-1], kept[1:])[0]))
        (blocks, passes), (blocks_control, passes_control) = z
        lines.append(
            f"| {p:g} | {rate:.4f} | {off:.3f} | ± {spread:.1%} | {blocks:.1f} (control {blocks_control:.1f}) | "
            f"{passes:.1f} (control {passes_control:.1f}) |"
        )
    return lines


def sums() -> list[str]:
    """Tails of sums with equal weights, and rows that come back."""
    rng = np.random.default_rng(5)
    lines = [
        "| values of a layer | excess kurtosis | P(abs(z) > 3), ideal 0.0027 | "
        "P(abs(z) > 4), ideal 0.00006 | repeats |",
        "| --- | --- | --- | --- | --- |",
    ]
    for size in (4096, 16384, 65536, 262144):
        blocks = size // noise_table.WIDTH
        found = noise_table.rows(range(PASSES), noise_table.Plan((size,)))
        independent = rng.integers(0, noise_table.ROWS, found.shape)
        z = _column_sums(found)
        control = rng.standard_normal(z.shape)
        figures = [
            f"{ours:{form}} (control {theirs:{form}})"
            for form, ours, theirs in (
                ("+.3f", _excess_kurtosis(z), _excess_kurtosis(control)),
                (".5f", (np.abs(z) > 3).mean(), (np.abs(control) > 3).mean()),
                (".6f", (np.abs(z) > 4).mean(), (np.abs(control) > 4).mean()),
                (".1%", (_twice(found) > blocks / 4).mean(), (_twice(independent) > blocks / 4).mean()),
            )
        ]
        lines.append(f"| {size:,} | {' | '.join(figures)} |")
    return lines


def _column_sums(rows: np.ndarray) -> np.ndarray:
    """The sum over all blocks of a pass, for every column, in standard deviations."""
    table = noise_table.table().astype(np.float64)
    copies = np.stack([np.bincount(row, minlength=noise_table.ROWS) for row in rows])
    result: np.ndarray = copies @ table / math.sqrt(rows.shape[1])
    return result


def _excess_kurtosis(values: np.ndarray) -> float:
    return float((values**4).mean() / (values**2).mean() ** 2 - 3)


def _twice(rows: np.ndarray) -> np.ndarray:
    """Per pass, the blocks whose row another block has, too."""
    copies = np.stack([np.bincount(row, minlength=noise_table.ROWS) for row in rows])
    return np.where(copies > 1, copies, 0).sum(axis=1)


def _standard(kept: np.ndarray) -> np.ndarray:
    values = kept.astype(np.float64)
    standard: np.ndarray = (values - values.mean(axis=0)) / values.std(axis=0)
    return standard


def bias() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        dataset = splits.load("digits")
        run_folder, path = Path(folder) / "run", Path(folder) / "digits.onnx"
        training.train(dataset, run_folder)
        calibration.calibrate(run_folder, method=Method.TEMPERATURE)
        export_run(run_folder, path, dataset)
        run = Run.load(run_folder)
        test = dataset.splits["test"]
        model = Model(path, "cpu")
        ours = np.stack([model.predict(test.images, seed=seed).uncertainty for seed in range(SEEDS)])
        network = load_model(run, run_folder)
        theirs = np.stack(
            [
                normalized_entropy(probabilities(run.calibration, mc_logits(network, test, run.image, 25, 1000 + seed)))
                for seed in range(SEEDS)
            ]
        )
    difference = ours.mean(0) - theirs.mean(0)
    interval = 1.96 * difference.std(ddof=1) / math.sqrt(len(difference))
    # Table noise is shared by the images of a pass, so the mean over images varies with the seed; that spread counts.
    seeds = 1.96 * math.sqrt((ours.mean(1).var(ddof=1) + theirs.mean(1).var(ddof=1)) / SEEDS)
    spread = np.sqrt(ours.var(0, ddof=1).mean()), np.sqrt(theirs.var(0, ddof=1).mean())
    return [
        f"Mean uncertainty H of the digits model on its {len(test)} test images, N = 25, {SEEDS} seeds each:",
        "",
        "| | table, ONNX Runtime | torch.randn, PyTorch | difference |",
        "| --- | --- | --- | --- |",
        f"| mean H | {ours.mean():.5f} | {theirs.mean():.5f} | {difference.mean():+.5f} |",
        f"| spread of H over seeds (rms) | {spread[0]:.5f} | {spread[1]:.5f} | {spread[0] - spread[1]:+.5f} |",
        "",
        f"95 % interval of the difference: ± {interval:.5f} over images, ± {seeds:.5f} over seeds.",
    ]


def main() -> None:
    table = noise_table.table()
    text = INTRODUCTION.format(
        rows=noise_table.ROWS,
        width=noise_table.WIDTH,
        levels=noise_table.LEVELS,
        steps=noise_table.STEPS,
        rounds=noise_table.ROUNDS,
        largest=float(table.max()),
    )
    covariance = np.abs(table.T.astype(np.float64) @ table / noise_table.ROWS - np.eye(noise_table.WIDTH)).max()
    parts = [
        "### Moments",
        "",
        *moments(),
        "",
        f"In the table itself, the largest |mean| of a column is {np.abs(table.mean(0)).max():.0e}, and its covariance "
        f"differs from the identity by at most {covariance:.0e}.",
        "",
        f"### Correlations over {PASSES} passes of ResNet-20",
        "",
        *correlations(),
        "",
        "### Masks",
        "",
        *masks(),
        "",
        MASKS.format(width=noise_table.WIDTH, levels=noise_table.LEVELS),
        "",
        "### Sums over a layer",
        "",
        SUMS,
        "",
        *sums(),
        "",
        "### Bias of the uncertainty",
        "",
        *bias(),
    ]
    Path(__file__).parent.parent.parent.joinpath("docs", "noise.md").write_text(text + "\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
