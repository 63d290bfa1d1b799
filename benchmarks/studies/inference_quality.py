"""How good is one pass of means and variances, and how few passes are enough? Writes docs/inference.md.

    python benchmarks/studies/inference_quality.py moments NAME=RUN ...     # the first table
    python benchmarks/studies/inference_quality.py adaptive NAME=RUN        # the second
    python benchmarks/studies/inference_quality.py relu NAME=RUN ...        # the third: what the rule of a ReLU costs
    python benchmarks/studies/inference_quality.py grid NAME=RUN ...        # the fourth: what grids cost

Every RUN is a calibrated training run. Its exact, moments and deterministic files are made from it, and compared on the
same test images of its dataset.
"""

import math
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.rejection.rule import Decision, within
from uce_edge.runtime.model import Model
from uce_edge.runtime.prediction import Prediction
from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise import grid_moments, rectifier_moments
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
IMAGES, ADAPTIVE_IMAGES, DISTANCE_IMAGES = 5_000, 1_000, 1_000
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
        name, _, folder = argument.rpartition("=")
        with tempfile.TemporaryDirectory() as place:
            rows += PARTS[part](name, folder, Path(place))
    page = DOCS / "inference.md"
    head, *sections = re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)
    text = TEXTS[part].format(
        rows="\n".join(rows), most=MOST, threshold=THRESHOLD,
        images=f"{ADAPTIVE_IMAGES if part == 'adaptive' else IMAGES:,}", distance_images=f"{DISTANCE_IMAGES:,}",
    )  # fmt: skip
    title = text.splitlines()[0]
    known = [section.splitlines()[0] for section in sections]
    if title in known:
        sections[known.index(title)] = text
    else:
        sections.append(text)
    page.write_text(head + "\n\n".join(section.strip() for section in sections) + "\n")
    print(f"Wrote {page}")


def one_pass(name: str, folder: str, place: Path) -> list[str]:
    """Rows of the first table."""
    dataset = Run.load(folder).dataset()
    files = {}
    for inference in Inference:
        export_run(folder, place / f"{inference}.onnx", dataset, inference)
        files[inference] = Model(place / f"{inference}.onnx", "cpu")
    return compare(name, files, dataset.splits["test"].at_most(IMAGES))


def adaptive(name: str, folder: str, place: Path) -> list[str]:
    """Rows of the second table."""
    dataset = Run.load(folder).dataset()
    export_run(folder, place / "mc.onnx", dataset)
    return stop_early(name, Model(place / "mc.onnx", "cpu"), dataset.splits["test"].at_most(ADAPTIVE_IMAGES).images)


def relu_rules(name: str, folder: str, place: Path) -> list[str]:
    """Rows of the third table."""
    present = {name: getattr(rectifier_moments, name) for name in CLOSED_FORMS}
    return forms(name, folder, place, rectifier_moments, {"closed form": CLOSED_FORMS, "rule": present})


def grids(name: str, folder: str, place: Path) -> list[str]:
    """Rows of the fourth table."""
    finest = grid_moments.SIDE
    sides = {f"{side}x{side} positions or more": {"SIDE": side} for side in (finest, finest // 2)}
    return forms(name, folder, place, grid_moments, {"all positions": {"LARGE": 1 << 20}, **sides})


def forms(name: str, folder: str, place: Path, module: object, changes: dict[str, dict[str, Any]]) -> list[str]:
    """Files that differ in the names of a module; intervals are of the difference to the first."""
    dataset = Run.load(folder).dataset()
    test, few = (dataset.splits["test"].at_most(count) for count in (IMAGES, DISTANCE_IMAGES))
    export_run(folder, place / "mc.onnx", dataset)
    reference = Model(place / "mc.onnx", "cpu").predict(few.images, 100, seed=1).uncertainty
    rows, theirs, their_distances = [], None, None
    for kind, change in changes.items():
        with mock.patch.multiple(module, **change):
            export_run(folder, place / "moments.onnx", dataset, Inference.MOMENTS)
        model = Model(place / "moments.onnx", "cpu")
        ours = model.predict(test.images)
        distances = np.abs(model.predict(few.images).uncertainty - reference)
        values = [f"{metrics.accuracy(ours.probabilities, test.labels):.1%}"]
        for metric in (metrics.nll, metrics.aurc):
            text = f"{metric(ours.probabilities, test.labels):.4f}"
            if theirs is not None:
                text += interval(metric, ours, theirs, test.labels)
            values.append(text)
        values.append(f"{distances.mean():.4f}")
        if their_distances is None:
            theirs, their_distances = ours, distances
        else:
            difference = distances - their_distances
            error = 1.96 * difference.std() / math.sqrt(len(difference))
            values[-1] += f" ({difference.mean() - error:+.4f} to {difference.mean() + error:+.4f})"
        rows.append(f"| {name} | {kind} | {' | '.join(values)} |")
        print(rows[-1], flush=True)
    return rows


def closed_relu(g: Builder, m: ir.Value, r: ir.Value) -> rectifier_moments.Bent:
    """Mean and variance of max(x, 0) for a Gaussian x, in the place of `rectifier_moments.relu`."""
    s = g.Mul(r, _number(g, 1 / rectifier_moments.WIDTH))
    mean, share, _ = _closed(g, m, s)
    # Of max(x, 0) and max(-x, 0), which is never positive together with it, the product of the means.
    product = g.Mul(mean, g.Sub(mean, m))
    return rectifier_moments.Bent(mean, g.Relu(g.Sub(g.Mul(g.Mul(s, s), share), product)), 1.0)


def closed_relu_in_units(g: Builder, m: ir.Value) -> rectifier_moments.Bent:
    """The same, in the place of `rectifier_moments.relu_in_units`."""
    return closed_relu(g, m, _number(g, 1))


def closed_clip(g: Builder, m: ir.Value, t: ir.Value, low: float, high: float) -> rectifier_moments.Bent:
    """Mean and variance of min(max(x, low), high) for a Gaussian x, in the place of `rectifier_moments.clip`.

    It is low + a - b with a = max(x - low, 0) and b = max(x - high, 0), and where b > 0, a is b + high - low.
    """
    s = g.Mul(t, _number(g, 1 / rectifier_moments.REACH))
    (a, _, a2), (b, _, b2) = (_closed(g, g.Sub(m, _number(g, bound)), s) for bound in (low, high))
    mean = g.Sub(a, b)
    square = g.Sub(g.Sub(a2, b2), g.Mul(b, _number(g, 2 * (high - low))))
    return rectifier_moments.Bent(g.Add(mean, _number(g, low)), g.Relu(g.Sub(square, g.Mul(mean, mean))), 1.0)


def _closed(g: Builder, m: ir.Value, s: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Of max(x, 0) for a Gaussian x: the mean, the probability that x is positive, the mean square."""
    z = g.Div(m, s)
    share = g.Mul(g.Add(g.Erf(g.Mul(z, _number(g, math.sqrt(0.5)))), _number(g, 1)), _number(g, 0.5))
    density = g.Mul(g.Exp(g.Mul(g.Mul(z, z), _number(g, -0.5))), _number(g, 1 / math.sqrt(2 * math.pi)))
    mean = g.Add(g.Mul(m, share), g.Mul(s, density))
    return mean, share, g.Add(g.Mul(m, mean), g.Mul(g.Mul(s, s), share))


def _number(g: Builder, value: float) -> ir.Value:
    return g.constant(np.float32(value))


CLOSED_FORMS = {"relu": closed_relu, "relu_in_units": closed_relu_in_units, "clip": closed_clip}
"""What the rules of `rectifier_moments` are compared with."""


def compare(name: str, files: dict[Inference, Model], test) -> list[str]:
    """Rows of the first table."""
    mc = files[Inference.MC]
    reference = mc.predict(test.images[:DISTANCE_IMAGES], 100, seed=1).uncertainty
    exact = mc.predict(test.images, 25, seed=0)
    answers = {
        "exact, N = 25": exact,
        "moments": files[Inference.MOMENTS].predict(test.images),
        "deterministic": files[Inference.DETERMINISTIC].predict(test.images),
    }
    rows = []
    for kind, said in answers.items():
        values = [f"{metrics.accuracy(said.probabilities, test.labels):.1%}"]
        for metric, digits in ((metrics.nll, 4), (metrics.aurc, 4), (metrics.uce, 4)):
            text = f"{metric(said.probabilities, test.labels):.{digits}f}"
            if said is not exact:
                text += interval(metric, said, exact, test.labels)
            values.append(text)
        uncertainty = said.uncertainty[:DISTANCE_IMAGES]
        distance = np.abs(uncertainty - reference).mean()
        other = within(uncertainty, THRESHOLD) != within(reference, THRESHOLD)
        rows.append(f"| {name} | {kind} | {' | '.join(values)} | {distance:.4f} | {other.mean():.1%} |")
        print(rows[-1], flush=True)
    return rows


def interval(metric: Callable[..., float], ours: Prediction, theirs: Prediction, labels: np.ndarray) -> str:
    """The 95 % interval of the difference of a metric, over redrawn images, for a cell."""
    probabilities = (said.probabilities for said in (ours, theirs))
    difference = metrics.bootstrap_difference(metric, *probabilities, labels, resamples=RESAMPLES)
    return f" ({difference.low:+.4f} to {difference.high:+.4f})"


def stop_early(name: str, model: Model, images: np.ndarray) -> list[str]:
    """Rows of the second table."""
    everything = model.predict(images, MOST, reject=THRESHOLD)
    near = np.argsort(np.abs(everything.uncertainty - THRESHOLD))[: len(images) // 10]

    def outcome(said: Prediction) -> np.ndarray:
        rejected = np.array([decision is Decision.REJECT for decision in said.decisions])
        return np.where(rejected, -1, said.class_ids)

    def row(what: str, said: Prediction) -> str:
        changed = outcome(said) != outcome(everything)
        text = f"| {name} | {what} | {said.drawn.mean():.1f} | {changed.mean():.2%} | {changed[near].mean():.1%} |"
        print(text, flush=True)
        return text

    rows = [row("the first 25", model.predict(images, 25, reject=THRESHOLD))]
    for error in ERRORS:
        said = model.predict(images, MOST, reject=THRESHOLD, adaptive=error)
        rows.append(row(f"`--samples {MOST} --adaptive {error}`", said))
    return rows


MOMENTS = """## One pass instead of 25

The table has {images} test images. Brackets hold the 95 % interval of the difference to exact passes, over redrawn
images. "distance" is the mean absolute difference of the uncertainty to that of 100 other exact passes. "decisions" is
the share of images that those 100 passes would decide differently at a threshold of {threshold}. Both are of
{distance_images} of the images. In the exact rows, both are sampling error.

| network | inference | accuracy | NLL | AURC | UCE | distance | decisions |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

"""

ADAPTIVE = """## Passes until it is settled

`--adaptive E` stops drawing passes for an image once more passes would change its outcome with a probability of at most
E. The outcome is that the image is rejected, or accepted with a certain label. The table has {images} test images, a
threshold of {threshold} and at most {most} passes. "changed" is the share of images whose outcome differs from that
of all {most} passes. "near" is the same share among the tenth of the images that are nearest to the threshold.

| network | passes | mean passes | changed | near |
| --- | --- | --- | --- | --- |
{rows}

"""

RELU = """## The rule of a ReLU

At a ReLU, a moments file replaces the Gaussian by a uniform distribution, and at a ReLU6 by three points
([the formulas](science.md#one-pass-moments)). The table compares these rules with the closed forms for a Gaussian, on
{images} test images. "distance" is the mean absolute difference of the uncertainty to that of 100 passes of the same
network, on {distance_images} of them. Brackets hold the 95 % interval of the difference to the closed form.

| network | by | accuracy | NLL | AURC | distance |
| --- | --- | --- | --- | --- | --- |
{rows}
"""

GRID = """## Large maps on a grid

A moments file computes mean and variance of maps above 32x32 on a grid ([how](science.md#one-pass-moments)). The table
compares files with grids, and with all positions, on {images} test images at most. "distance" is the mean absolute
difference of the uncertainty to that of 100 passes of the same network, on {distance_images} of them at most. Brackets
hold the 95 % interval of the difference to all positions.

| network | grid | accuracy | NLL | AURC | distance |
| --- | --- | --- | --- | --- | --- |
{rows}
"""

PARTS = {"moments": one_pass, "adaptive": adaptive, "relu": relu_rules, "grid": grids}
TEXTS = {"moments": MOMENTS, "adaptive": ADAPTIVE, "relu": RELU, "grid": GRID}

if __name__ == "__main__":
    main(sys.argv[1:])
