"""Heatmaps of a small network on made pictures; draws docs/heatmap.png.

    python benchmarks/studies/heatmap_shapes.py --work study/shapes

Every picture has one shape at a random spot of a noisy background: ring, square, cross or triangle. A ResNet-8 learns
them with Gaussian dropout. On new pictures, the share of maxima on the shape is printed.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from uce_edge import Model
from uce_edge.contract import Method
from uce_edge.datasets.splits import load
from uce_edge.output.annotate import annotated
from uce_edge_export.options import Options
from uce_edge_train import calibration
from uce_edge_train.export import export_run
from uce_edge_train.loop import training
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run

PAGE = Path(__file__).resolve().parent.parent.parent / "docs"
SHAPES, SIDE, EACH, TESTED = ("cross", "ring", "square", "triangle"), 48, 150, 200


def made(shape: str, rng: np.random.Generator) -> tuple[Image.Image, tuple[int, int, int, int]]:
    """A picture, and the box of its shape."""
    size = int(rng.integers(12, 20))
    x, y = (int(value) for value in rng.integers(1, SIDE - size - 1, 2))
    box = (x, y, x + size, y + size)
    noise = rng.normal(110, 30, (SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(noise)
    draw, ink = ImageDraw.Draw(image), tuple(int(value) for value in rng.integers(150, 256, 3))
    if shape == "ring":
        draw.ellipse(box, outline=ink, width=3)
    elif shape == "square":
        draw.rectangle(box, outline=ink, width=3)
    elif shape == "triangle":
        draw.polygon([(x + size // 2, y), (x, y + size), (x + size, y + size)], outline=ink, width=3)
    else:
        draw.line([(x, y), (x + size, y + size)], ink, 3)
        draw.line([(x + size, y), (x, y + size)], ink, 3)
    return image, box


def main() -> None:
    """Train, measure and draw."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--work", type=Path, required=True)
    work = options.parse_args().work
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        (work / "data" / shape).mkdir(parents=True, exist_ok=True)
        for number in range(EACH):
            made(shape, rng)[0].save(work / "data" / shape / f"{number}.png")
    dataset = load(str(work / "data"), size=(SIDE, SIDE))
    run = work / "run"
    if not run.exists():
        training.train(dataset, run, Recipe(epochs=12))
        calibration.calibrate(run, method=Method.TEMPERATURE)
    export_run(run, work / "shapes.onnx", Run.load(run).dataset(), options=Options(heatmap=True))
    model = Model(work / "shapes.onnx", "cpu")
    on, right, tiles = [], [], []
    for number in range(TESTED):
        shape = SHAPES[number % len(SHAPES)]
        image, (left, top, over, under) = made(shape, rng)
        path = work / f"{shape}-{number}.png"
        image.save(path)
        (answer,) = model.answers([path])
        assert answer.prediction is not None
        place = answer.prediction.looked_at
        on.append(place is not None and left <= SIDE * place[0] <= over and top <= SIDE * place[1] <= under)
        right.append(answer.prediction.label == shape)
        if number < len(SHAPES):
            tiles.append(annotated(answer, 200, maps=True))
    print(f"maximum on the shape: {np.mean(on):.1%} of {TESTED}, labels right: {np.mean(right):.1%}")
    print(f"where the label is right: {np.mean(np.array(on)[right]):.1%}")
    canvas = Image.new("RGB", (max(tile.width for tile in tiles), sum(tile.height + 6 for tile in tiles[:2])), "white")
    top = 0
    for tile in tiles[:2]:
        canvas.paste(tile, (0, top))
        top += tile.height + 6
    canvas.quantize(128).save(PAGE / "heatmap.png", optimize=True)


if __name__ == "__main__":
    main()
