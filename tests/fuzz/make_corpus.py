"""Writes the sound files that fuzzing starts from: python tests/fuzz/make_corpus.py"""

import io
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


def medical() -> None:
    """DICOM of several kinds, and volumes."""
    import gzip
    import sys

    import nibabel
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEG2000Lossless, RLELossless

    sys.path.insert(0, str(CORPUS.parents[1]))
    from helpers.medical_files import dataset, written

    folder = CORPUS / "medical"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4096, (2, 9, 7)).astype(np.uint16)
    window = {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}
    files = {
        "window": dataset(values[0], **window),
        "sigmoid": dataset(values[0], "MONOCHROME1", VOILUTFunction="SIGMOID", **window),
        "frames": dataset(values),
        "colour": dataset(rng.integers(0, 256, (9, 7, 3)).astype(np.uint8), "RGB", 8),
        "ybr": dataset(rng.integers(0, 256, (9, 7, 3)).astype(np.uint8), "YBR_FULL", 8),
        "runs": dataset(values[0]),
        "jpeg2000": dataset((values[0] >> 4).astype(np.uint8), bits=8),
    }
    files["runs"].compress(RLELossless)
    with io.BytesIO() as file:
        Image.fromarray((values[0] >> 4).astype(np.uint8)).save(file, "JPEG2000")
        files["jpeg2000"].PixelData = encapsulate([file.getvalue()])
    files["jpeg2000"]["PixelData"].VR = "OB"
    files["jpeg2000"].file_meta.TransferSyntaxUID = JPEG2000Lossless
    for name, data in files.items():
        (folder / f"{name}.dcm").write_bytes(written(data))
    volume = nibabel.Nifti1Image(rng.integers(0, 900, (7, 9, 3)).astype(np.int16), np.diag([1, -1, 2, 1])).to_bytes()
    (folder / "volume.nii").write_bytes(volume)
    (folder / "volume.nii.gz").write_bytes(gzip.compress(volume, mtime=0))


def names() -> None:
    """Lists of class names."""
    folder = CORPUS / "names"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain.txt").write_text("cat\ndog\nbird\n")
    (folder / "unicode.txt").write_text("\ufeffKäse\r\n狗\n\n  鳥 \n", encoding="utf-8")


def runs() -> None:
    """The description of a training run, with everything that one can hold."""
    from uce_edge.metadata import ImageSpec
    from uce_edge.rejection.promises import Promise
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
    medical()
    names()
    runs()
