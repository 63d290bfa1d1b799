"""Is the heatmap's maximum on the object? Writes its part of docs/heatmap.md.

    python benchmarks/studies/heatmap_study.py --photos imagenet_val_2k --weights efficientnet-lite0.pth --sheet ten.png

`--photos` has labels.csv (path, class_id) of ImageNet photos, and `--weights` the published ones of EfficientNet-Lite0.
A photo is made small and pasted at a random spot of a gray canvas; or two photos of different classes stand in opposite
corners. Nothing is fitted, and no photo is left out. `--sheet` draws ten cases.
"""

import argparse
import csv
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from uce_edge import Model
from uce_edge.contract import Inference
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.metrics.binned import wilson
from uce_edge.output.heatmap_overlay import panels
from uce_edge.output.wording import percent
from uce_edge.runtime.prediction import ImagePrediction
from uce_edge_export.options import Options
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module
from uce_edge_train.networks import architectures

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "heatmap.md"
START, END = "<!-- measured: written by benchmarks/studies/heatmap_study.py -->", "<!-- end of what was measured -->"
SIDE, GRAY, SIZES, PAIRED = 224, 127, (80, 112, 144), 112
RATE, PASSES, NOISY = 0.1, 8, ("blocks.14.*", "blocks.15.*", "head.*", "classifier")
"""The published weights were trained without noise, and noise in all layers would ruin them."""


@dataclass(frozen=True, eq=False)
class Case:
    """A made picture, the labels of its photos, and where they lie."""

    pixels: np.ndarray
    labels: tuple[int, ...]
    boxes: tuple[tuple[int, int, int, int], ...]
    """Left, top, right, bottom of every photo."""


def main() -> None:
    """Measure, and write the page's part."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--photos", type=Path, required=True)
    options.add_argument("--weights", type=Path, required=True)
    options.add_argument("--sheet", type=Path)
    options.add_argument("--images", type=int, default=200)
    given = options.parse_args()
    with (given.photos / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rng = np.random.default_rng(0)
    chosen = [rows[index] for index in rng.permutation(len(rows))[: given.images]]
    photos = [(square(given.photos / row["path"]), int(row["class_id"])) for row in chosen]
    lines, shown = [], []
    with tempfile.TemporaryDirectory() as folder:
        for inference in (Inference.DETERMINISTIC, Inference.MC):
            model = Model(exported(given.weights, Path(folder) / f"{inference}.onnx", inference), "cpu")
            name = (
                "without noise"
                if inference is Inference.DETERMINISTIC
                else f"{PASSES} passes, rate {RATE:g} in the last layers"
            )
            for size in SIZES:
                cases = [alone(photo, label, size, rng) for photo, label in photos]
                found = answers(model, cases)
                lines.append(row_of(name, f"one, {size} x {size}", cases, found))
                print(lines[-1], flush=True)
                if inference is Inference.MC and size == PAIRED:
                    shown += list(zip(cases, found, strict=True))[:6]
            cases = [pair(photos[i], photos[i + 1], rng) for i in range(0, len(photos) - 1, 2)]
            found = answers(model, cases)
            lines.append(row_of(name, f"two, {PAIRED} x {PAIRED}", cases, found))
            print(lines[-1], flush=True)
        shown += list(zip(cases, found, strict=True))[:4]
    if given.sheet:
        sheet(shown).save(given.sheet)
    write("\n".join(lines), len(photos))


def exported(weights: Path, out: Path, inference: Inference) -> Path:
    """EfficientNet-Lite0 with its published weights, and a heatmap."""
    network = architectures.build("efficientnet-lite0", 1000, 3)
    published = torch.load(weights, weights_only=True).values()  # other names, in the same order
    network.load_state_dict(dict(zip(network.state_dict(), published, strict=True)))
    spec = ImageSpec(SIDE, SIDE, 3, scale=1.0, mean=(127.0,) * 3, std=(128.0,) * 3)
    described = Metadata(tuple(map(str, range(1000))), spec, inference=inference, samples=PASSES)
    network.eval()
    if inference is Inference.MC:
        gaussianize(network, RATE, layers=NOISY)
    torch.manual_seed(0)
    export_module(network, described, out, options=Options(heatmap=True))
    return out


def square(path: Path) -> Image.Image:
    """The middle of a photo."""
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return image.crop((left, top, left + side, top + side))


def alone(photo: Image.Image, label: int, size: int, rng: np.random.Generator) -> Case:
    """A small photo at a random spot."""
    left, top = (int(x) for x in rng.integers(0, SIDE - size + 1, 2))
    return pasted([(photo, label)], size, [(left, top)])


def pair(first: tuple[Image.Image, int], second: tuple[Image.Image, int], rng: np.random.Generator) -> Case:
    """Two small photos in opposite corners."""
    far = SIDE - PAIRED
    places = [(0, 0), (far, far)] if rng.integers(2) else [(far, 0), (0, far)]
    return pasted([first, second], PAIRED, places)


def pasted(photos: list[tuple[Image.Image, int]], size: int, places: list[tuple[int, int]]) -> Case:
    """Photos on a gray canvas."""
    canvas = Image.new("RGB", (SIDE, SIDE), (GRAY,) * 3)
    for (photo, _), place in zip(photos, places, strict=True):
        canvas.paste(photo.resize((size, size), Image.Resampling.BICUBIC), place)
    boxes = tuple((left, top, left + size, top + size) for left, top in places)
    return Case(np.asarray(canvas), tuple(label for _, label in photos), boxes)


def answers(model: Model, cases: list[Case]) -> list[ImagePrediction]:
    """One prediction per case."""
    blocks = [np.stack([case.pixels for case in cases[i : i + 16]]) for i in range(0, len(cases), 16)]
    return [one for block in blocks for one in model.predict(block)]


def is_on(case: Case, found: ImagePrediction, photo: int) -> bool:
    """Whether the maximum lies on a photo."""
    if found.looked_at is None:
        return False
    x, y = (SIDE * share for share in found.looked_at)
    left, top, right, bottom = case.boxes[photo]
    return left <= x <= right and top <= y <= bottom


def row_of(name: str, what: str, cases: list[Case], found: list[ImagePrediction]) -> str:
    """One line of the table."""
    both = list(zip(cases, found, strict=True))
    right = [(case, one) for case, one in both if one.class_id in case.labels]
    share = sum((b[2] - b[0]) * (b[3] - b[1]) for b in cases[0].boxes[:1]) / SIDE**2
    # Of two photos, the one whose label was predicted; of one photo, that one, whatever was predicted.
    counted = both if len(cases[0].labels) == 1 else right
    hits = [is_on(case, one, 0 if len(case.labels) == 1 else case.labels.index(one.class_id)) for case, one in counted]
    sure = [is_on(case, one, case.labels.index(one.class_id)) for case, one in right]

    def cell(on: list[bool]) -> str:
        low, high = (float(end[0]) for end in wilson(np.array([np.mean(on)]), np.array([float(len(on))])))
        return f"{percent(np.mean(on))} of {len(on)} ({percent(low)} to {percent(high)})"

    return f"| {name} | {what} | {percent(share)} | {cell(hits)} | {cell(sure)} |"


def sheet(shown: list[tuple[Case, ImagePrediction]]) -> Image.Image:
    """Ten cases: the picture with its frames, the map and its spread."""
    canvas = Image.new("RGB", (2 * 3 * (SIDE + 4), -(-len(shown) // 2) * (SIDE + 4)), "white")
    for number, (case, found) in enumerate(shown):
        image = Image.fromarray(case.pixels)
        framed = image.copy()
        for label, box in zip(case.labels, case.boxes, strict=True):
            ImageDraw.Draw(framed).rectangle(box, outline="lime" if label == found.class_id else "red", width=2)
        for column, one in enumerate([framed, *(picture for _, picture in panels(found, image))]):
            canvas.paste(one, ((number % 2 * 3 + column) * (SIDE + 4), number // 2 * (SIDE + 4)))
    return canvas


def write(lines: str, photos: int) -> None:
    """Replace the page's part."""
    text = f"""{START}
{photos} ImageNet validation photos, EfficientNet-Lite0 with its published weights, on a gray
canvas of {SIDE} x {SIDE}. The map has 7 x 7 places. *By chance* is the photo's share of the canvas.
Intervals are 95 % (Wilson).

| file | photos on the canvas | by chance | maximum on the photo | maximum on the photo, where the label is right |
| --- | --- | --- | --- | --- |
{lines}

With two photos in opposite corners, the photo whose label was predicted counts; pictures with a third label
are left out.
{END}"""
    page = PAGE.read_text()
    if START in page:
        PAGE.write_text(page[: page.index(START)] + text + page[page.index(END) + len(END) :])


if __name__ == "__main__":
    main()
