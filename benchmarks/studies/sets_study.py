"""Do prediction sets keep their promise, and how large are they? Writes its parts of docs/sets.md.

    python benchmarks/studies/sets_tables.py --root DATA --weights efficientnet_lite0.pth --out study/sets
    python benchmarks/studies/sets_study.py --tables study/sets --mapie MAPIE_ENV/bin/python

The first part simulates images whose true probabilities are known: many draws of guarantee images, and of one new image
for each. The second part halves real probabilities many times, fits on one half and counts on the other. MAPIE gets the
same halves, in an environment of its own; without one, its column is left out.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge.calibration import conformal
from uce_edge.calibration.conformal import Penalty
from uce_edge.calibration.label_sets import SetPromise, scores
from uce_edge.contract import SetScore

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "sets.md"
ALPHAS = (0.05, 0.1)
HALVES = 20
NAMES = {
    "imagenet": "ImageNet, 1,000 classes",
    "cifar10": "CIFAR-10, bundled model",
    "densenet": "CIFAR-10, DenseNet-40",
    "trashnet": "TrashNet, 6 classes",
    "chest": "chest X-rays, by patient",
    "pneumonia": "PneumoniaMNIST, bundled model",
}
Table = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def contained(fit: tuple[Table, Labels], tables: Table, promise: SetPromise, penalty: Penalty) -> npt.NDArray[np.bool_]:
    """The sets of other images, by limits that are fitted as in a file."""
    limits = conformal.limits(*fit, promise, penalty)
    return np.asarray(scores(tables, promise.score, *penalty) <= limits)


# Simulation


def drawn(rng: np.random.Generator, images: int, classes: int, kind: str) -> tuple[Table, Labels]:
    """Probabilities of a model and labels. The model is overconfident: it squares the true probabilities."""
    logits = rng.normal(0, 2, (images, classes))
    if kind == "ties":  # a model of few values
        logits = np.round(logits / 2) * 2
    true = np.exp(logits - logits.max(-1, keepdims=True))
    true /= true.sum(-1, keepdims=True)
    labels = (true.cumsum(-1) < rng.random((images, 1))).sum(-1).clip(max=classes - 1)
    model = true**2 / (true**2).sum(-1, keepdims=True)
    return model.astype(np.float32), labels


def in_groups(rng: np.random.Generator, groups: int, classes: int, one_each: bool) -> tuple[Table, Labels]:
    """As `drawn`, in groups of 20 images that are nearly the same."""
    tables, labels = drawn(rng, groups, classes, "plain")
    each = 1 if one_each else 20
    copies = np.repeat(tables, each, axis=0) * rng.uniform(0.98, 1.02, (groups * each, classes)).astype(np.float32)
    return copies / copies.sum(-1, keepdims=True), np.repeat(labels, each)


CASES = {
    "19 images": (19, 10, "plain", False),
    "25 images": (25, 10, "plain", False),
    "100 images": (100, 10, "plain", False),
    "1,000 images": (1000, 10, "plain", False),
    "many ties": (100, 10, "ties", False),
    "2 classes": (100, 2, "plain", False),
    "1,000 classes": (200, 1000, "plain", False),
    "every class of 5": (250, 5, "plain", True),
    "30 groups, one image of each": (30, 10, "groups", False),
    "30 groups, all 20 images of each (not what is done)": (30, 10, "all of groups", False),
}
"""Guarantee images, classes, what they are like, and whether the limits are by class; at alpha 0.05."""
MORE = {"many ties": 5.0, "1,000 classes": 0.5}
"""Draws, as a multiple of the usual ones; the second is slow."""


def simulate(trials: int) -> Iterator[list[str]]:
    """One row per case: the coverage by every score. By class, it is that of the worst class."""
    for name, (images, classes, kind, by_class) in CASES.items():
        cells = []
        for score in SetScore:
            rng = np.random.default_rng(0)
            promise = SetPromise(0.05, score, by_class)
            hits, counts = np.zeros(classes), np.zeros(classes)
            for _ in range(round(trials * MORE.get(name, 1))):
                penalty = Penalty(2**-5, 2) if score is SetScore.RAPS else Penalty()
                if "groups" in kind:
                    tables, labels = in_groups(rng, images, classes, kind == "groups")
                else:
                    tables, labels = drawn(rng, images, classes, kind)
                if by_class:  # the number of images of a class is fixed
                    labels = np.arange(images) % classes
                    tables = np.stack([_of_class(rng, label, classes) for label in labels])
                new, truth = drawn(rng, 20, classes, kind)
                inside = contained((tables, labels), new, promise, penalty)
                right = inside[np.arange(len(truth)), truth]
                hits += np.bincount(truth, right, minlength=classes)
                counts += np.bincount(truth, minlength=classes)
            value = float((hits / counts).min() if by_class else hits.sum() / counts.sum())
            cells.append(f"{value:.1%}".replace("%", " %"))
        yield [name, *cells]


def _of_class(rng: np.random.Generator, label: int, classes: int) -> Table:
    while True:  # by rejection: exactly the images whose label is this
        tables, labels = drawn(rng, 4 * classes, classes, "plain")
        found = np.flatnonzero(labels == label)
        if len(found):
            return np.asarray(tables[found[0]])


# Real probabilities


def compare(folder: Path, mapie: str | None) -> Iterator[list[str]]:
    """One row per dataset, score and alpha: coverage and mean size of ours, and those of MAPIE."""
    stored = {name: dict(np.load(folder / f"{name}.npz")) for name in NAMES if (folder / f"{name}.npz").exists()}
    halves = {name: list(_halves(table)) for name, table in stored.items()}
    tasks = [
        (name, score, alpha, repeat)
        for name in stored
        for alpha in ALPHAS
        for score in SetScore
        for repeat in range(HALVES)
    ]
    answers = None if mapie is None else _run(mapie, tasks, stored, halves)
    for name, table in stored.items():
        probabilities, labels = table["probabilities"].astype(np.float32), table["labels"].astype(np.int64)
        for alpha in ALPHAS:
            for score in SetScore:
                promise = SetPromise(alpha, score)
                ours = []
                for fit, test, other in halves[name]:
                    penalty = conformal.choose_penalty(probabilities[other], labels[other], promise)
                    inside = contained((probabilities[fit], labels[fit]), probabilities[test], promise, penalty)
                    ours.append((inside[np.arange(len(test)), labels[test]].mean(), inside.sum(-1).mean()))
                covered, size = np.mean(ours, axis=0)
                row = [NAMES[name], f"{alpha:g}", score.value, f"{100 * covered:.1f} %", f"{size:.2f}"]
                mine = [index for index, task in enumerate(tasks) if task[:3] == (name, score, alpha)]
                if answers is not None:
                    theirs = [answers[index] for index in mine if index in answers] or [{"size": [], "covered": []}]
                    size, covered = (np.mean([one[key] for one in theirs], axis=0) for key in ("size", "covered"))
                    shown = [
                        f"{many:.2f} ({right:.1%})".replace("%", " %") for many, right in np.transpose([size, covered])
                    ]
                    row += [*shown, "–", "–"][:2]
                yield row


def _halves(table: dict[str, npt.NDArray[np.generic]]) -> Iterator[tuple[Labels, Labels, Labels]]:
    """Images that fit, others that count, and a few of the counting half's size that choose the penalty of RAPS."""
    groups = table.get("groups", np.arange(len(table["labels"])))
    for seed in range(HALVES):
        rng = np.random.default_rng(seed)
        order = rng.permutation(np.unique(groups))
        few = max(100, len(order) // 10)
        parts = (order[few : few + (len(order) - few) // 2], order[few + (len(order) - few) // 2 :], order[:few])
        shuffled = rng.permutation(len(groups))
        yield tuple(_one_each(groups, part, shuffled) for part in parts)  # type: ignore[misc]


def _one_each(groups: npt.NDArray[np.generic], part: npt.NDArray[np.generic], order: Labels) -> Labels:
    inside = order[np.isin(groups[order], part)]
    return np.asarray(inside[np.unique(groups[inside], return_index=True)[1]])


def _run(
    python: str,
    tasks: list[tuple[str, SetScore, float, int]],
    stored: dict[str, dict[str, npt.NDArray[np.generic]]],
    halves: dict[str, list[tuple[Labels, Labels, Labels]]],
) -> dict[int, dict[str, list[float]]]:
    """The answers of MAPIE in its own environment, by task."""
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "kinds": np.array([f"{name} {score.value} {alpha} {repeat}" for name, score, alpha, repeat in tasks])
    }
    for name, table in stored.items():
        arrays |= {f"{name}.{key}": table[key] for key in ("probabilities", "labels")}
        for repeat, (fit, test, _) in enumerate(halves[name]):
            arrays |= {f"{name}.fit.{repeat}": fit, f"{name}.test.{repeat}": test}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]
        command = [python, str(Path(__file__).with_name("sets_mapie.py")), str(path)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    return {answer["task"]: answer for answer in answers}


def write(part: str, head: list[str], rows: list[list[str]]) -> None:
    """Replace a table of the page."""
    start, end = f"<!-- {part}: written by benchmarks/studies/sets_study.py -->\n", f"<!-- end of {part} -->"
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(start) + len(start)], text[text.index(end) :]
    PAGE.write_text(before + "\n" + "\n".join(lines) + "\n\n" + after, encoding="utf-8")


def main() -> None:
    """Run both parts, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--mapie")
    arguments = parser.parse_args()
    if arguments.tables is None:
        rows = []
        for row in simulate(arguments.trials):
            rows.append(row)
            print(" | ".join(row), flush=True)
        write("simulation", ["guarantee images", *(f"{score.value}" for score in SetScore)], rows)
        return
    rows = list(compare(arguments.tables, arguments.mapie))
    for row in rows:
        print(" | ".join(row), flush=True)
    head = ["probabilities", "alpha", "score", "with the true label", "mean size"]
    theirs = [f"{name}: mean size (with the true label)" for name in ("MAPIE", "MAPIE, randomized")]
    write("sizes", [*head, *(theirs if arguments.mapie else [])], rows)


if __name__ == "__main__":
    main()
