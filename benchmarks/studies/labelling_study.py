"""Does `uce-edge rank` save labels? TrashNet; prints the table of docs/transfer.md.

    python benchmarks/studies/labelling_study.py --data DATA/trashnet --work build/labelling [--minutes 9]

Some random photos are labelled, and the last convolution and the classifier of EfficientNet-Lite0 are trained on them.
Then 50 more photos are labelled, chosen at random or by the answers of the present network, and training begins anew.
All networks have the same noise (p = 0.1), so that only the choice of the photos differs. Photos that nobody chose from
judge every round. Answers that are there are kept.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from uce_edge import metrics
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Split
from uce_edge.metrics import normalized_entropy
from uce_edge_train.choices import Dropout, Rates, Unfreeze
from uce_edge_train.data.features import Changes, Features, Views, open_features
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.networks import backbones, parameter_groups, pretrained
from uce_edge_train.networks import seam as seams
from uce_edge_train.recipe import Recipe

SEAM, RATE, VIEWS, EPOCHS, PASSES = "head", 0.1, 2, 12, 8
FIRST, MORE, ROUNDS, SEEDS, JUDGES = 60, 50, 6, 8, 800
CHOICES = {"random": "at random", "model_uncertainty": "model uncertainty", "uncertainty": "uncertainty"}
T_975 = 2.365  # of the t distribution with 7 degrees of freedom

Rows = npt.NDArray[np.int64]
Scores = list[float]


class Bench:
    """The network, and stored features of all photos."""

    def __init__(self, data: Path, work: Path) -> None:
        backbone = backbones.named("efficientnet-lite0")
        changes = {"seam": SEAM, "unfreeze": Unfreeze.TAIL, "rates": Rates.FIXED, "p": RATE, "epochs": EPOCHS}
        self.how = Recipe(**backbone.recipe() | changes | {"dropout": Dropout.GAUSSIAN, "patience": None})
        image = backbone.image
        found = splits.load(str(data), size=(image.height, image.width), resize=image.resize)
        parts = list(found.splits.values())
        self.whole = Split(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))
        self.classes = len(found.class_names)
        self.model = self.how.build(self.classes, image.channels)
        assert self.how.init is not None
        pretrained.begin(self.model, self.how.init, self.how.arch)
        features = open_features(self.model, image, work, SEAM)
        assert features is not None
        self.features: Features = features
        augmented = Changes(self.how.augmentation(image), 0)
        with deterministic(self.model):
            self.views = [features.view(self.whole, number, augmented) for number in range(VIEWS)]
        parameter_groups.thaw(self.model, seams.weights_behind(self.model, SEAM), Unfreeze.TAIL)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}

    def train(self, labelled: Rows, seed: int) -> None:
        """Train the tail from the pretrained weights."""
        self.model.load_state_dict(self.start)
        how, source = self.how, torch.Generator().manual_seed(seed)
        optimiser, views = how.optimiser_for(self.model, []), Views([view[labelled] for view in self.views])
        labels = torch.from_numpy(self.whole.labels[labelled])
        batch = min(how.batch_size, len(labels))
        steps = len(labels) // batch
        for epoch in range(how.epochs):
            order = torch.randperm(len(labels), generator=source)
            with noise_from(self.model, source):
                for step in range(steps):
                    for group in optimiser.param_groups:
                        rate = how.learning_rate_at((epoch + step / steps) / how.epochs, 0)
                        group["lr"] = rate * group["factor"]
                    some = order[step * batch : (step + 1) * batch]
                    loss, _ = how.loss(self.features.tail(views.take(some, source)), labels[some])
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()

    def passes(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Probabilities [passes, images, classes]."""
        some = Split(self.views[0][rows], self.whole.labels[rows])
        logits = np.concatenate(list(mc_logits(self.features.tail, some, self.features.spec, PASSES, 0)), axis=1)
        apart = np.exp(logits - logits.max(-1, keepdims=True)).astype(np.float64)
        return apart / apart.sum(-1, keepdims=True)


def scored(choice: str, passes: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """What `rank` sorts by, or random numbers."""
    uncertainty = normalized_entropy(passes.mean(0))
    if choice == "random":
        return rng.random(passes.shape[1])
    return uncertainty if choice == "uncertainty" else uncertainty - normalized_entropy(passes).mean(0)


def labelled_rounds(bench: Bench, choice: str, seed: int) -> list[Scores]:
    """Accuracy and NLL after every round."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(bench.whole))
    judges, pool = order[:JUDGES], order[JUDGES:]
    labelled, found = pool[:FIRST], []
    for _ in range(ROUNDS):
        bench.train(labelled, seed)
        p = bench.passes(judges).mean(0)
        truth = bench.whole.labels[judges]
        found.append([float(metrics.accuracy(p, truth)), float(metrics.nll(p, truth))])
        rest = np.setdiff1d(pool, labelled)
        scores = scored(choice, bench.passes(rest) if choice != "random" else np.empty((1, len(rest), 2)), rng)
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
            half = T_975 * apart.std(ddof=1) / SEEDS**0.5
            ends = f"{apart.mean() - half:+.1f} to {apart.mean() + half:+.1f}"
            cells.append(f"{100 * now.mean():.1f} % ({ends})")
        lines.append(f"| {FIRST + number * MORE} | {' | '.join(cells)} |")
    counts, line = FIRST + MORE * np.arange(ROUNDS), random.mean(0)
    for choice in list(CHOICES)[1:]:
        needed = np.interp(by[choice][..., 0].mean(0)[1:-1], np.maximum.accumulate(line), counts, right=np.nan)
        saved = needed - counts[1:-1]
        text = ", ".join("more" if np.isnan(one) else f"{one:.0f}" for one in saved)
        lines.append(f"Labels saved by {CHOICES[choice]}, at {', '.join(map(str, counts[1:-1]))} labels: {text}")
    return lines


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
