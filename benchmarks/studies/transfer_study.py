"""What do trained weights bring where images are few? Writes its part of docs/transfer.md.

    python benchmarks/studies/transfer_study.py --init runs/cifar10 --data pneumoniamnist --out study/transfer

`--init` is a run of resnet8. Every start is trained on subsets of the training images. Its learning rate is chosen on
calibration images; test images only report. What is there already is not made again.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from uce_edge import metrics
from uce_edge.calibration.maps import probabilities
from uce_edge.contract import Sigma
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.metadata import Calibration
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.loop import training
from uce_edge_train.networks import pretrained
from uce_edge_train.networks.initial_weights import Start
from uce_edge_train.networks.parameter_groups import ALL_BUT_HEAD
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import DESCRIPTION, Run, load_model

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "transfer.md"
START, END = "<!-- measured: written by benchmarks/studies/transfer_study.py -->", "<!-- end of what was measured -->"
EPOCHS, BATCH = {100: 15, 500: 8}, {100: 16, 500: 32}
"""By the number of training images."""
SUBSETS, PASSES = 3, 5
STARTS = {
    "random": ("", (0.01, 0.003)),
    "trained": ("--init runs/cifar10", (0.01, 0.003)),
    "trained, frozen": (f"--init runs/cifar10 --freeze {ALL_BUT_HEAD}", (0.1, 0.03, 0.01, 0.003)),
}
"""What is compared: what it adds to the command, and the learning rates that are tried. One layer alone wants more."""
SHOWN = {
    "guarantee accuracy": "same source: accuracy",
    "guarantee nll": "NLL",
    "test accuracy": "test: accuracy",
    "test nll": "NLL",
}


def main() -> None:
    """Train what is missing, and write the page's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True, help="the run that trained starts come from")
    parser.add_argument("--data", default="pneumoniamnist")
    parser.add_argument("--root")
    parser.add_argument("--out", default="study/transfer")
    arguments = parser.parse_args()
    dataset, out = splits.load(arguments.data, arguments.root), Path(arguments.out)
    start = pretrained.start_from(arguments.init)
    results: dict[tuple[int, str], list[dict[str, float]]] = {}
    for name, (_, rates) in STARTS.items():
        first = min(EPOCHS)
        tried = [
            trial(part_of(dataset, first, 0), recipe(name, start, first, 0, rate), out) | {"rate": rate}
            for rate in rates
        ]
        rate = min(tried, key=lambda found: found["calibration nll"])["rate"]
        for images in EPOCHS:
            results[images, name] = [
                trial(part_of(dataset, images, subset), recipe(name, start, images, subset, rate), out) | {"rate": rate}
                for subset in range(SUBSETS)
            ]
            print(row(images, name, results), flush=True)
    write(arguments.data, dataset, Run.load(arguments.init), results)


def part_of(dataset: Dataset, images: int, subset: int) -> Dataset:
    """A dataset with a few of its training images, drawn by a seed."""
    whole = dataset.splits["train"]
    chosen = np.sort(np.random.default_rng(subset).permutation(len(whole))[:images])
    return replace(dataset, splits=dataset.splits | {"train": Split(whole.images[chosen], whole.labels[chosen])})


def recipe(name: str, start: Start, images: int, subset: int, rate: float) -> Recipe:
    """How one network is trained."""
    plain = Recipe(
        arch="resnet8", p=0.05, sigma=Sigma.FACTORED, epochs=EPOCHS[images], batch_size=BATCH[images],
        learning_rate=rate, seed=subset,
    )  # fmt: skip
    if name == "random":
        return plain
    return replace(plain, init=start, freeze=(ALL_BUT_HEAD,) if "frozen" in name else ())


def trial(dataset: Dataset, how: Recipe, out: Path) -> dict[str, float]:
    """Train one network and score it, or read the scores."""
    start = "random" if how.init is None else f"trained-{'-'.join(how.freeze) or 'free'}"
    folder = out / f"{len(dataset.splits['train'])}-{start}-{how.seed}-{how.learning_rate:g}"
    scores = folder / "scores.json"
    if not scores.exists():
        run = Run.load(folder) if (folder / DESCRIPTION).exists() else training.train(dataset, folder, how)
        scores.write_text(json.dumps(measured(run, folder, dataset)))
    found: dict[str, float] = json.loads(scores.read_text())
    return found


def measured(run: Run, folder: Path, dataset: Dataset) -> dict[str, float]:
    """Scores of the averaged passes, by the split and the metric."""
    model, scores = load_model(run, folder), {}
    for name in ("calibration", "guarantee", "test"):
        part = dataset.splits[name]
        p = probabilities(Calibration(), mc_logits(model, part, run.image, PASSES, 0))
        scores |= {f"{name} accuracy": metrics.accuracy(p, part.labels), f"{name} nll": metrics.nll(p, part.labels)}
    return scores


def row(images: int, name: str, results: dict[tuple[int, str], list[dict[str, float]]]) -> str:
    """A row of the table: means over the subsets, and the value of each."""
    cells = []
    for key in SHOWN:
        values = [found[key] for found in results[images, name]]
        each, form = ([100 * value for value in values], ".1f") if "accuracy" in key else (values, ".3f")
        unit = " %" if "accuracy" in key else ""
        cells.append(f"**{np.mean(each):{form}}{unit}** ({', '.join(f'{value:{form}}' for value in each)})")
    return f"| {images} | {name} | {' | '.join(cells)} |"


def write(data: str, dataset: Dataset, source: Run, results: dict[tuple[int, str], list[dict[str, float]]]) -> None:
    """The measured part of the page."""
    lines = []
    for name, (added, rates) in STARTS.items():
        command = f"{added} --learning-rate {results[min(EPOCHS), name][0]['rate']:g}".strip()
        lines.append(f"| {name} | `{command}` | {', '.join(map(str, rates))} |")
    options = "\n".join(lines)
    trained = ", and ".join(
        f"{images} images for {count} epochs of batches of {BATCH[images]}" for images, count in EPOCHS.items()
    )
    sizes = {name: len(part) for name, part in dataset.splits.items()}
    shown = "\n".join(row(images, name, results) for images in EPOCHS for name in STARTS)
    there, here = source.image, dataset.image_shape
    given = f"{source.data} ({there.height}x{there.width}, {there.channels} channels)"
    text = f"""{START}

The trained start is resnet8 after {source.recipe.epochs} epochs of {given}. It goes on with
{data} ({here[0]}x{here[1]}, {here[2]} channel): {trained}.

    uce-edge train --data few.npz --arch resnet8 --p 0.05 --sigma factored --epochs N --batch-size B --out runs/few

| start | added to the command | learning rates tried |
| --- | --- | --- |
{options}

The learning rate is the one with the lowest NLL on {sizes["calibration"]} calibration images, tried on the first subset
of {min(EPOCHS)} images. Figures are means over {SUBSETS} subsets of the training images, and in brackets those of each;
a subset has one seed, for its images and for its training. They are of {PASSES} averaged passes, without a calibration
map, on {sizes["guarantee"]} guarantee images, which come from the same source as the training images and served nothing
else, and on the {sizes["test"]} test images.

| training images | start | {" | ".join(SHOWN.values())} |
| --- | --- | --- | --- | --- | --- |
{shown}

{END}"""
    page = PAGE.read_text() if PAGE.exists() else f"# Few images: does a trained start help?\n\n{START}{END}\n"
    before, _, rest = page.partition(START)
    PAGE.write_text(before + text + rest.partition(END)[2])
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
