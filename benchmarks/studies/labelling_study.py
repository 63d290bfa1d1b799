"""Does `uce-edge rank` save labels? TrashNet; prints the table of docs/transfer.md.

    python benchmarks/studies/labelling_study.py --data DATA/trashnet --work build/labelling [--minutes 9]

Some random photos are labelled, and the last layer of EfficientNet-Lite0 is trained on them (`train --unfreeze none`).
Then 50 more photos are labelled, chosen at random or by the answers of the present network, and training begins anew.
All networks have the same noise (p = 0.2 in the last layer) and number of steps, so that only the choice of the photos
differs. Photos that nobody chose from judge every round. Answers that are there are kept.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from uce_edge import metrics
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Split
from uce_edge.metrics import normalized_entropy
from uce_edge_train.choices import Dropout, Rates, Unfreeze
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.noise_draws import generator
from uce_edge_train.networks import backbones, pretrained
from uce_edge_train.networks import seam as seams
from uce_edge_train.recipe import Recipe

LAYER, RATE, VIEWS, STEPS, LEARNING_RATE, PASSES, BATCH = "classifier", 0.2, 2, 300, 0.01, 16, 32
FIRST, MORE, ROUNDS, SEEDS, JUDGES = 60, 50, 8, 12, 800
CHOICES = {"random": "at random", "model_uncertainty": "model uncertainty", "uncertainty": "uncertainty"}

Rows = npt.NDArray[np.int64]
Scores = list[float]


class Bench:
    """The last layer of a pretrained network, and its inputs for all photos."""

    def __init__(self, data: Path, work: Path) -> None:
        backbone = backbones.named("efficientnet-lite0")
        changes = {"seam": LAYER, "unfreeze": Unfreeze.NONE, "rates": Rates.FIXED, "p": RATE, "noisy": (LAYER,)}
        self.how = Recipe(**backbone.recipe() | changes | {"dropout": Dropout.GAUSSIAN, "patience": None})
        image = backbone.image
        stored, named = work / "features.npy", work / "labels.npy"
        if not (stored.exists() and named.exists()):
            found = splits.load(str(data), size=(image.height, image.width), resize=image.resize)
            parts = list(found.splits.values())
            whole = Split(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))
            np.save(named, whole.labels)
        self.labels = torch.from_numpy(np.load(named))
        model = self.how.build(int(self.labels.max()) + 1, image.channels).eval()
        assert self.how.init is not None
        pretrained.begin(model, self.how.init, self.how.arch)
        if not stored.exists():
            split = seams.split(model, LAYER, torch.zeros(2, image.channels, image.height, image.width))
            assert split is not None
            augment = self.how.augmentation(image)
            views = []
            for view in range(VIEWS):
                source, blocks = generator("cpu", 0, view, 0), []
                for start in range(0, len(whole), BATCH):
                    pixels = normalise(torch.from_numpy(whole.images[start : start + BATCH]), image)
                    with deterministic(model):
                        blocks.append(split.trunk(augment(pixels, source) if view else pixels))
                views.append(torch.cat(blocks).numpy())
            np.save(stored, np.stack(views))
        self.views = torch.from_numpy(np.load(stored))
        self.layer = model.get_submodule(LAYER)
        self.start = {name: value.clone() for name, value in self.layer.state_dict().items()}

    def train(self, labelled: Rows, seed: int) -> None:
        """Train the layer from its first weights."""
        self.layer.load_state_dict(self.start)
        source, rows = torch.Generator().manual_seed(seed), torch.from_numpy(labelled)
        optimiser = torch.optim.AdamW(self.layer.parameters(), LEARNING_RATE, weight_decay=self.how.weight_decay)
        for step in range(STEPS):
            optimiser.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / STEPS)
            some = rows[torch.randint(len(rows), (BATCH,), generator=source)]
            view = torch.randint(VIEWS, (BATCH,), generator=source)
            with noise_from(self.layer, source):
                loss = torch.nn.functional.cross_entropy(self.layer(self.views[view, some]), self.labels[some])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    def passes(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Probabilities [passes, images, classes]."""
        inputs, source = self.views[0, torch.from_numpy(rows)], torch.Generator().manual_seed(0)
        with torch.no_grad(), noise_from(self.layer, source):
            logits = torch.stack([self.layer(inputs) for _ in range(PASSES)])
        return logits.double().softmax(-1).numpy()


def scored(choice: str, passes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What `rank` sorts by."""
    uncertainty = normalized_entropy(passes.mean(0))
    return uncertainty if choice == "uncertainty" else uncertainty - normalized_entropy(passes).mean(0)


def labelled_rounds(bench: Bench, choice: str, seed: int) -> list[Scores]:
    """Accuracy and NLL after every round."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(bench.labels))
    judges, pool = order[:JUDGES], order[JUDGES:]
    labelled, found = pool[:FIRST], []
    for _ in range(ROUNDS):
        bench.train(labelled, seed)
        p = bench.passes(judges).mean(0)
        truth = bench.labels.numpy()[judges]
        found.append([float(metrics.accuracy(p, truth)), float(metrics.nll(p, truth))])
        rest = np.setdiff1d(pool, labelled)
        scores = rng.random(len(rest)) if choice == "random" else scored(choice, bench.passes(rest))
        labelled = np.concatenate([labelled, rest[np.argsort(-scores)[:MORE]]])
    return found


def table(answers: dict[str, list[Scores]]) -> list[str]:
    """Accuracies, and paired differences to random photos."""
    by = {choice: np.array([answers[f"{choice}-{seed}"] for seed in range(SEEDS)]) for choice in CHOICES}
    lines = ["| labels | " + " | ".join(CHOICES.values()) + " |", "| --- " * (1 + len(CHOICES)) + "|"]
    random = by["random"][..., 0]
    for number in range(ROUNDS):
        cells = [f"{100 * random[:, number].mean():.1f} %"]
        for choice in list(CHOICES)[1:]:
            now = by[choice][:, number, 0]
            apart = 100 * (now - random[:, number])
            half = stats.t.ppf(0.975, SEEDS - 1) * apart.std(ddof=1) / SEEDS**0.5
            ends = f"{apart.mean() - half:+.1f} to {apart.mean() + half:+.1f}"
            cells.append(f"{100 * now.mean():.1f} % ({ends})")
        lines.append(f"| {FIRST + number * MORE} | {' | '.join(cells)} |")
    lines += ["", "| with so many labels | " + " | ".join(f"{c} saves" for c in list(CHOICES.values())[1:]) + " |"]
    lines.append("| --- " * len(CHOICES) + "|")
    rng = np.random.default_rng(0)
    draws = [np.arange(SEEDS), *rng.integers(0, SEEDS, (2000, SEEDS))]  # the first are all seeds, once
    for number in range(1, ROUNDS - 3):  # later ones would need more rounds at random
        cells = []
        for choice in list(CHOICES)[1:]:
            each = [saved(by[choice][seeds, number, 0].mean(), random[seeds].mean(0), number) for seeds in draws]
            low, high = np.quantile(each[1:], (0.025, 0.975))
            cells.append(f"{each[0]:.0f} ({low:.0f} to {high:.0f})")
        lines.append(f"| {FIRST + number * MORE} | {' | '.join(cells)} |")
    return lines


def saved(accuracy: float, random: npt.NDArray[np.float64], number: int) -> float:
    """Labels that random photos need more for an accuracy; at most those of the last round."""
    counts = FIRST + MORE * np.arange(ROUNDS)
    return float(np.interp(accuracy, np.maximum.accumulate(random), counts)) - counts[number]


def main() -> None:
    """Make what is missing, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    until, kept = time.monotonic() + 60 * arguments.minutes, arguments.work / "answers.json"
    answers: dict[str, list[Scores]] = json.loads(kept.read_text()) if kept.exists() else {}
    names = [(choice, seed) for seed in range(SEEDS) for choice in CHOICES]
    left = [(choice, seed) for choice, seed in names if f"{choice}-{seed}" not in answers]
    bench = Bench(arguments.data, arguments.work) if left else None
    for choice, seed in left:
        if bench is None or time.monotonic() > until:
            print("It goes on when it is called again.")
            return
        answers[f"{choice}-{seed}"] = labelled_rounds(bench, choice, seed)
        kept.write_text(json.dumps(answers, indent=1))
        print(choice, seed, answers[f"{choice}-{seed}"], flush=True)
    print("\n".join(table(answers)))


if __name__ == "__main__":
    main()
