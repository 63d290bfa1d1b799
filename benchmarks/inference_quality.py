"""How good is one pass of means and variances, and how few passes are enough? Writes docs/inference.md.

    python benchmarks/inference_quality.py moments NAME=RUN ...     # the first table
    python benchmarks/inference_quality.py adaptive NAME=RUN        # the second

Every RUN is a calibrated training run. Its exact, moments and deterministic files are made from it, and compared on the
same test images of its dataset.
"""

import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from uce_edge import contract, metrics
from uce_edge.contract import Inference
from uce_edge.model import Model
from uce_edge.prediction import Decision, Prediction
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run

DOCS = Path(__file__).resolve().parent.parent / "docs"
IMAGES, ADAPTIVE_IMAGES = 2_000, 1_000
THRESHOLD = 0.3
RESAMPLES = 400
ERRORS = (0.2, 0.1, 0.05)
MOST = 100  # passes that an adaptive prediction may take


def main(arguments: list[str]) -> None:
    """Measure every run and write its part of the page."""
    warnings.simplefilter("ignore")
    part, *runs = arguments
    rows: list[str] = []
    for argument in runs:
        name, _, folder = argument.partition("=")
        dataset = Run.load(folder).dataset()
        with tempfile.TemporaryDirectory() as place:
            files = {}
            for inference in Inference if part == "moments" else (Inference.MC,):
                path = Path(place) / f"{inference}.onnx"
                export_run(folder, path, dataset, inference)
                files[inference] = Model(path, "cpu")
            if part == "moments":
                rows += compare(name, files, dataset.splits["test"].at_most(IMAGES))
            else:
                rows += stop_early(name, files[Inference.MC], dataset.splits["test"].at_most(ADAPTIVE_IMAGES).images)
    page = DOCS / "inference.md"
    parts = re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE) if page.exists() else [HEAD, "", ""]
    values = {"rows": "\n".join(rows), "most": MOST, "threshold": THRESHOLD}
    if part == "moments":
        parts[1] = MOMENTS.format(images=f"{IMAGES:,}", **values)
    else:
        parts[2] = ADAPTIVE.format(images=f"{ADAPTIVE_IMAGES:,}", **values)
    page.write_text(HEAD + parts[1] + parts[2])
    print(f"Wrote {page}")


def compare(name: str, files: dict[Inference, Model], test) -> list[str]:
    """Rows of the first table."""
    mc = files[Inference.MC]
    reference = mc.predict(test.images, 100, seed=1)
    exact = mc.predict(test.images, 25, seed=0)
    found = {
        "exact, N = 25": exact,
        "moments": files[Inference.MOMENTS].predict(test.images),
        "deterministic": files[Inference.DETERMINISTIC].predict(test.images),
    }
    rows = []
    for kind, said in found.items():
        values = [f"{metrics.accuracy(said.probabilities, test.labels):.1%}"]
        for metric, digits in ((metrics.nll, 4), (metrics.aurc, 4), (metrics.uce, 4)):
            text = f"{metric(said.probabilities, test.labels):.{digits}f}"
            if said is not exact:
                low, high = paired(metric, said, exact, test.labels)
                text += f" ({low:+.4f} to {high:+.4f})"
            values.append(text)
        distance = np.abs(said.uncertainty - reference.uncertainty).mean()
        other = contract.accepts(said.uncertainty, THRESHOLD) != contract.accepts(reference.uncertainty, THRESHOLD)
        rows.append(f"| {name} | {kind} | {' | '.join(values)} | {distance:.4f} | {other.mean():.1%} |")
        print(rows[-1], flush=True)
    return rows


def paired(
    metric: Callable[..., float], ours: Prediction, theirs: Prediction, labels: np.ndarray
) -> tuple[float, float]:
    """The 95 % interval of the difference of a metric, over redrawn images."""
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(0, len(labels), len(labels))
        a, b = (metric(said.probabilities[chosen], labels[chosen]) for said in (ours, theirs))
        differences.append(a - b)
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def stop_early(name: str, model: Model, images: np.ndarray) -> list[str]:
    """Rows of the second table."""
    truth = model.predict(images, 400, seed=9, reject=THRESHOLD)

    def outcome(said: Prediction) -> np.ndarray:
        rejected = np.array([decision is Decision.REJECT for decision in said.decisions])
        return np.where(rejected, -1, said.class_ids)

    def row(what: str, said: Prediction) -> str:
        flips = (outcome(said) != outcome(truth)).mean()
        text = f"| {name} | {what} | {said.drawn.mean():.1f} | {flips:.2%} |"
        print(text, flush=True)
        return text

    rows = [row("all 25", model.predict(images, 25, seed=0, reject=THRESHOLD))]
    for error in ERRORS:
        rows.append(
            row(f"`--samples {MOST} --adaptive {error}`", model.predict(images, MOST, 0, THRESHOLD, adaptive=error))
        )
    return rows


HEAD = """# Inference: exact, in one pass, and with as few passes as needed

Written by `benchmarks/inference_quality.py` from runs on CIFAR-10, calibrated with `uce-edge calibrate RUN`: the
ResNet-8 of [results](results/README.md), and a ResNet-20 from
`uce-edge train --data cifar10 --arch resnet20 --flip --epochs 6`.

"""

MOMENTS = """## One pass instead of 25

{images} test images. In brackets, the 95 % interval of the difference to exact passes, over redrawn images.
"distance" is the mean absolute difference of the uncertainty to that of 100 other exact passes, "decisions" the share
of images that these would decide otherwise at a threshold of {threshold}. For the exact row, both are sampling error.

| network | inference | accuracy | NLL | AURC | UCE | distance | decisions |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

"""

ADAPTIVE = """## Passes until it is settled

{images} test images, threshold {threshold}, {most} passes at most. A flip is another outcome (rejected, or accepted as
what) than 400 other passes give.

| network | passes | mean passes | flips |
| --- | --- | --- | --- |
{rows}
"""

if __name__ == "__main__":
    main(sys.argv[1:])
