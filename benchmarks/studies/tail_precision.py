"""Is training in bfloat16 faster? Times epochs of the tail on stored features of made-up photos, with two threads.

    python benchmarks/studies/tail_precision.py

Both formats take turns; the fastest epoch of each counts. Run it on a quiet machine.
"""

import csv
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from uce_edge.datasets.splits import Dataset, Split
from uce_edge_train.choices import Arithmetic, Rates
from uce_edge_train.loop import training
from uce_edge_train.networks import backbones
from uce_edge_train.recipe import Recipe

PHOTOS, EPOCHS, TURNS = 192, 2, 2


def main() -> None:
    """Print seconds of an epoch, and their ratio."""
    torch.set_num_threads(2)
    rng, found = np.random.default_rng(0), {Arithmetic.FLOAT32: [], Arithmetic.BFLOAT16: []}
    backbone = backbones.named("efficientnet-lite0")
    shape = backbone.image.height, backbone.image.width, 3
    parts = {"train": PHOTOS, "calibration": 8, "guarantee": 8, "test": 8}
    data = {name: Split(rng.integers(0, 256, (n, *shape), np.uint8), np.arange(n) % 4) for name, n in parts.items()}
    dataset = Dataset("made-up photos", ("a", "b", "c", "d"), data)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for precision, seconds in found.items():
                changes = {"rates": Rates.FIXED, "p": 0.02, "patience": None, "epochs": EPOCHS, "views": 1}
                out = Path(folder) / f"{precision}-{turn}"
                recipe = Recipe(**backbone.recipe() | changes | {"precision": precision})
                training.train(dataset, out, recipe, features=folder)
                with (out / "log.csv").open(newline="") as log:
                    seconds.extend(float(row["seconds"]) for row in csv.DictReader(log))
                shutil.rmtree(out)
                print(precision, seconds[-EPOCHS:], flush=True)
    whole, half = (min(seconds) for seconds in found.values())
    print(
        f"An epoch of {PHOTOS} photos: float32 {whole:.1f} s, bfloat16 {half:.1f} s, {half / whole:.2f} times as long."
    )


if __name__ == "__main__":
    main()
