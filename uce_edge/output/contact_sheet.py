"""Draw many answers on one sheet, in groups."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from uce_edge._util.atomic_files import replacing
from uce_edge.contract import RuleScore
from uce_edge.errors import ImageError
from uce_edge.images.loader import picture
from uce_edge.output.annotate import COLOURS, FAINT, INK, OOD_COLOUR, PAPER, colour_of, label_of, set_of
from uce_edge.output.fonts import Font, font_for
from uce_edge.output.wording import percent, wrong_about
from uce_edge.rejection import description
from uce_edge.rejection.rule import Decision, RejectRule
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.prediction import ImagePrediction

_GROUPS = ((Decision.ACCEPT, False), (None, False), (Decision.REJECT, False), (Decision.REJECT, True))
"""By decision, and whether it was made because the image is out of distribution."""
LIMIT = 90
"""The most images of a group."""
_COLUMNS = 7
"""The most columns of a group."""
_WIDTH, _HEIGHT = 172, 129
"""Of a picture on the sheet, at most."""
_GAP, _HEAD = 16, 44
_EDGE = 3
_LABEL, _TEXT, _TITLE = 16, 13, 20
"""Font sizes."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""Where a line does not end; drawn as a blank, because the font lacks it."""
_SET_LINES = 3
"""The most lines of a set of labels."""


def save_sheet(answers: Iterable[Answer], path: Path) -> None:
    """Write a sheet: accepted, uncertain, out of distribution; best score first."""
    usable = [(_score(answer.rule, answer.prediction), answer) for answer in answers if answer.prediction is not None]
    if not usable:
        raise ImageError("No image has a prediction, so there is no sheet to draw.", "image.none")
    shown = [answer for _, answer in sorted(usable, key=lambda pair: pair[0])]
    parts = [part for kind in _GROUPS if (part := _group(shown, *kind)) is not None]
    canvas = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), PAPER)
    y = 0
    for part in parts:
        canvas.paste(part, (0, y))
        y += part.height
    with replacing(path, "--sheet") as temporary:
        canvas.save(temporary, format="PNG")


def _score(rule: RejectRule, prediction: ImagePrediction) -> float:
    """The score that the title of a group names; small for a certain answer."""
    return -prediction.confidence if rule.score is RuleScore.CONFIDENCE else prediction.uncertainty


def _group(answers: list[Answer], decision: Decision | None, ood: bool) -> Image.Image | None:
    """A title above rows of tiles; None without answers."""
    predictions = ((answer, answer.prediction) for answer in answers)
    members = [
        (answer, prediction)
        for answer, prediction in predictions
        if prediction is not None and (answer.decision, prediction.out_of_distribution) == (decision, ood)
    ]
    if not members:
        return None
    tiles = [_tile(answer, prediction) for answer, prediction in members[:LIMIT]]
    title, font = description.title(answers[0].rule, decision, len(members), ood=ood), ImageFont.load_default(_TITLE)
    if len(tiles) < len(members):
        title += f" (here the {len(tiles)} most certain)"
    columns = math.ceil(len(tiles) / math.ceil(len(tiles) / _COLUMNS))  # 8 are 4 and 4, not 7 and 1
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) + _GAP for row in rows]
    width = max(round(font.getlength(title)), columns * (_WIDTH + 2 * _EDGE + _GAP)) + 2 * _GAP
    canvas = Image.new("RGB", (width, _HEAD + sum(heights)), PAPER)
    ImageDraw.Draw(canvas).text((_GAP, 12), title, OOD_COLOUR if ood else COLOURS[decision], font)
    y = _HEAD
    for row, height in zip(rows, heights, strict=True):
        for column, tile in enumerate(row):
            canvas.paste(tile, (_GAP + column * (tile.width + _GAP), y))
        y += height
    return canvas


def _tile(answer: Answer, prediction: ImagePrediction) -> Image.Image:
    """A picture in the colour of its decision, above the answer."""
    image = picture(answer.content or answer.path, _WIDTH, answer.path, answer.shown)
    image.thumbnail((_WIDTH, _HEIGHT))
    lines = list(_lines(prediction))
    height = _HEIGHT + 3 * _EDGE + sum(round(1.4 * size) for _, size, _, _ in lines)
    canvas = Image.new("RGB", (_WIDTH + 2 * _EDGE, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.rectangle([0, 0, canvas.width - 1, _HEIGHT + 2 * _EDGE - 1], colour_of(prediction))
    draw.rectangle([_EDGE, _EDGE, _EDGE + _WIDTH - 1, _EDGE + _HEIGHT - 1], PAPER)
    canvas.paste(image, (_EDGE + (_WIDTH - image.width) // 2, _EDGE + (_HEIGHT - image.height) // 2))
    y = _HEIGHT + 3 * _EDGE
    for text, size, ink, font in lines:
        draw.text((0, y), text, ink, font)
        y += round(1.4 * size)
    return canvas


def _lines(prediction: ImagePrediction) -> Iterator[tuple[str, int, str, Font]]:
    """The lines of an answer that fit below a picture, each with size, colour and font."""
    share = percent(prediction.confidence, 0).replace(" ", _NO_BREAK)
    confident = f"{label_of(prediction)} {share}"
    for text, size, ink, most in (
        (confident, _LABEL, INK, 2),
        (set_of(prediction) or "", _TEXT, INK, _SET_LINES),
        (wrong_about(prediction), _TEXT, FAINT, 1),
    ):
        font = font_for(text, size) or ImageFont.load_default(size)
        for line in _wrapped(text, font, most):
            yield line, size, ink, font


def _wrapped(text: str, font: Font, most: int) -> list[str]:
    """Lines as wide as a tile; what is too long ends in dots."""
    lines: list[str] = []
    for word in (part.replace(_NO_BREAK, " ") for part in text.split(" ") if part):
        if lines and font.getlength(f"{lines[-1]} {word}") <= _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    cut = [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines
    return [_shortened(line, font) for line in cut]


def _shortened(line: str, font: Font) -> str:
    if font.getlength(line) <= _WIDTH:
        return line
    while line and font.getlength(f"{line}…") > _WIDTH:
        line = line[:-1]
    return f"{line.rstrip(' ,')}…"
