"""How good is `error_probability`? Writes its part of docs/science.md.

    python benchmarks/studies/error_map_quality.py

The bundled moments file is calibrated anew on 100, 500 and 5,000 of its calibration images, temperature and error map,
and predicts the errors among test images that nothing was fitted on. Beside its map stand 1 - max p and the map of
older versions, a function of the entropy.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from uce_edge.calibration.error_map import EntropyErrorMap, ErrorMap
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Inference, Method
from uce_edge.datasets import load
from uce_edge.metrics import normalized_entropy, ood_auroc
from uce_edge.models import bundled
from uce_edge.runtime.model import Model

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "science.md"
TITLE = "### How good the probability of error is"
TEST = 4_000
DRAWS = {100: 10, 500: 10, 5_000: 1}
"""Calibration images, and how often they are drawn."""
EDGES = (0, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 1)
OLD, REST, NEW = "older map, of the entropy", "1 - max p", "map of 1 - max p"

Floats = npt.NDArray[np.float64]


def main() -> None:
    """Draw the passes once, calibrate on parts of them, and write the page's part."""
    dataset, model = load("cifar10"), Model(bundled(Inference.MOMENTS, "cifar10"), "cpu", threads=1)
    calibration, test = dataset.splits["calibration"], dataset.splits["test"].at_most(TEST)
    passes, held_out = (model.logits(split.images) for split in (calibration, test))
    rng = np.random.default_rng(0)
    text = [INTRODUCTION.format(test=len(test)), HEAD]
    tables = {}
    for images, draws in DRAWS.items():
        said = []
        for _ in range(draws):
            chosen = np.sort(rng.permutation(len(calibration))[:images])
            said.append(predicted(passes[:, chosen], calibration.labels[chosen], held_out))
        wrong = [p.argmax(-1) != test.labels for p, _ in said]
        text += rows(images, [errors for _, errors in said], wrong)
        tables[images] = by_bin(said[0][1][NEW], wrong[0])
    text += [TABLE, *together(tables), OUTRO]
    write("\n".join(text))


def predicted(
    passes: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], held_out: npt.NDArray[np.float32]
) -> tuple[Floats, dict[str, Floats]]:
    """The calibrated probabilities of the test images, and the errors that each map predicts for them."""
    fitted = fit_map(Method.TEMPERATURE, passes, labels)
    assert fitted.confidence_error is not None
    known, p = (probabilities(fitted, ArrayLogits(logits)) for logits in (passes, held_out))
    older = older_map(normalized_entropy(known), known.argmax(-1) != labels)
    confidence = p.max(-1)
    return p, {
        OLD: older(normalized_entropy(p)),
        REST: 1 - confidence,
        NEW: ErrorMap(*fitted.confidence_error)(confidence),
    }


def older_map(uncertainty: Floats, wrong: npt.NDArray[np.bool_]) -> EntropyErrorMap:
    """As versions before this one fitted it: a weak prior around a = 0, b = c = 1."""

    def loss(point: Floats) -> float:
        e = np.clip(EntropyErrorMap(*point)(uncertainty), 1e-12, 1 - 1e-12)
        return float(log_loss(e, wrong).sum() + ((point - [0, 1, 1]) ** 2).sum() / (2 * 1.25**2))

    bounds = [(None, None), (0, None), (0, None)]
    return EntropyErrorMap(*minimize(loss, [0, 1, 1], bounds=bounds, method="L-BFGS-B").x)


def log_loss(e: Floats, wrong: npt.NDArray[np.bool_]) -> Floats:
    """Of every image."""
    return -np.log(np.clip(np.where(wrong, e, 1 - e), 1e-12, None))


def squared(e: Floats, wrong: npt.NDArray[np.bool_]) -> Floats:
    """The Brier score of every image."""
    return (e - wrong) ** 2


def rows(images: int, said: list[dict[str, Floats]], wrong: list[npt.NDArray[np.bool_]]) -> list[str]:
    """A line per map: means over the draws, and the paired difference to the new map with its 95 % interval."""

    def mean(score: Callable[..., Floats], name: str) -> Floats:
        return np.mean([score(errors[name], w) for errors, w in zip(said, wrong, strict=True)], axis=0)

    lines = []
    for name in (OLD, REST, NEW):
        losses, away = mean(log_loss, name), mean(log_loss, name) - mean(log_loss, NEW)
        ranks = np.mean([ood_auroc(e[name][~w], e[name][w]) for e, w in zip(said, wrong, strict=True)])
        worst = max(log_loss(e[name], w).mean() for e, w in zip(said, wrong, strict=True))
        difference = "" if name == NEW else f"{away.mean():+.4f} ± {1.96 * away.std() / np.sqrt(len(away)):.4f}"
        cells = (f"{losses.mean():.4f}", f"{worst:.4f}", difference, f"{mean(squared, name).mean():.4f}")
        lines.append(f"| {images:,} | {name} | {' | '.join(cells)} | {ranks:.4f} |")
    return lines


def by_bin(e: Floats, wrong: npt.NDArray[np.bool_]) -> list[str]:
    """Per bin of the predicted error: images, predicted and observed error."""
    place = np.digitize(e, EDGES[1:-1])
    cells = []
    for index in range(len(EDGES) - 1):
        inside = place == index
        shown = f"{e[inside].mean():.1%} | {wrong[inside].mean():.1%}" if inside.any() else " | "
        cells.append(f"{inside.sum():,} | {shown}")
    return cells


def together(tables: dict[int, list[str]]) -> list[str]:
    """The bins of all sizes, beside each other."""
    head = " | ".join(f"{images:,} calibration images | predicted | observed" for images in tables)
    lines = [f"| predicted error | {head} |", "| --- |" + " ---: |" * (3 * len(tables))]
    for index, (low, high) in enumerate(pairwise(EDGES)):
        cells = " | ".join(table[index] for table in tables.values())
        lines.append(f"| {low:.0%} to {high:.0%} | {cells} |")
    return lines


def write(text: str) -> None:
    """Put the text in the place of the page's part of that title."""
    page = PAGE.read_text()
    found = re.search(rf"^{TITLE}\n.*?(?=^##)", page, flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"{PAGE} has no part {TITLE}")
    PAGE.write_text(page[: found.start()] + f"{TITLE}\n\n{text}\n\n" + page[found.end() :])


INTRODUCTION = """\
The bundled `cifar10` moments file, calibrated anew on part of its calibration images; errors of {test:,} test images.
Means over 10 draws of the calibration images (1 of 5,000); *worst* is the worst draw. The difference is to the log loss
of the map of 1 - max p, paired, with its 95 % interval over test images.
"""
HEAD = """\
| calibration images | | log loss | worst | difference | Brier | AUROC |
| ---: | --- | ---: | ---: | ---: | ---: | ---: |"""
TABLE = """
What the map of 1 - max p predicts, and what happened, for one draw; the first number is that of the test images in
the bin:
"""
OUTRO = """
(`benchmarks/studies/error_map_quality.py`)"""


if __name__ == "__main__":
    main()
