"""The answers that `accuracy_study.py` draws its windows from, computed once.

    python benchmarks/studies/accuracy_answers.py [FOLDER]

One file per part in FOLDER (build/accuracy); a part that exists is not computed again. Delete the folder after the
bundled file has changed. The images are those of CIFAR-10 and CIFAR-100 in $UCE_EDGE_DATA.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge import models
from uce_edge.datasets import labelled, splits
from uce_edge.datasets.splits import Split
from uce_edge.images.corruptions import corrupt
from uce_edge.runtime.model import Model

FOLDER = Path("build/accuracy")
DAMAGES = [f"{kind} {severity}" for kind in ("noise", "blur", "contrast") for severity in (1, 3, 5)]
KEPT = ("probabilities", "uncertainty", "model_uncertainty", "novelty_score")
_DAMAGED = 2_500

Part = dict[str, npt.NDArray[np.generic]]


def load(folder: Path) -> dict[str, Part]:
    """All parts by name, each with the outputs of `KEPT`, `codes` (of `decision`) and `labels`."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as stored:
            found[path.stem] = {name: stored[name] for name in stored.files}
    return found


def store(folder: Path, name: str, model: Model, images: Callable[[], Split]) -> None:
    """Predict one part, unless it exists."""
    path = folder / f"{name}.npz"
    if path.exists():
        return
    data, rule = images(), model.metadata.rule
    assert rule is not None
    found = model.predict(data.images)
    codes = rule.decide(found.uncertainty, found.probabilities, found.novelty)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, codes=codes, labels=data.labels, **{output: getattr(found, output) for output in KEPT})
    print(f"predicted {name}", flush=True)


def main(arguments: list[str]) -> None:
    """Predict all parts."""
    folder = Path(arguments[0]) if arguments else FOLDER
    model = Model(models.bundled(name="cifar10"), "cpu")
    data = splits.load("cifar10").splits
    test = data["test"]

    def damaged(name: str) -> Split:
        kind, severity = name.split()
        return Split(corrupt(test.images[:_DAMAGED], kind, int(severity)), test.labels[:_DAMAGED])

    def foreign() -> Split:
        images = labelled.load_ood("cifar100", model.metadata.image).images
        return Split(images, np.full(len(images), -1))  # no label is right

    for name in ("test", "guarantee", "calibration"):
        store(folder, name, model, lambda name=name: data[name])  # type: ignore[misc]
    for name in DAMAGES:
        store(folder, name, model, lambda name=name: damaged(name))  # type: ignore[misc]
    store(folder, "foreign", model, foreign)


if __name__ == "__main__":
    main(sys.argv[1:])
