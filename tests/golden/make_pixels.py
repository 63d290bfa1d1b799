"""Makes the goldens of the rules by which a file becomes pixels: small image files, and the uint8 pixels they give.

    python tests/golden/make_pixels.py

Writes tests/golden/pixels: the files; for each, NAME.raw with height x width x channels bytes; and cases.json, which
says of each what the model takes, which rule it is about, and how far another decoder of the same file may be off.
They are for models without a range of their own. Cases with `resize` come from plain calls of Pillow alone.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from uce_edge.images.loader import load
from uce_edge.metadata import ImageSpec

HERE = Path(__file__).resolve().parent / "pixels"
_GRAY, _RGB, _GRAY_ALPHA, _RGBA = 0, 2, 4, 6  # colour types of PNG
_ORIENTATION = 0x0112


class Case(NamedTuple):
    """A file, and what is asked of it."""

    file: str
    rule: str
    height: int
    width: int
    channels: int
    within: int = 0
    """Levels by which a decoder that follows its format may differ: JPEG leaves rounding open."""
    resize: dict[str, Any] | None = None
    """The metadata's `image.resize`."""


def png(pixels: np.ndarray, colour: int, extra: bytes = b"") -> bytes:
    """A PNG of 8 or 16 bits a channel: Pillow writes no 16-bit colour."""
    height, width = pixels.shape[:2]
    depth = 8 * pixels.dtype.itemsize
    rows = b"".join(b"\0" + row.astype(pixels.dtype.newbyteorder(">")).tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + extra + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ppm(pixels: np.ndarray) -> bytes:
    """The simplest of all files, for ports that decode nothing else."""
    return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


def pgm(pixels: np.ndarray) -> bytes:
    """The same for gray."""
    return b"P5\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


def resize_cases() -> list[Case]:
    """Every mode with every filter, at odd sizes, enlarging and shrinking."""
    sources = [
        ("photo.ppm", 3, (7, 9), (21, 19)),
        ("tall.ppm", 3, (5, 8), (33, 27)),
        ("wide.pgm", 1, (11, 7), (41, 37)),
    ]
    cases = []
    for file, channels, small, large in sources:
        for height, width in (small, large):
            longer = max(height, width)
            what = "shrunk" if (height, width) == small else "enlarged"
            for filter_ in ("bilinear", "bicubic", "lanczos"):
                by: dict[str, Any] = {} if filter_ == "bilinear" else {"filter": filter_}
                fill = {"fill": [250, 3, 114]} if channels == 3 else {"fill": 77}
                ways = [{"mode": "crop", "size": longer + 2, **by}, {"mode": "pad", **by, **(fill if by else {})}]
                if by:  # stretched bilinear is the default, which other cases are about
                    ways.append({"mode": "stretch", **by})
                cases += [
                    Case(file, f"{what}, {way['mode']}, {filter_}", height, width, channels, 0, way) for way in ways
                ]
    crop, pad = {"mode": "crop", "size": 17}, {"mode": "pad"}
    return [
        *cases,
        Case("photo.ppm", "the size of the crop is that of the model", 17, 17, 3, 0, crop),
        Case(
            "photo.ppm", "nothing is resized, only cut", 6, 10, 3, 0, {"mode": "crop", "size": 11, "filter": "lanczos"}
        ),
        Case("photo.ppm", "rows keep their length", 15, 17, 3, 0, {"mode": "pad", "filter": "bicubic"}),
        Case(
            "photo.ppm", "colour to gray, then resized", 9, 12, 1, 0, {"mode": "crop", "size": 13, "filter": "bicubic"}
        ),
        Case("wide.pgm", "gray to colour, and a colour beside it", 14, 13, 3, 0, pad | {"fill": [1, 2, 3]}),
        Case("thread.pgm", "one row at least", 12, 9, 1, 0, pad | {"fill": 9}),
        Case("thread.pgm", "the middle of a long one", 5, 6, 1, 0, {"mode": "crop", "size": 8, "filter": "lanczos"}),
        Case("square.ppm", "equal sides, an odd rest", 8, 9, 3, 0, {"mode": "crop", "size": 12, "filter": "bicubic"}),
        Case("orientation-6.jpg", "upright by EXIF, then cut", 9, 7, 3, 1, {"mode": "crop", "size": 11}),
    ]


def by_pillow(case: Case) -> np.ndarray:
    """The pixels of a case with `resize`, by plain calls of Pillow."""
    with Image.open(HERE / case.file) as image:
        upright = ImageOps.exif_transpose(image).convert("L" if case.channels == 1 else "RGB")
    way = case.resize or {}
    (w, h), (width, height) = upright.size, (case.width, case.height)
    filter_ = Image.Resampling[way.get("filter", "bilinear").upper()]
    if way["mode"] == "crop":
        size = way["size"]
        new = (size * w // h, size) if w > h else (size, size * h // w)
        left, top = (new[0] - width) // 2, (new[1] - height) // 2
        return np.asarray(_rows_first(upright, new, filter_).crop((left, top, left + width, top + height)))
    if way["mode"] == "stretch":
        return np.asarray(_rows_first(upright, (width, height), filter_))
    if w * height >= h * width:
        new = width, max(1, (2 * h * width + w) // (2 * w))
    else:
        new = max(1, (2 * w * height + h) // (2 * h)), height
    fill = way.get("fill", 0)
    canvas = Image.new(
        upright.mode, (width, height), tuple(fill) if isinstance(fill, list) else (fill,) * case.channels
    )
    canvas.paste(_rows_first(upright, new, filter_), ((width - new[0]) // 2, (height - new[1]) // 2))
    return np.asarray(canvas)


def _rows_first(image: Image.Image, size: tuple[int, int], filter_: Image.Resampling) -> Image.Image:
    # In two calls: one call of Pillow 13.0.0 was seen to start with the columns for some sizes.
    return image.resize((size[0], image.height), filter_).resize(size, filter_)


def blocks(orientation: int, path: Path) -> None:
    """Six even blocks of 8 x 8 pixels in a JPEG that lies as the number says: no two corners are alike."""
    rows = [[(200, 40, 40), (40, 200, 40)], [(40, 40, 200), (200, 200, 40)], [(30, 30, 30), (220, 220, 220)]]
    colours = np.array(rows)
    image = Image.fromarray(colours.repeat(8, 0).repeat(8, 1).astype(np.uint8))
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    image.save(path, quality=100, subsampling=0, exif=exif)


def write_files() -> list[Case]:
    """The files and their cases."""
    random = np.random.default_rng(0)
    deep = random.integers(0, 1 << 16, (4, 5, 4), np.uint16)
    deep[0, :3] = [[0x00FF, 0x80FF, 0xFFFF, 0xFFFF], [0x7F80, 0x7FFF, 0xFF00, 0x80FF], [256, 255, 128, 0]]
    gray = deep[..., 0].copy()
    gray[0] = [0, 128, 129, 257 * 100 + 128, 257 * 100 + 129]  # both sides of a rounding
    plain = random.integers(0, 256, (11, 17, 3), np.uint8)
    clear = random.integers(0, 256, (6, 8, 4), np.uint8)
    clear[0, :, 3], clear[1, :, 3] = 0, 255
    stripes = np.zeros((4, 8, 4), np.uint8)
    stripes[:, ::2] = [250, 10, 10, 255]  # and black that nobody sees between them

    def save(name: str, content: bytes) -> None:
        (HERE / name).write_bytes(content)

    save("rgb16.png", png(deep[..., :3], _RGB))
    save("rgba16.png", png(deep, _RGBA))
    save("gray16.png", png(gray, _GRAY))
    save("gray16-keyed.png", png(gray, _GRAY, _chunk(b"tRNS", struct.pack(">H", int(gray[1, 1])))))
    save("rgba.png", png(clear, _RGBA))
    save("gray-alpha.png", png(clear[..., [0, 3]], _GRAY_ALPHA))
    save("stripes.png", png(stripes, _RGBA))
    save("photo.ppm", ppm(plain))
    more = np.random.default_rng(1)
    save("tall.ppm", ppm(more.integers(0, 256, (29, 13, 3), np.uint8)))
    save("wide.pgm", pgm(more.integers(0, 256, (19, 31), np.uint8)))
    save("thread.pgm", pgm(more.integers(0, 256, (2, 61), np.uint8)))
    save("square.ppm", ppm(more.integers(0, 256, (15, 15, 3), np.uint8)))
    Image.fromarray(random.integers(0, 256, (4, 5, 4), np.uint8), "CMYK").save(HERE / "cmyk.tif")
    paletted = Image.fromarray(random.integers(0, 4, (4, 5), np.uint8), "P")
    paletted.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    paletted.save(HERE / "palette.png", transparency=bytes([255, 128, 0, 64]))
    upright = "upright by EXIF, then stretched"
    turned = [Case(f"orientation-{number}.jpg", upright, 6, 5, 3, 1) for number in range(1, 9)]
    for number, case in enumerate(turned, 1):
        blocks(number, HERE / case.file)
    return [
        Case("rgb16.png", "16-bit colour: the high byte of each channel", 4, 5, 3),
        Case("rgba16.png", "16-bit colour with alpha: high bytes, then on white", 4, 5, 3),
        Case("gray16.png", "16-bit gray: (v + 128) // 257", 4, 5, 1),
        Case("gray16-keyed.png", "16-bit gray: the transparent value is white", 4, 5, 3),
        Case("rgba.png", "transparent parts on white", 6, 8, 3),
        Case("gray-alpha.png", "transparent parts on white, then gray", 6, 8, 1),
        Case("palette.png", "colours of a palette, transparent ones on white", 4, 5, 3),
        Case("stripes.png", "on white before it is stretched: hidden colours do not bleed", 4, 4, 3),
        Case("cmyk.tif", "CMYK without a profile", 4, 5, 3),
        *turned,
        Case("photo.ppm", "as it is", 11, 17, 3),
        Case("photo.ppm", "colour to gray", 11, 17, 1),
        Case("photo.ppm", "shrunk: averages, rows first", 4, 5, 3),
        Case("photo.ppm", "gray, then shrunk", 3, 7, 1),
        Case("photo.ppm", "enlarged", 16, 23, 3),
        Case("photo.ppm", "enlarged in one direction, shrunk in the other", 5, 30, 3),
        *resize_cases(),
    ]


def main() -> None:
    """Write everything anew."""
    HERE.mkdir(exist_ok=True)
    for old in HERE.iterdir():
        old.unlink()
    documents = []
    for case in write_files():
        stem, _ = case.file.split(".")
        expected = f"{stem}-{case.height}x{case.width}x{case.channels}"
        document = case._asdict()
        if case.resize is None:
            pixels = load(HERE / case.file, ImageSpec(case.height, case.width, case.channels))
            del document["resize"]
        else:
            pixels = by_pillow(case)
            expected += f"-{case.resize['mode']}-{case.resize.get('filter', 'bilinear')}"
        (HERE / f"{expected}.raw").write_bytes(pixels.tobytes())
        documents.append(document | {"expected": f"{expected}.raw"})
    (HERE / "cases.json").write_text(json.dumps(documents, indent=1) + "\n")


if __name__ == "__main__":
    main()
