"""Which posterior pays on a pretrained network at 224x224? Trains the tails, and writes docs/posteriors.md.

    python benchmarks/studies/posteriors_224.py train --data DATA --minutes 9
    python benchmarks/studies/posteriors_224.py price --data DATA
    python benchmarks/studies/posteriors_224.py time
    python benchmarks/studies/posteriors_224.py page

DATA is the folder that holds `trashnet` and `chest_xray`. `train` does the jobs that are missing until the minutes are
over: one seed after the other of one rate of every posterior, then the other rates. Repeat it until it prints that
nothing is left. Every job trains the last stage and the head of EfficientNet-Lite0 on stored outputs of the layers
before, and keeps the logits of images that were not trained on. Half of these fit nothing but the temperature.
"""

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from posteriors_224_page import FEW, SEEDS, TWO_STAGES, ensemble_of, write_page
from torch import Tensor, nn

from uce_edge.calibration.logits import logits_of
from uce_edge.contract import Inference, PriorFrom, Sigma
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.runtime.model import Model
from uce_edge_export.graph import ensemble
from uce_edge_train import run_posterior
from uce_edge_train.choices import Dropout, Rates, Unfreeze
from uce_edge_train.data import selection
from uce_edge_train.data.features import Features, open_features
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.dropout.noise_draws import generator
from uce_edge_train.export import export_run
from uce_edge_train.loop import feeds, training
from uce_edge_train.networks import backbones
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, load_model

BACKBONE, SEAM, NOISY_FROM = "efficientnet-lite0", "blocks.15", "head"
PASSES, DRAWS, VIEWS = 25, 100, 2
TASKS = {"trashnet": ("trashnet", None), "chest X-rays": ("chest_xray/labels.csv", "group")}
POOL = 7  # trainings without noise, so that ensembles of five differ
SNAPSHOTS, SWAG_EPOCHS, SWAG_RATE, SWAG_DRAWS = 3, 5, 5e-4, 16  # snapshots of an epoch
_NOISY = ("tail",)


@dataclass(frozen=True)
class Arm:
    """One posterior: what it changes in the recipe of a deterministic tail."""

    name: str
    changes: dict[str, Any]
    later: int = 0
    """Its round: jobs of round 0 come first."""


def _noise(sigma: Sigma, p: float) -> dict[str, Any]:
    return {"dropout": Dropout.GAUSSIAN, "sigma": sigma, "p": p, "noisy": _NOISY}


PLAIN = Arm("deterministic", {})
EARLY = Arm(TWO_STAGES, {"seam": "blocks.11"}, later=2)
ARMS = (
    PLAIN,
    *(Arm(f"Gaussian, p = {p}", _noise(Sigma.EXACT, p), later) for p, later in ((0.1, 0), (0.2, 1), (0.05, 1))),
    *(
        Arm(f"Gaussian by channel, p = {p}", _noise(Sigma.CHANNEL, p), later)
        for p, later in ((0.2, 0), (0.1, 1), (0.05, 1))
    ),
    Arm("Bernoulli, p = 0.1", {"dropout": Dropout.BERNOULLI, "p": 0.1, "noisy": _NOISY}),
    EARLY,
)
LAPLACE, SWAG = "Laplace", "SWAG"
AFTERWARDS = (LAPLACE, SWAG)
"""Posteriors of trained deterministic tails."""


def recipe(arm: Arm, seed: int, epochs: int) -> Recipe:
    """How one tail is trained: as `train --backbone` does, at a fixed rate and from a later layer on."""
    base = backbones.named(BACKBONE).recipe() | {
        "seam": SEAM, "unfreeze": Unfreeze.TAIL, "rates": Rates.FIXED, "dropout": Dropout.NONE, "epochs": epochs,
        "views": VIEWS, "patience": None,
    }  # fmt: skip
    return Recipe(**(base | arm.changes), seed=seed)


def dataset_of(data: Path, task: str) -> Dataset:
    """Two fifths for training, an eighth for the temperature; the others judge, and are in the split `test`."""
    path, group = TASKS[task]
    image = backbones.named(BACKBONE).image
    found = splits.load(str(data / path), size=(image.height, image.width), group=group, resize=image.resize)
    judged, rest = _joined(list(found.splits.values())).parted(0.48)
    calibration, train = rest.parted(0.12 / 0.52)
    parts = {"train": train, "calibration": calibration, "guarantee": judged.take(np.arange(1)), "test": judged}
    return replace(found, splits=parts)


def _joined(parts: list[Split]) -> Split:
    together = [np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels")]
    groups = None if parts[0].groups is None else np.concatenate([part.groups for part in parts])
    return Split(*together, groups)


class Study:
    """One task: its images, and the folder of its jobs."""

    def __init__(self, task: str, data: Path, work: Path, epochs: int) -> None:
        self.task, self.data, self.folder, self.epochs = task, data, work / task.replace(" ", "-"), epochs

    @cached_property
    def dataset(self) -> Dataset:
        """The images; their labels are noted for the page."""
        dataset = dataset_of(self.data, self.task)
        self.folder.mkdir(parents=True, exist_ok=True)
        test = dataset.splits["test"]
        groups = np.arange(len(test)) if test.groups is None else test.groups
        labels = {name: dataset.splits[name].labels for name in ("calibration", "test")}
        np.savez(self.folder / "labels.npz", **labels, groups=groups)
        return dataset

    def run(self, arm: Arm, seed: int) -> Path:
        """The folder of a trained tail."""
        return self.folder / "runs" / f"{arm.name}-{seed}"

    def done(self, name: str, seed: int) -> Path:
        """The stored logits of a job."""
        return self.folder / f"{name}-{seed}.npz"

    def jobs(self) -> list[tuple[str, int]]:
        """What is missing, one seed of all posteriors of a round after the other."""
        rounds = {arm.name: arm.later for arm in ARMS} | dict.fromkeys(AFTERWARDS, 0)
        more = [(PLAIN.name, seed) for seed in range(SEEDS, POOL)]
        every = [*more, *((name, seed) for seed in range(SEEDS) for name in rounds)]
        every.sort(key=lambda job: rounds[job[0]] if job[1] < SEEDS else 1)
        return [(name, seed) for name, seed in every if not self.done(name, seed).exists()]

    def make(self, name: str, seed: int) -> None:
        """Do one job."""
        if name in AFTERWARDS:
            found = (self.laplace if name == LAPLACE else self.swag)(seed)
        else:
            found = self.trained(next(arm for arm in ARMS if arm.name == name), seed)
        with self.done(name, seed).open("wb") as file:
            np.savez(file, **found)

    def trained(self, arm: Arm, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Train a tail, and draw its passes."""
        folder = self.run(arm, seed)
        shutil.rmtree(folder, ignore_errors=True)
        run = training.train(self.dataset, folder, recipe(arm, seed, self.epochs), features=self.folder)
        features = self.features(load_model(run, folder), run)
        passes = 1 if run.silent else PASSES
        # What is trained, and has no noise, runs once.
        head = open_features(features.tail, features.spec, None, NOISY_FROM)
        assert head is not None
        found = {
            name: mc_logits(head.tail, head.of(features.of(part)), head.spec, passes, seed, keep_dropout=run.masks)
            for name, part in self.held_out()
        }
        if arm not in (PLAIN, EARLY) and seed:  # the others are exported, or get a posterior afterwards
            (folder / "weights.safetensors").unlink()
        return {name: np.concatenate(list(logits), axis=1) for name, logits in found.items()}

    def held_out(self) -> list[tuple[str, Split]]:
        """Images that no tail was trained on."""
        return [(name, self.dataset.splits[name]) for name in ("calibration", "test")]

    def features(self, model: nn.Module, run: Run) -> Features:
        """The stored features of a network's trunk, and its tail."""
        features = open_features(model, run.image, self.folder, run.recipe.seam)
        assert features is not None
        return features

    def laplace(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Draws of the last layer's posterior of a deterministic tail."""
        run = Run.load(folder := self.run(PLAIN, seed))
        features = self.features(load_model(run, folder), run)
        parts = {name: features.as_images(self.dataset.splits[name]) for name in ("train", "calibration", "test")}
        inputs = run_posterior.Inputs(features.spec, parts["train"], parts["calibration"])
        prior = PriorFrom.MARGINAL_LIKELIHOOD
        with run_posterior.fitted(features.tail, run.class_names, inputs, prior, DRAWS) as (_, model):
            found = {name: logits_of(model, parts[name].images, DRAWS, seed) for name, _ in self.held_out()}
        return {name: np.concatenate(list(logits), axis=1) for name, logits in found.items()}

    def swag(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Draws of SWAG (Maddox et al. 2019): a Gaussian of the weights along more epochs at a constant rate."""
        folder = self.run(PLAIN, seed)
        run, model = Run.load(folder), load_model(Run.load(folder), folder)
        hashes = self.dataset.hashes()
        how = run.recipe
        parts = selection.part(self.dataset.splits["train"], selects=how.selects)
        feed = feeds.of(model, self.dataset, run.image, how.augmentation(run.image), how, parts, self.folder, hashes)
        weights = [value for value in feed.network.parameters() if value.requires_grad]
        optimiser = torch.optim.AdamW(weights, lr=SWAG_RATE, weight_decay=how.weight_decay)
        source, kept = generator("cpu", seed, 1), []
        steps = len(feed.labels) // how.batch_size
        marks = {round(steps * (part + 1) / SNAPSHOTS) - 1 for part in range(SNAPSHOTS)}
        for _ in range(SWAG_EPOCHS):
            order = torch.randperm(len(feed.labels), generator=source)
            for step in range(steps):
                batch = order[step * how.batch_size : (step + 1) * how.batch_size]
                loss, _ = how.loss(feed.network(feed.take(batch, source, torch.device("cpu"))), feed.labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                if step in marks:
                    kept.append(nn.utils.parameters_to_vector(weights).detach().clone())
        draws = swag_draws(torch.stack(kept), SWAG_DRAWS, source)
        features = self.features(model, run)
        parts = {name: features.of(part) for name, part in self.held_out()}
        found: dict[str, list[npt.NDArray[np.float32]]] = {name: [] for name in parts}
        for draw in draws:
            nn.utils.vector_to_parameters(draw, weights)
            for name, part in parts.items():
                found[name].append(plain_logits(features, part))
        return {name: np.stack(passes) for name, passes in found.items()}


def swag_draws(weights: Tensor, draws: int, source: torch.Generator) -> Tensor:
    """Weights from the Gaussian of snapshots [snapshots, weights], half of it diagonal."""
    mean, rank = weights.mean(0), len(weights)
    apart = weights - mean
    deviation = apart.square().mean(0).sqrt()
    alone = torch.randn(draws, len(mean), generator=source) * deviation
    together = torch.randn(draws, rank, generator=source) @ apart / (rank - 1) ** 0.5
    return mean + (alone + together) / 2**0.5


def plain_logits(features: Features, data: Split) -> npt.NDArray[np.float32]:
    """[images, classes], without noise."""
    found = []
    with torch.no_grad():
        for start in range(0, len(data), 64):
            maps = torch.from_numpy(np.array(data.images[start : start + 64]))
            found.append(features.tail.eval()(normalise(maps, features.spec)))
    return torch.cat(found).numpy()


def train(arguments: argparse.Namespace) -> None:
    """Do what is missing until the time is over."""
    until = time.monotonic() + 60 * arguments.minutes
    studies = [Study(task, arguments.data, arguments.work, arguments.epochs) for task in arguments.tasks]
    left = [(study, *job) for study in studies for job in study.jobs()]
    for study, name, seed in left:
        if time.monotonic() > until:
            break
        started = time.monotonic()
        study.make(name, seed)
        print(f"{study.task}: {name}, seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
    rest = sum(len(study.jobs()) for study in studies)
    print(f"{rest} jobs are left." if rest else "Nothing is left.", flush=True)


def price(arguments: argparse.Namespace) -> None:
    """Export one file of every kind, and note their multiplications; the files serve to measure time, too."""
    study = Study(next(iter(TASKS)), arguments.data, arguments.work, arguments.epochs)
    folder = study.folder / "files"
    folder.mkdir(exist_ok=True)
    noted = arguments.work / "prices.json"
    costs: dict[str, tuple[int, int]] = json.loads(noted.read_text()) if noted.exists() else {}

    def note(name: str, costed: Any) -> None:
        costs[name] = costed.macs_once, costed.macs_per_pass
        noted.write_text(json.dumps(costs, indent=2))
        print(name, costs[name], flush=True)

    for arm in ARMS:
        kind = arm.name.partition(",")[0]
        if kind not in costs and study.done(arm.name, 0).exists():
            inference = Inference.DETERMINISTIC if arm is PLAIN else Inference.MC
            done = export_run(study.run(arm, 0), folder / f"{kind}.onnx", study.dataset, inference, samples=PASSES)
            note(kind, done.metadata.costs)
    for arm in (PLAIN, EARLY):
        tails = [study.run(arm, seed) for seed in range(POOL) if study.done(arm.name, seed).exists()]
        for count in (count for count in (3, 5) if len(tails) >= count):
            name = ensemble_of(count, arm.name)
            if name not in costs:
                with tempfile.TemporaryDirectory() as members:
                    files = [Path(members) / f"{number}.onnx" for number in range(count)]
                    for run, file in zip(tails, files, strict=False):
                        export_run(run, file, study.dataset, Inference.DETERMINISTIC, samples=1, member=True)
                    note(name, ensemble.combine(files, folder / f"{name}.onnx", samples=1).metadata.costs)


def measure_time(arguments: argparse.Namespace) -> None:
    """Time the files of `price` in turns, on a quiet machine; the fastest turn of each counts."""
    paths = sorted(arguments.work.glob("*/files/*.onnx"))
    models = {path.stem: Model(path, "cpu", threads=arguments.threads) for path in paths}
    spec = models[PLAIN.name].metadata.image
    image = np.random.default_rng(0).integers(0, 256, (1, spec.height, spec.width, spec.channels), dtype=np.uint8)
    calls = [(name, count) for name, model in models.items() for count in passes_of(model)]
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(arguments.turns):
        for name, count in calls:
            started = time.perf_counter()
            models[name].predict(image, count)
            best[name, count] = min(best[name, count], time.perf_counter() - started)
    plain = best[PLAIN.name, None]
    found = [[name, count or 1, seconds / plain] for (name, count), seconds in best.items()]
    (arguments.work / "times.json").write_text(json.dumps(found, indent=2))
    for name, count, ratio in found:
        print(f"{name}, {count} passes: {ratio:.2f}x")


def passes_of(model: Model) -> list[int | None]:
    """The passes that the page shows; None for a file without seeds."""
    return [FEW, PASSES] if model.metadata.takes_seeds else [None]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/posteriors_224"))
    commands = parser.add_subparsers(required=True)
    for name, call in {"train": train, "price": price}.items():
        command = commands.add_parser(name, help=call.__doc__)
        command.add_argument("--data", type=Path, required=True)
        command.add_argument("--epochs", type=int, default=6)
        command.add_argument("--minutes", type=float, default=9)
        command.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
        command.set_defaults(call=call)
    timing = commands.add_parser("time", help=measure_time.__doc__)
    timing.add_argument("--threads", type=int, default=2)
    timing.add_argument("--turns", type=int, default=30)
    timing.set_defaults(call=measure_time)
    page = commands.add_parser("page", help=write_page.__doc__)
    page.set_defaults(call=lambda arguments: write_page(arguments.work))
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
