"""Real probabilities for benchmarks/studies/sets_study.py, as one .npz file per dataset.

    python benchmarks/studies/sets_tables.py --root DATA --weights efficientnet_lite0.pth --out study/sets

DATA holds the datasets under their own names; a dataset that is not there is left out. Every file has `probabilities`,
`labels` and, if there are groups, `groups`, of images that neither the network nor its temperature was fitted on.
ImageNet is EfficientNet-Lite0 as published. TrashNet and the chest X-rays are a linear layer on its features, trained
on a third of the images. DenseNet-40 is published logits. CIFAR-10 and PneumoniaMNIST are bundled models.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from uce_edge import Model
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Inference, Method
from uce_edge.models import bundled
from uce_edge_train.networks.architectures import ARCHITECTURES

_SIZE, _SHORTER, _BATCH = 224, 256, 50
_STEPS = 60  # of LBFGS, for the linear layers
Table = dict[str, npt.NDArray[np.generic]]


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="EfficientNet-Lite0, as published")
    parser.add_argument("--out", type=Path, default=Path("study/sets"))
    arguments = parser.parse_args()
    root: Path = arguments.root
    network = lite0(arguments.weights)
    made: dict[str, tuple[str, Callable[[Path], Table]]] = {
        "pneumonia": ("pneumoniamnist.npz", bundled_pneumonia),
        "densenet": ("logits/densenet40_c10_logits_valtest.npz", densenet),
        "imagenet": ("imagenet_val_2k", lambda path: imagenet(network, path)),
        "cifar10": ("cifar10.npz", bundled_cifar10),
        "trashnet": ("trashnet", lambda path: probe(network, *folders(path))),
        "chest": ("chest_xray", lambda path: probe(network, *listed(path, "group"))),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (source, make) in made.items():
        file = arguments.out / f"{name}.npz"
        if (root / source).exists() and not file.exists():
            table = make(root / source)
            np.savez_compressed(file, **table)  # type: ignore[arg-type]
            right = table["probabilities"].argmax(-1) == table["labels"]
            print(f"{name}: {len(right):,} images, accuracy {right.mean():.1%}", flush=True)


def densenet(path: Path) -> Table:
    """Published logits, with a temperature from the validation part."""
    stored = np.load(path)
    fitted = fit_map(Method.TEMPERATURE, ArrayLogits(stored["val_logits"][None]), stored["val_labels"].ravel(), 0)
    table = probabilities(fitted, ArrayLogits(stored["test_logits"][None]))
    return {"probabilities": table.astype(np.float32), "labels": stored["test_labels"].ravel()}


def bundled_cifar10(path: Path) -> Table:
    """The bundled moments file on test images."""
    stored = np.load(path)
    answers = Model(bundled(Inference.MOMENTS, "cifar10"), "cpu").predict(stored["x_test"])
    return {"probabilities": answers.probabilities, "labels": stored["y_test"].ravel()}


def bundled_pneumonia(path: Path) -> Table:
    """The bundled file on test images."""
    stored = np.load(path)
    answers = Model(bundled(Inference.DETERMINISTIC, "pneumonia"), "cpu").predict(list(stored["test_images"]))
    return {"probabilities": answers.probabilities, "labels": stored["test_labels"].ravel()}


def lite0(weights: Path) -> nn.Module:
    """EfficientNet-Lite0 with its weights."""
    network = ARCHITECTURES["efficientnet-lite0"](1000, "", 3)
    own, stored = network.state_dict(), torch.load(weights, weights_only=True)
    # The layers have other names, and the same order.
    network.load_state_dict(dict(zip(own, stored.values(), strict=True)))
    return network.eval()


def imagenet(network: nn.Module, path: Path) -> Table:
    """The published classes."""
    files, labels, _ = listed(path, None, "class_id")
    logits = run(network, files)
    return {"probabilities": torch.softmax(logits, -1).numpy(), "labels": labels}


def folders(path: Path) -> tuple[list[Path], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """One sub-folder per class."""
    files = sorted(path.glob("*/*.jpg"))
    return files, np.unique([file.parent.name for file in files], return_inverse=True)[1], None


def listed(
    path: Path, group: str | None, label: str = "label"
) -> tuple[list[Path], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """A folder with labels.csv."""
    with (path / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [row[label] for row in rows]
    labels = np.array(names, np.int64) if label == "class_id" else np.unique(names, return_inverse=True)[1]
    groups = None if group is None else np.unique([row[group] for row in rows], return_inverse=True)[1]
    return [path / row["path"] for row in rows], labels, groups


def probe(
    network: nn.Module, files: list[Path], labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64] | None
) -> Table:
    """A linear layer on the features, trained on a third of the groups."""
    classifier, network.classifier = network.classifier, nn.Identity()
    try:
        features = run(network, files)
    finally:
        network.classifier = classifier
    unit = np.arange(len(labels)) if groups is None else groups
    trained = np.isin(unit, np.random.default_rng(0).permutation(np.unique(unit))[::3])
    mean, deviation = features[trained].mean(0), features[trained].std(0) + 1e-6
    features = (features - mean) / deviation
    layer = nn.Linear(features.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(layer.weight)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=_STEPS)
    truth = torch.from_numpy(labels)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        found = nn.functional.cross_entropy(layer(features[trained]), truth[trained]) + 3e-3 * layer.weight.pow(2).sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        table = torch.softmax(layer(features[~trained]), -1).numpy()
    found: Table = {"probabilities": table, "labels": labels[~trained]}
    return found if groups is None else found | {"groups": groups[~trained]}


@torch.no_grad()
def run(network: nn.Module, files: list[Path]) -> torch.Tensor:
    """The network on files: the middle of an image whose shorter side is 256."""
    parts = []
    for start in range(0, len(files), _BATCH):
        pixels = np.stack([_pixels(file) for file in files[start : start + _BATCH]])
        parts.append(network(torch.from_numpy((pixels - 127) / 128).permute(0, 3, 1, 2)))
    return torch.cat(parts)


def _pixels(file: Path) -> npt.NDArray[np.float32]:
    image = Image.open(file).convert("RGB")
    scale = _SHORTER / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - _SIZE) // 2, (image.height - _SIZE) // 2
    return np.asarray(image.crop((left, top, left + _SIZE, top + _SIZE)), np.float32)


if __name__ == "__main__":
    main()
