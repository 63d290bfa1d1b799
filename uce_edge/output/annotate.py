"""Draw answers: annotated copies of images."""

import hashlib
import os
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from uce_edge._util.atomic_files import replacing
from uce_edge._util.printable import shown
from uce_edge.calibration.label_sets import in_words
from uce_edge.errors import ImageError
from uce_edge.images.loader import STDIN, picture
from uce_edge.output.fonts import drawable, font_for
from uce_edge.output.heatmap_overlay import panels
from uce_edge.output.wording import spread
from uce_edge.rejection.rule import Decision, Reason
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.prediction import ImagePrediction

INK, PAPER, FAINT = "#1c1c1c", "#ffffff", "#6a6a6a"
COLOURS = {Decision.ACCEPT: "#1a7f37", Decision.REJECT: "#b35900", None: "#1f5fa8"}
"""The colour of an image's frame, by decision."""
OOD_COLOUR = "#7a3db8"
"""That of an image that is rejected as out of distribution."""
_WORDS = {Decision.ACCEPT: "accepted", Decision.REJECT: "rejected", None: ""}
_REASONS = {
    Reason.OUT_OF_DISTRIBUTION: " as out of distribution",
    Reason.BOTH: " as out of distribution and uncertain",
}
_EDGE = 6
_LONGEST_NAME = 255  # bytes that file systems allow


class CopyNames:
    """Unique names for annotated copies, without a suffix."""

    def __init__(self, reserved: set[str], *, endless: bool = False, ending: str = ".png") -> None:
        """Reserve names.

        Args:
            reserved: Names that no copy gets.
            endless: Whether a watched folder gives images without end. Names are then not stored: a copy's name
                includes the suffix of its image, and a new version of an image replaces its copy. If False, a repeated
                name gets a number.
            ending: The longest that is added to a name.
        """
        self._taken, self._endless = set(reserved), endless
        self._longest = _LONGEST_NAME - len(ending)

    def of(self, path: str) -> str:
        """The name of the copy of an image."""
        image = Path("stdin" if path == STDIN else path)
        stem = image.name if self._endless and image.suffix.lower() != ".png" else image.stem
        name, count = _shortened(stem, self._longest), 1
        while name in self._taken:
            count += 1
            name = _shortened(stem, self._longest, f"-{count}")
        if not self._endless:
            self._taken.add(name)
        return name


def save_annotated(answer: Answer, folder: Path, names: CopyNames) -> None:
    """Write an annotated copy as PNG.

    Args:
        answer: An answer with a prediction.
        folder: The folder of the copies.
        names: The names of the copies.
    """
    with replacing(folder / f"{names.of(answer.path)}.png", "--save") as path:
        annotated(answer, 320, maps=True).save(path)


def _shortened(stem: str, longest: int, number: str = "") -> str:
    """Shorten a name for any file system; a hash keeps it unique."""
    if len(os.fsencode(stem + number)) <= longest:
        return stem + number
    content = os.fsencode(stem)
    ending = f"-{hashlib.sha256(content).hexdigest()[:8]}{number}"
    return content[: longest - len(ending)].decode("utf-8", "ignore") + ending


def annotated(answer: Answer, size: int, *, maps: bool = False) -> Image.Image:
    """The image in a frame of the decision's colour, above the answer.

    Args:
        answer: An answer with a prediction.
        size: Pixels of the image's longer side.
        maps: Draw the heatmap and its spread beside the image, where there are some.
    """
    if answer.prediction is None:
        raise ImageError(str(answer.error), "image.no-prediction", path=answer.path)
    colour = colour_of(answer.prediction)
    image = picture(answer.content or answer.path, size, answer.path, answer.shown)
    text = max(11, size // 18)
    if maps and (shown_maps := panels(answer.prediction, image)):
        image = _side_by_side([("", image), *shown_maps], text)
    lines = _lines(answer.prediction, text)
    fonts = [font_for(line, points) or ImageFont.load_default(points) for line, points, _ in lines]
    widest = max(round(font.getlength(line)) for font, (line, _, _) in zip(fonts, lines, strict=True))
    width = max(image.width, widest) + 2 * _EDGE
    height = image.height + sum(round(1.4 * points) for _, points, _ in lines) + 3 * _EDGE
    canvas = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.rectangle([0, 0, width - 1, height - 1], outline=colour, width=_EDGE // 2)
    canvas.paste(image, ((width - image.width) // 2, _EDGE))
    y = image.height + 2 * _EDGE
    for (line, points, ink), font in zip(lines, fonts, strict=True):
        draw.text((_EDGE + 2, y), line, ink, font)
        y += round(1.4 * points)
    return canvas


def colour_of(prediction: ImagePrediction) -> str:
    """The colour of a decision and its reason."""
    return OOD_COLOUR if prediction.out_of_distribution else COLOURS[prediction.decision]


def _side_by_side(pictures: list[tuple[str, Image.Image]], points: int) -> Image.Image:
    """Pictures of one size, with captions below."""
    width, height = pictures[0][1].size
    font, step = ImageFont.load_default(points), width + _EDGE
    canvas = Image.new("RGB", (step * len(pictures) - _EDGE, height + round(1.4 * points)), PAPER)
    draw = ImageDraw.Draw(canvas)
    for number, (caption, one) in enumerate(pictures):
        canvas.paste(one, (number * step, 0))
        draw.text((number * step, height + 1), caption, FAINT, font)
    return canvas


def _lines(prediction: ImagePrediction, points: int) -> list[tuple[str, int, str]]:
    """The lines of an answer, each with its size and colour."""
    word = _WORDS[prediction.decision] + ("" if prediction.reason is None else _REASONS.get(prediction.reason, ""))
    return [
        (f"{label_of(prediction)}  {prediction.confidence:.1%}", round(1.35 * points), INK),
        *([(labels, points, INK)] if (labels := set_of(prediction)) else []),
        (f"uncertainty {spread(prediction)}", points, FAINT),
        *([(word, points, colour_of(prediction))] if word else []),
    ]


def label_of(prediction: ImagePrediction) -> str:
    """The label; its number where no font can draw it."""
    return drawable(shown(prediction.label), f"class {prediction.class_id}")


def set_of(prediction: ImagePrediction) -> str | None:
    """The set of labels, where it is another than the label alone."""
    if prediction.label_set in (None, (prediction.label,)):
        return None
    names = [drawable(shown(name), f"class {prediction.classes.index(name)}") for name in prediction.label_set or ()]
    return in_words(names)
