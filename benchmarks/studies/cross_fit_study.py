"""Do promises and sets hold if images are judged by cross-fitting? Prints the table of docs/transfer.md.

    python benchmarks/studies/cross_fit_study.py

Few images are divided into five parts. Each part is judged by a model that was fitted on the other four, and the model
that ships is fitted on all. Classes are Gaussian in some features, and the model is a linear discriminant with a shrunk
covariance. The promise is proved on the judgements of all images as if they were independent; the true error is that of
the shipped model on 20,000 other images. A promise with 95 % confidence may be broken in 5 % of the draws.
"""

import argparse

import numpy as np
import numpy.typing as npt

from uce_edge.calibration.conformal import limit_of
from uce_edge.metrics import normalized_entropy
from uce_edge.rejection import guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
FOLDS, OTHERS, CLASSES, ALPHA = 5, 20_000, 3, 0.1


def drawn(rng: np.random.Generator, means: Floats, images: int) -> tuple[Floats, Labels]:
    """Features and labels."""
    labels = np.arange(images) % CLASSES
    rng.shuffle(labels)
    return means[labels] + rng.normal(size=(images, means.shape[1])), labels


def fitted(x: Floats, y: Labels) -> tuple[Floats, Floats]:
    """Weights and biases of a linear discriminant."""
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    rest = x - means[y]
    covariance = rest.T @ rest / len(x) * 0.8 + 0.2 * np.eye(x.shape[1])
    weights = np.linalg.solve(covariance, means.T)
    return weights, -0.5 * (means * weights.T).sum(1)


def answers(model: tuple[Floats, Floats], x: Floats) -> npt.NDArray[np.float32]:
    """Probabilities."""
    logits = x @ model[0] + model[1]
    p = np.exp(logits - logits.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True)).astype(np.float32)


def judged(rng: np.random.Generator, x: Floats, y: Labels, held: float | None) -> tuple[object, Floats, Labels]:
    """The shipped model, and probabilities and labels of the images that judge it."""
    order = rng.permutation(len(x))
    if held is not None:  # a part for the proof alone
        count = round(held * len(x))
        model = fitted(x[order[count:]], y[order[count:]])
        return model, answers(model, x[order[:count]]), y[order[:count]]
    p = np.zeros((len(x), CLASSES), np.float32)
    for part in np.array_split(order, FOLDS):
        rest = np.setdiff1d(order, part)
        p[part] = answers(fitted(x[rest], y[rest]), x[part])
    return fitted(x, y), p, y


def study(images: int, features: int, target: float, draws: int, held: float | None) -> str:
    """One row of the table."""
    rng, proved, broken, shares, covered, sizes = np.random.default_rng(0), 0, 0, [], [], []
    for _ in range(draws):
        means = rng.normal(size=(CLASSES, features))
        means *= 2.4 / np.linalg.norm(means, axis=1, keepdims=True)
        model, p, y = judged(rng, *drawn(rng, means, images), held)
        others, truth = drawn(rng, means, OTHERS)
        q = answers(model, others)
        limit = limit_of(1 - p[np.arange(len(y)), y], ALPHA)
        covered.append(float((1 - q[np.arange(OTHERS), truth] <= limit).mean()))
        sizes.append(float((1 - q <= limit).sum(1).mean()))
        try:
            found = guarantee.find(normalized_entropy(p), p.argmax(1) != y, target, 0.95)
        except NoGuaranteeError:
            continue
        accepted = normalized_entropy(q) <= found.threshold
        proved += 1
        broken += bool(accepted.any()) and float((q.argmax(1) != truth)[accepted].mean()) > target
        shares.append(float(accepted.mean()))
    by = "cross-fit" if held is None else f"{held:.0%} held out"
    accepted_share = f"{100 * float(np.mean(shares)):.0f} %" if shares else "-"
    return (
        f"| {images} | {features} | {by} | {100 * target:.0f} % | {100 * proved / draws:.0f} % | {accepted_share} | "
        f"{100 * broken / draws:.1f} % | {100 * float(np.mean(covered)):.1f} % | "
        f"{float(np.mean(sizes)):.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=400)
    draws = parser.parse_args().draws
    sets = f"sets of {1 - ALPHA:.0%} cover"
    print(f"| images | features | judged by | promised error | proved | accepted | broken | {sets} | labels in a set |")
    print("| --- " * 9 + "|")
    for images, features, target in ((90, 10, 0.1), (90, 40, 0.1), (180, 10, 0.1), (180, 80, 0.1), (600, 40, 0.05)):
        for held in (0.1, 1 / 3, None):
            print(study(images, features, target, draws, held), flush=True)


if __name__ == "__main__":
    main()
