"""Steps of training, of which each kind runs in a process of its own.

python benchmarks/speed/training.py resnet8 factored
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from uce_edge.contract import Sigma
from uce_edge.datasets.splits import SPLITS, Dataset, Split
from uce_edge.metadata import ImageSpec
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.noise_draws import NoisePool
from uce_edge_train.loop.checkpoint import Training
from uce_edge_train.loop.journal import Journal
from uce_edge_train.loop.process_group import Group
from uce_edge_train.loop.training import _Loop
from uce_edge_train.recipe import Recipe

PLAIN = "deterministic"
ROUNDS = 7


def measure(arch: str, kinds: Iterable[str], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of a step of every kind: the kinds take turns, so that a noisy machine disturbs all alike."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, times in seconds.items():
            command = [sys.executable, __file__, arch, kind]
            times.append(float(json.loads(subprocess.run(command, capture_output=True, check=True).stdout)))
    return seconds


def step(arch: str, kind: str) -> float:
    """Seconds of the training loop's own step on random images."""
    rng = np.random.default_rng(0)
    data = Split(rng.integers(0, 256, (128, 32, 32, 3), np.uint8), rng.integers(0, 10, 128))
    dataset = Dataset("random", tuple("0123456789"), dict.fromkeys(SPLITS, data))
    sigma = Sigma.EXACT if kind == PLAIN else Sigma(kind)
    recipe = Recipe(arch=arch, batch_size=128, learning_rate=1e-4, sigma=sigma)
    model = recipe.build(10, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    image = ImageSpec(32, 32, 3)
    loop = _Loop(
        Training(model, recipe.optimiser_for(model, []), []), recipe, recipe.augmentation(image), image, dataset, "",
        Group(torch.device("cpu")), Path(), Journal(Path(), 1, None),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    noise = NoisePool(generator)
    batch = torch.arange(128)
    model.train()
    times = []
    with noise_from(model, noise), deterministic(model) if kind == PLAIN else nullcontext():
        for _ in range(6):
            started = time.perf_counter()
            loop._step(model, batch, generator, noise)
            times.append(time.perf_counter() - started)
    return min(times[1:])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step(*sys.argv[1:])))
