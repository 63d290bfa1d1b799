"""Training against out-of-distribution and damaged images; writes its part of docs/novelty.md.

    python benchmarks/studies/novelty_study.py plain=RUN NAME=RUN ... "NAME, second seed=RUN"

Every RUN is a training run on CIFAR-10, calibrated with --target-error; one that is not finished is named as missing.
The first is what the others are compared with. The recipe is chosen on calibration images; test images only report.
"""

import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.datasets import Split, labelled, synthetic_ood
from uce_edge.evaluation import rejection_results, threshold_curves
from uce_edge.evaluation.model_outputs import ModelOutputs, predict_all
from uce_edge.evaluation.ood import OutOfDistribution, compare
from uce_edge.evaluation.rejection_results import Gated
from uce_edge.evaluation.score_intervals import Score
from uce_edge.evaluation.shift import Pooled, Shift, pooled, sweep
from uce_edge.images.corruptions import KINDS
from uce_edge.metrics import bootstrap_difference
from uce_edge.output.wording import percent, percentage
from uce_edge.runtime.model import Model
from uce_edge_train.choices import Mixing
from uce_edge_train.export import export_run
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import DESCRIPTION, Run

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "novelty.md"
TITLE = "### What was measured"
NEAR, FAR, NOISE, DIGITS = "CIFAR-100", "far, without noise", "far: noise", "MNIST"
MADE = {FAR: ("single colours", "gratings", "checkerboards", "text"), NOISE: ("noise",)}
EVERY = {**synthetic_ood.CHOICE, **synthetic_ood.JUDGE}
CHOSEN_ON, REPORTED_ON, DAMAGED, RESAMPLES = 2_000, 3_000, 200, 200
SEEN_BY_SOME = ("noise", "blur")
SOME, FOUR = ", ".join(SEEN_BY_SOME), ", ".join(kind for kind in KINDS if kind not in SEEN_BY_SOME)


@dataclass(frozen=True, eq=False)
class Measured:
    """One recipe."""

    name: str
    recipe: Recipe
    choice: OutOfDistribution
    """Calibration images that nothing was fitted on, against near images."""
    choice_accuracy: float
    choice_aurc: float
    test: Split
    own: ModelOutputs
    gated: Gated | None
    ood: dict[str, OutOfDistribution]
    shift: Shift

    def damage(self, *, seen_by_some: bool) -> Pooled:
        kinds = [kind for kind in self.shift.curves if (kind in SEEN_BY_SOME) is seen_by_some]
        group = pooled(self.shift.curves, kinds, seen_by_some)
        assert group is not None
        return group


def main(arguments: list[str]) -> None:
    """Measure every finished run and write the page's part."""
    warnings.simplefilter("ignore")
    rows, missing = [], []
    for argument in arguments:
        name, _, folder = argument.rpartition("=")
        if not (Path(folder) / DESCRIPTION).exists() or Run.load(folder).novelty is None:
            missing.append(name)
            continue
        rows.append(measure(name, folder))
        print(choice_row(rows[-1]), flush=True)
    text = TEXT.format(
        missing=f"Not finished yet: {', '.join(missing)}. " if missing else "",
        choice="\n".join(map(choice_row, rows)),
        own="\n".join(own_row(row, rows[0]) for row in rows),
        auroc="\n".join(map(auroc_row, rows)),
        accepted="\n".join(map(accepted_row, rows)),
        damage="\n".join(map(damage_row, rows)),
    )
    page = PAGE.read_text()
    pattern = re.compile(rf"^{TITLE}\n.*?(?=^##)", re.MULTILINE | re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{text}\n", page))
    print(f"Wrote {PAGE}")


def measure(name: str, folder: str) -> Measured:
    """The moments file of a run, on everything."""
    run = Run.load(folder)
    dataset = run.dataset()
    test, held_out = dataset.splits["test"], dataset.splits["calibration"].halves()[1]
    near = labelled.load_ood("cifar100", run.image).images
    order = np.random.default_rng(0).permutation(len(near))
    made = {
        called: synthetic_ood.far(run.image, {kind: EVERY[kind] for kind in kinds}).images
        for called, kinds in MADE.items()
    }
    outside = {
        NEAR: near[np.sort(order[CHOSEN_ON:][:REPORTED_ON])],
        **made,
        DIGITS: labelled.load_ood("mnist", run.image).images[:REPORTED_ON],
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "moments.onnx"
        export_run(folder, path, dataset, Inference.MOMENTS)
        model = Model(path, "cpu")
        answers = {called: predict_all(model, images, None, 0, called) for called, images in outside.items()}
        own, chosen, near_chosen = (
            predict_all(model, images, None, 0, name)
            for images in (test.images, held_out.images, near[np.sort(order[:CHOSEN_ON])])
        )
        passes, stored = model.metadata.samples, model.metadata.rule
        wrong = own.table.predicted != test.labels
        threshold = threshold_curves.operating_points(own, wrong, None, stored)[0].measured.threshold
        gate = rejection_results.gate_of(stored, None)
        shift = sweep(
            model, test.images, test.labels, own, limit=DAMAGED, threshold=threshold, samples=None, seed=0, gate=gate
        )
    ood = {called: compare(called, own, found, passes, threshold, gate) for called, found in answers.items()}
    return Measured(
        name=name,
        recipe=run.recipe,
        choice=compare(NEAR, chosen, near_chosen, passes, threshold),
        choice_accuracy=metrics.accuracy(chosen.table, held_out.labels),
        choice_aurc=metrics.aurc(chosen.table, held_out.labels),
        test=test,
        own=own,
        gated=rejection_results.gated(own, wrong, gate),
        ood=ood,
        shift=shift,
    )


def choice_row(row: Measured) -> str:
    both = row.choice.detection["both"].auroc
    return f"| {row.name} | {percent(row.choice_accuracy)} | {percent(row.choice_aurc, 2)} | {area(both)} |"


def own_row(row: Measured, plain: Measured) -> str:
    cells = []
    for metric, unit, digits in ((metrics.accuracy, 100, 1), (metrics.nll, 1, 3), (metrics.aurc, 100, 2)):
        value = metric(row.own.table, row.test.labels)
        cell = percent(value, digits) if unit == 100 else f"{value:.{digits}f}"
        if row is not plain:
            difference = bootstrap_difference(
                metric, row.own.probabilities, plain.own.probabilities, row.test.labels, resamples=RESAMPLES
            )
            cell += f" ({unit * difference.low:+.{digits}f} to {unit * difference.high:+.{digits}f})"
        cells.append(cell)
    gated = row.gated
    both = "– | –" if gated is None else f"{percent(gated.own_rejected)} | {pair(gated.coverage, gated.error)}"
    return f"| {row.name} | {' | '.join(cells)} | {both} |"


def auroc_row(row: Measured) -> str:
    cells = []
    for name in (NEAR, FAR, NOISE, DIGITS):
        areas = row.ood[name].detection
        single = " / ".join(f"{100 * (areas[score].auroc.value or 0):.1f}" for score in ("uncertainty", "novelty"))
        cells.append(f"{single} / {area(areas['both'].auroc)}{seen(name == NOISE and row.recipe.noise > 0)}")
    return f"| {row.name} | {' | '.join(cells)} |"


def accepted_row(row: Measured) -> str:
    cells = []
    for name in (NEAR, FAR, NOISE, DIGITS):
        ood = row.ood[name]
        cells.append(pair(ood.accepted, ood.gated) + seen(name == NOISE and row.recipe.noise > 0))
    return f"| {row.name} | {' | '.join(cells)} |"


def damage_row(row: Measured) -> str:
    cells = []
    for some in (False, True):
        group = row.damage(seen_by_some=some)
        trained = some and (row.recipe.noise > 0 or row.recipe.blur > 0)
        cells += [
            percent(group.accuracy) + seen(trained),
            pair(group.coverage, group.error),
            pair(group.gated_coverage, group.gated_error),
        ]
    return f"| {row.name} | {' | '.join(cells)} |"


def seen(holds: bool) -> str:
    return " (seen)" if holds else ""


def pair(first: float | None, second: float | None) -> str:
    return f"{percentage(first)} / {percent(second)}"


def area(score: Score) -> str:
    if score.value is None or score.low is None or score.high is None:
        return "–"
    return f"**{100 * score.value:.1f}** ({100 * score.low:.1f} to {100 * score.high:.1f})"


BASE = (
    "uce-edge train --data cifar10 --arch resnet8 --p 0.05 --sigma factored --batch-size 128 --flip --epochs 6 "
    "--precision bfloat16 --resume --out runs/NAME"
)
COMMANDS = {
    "plain": "",
    "logitnorm": "--logit-norm 0.04",
    "pixmix": f"--augment {Mixing.PIXMIX}",
    "pixmix+logitnorm": f"--augment {Mixing.PIXMIX} --logit-norm 0.04",
    "augmix": f"--augment {Mixing.AUGMIX}",
    "noise+blur": "--noise 0.3 --blur 0.3",
}
LISTED = "\n".join(f"| {name} | {f'`{options}`' if options else 'nothing'} |" for name, options in COMMANDS.items())

TEXT = f"""{TITLE}

Written by `benchmarks/studies/novelty_study.py`. Each row is one training of a small network:

    {BASE}
    uce-edge calibrate runs/NAME --target-error 0.1 --samples 2   # the moments file fits a map of its own

| recipe | added to the first command |
| --- | --- |
{LISTED}

"Second seed" is the same recipe with `--seed 1`. {{missing}}The moments file of each row is measured. In brackets are
95 % intervals over redrawn images. None of them covers another seed of the training.

**How the recipe was chosen**: on 2,500 calibration images that nothing was fitted on and {CHOSEN_ON:,} images of
CIFAR-100 that are not reported below:

| recipe | accuracy | AURC | near AUROC in %, both |
| --- | --- | --- | --- |
{{choice}}

**Own test images** (5,000). In brackets, the interval of the difference to the first row on the same images.

| recipe | accuracy | NLL | AURC | rejected as out-of-distribution | accepted by both / wrong of these |
| --- | --- | --- | --- | --- | --- |
{{own}}

**Out-of-distribution images, AUROC in %**: uncertainty / novelty / both. {REPORTED_ON:,} images of CIFAR-100
and of MNIST, 800 far images (single colours, gratings, checkerboards, text) and 200 of noise.

| recipe | {NEAR} (near) | {FAR} | {NOISE} | {DIGITS} |
| --- | --- | --- | --- | --- |
{{auroc}}

**Out-of-distribution images, accepted**: by the uncertainty alone / by both, with the thresholds that promise 10 %
error.

| recipe | {NEAR} (near) | {FAR} | {NOISE} | {DIGITS} |
| --- | --- | --- | --- | --- |
{{accepted}}

**Damage** of {DAMAGED} own images, five severities together: accuracy; accepted / wrong of these by the uncertainty
alone; the same by both. No recipe was trained with the first four kinds.

| recipe | {FOUR}: accuracy | uncertainty | both | {SOME}: accuracy | uncertainty | both |
| --- | --- | --- | --- | --- | --- | --- |
{{damage}}
"""

if __name__ == "__main__":
    main(sys.argv[1:])
