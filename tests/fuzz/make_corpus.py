"""Writes the sound files that fuzzing starts from: python tests/fuzz/make_corpus.py"""

import json
from pathlib import Path

import numpy as np
from PIL import Image

CORPUS = Path(__file__).resolve().parent / "corpus"


def images() -> None:
    """Small ones of every format, with what formats have beside pixels."""
    folder = CORPUS / "images"
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 4), np.uint8)
    rgb, rgba, gray = Image.fromarray(pixels[..., :3]), Image.fromarray(pixels), Image.fromarray(pixels[..., 0])
    palette, wide = rgb.quantize(7), Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    number = Image.fromarray((pixels[..., 0] / 255).astype(np.float32))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    files = {
        "rgb.png": (rgb, {"icc_profile": b"profile", "exif": exif}),
        "alpha.png": (rgba, {}),
        "palette.png": (palette, {"transparency": 3, "bits": 4}),
        "bits.png": (gray.convert("1"), {}),
        "wide.png": (wide, {}),
        "baseline.jpg": (rgb, {"exif": exif, "comment": b"a comment"}),
        "progressive.jpg": (rgb, {"progressive": True}),
        "cmyk.jpg": (rgb.convert("CMYK"), {}),
        "gray.jpg": (gray, {}),
        "moving.gif": (palette, {"save_all": True, "append_images": [gray.convert("P")], "transparency": 2}),
        "plain.tif": (rgb, {"exif": exif}),
        "packed.tif": (rgba, {"compression": "tiff_lzw"}),
        "deflated.tif": (number, {"compression": "tiff_adobe_deflate"}),
        "fax.tif": (gray.convert("1"), {"compression": "group4"}),
        "jpeg.tif": (rgb, {"compression": "jpeg"}),
        "lossless.webp": (rgba, {"lossless": True, "exif": exif}),
        "lossy.webp": (rgb, {}),
        "moving.webp": (rgb, {"save_all": True, "append_images": [rgb.rotate(180)]}),
        "rgb.bmp": (rgb, {}),
        "palette.bmp": (palette, {}),
        "rgb.ppm": (rgb, {}),
        "wide.pgm": (wide.convert("I"), {}),
        "alpha.jp2": (rgba, {}),
        "lossy.jp2": (rgb, {"irreversible": True, "quality_layers": [20]}),
    }
    for name, (image, options) in files.items():
        image.save(folder / name, **options)


def names() -> None:
    """Lists of class names."""
    folder = CORPUS / "names"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain.txt").write_text("cat\ndog\nbird\n")
    (folder / "unicode.txt").write_text("\ufeffKäse\r\n狗\n\n  鳥 \n", encoding="utf-8")


def runs() -> None:
    """The description of a training run, with everything that one can hold."""
    from uce_edge.calibration.promises import Promise
    from uce_edge.metadata import ImageSpec
    from uce_edge_train.recipe import Recipe
    from uce_edge_train.runs import Run, TrainingScores

    folder = CORPUS / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(
        data="digits",
        root=None,
        recipe=Recipe(clip=1.0, patience=3),
        class_names=("a", "b", "c"),
        image=ImageSpec(8, 8, 1, mean=(0.3,), std=(0.4,)),
        split_hashes={"train": "0" * 64},
        trained_on=None,
        rates={"stem": 0.2, "head": 0.1},
        metrics=TrainingScores(3, 0.5, 0.6, 0.8),
        promise=Promise(0.05, 0.95),
    )
    text = json.dumps(json.loads(run.to_json()), indent=2)
    (folder / "full.json").write_text(text + "\n")
    (folder / "compact.json").write_text(run.to_json())


if __name__ == "__main__":
    images()
    names()
    runs()
