"""Answers as pictures: a copy of an image with its answer below, and a sheet of accepted and rejected ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from uce_edge.errors import ImageError
from uce_edge.files import replacing
from uce_edge.images import picture

_INK, _PAPER, _FAINT = "#1c1c1c", "#ffffff", "#6a6a6a"
_OUTCOME = {"accept": ("#1a7f37", "accepted"), "reject": ("#b35900", "rejected"), None: ("#1f5fa8", "")}
_EDGE = 6
SHEET_LIMIT = 200
"""A sheet shows so many images at most."""


def save_annotated(record: dict[str, Any], content: bytes | None, folder: Path, taken: set[str]) -> None:
    """Write an annotated copy as PNG; a name that is taken gets a number.

    Args:
        record: The answer.
        content: The image, if not the file at the record's path.
        folder: Where to.
        taken: The names given so far, which this one joins.
    """
    stem = "stdin" if record["path"] == "-" else Path(record["path"]).stem
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    taken.add(name)
    with replacing(folder / f"{name}.png", "--save") as path:
        annotated(record, content or record["path"], 320).save(path)


def annotated(record: dict[str, Any], source: str | bytes, size: int) -> Image.Image:
    """The image in a frame of the outcome's colour, with the answer in words below."""
    colour, word = _OUTCOME[record["decision"]]
    image = picture(source, size)
    text = max(11, size // 18)
    lines = [
        (f"{record['label']}  {record['confidence']:.1%}", round(1.35 * text), _INK),
        (f"uncertainty {record['uncertainty']:.3f} ± {record['standard_error']:.3f}", text, _FAINT),
        *([(word, text, colour)] if word else []),
    ]
    fonts = [ImageFont.load_default(points) for _, points, _ in lines]
    widest = max(round(font.getlength(line)) for font, (line, _, _) in zip(fonts, lines, strict=True))
    width = max(image.width, widest) + 2 * _EDGE
    height = image.height + sum(round(1.4 * points) for _, points, _ in lines) + 3 * _EDGE
    canvas = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.rectangle([0, 0, width - 1, height - 1], outline=colour, width=_EDGE // 2)
    canvas.paste(image, ((width - image.width) // 2, _EDGE))
    y = image.height + 2 * _EDGE
    for (line, points, ink), font in zip(lines, fonts, strict=True):
        draw.text((_EDGE + 2, y), line, ink, font)
        y += round(1.4 * points)
    return canvas


def save_sheet(answers: Sequence[tuple[dict[str, Any], bytes | None]], threshold: float | None, path: Path) -> None:
    """All images on one picture, accepted on the left and rejected on the right, the most certain first."""
    shown = sorted((a for a in answers if a[0]["status"] == "ok"), key=lambda a: a[0]["uncertainty"])[:SHEET_LIMIT]
    if not shown:
        raise ImageError("No image could be used, so there is no sheet to draw.")
    groups = {
        name: [
            annotated(record, content or record["path"], 144) for record, content in shown if record["decision"] == name
        ]
        for name in ("accept", "reject", None)
    }
    groups = {name: tiles for name, tiles in groups.items() if tiles}
    columns = 3 if len(groups) > 1 else 6
    cell = max(tile.width for tiles in groups.values() for tile in tiles) + 10
    row = max(tile.height for tiles in groups.values() for tile in tiles) + 10
    rows = max(-(-len(tiles) // columns) for tiles in groups.values())
    head, gap, title = 56, 30, ImageFont.load_default(20)
    titles = {name: _title(name, len(tiles), threshold) for name, tiles in groups.items()}
    widths = {
        name: max(cell * min(columns, len(tiles)), round(title.getlength(titles[name])))
        for name, tiles in groups.items()
    }
    canvas = Image.new("RGB", (gap + sum(width + gap for width in widths.values()), head + rows * row + gap), _PAPER)
    draw, x = ImageDraw.Draw(canvas), gap
    for name, tiles in groups.items():
        draw.text((x, 18), titles[name], _OUTCOME[name][0], title)
        for number, tile in enumerate(tiles):
            canvas.paste(tile, (x + cell * (number % columns), head + row * (number // columns)))
        x += widths[name] + gap
    with replacing(path, "--sheet") as temporary:
        canvas.save(temporary, format="PNG")


def _title(outcome: str | None, count: int, threshold: float | None) -> str:
    word = _OUTCOME[outcome][1] or ("image" if count == 1 else "images")
    if threshold is None:
        return f"{count} {word}"
    return f"{count} {word}: uncertainty {'above' if outcome == 'reject' else 'at most'} {threshold:.4g}"
