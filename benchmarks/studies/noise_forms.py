"""Which layers need noise, and of which form? Writes its part of docs/inference.md.

    python benchmarks/studies/noise_forms.py PHOTOS WEIGHTS

PHOTOS is a folder of class folders (TrashNet), WEIGHTS the published file of EfficientNet-Lite0. Blocks 11 to 15, the
head and the classifier are trained on stored outputs of block 10, once for every form and rate with the same seed. The
rate with the least NLL on the calibration images is taken, then a temperature is fitted on them, and test images that
nothing has seen give the numbers.
"""

import copy
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from uce_edge import metrics
from uce_edge.calibration.logits import StoredLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Method
from uce_edge.metrics import difference
from uce_edge_train import gaussianize
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.noise_draws import PassNoise, generator
from uce_edge_train.networks import architectures

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
BUILD = Path(__file__).resolve().parent.parent.parent / "build" / "noise-forms"
TEST, CALIBRATION, SIDE = 759, 300, 224
TRUNK = 11  # blocks
EPOCHS, BATCH, PASSES, RATES, SEED = 6, 64, 25, (0.01, 0.05), 0
TITLE = "## Which layers, and which form"
TEXT = f"""Written by `benchmarks/studies/noise_forms.py`: EfficientNet-Lite0 with ImageNet weights on {TEST} photos of
TrashNet. Blocks 11 to 15, head and classifier were trained on stored outputs of block 10, with {PASSES} passes and the
rate that {CALIBRATION} calibration images prefer. Brackets hold the 95 % interval of the paired difference to the
network without noise."""


@dataclass(frozen=True)
class Form:
    """Layers with noise, and how it is drawn."""

    layers: tuple[str, ...]
    sigma: str = "exact"


FORMS = {
    "none": None,
    "exact, all trained layers": Form(("all",)),
    "exact, without depthwise": Form(("no-depthwise",)),
    "by channel": Form(("all",), "channel"),
    "by channel, without depthwise": Form(("no-depthwise",), "channel"),
    "factored, without depthwise": Form(("no-depthwise",), "factored"),
    "exact, tail": Form(("tail",)),
}


class Tail(nn.Module):
    """Blocks 11 to 15, the head and the classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = network.blocks[TRUNK:], network.head
        self.pool, self.classifier = network.pool, network.classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of outputs of block 10."""
        return self.classifier(torch.flatten(self.pool(self.head(self.blocks(x))), 1))


def trained(network: nn.Module, form: Form | None, p: float, data: dict[str, torch.Tensor]) -> Tail:
    """A tail after training with one form of noise; batch-norm keeps its statistics."""
    torch.manual_seed(SEED)
    tail = Tail(copy.deepcopy(network)).to(memory_format=torch.channels_last)
    if form is not None:
        gaussianize(tail, p, skip_first=False, sigma=form.sigma, layers=form.layers)
    tail.eval()
    optimiser = torch.optim.AdamW(tail.parameters(), lr=1e-3)
    images, steps = len(data["train"]), -(-len(data["train"]) // BATCH) * EPOCHS
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps)
    draws = generator("cpu", SEED)
    for _ in range(EPOCHS):
        for rows in torch.randperm(images, generator=draws).split(BATCH):
            view = data["train" if torch.rand((), generator=draws) < 0.5 else "train-mirrored"]
            loss = nn.functional.cross_entropy(tail(view[rows].float()), data["train-labels"][rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return tail


def logits(tail: Tail, maps: torch.Tensor, passes: int) -> npt.NDArray[np.float32]:
    """[passes, images, classes]."""
    device, found = torch.device("cpu"), []
    with torch.no_grad():
        for number in range(passes):
            with deterministic(tail) if passes == 1 else noise_from(tail, PassNoise(device, SEED, number)):
                found.append(torch.cat([tail(part.float()) for part in maps.split(BATCH)]))
    return torch.stack(found).numpy()


def measured(
    network: nn.Module, form: Form | None, data: dict[str, torch.Tensor]
) -> tuple[npt.NDArray[np.float64], float]:
    """Probabilities of the test images at the rate that the calibration images prefer."""
    labels = data["calibration-labels"].numpy()
    best = None
    for p in RATES if form else RATES[:1]:
        tail = trained(network, form, p, data)
        passes = PASSES if form else 1
        fitted = fit_map(Method.TEMPERATURE, logits(tail, data["calibration"], passes), labels)
        nll = fitted.outcome.nll_after
        print(f"  p {p}: NLL {nll:.4f} on calibration images", flush=True)
        if best is None or nll < best[0]:
            best = nll, probabilities(fitted, StoredLogits([logits(tail, data["test"], passes)])), p
    assert best is not None
    return best[1], best[2]


def main(photos: Path, weights: Path) -> None:
    """Train every form, and write the table."""
    data = features(photos, weights)
    network = pretrained(weights, int(data["train-labels"].max()) + 1)
    truth = data["test-labels"].numpy()
    rows, base = [], None
    for name, form in FORMS.items():
        print(name, flush=True)
        found, p = measured(network, form, data)
        base = found if base is None else base
        cells = [name, "-" if form is None else f"{p:g}", f"{metrics.accuracy(found, truth):.1%}"]
        for metric in ("nll", "aurc", "tuce"):
            value = metrics.interval(metric, found, truth)
            apart = difference(metric, found, base, truth)
            assert value is not None
            assert apart is not None
            cells.append(f"{value.value:.4f}" + ("" if form is None else f" ({apart.low:+.4f} to {apart.high:+.4f})"))
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    write(rows)


def write(rows: list[str]) -> None:
    """Put the table into the page's part."""
    page = DOCS / "inference.md"
    head = ["| noise | p | accuracy | NLL | AURC | T-UCE |", "| --- | --- | --- | --- | --- | --- |"]
    part = "\n".join([TITLE, "", TEXT, "", *head, *rows, "", ""])
    text = page.read_text()
    before = re.search(rf"^{TITLE}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    at = (before.start(), before.end()) if before else (text.index("## The runs"),) * 2
    page.write_text(text[: at[0]] + part + text[at[1] :])


def features(photos: Path, weights: Path) -> dict[str, torch.Tensor]:
    """Outputs of block 10 and labels, by split; training images come twice, the second time mirrored."""
    stored = BUILD / "features.pt"
    if stored.exists():
        return torch.load(stored, weights_only=True)
    files = sorted(photos.glob("*/*.jpg"))
    names = sorted({file.parent.name for file in files})
    order = np.random.default_rng(0).permutation(len(files))
    splits = {
        "test": order[:TEST],
        "calibration": order[TEST : TEST + CALIBRATION],
        "train": order[TEST + CALIBRATION :],
    }
    network = pretrained(weights, len(names)).eval()
    found = {}
    for split, places in splits.items():
        for mirrored in (False, True)[: 1 + (split == "train")]:
            maps = []
            for start in range(0, len(places), 16):
                pixels = torch.stack([read(files[i], mirrored=mirrored) for i in places[start : start + 16]])
                with torch.no_grad():
                    maps.append(network.blocks[:TRUNK](network.stem(pixels)).half())
            found[f"{split}{'-mirrored' * mirrored}"] = torch.cat(maps)
        found[f"{split}-labels"] = torch.tensor([names.index(files[i].parent.name) for i in places])
    BUILD.mkdir(parents=True, exist_ok=True)
    torch.save(found, stored)
    return found


def pretrained(weights: Path, classes: int) -> nn.Module:
    """EfficientNet-Lite0 with published weights below a new classifier."""
    network = architectures.build("efficientnet-lite0", classes, 3)
    published = list(torch.load(weights, map_location="cpu", weights_only=True).values())
    own = network.state_dict()
    for name, value in zip(own, published, strict=True):
        if not name.startswith("classifier"):
            own[name] = value
    network.load_state_dict(own)
    return network


def read(file: Path, *, mirrored: bool) -> torch.Tensor:
    """The middle of a photo, scaled as the published weights expect."""
    image = Image.open(file).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    pixels = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.float32)
    pixels = pixels[:, ::-1] if mirrored else pixels
    return torch.from_numpy((pixels.copy() - 127) / 128).permute(2, 0, 1)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
