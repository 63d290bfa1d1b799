"""Do the test of calibration and the intervals of `evaluate` and `compare` hold? Writes two tables of docs/science.md.

    python benchmarks/studies/trust_simulation.py

A made population has probabilities that a model claims and those that labels follow, so every metric has a true value.
Images are drawn from it again and again, with new labels.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.metrics import intervals
from uce_edge.metrics.binned import bin_of, mass_bin

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "science.md"
DRAWS = 400
IMAGES = (1_000, 5_000)
CLASSES = (2, 10, 100)
TEMPERATURES = {"calibrated": 1.0, "T = 1.2": 1.2, "T = 1/1.2": 1 / 1.2, "T = 1.4": 1.4}
"""What the logits would have to be divided by."""
RARE = 0.001
"""The share of images on which a second model is wrong and certain."""
CONFIDENT = 4.0
"""The mean advantage of one logit over the others, which are standard normal."""
COMPARED = ("accuracy", "nll", "ece", "debiased_ece", "tuce", "debiased_tuce", "uce", "aurc")
MEASURED = tuple(name for name in (*intervals.ESTIMATES, *intervals.OTHERS))

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


class Population:
    """Images with the probabilities that their labels follow, and those that a model claims."""

    def __init__(self, classes: int, temperature: float = 1.0, size: int = 100_000, seed: int = 0) -> None:
        """Make the logits."""
        self.rng = np.random.default_rng(seed)
        logits = self.rng.normal(size=(size, classes))
        logits[np.arange(size), self.rng.integers(classes, size=size)] += self.rng.gamma(2.0, CONFIDENT / 2, size)
        self.logits, self.claimed, self.true = logits, softmax(logits), softmax(logits / temperature)

    def draw(self, images: int) -> tuple[Labels, Labels]:
        """Rows, and a label for each."""
        rows = self.rng.integers(len(self.true), size=images)
        passed = self.true[rows].cumsum(axis=1) < self.rng.random((images, 1))
        return rows, np.minimum(passed.sum(axis=1), self.true.shape[1] - 1)

    def rivals(self) -> dict[str, tuple[Floats, Floats]]:
        """Other models beside the first one: its logits with noise, sharpened, and with rare confident errors."""
        noisy = softmax(self.logits + 0.7 * self.rng.normal(size=self.logits.shape))
        rare, size = self.claimed.copy(), len(self.claimed)
        chosen = self.rng.choice(size, round(RARE * size), replace=False)
        unlikely = self.true[chosen].argmin(axis=1)
        rare[chosen] = (0.0005 + np.eye(self.true.shape[1])[unlikely]) / (1 + 0.0005 * self.true.shape[1])
        return {"noise": noisy, "sharpened": softmax(1.3 * self.logits), "rare confident errors": rare}


def softmax(logits: Floats) -> Floats:
    """Of the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return result


def truths(claimed: Floats, true: Floats) -> dict[str, float]:
    """Every metric of a population, from the probabilities of its labels instead of labels."""
    label, top = claimed.argmax(axis=1), claimed.max(axis=1)
    error, n = 1 - true[np.arange(len(true)), label], len(true)
    unsure = metrics.normalized_entropy(claimed)
    own = {"ece": (top, 1 - error, top), "tuce": (unsure, error, 1 - top), "uce": (unsure, error, unsure)}
    found = {"accuracy": 1 - error.mean(), "nll": -np.einsum("ij,ij->", true, np.log(claimed)) / n}
    found["brier"] = np.einsum("ij,ij->i", claimed, claimed - 2 * true).mean() + 1
    for name, (binned, outcome, score) in own.items():
        for key, cell in ((name, bin_of(binned, 15)), (f"adaptive_{name}", mass_bin(binned, 15))):
            total, images = np.bincount(cell, outcome - score, 15), np.bincount(cell, minlength=15)
            found[key] = np.abs(total).sum() / n
            squared = "debiased_ece" if key == "adaptive_ece" else "debiased_tuce" if key == "tuce" else ""
            if squared:
                found[squared] = np.sqrt((total**2 / np.maximum(images, 1)).sum() / n)
        classes = claimed.shape[1]
        total = np.bincount(label * 15 + bin_of(binned, 15), outcome - score, classes * 15).reshape(classes, 15)
        images = np.bincount(label, minlength=classes)
        found[f"classwise_{name}"] = np.mean(np.abs(total).sum(axis=1)[images > 0] / images[images > 0])
    order = np.argsort(unsure)
    wrong, right = error[order], 1 - error[order]
    found["aurc"] = np.mean(np.cumsum(wrong) / np.arange(1, n + 1))
    found["auroc"] = wrong @ (np.cumsum(right) - right / 2) / wrong.sum() / right.sum()
    found["fpr_at_95"] = wrong[np.cumsum(right) <= 0.95 * right.sum()].sum() / wrong.sum()
    found["skce"] = kernel(claimed, true)
    return {name: float(value) for name, value in found.items()}


def kernel(claimed: Floats, true: Floats, block: int = 500) -> float:
    """The squared kernel error, over pairs of images in blocks."""
    total = 0.0
    blocks = range(0, len(claimed) // block * block, block)
    for start in blocks:
        p, r = claimed[start : start + block], (claimed - true)[start : start + block]
        square = np.einsum("ij,ij->i", p, p)
        values = np.exp(-2 * np.maximum(square[:, None] + square - 2 * p @ p.T, 0)) * (r @ r.T)
        total += (values.sum() - np.trace(values)) / (block * (block - 1))
    return total / len(blocks)


def flags(images: int, classes: int, draws: int) -> dict[str, float]:
    """How often the test flags each model."""
    found = {}
    for name, temperature in TEMPERATURES.items():
        population = Population(classes, temperature, 20_000)
        drawn = (population.draw(images) for _ in range(draws))
        tests = [
            metrics.calibration_test(population.claimed[rows], labels, seed=turn)
            for turn, (rows, labels) in enumerate(drawn)
        ]
        found[name] = float(np.mean([test.flagged for test in tests]))
    return found


Cell = tuple[str, str, float]
"""What has an interval, in which setting, and how often that contains the true value."""


def coverage(images: int, classes: int, draws: int, size: int = 100_000) -> Iterator[Cell]:
    """Of the intervals of every metric and every difference."""
    for name, temperature in (("calibrated", 1.0), ("T = 1.4", 1.4)):
        population = Population(classes, temperature, size)
        rivals = population.rivals()
        models = {"": population.claimed, **(rivals if temperature == 1 else {})}
        known = {model: truths(claimed, population.true) for model, claimed in models.items()}
        hits: dict[tuple[str, str], list[bool]] = {}
        for _ in range(draws):
            rows, labels = population.draw(images)
            tables = {model: metrics.Probabilities(claimed[rows]) for model, claimed in models.items()}
            for model, table in tables.items():
                for metric in MEASURED if model in ("", "rare confident errors") else ():
                    found, true = metrics.interval(metric, table, labels), known[model][metric]
                    setting = f"{name}, {model}" if model else name
                    hits.setdefault((metric, setting), []).append(inside(found, true))
                for metric in COMPARED if model else ():
                    found = metrics.difference(metric, table, tables[""], labels)
                    true = known[model][metric] - known[""][metric]
                    hits.setdefault((f"{metric}, difference", model), []).append(inside(found, true))
        yield from ((metric, setting, float(np.mean(found))) for (metric, setting), found in hits.items())


def separations(images: int, draws: int) -> Iterator[Cell]:
    """Of foreign images, an eighth as many: AUROC, FPR at 95 %, and the difference of two scores that share noise."""
    rng = np.random.default_rng(1)
    hits: dict[str, list[bool]] = {}
    distances, many = (1.5, 1.8), 400_000

    def scores(count: int, mean: tuple[float, float]) -> list[Floats]:
        shared = rng.normal(size=count)
        return [0.8 * shared + 0.6 * rng.normal(size=count) + at for at in mean]

    def rates(own: Floats, foreign: Floats) -> tuple[float, float]:
        return metrics.ood_auroc(own, foreign), metrics.ood_fpr_at_95(own, foreign)

    own, foreign = scores(many, (0, 0)), scores(many, distances)
    known = [rates(*pair) for pair in zip(own, foreign, strict=True)]
    for _ in range(draws):
        own, foreign = scores(images, (0, 0)), scores(images // 8, distances)
        found = [intervals.separation(*pair) for pair in zip(own, foreign, strict=True)]
        told = {
            "AUROC of out-of-distribution images": inside(found[0].interval(), known[0][0]),
            "AUROC of out-of-distribution images, difference": inside(
                found[1].less(found[0]), known[1][0] - known[0][0]
            ),
            "FPR at 95 % of out-of-distribution images": inside(
                intervals.accepted_at_95(own[0], foreign[0]), known[0][1]
            ),
        }
        for what, hit in told.items():
            hits.setdefault(what, []).append(hit)
        ours, theirs = rng.random(images) < 0.80, rng.random(images) < 0.80
        theirs = np.where(rng.random(images) < 0.9, ours, theirs)
        hits.setdefault("accepted share, difference", []).append(inside(intervals.share_difference(ours, theirs), 0.0))
        rate = rng.choice([0.5, 0.8, 0.95, 0.98])
        low, high = metrics.binned.wilson(np.float64(rng.binomial(100, rate) / 100), np.float64(100))
        hits.setdefault("rates of a class with 100 images (Wilson)", []).append(bool(low <= rate <= high))
    yield from ((what, "", float(np.mean(found))) for what, found in hits.items())


def inside(found: metrics.Interval | None, true: float) -> bool:
    """Whether an interval contains the true value, to the precision of a made population."""
    assert found is not None
    return found.low - 1e-9 <= true <= found.high + 1e-9


def flag_rows(draws: int, counts: Iterable[int] = IMAGES, classes: Iterable[int] = CLASSES) -> list[str]:
    """Lines of the first table."""
    rows = []
    for number in classes:
        for images in counts:
            shares = flags(images, number, draws)
            rows.append(f"| {number} | {images:,} | {' | '.join(f'{share:.1%}' for share in shares.values())} |")
            print(rows[-1], flush=True)
    return rows


def coverage_rows(draws: int, counts: Iterable[int] = IMAGES, classes: Iterable[int] = CLASSES) -> list[str]:
    """Lines of the second table: for each interval, the least coverage over settings and numbers of classes."""
    least: dict[str, list[tuple[float, str]]] = {}
    for images in counts:
        worst: dict[str, tuple[float, str]] = {}
        cells = [(what, setting, share) for what, setting, share in separations(images, draws)]
        for number in classes:
            for what, setting, share in coverage(images, number, draws):
                cells.append((what, f"{number} classes, {setting}", share))
                print(images, *cells[-1], flush=True)
        for what, setting, share in cells:
            worst[what] = min(worst.get(what, (2.0, "")), (share, setting))
        for what, found in worst.items():
            least.setdefault(what, []).append(found)
    return [f"| {what} | {' | '.join(told(*one) for one in found)} |" for what, found in least.items()]


def told(share: float, setting: str) -> str:
    """A share, and where it was counted."""
    return f"{share:.1%} ({setting})" if setting else f"{share:.1%}"


def write(first_cell: str, rows: list[str]) -> None:
    """Put rows into the table of the page whose head begins so."""
    text = PAGE.read_text()
    table = re.search(rf"^{re.escape(first_cell)} .*\n\|[ :|-]+\n((?:\|.*\n)*)", text, re.MULTILINE)
    assert table is not None
    spaced = "\n".join(re.sub(r"(\d)%", r"\1 %", row) for row in rows)
    PAGE.write_text(f"{text[: table.start(1)]}{spaced}\n{text[table.end(1) :]}")
    print(spaced)


if __name__ == "__main__":
    write("| classes", flag_rows(DRAWS))
    write("| interval of", coverage_rows(DRAWS))
