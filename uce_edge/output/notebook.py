"""HTML cards of answers for notebooks, on light and dark pages."""

import base64
import io
from typing import TYPE_CHECKING

from PIL import Image

from uce_edge.calibration.label_sets import in_words
from uce_edge.errors import ImageError
from uce_edge.images.loader import picture
from uce_edge.output.heatmap_overlay import panels
from uce_edge.output.report.markup import Markup, element, join
from uce_edge.output.wording import spread, wrong_about
from uce_edge.rejection.rule import Decision
from uce_edge.runtime.prediction import ClassProbability, ImageLike, ImagePrediction, Prediction

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer

__all__ = ["answer_card", "card", "cards"]

LIMIT = 24
"""The most cards of a batch, because a notebook stores them all."""
_SIZE = 96  # pixels of an image's longer side
_TOP = 3
_BRIGHT = {Decision.ACCEPT: "#2da44e", Decision.REJECT: "#d9822b", None: "#4c8fd6"}
"""As in `annotate`, but brighter, for dark pages."""
_FAINT = "opacity:.7"


def card(prediction: ImagePrediction) -> str:
    """A card of one image: classes as bars, uncertainty and decision."""
    return _card(prediction, prediction.source, prediction.top(prediction.classes, _TOP))


def answer_card(answer: "Answer") -> str:
    """A card of an answer, with its prediction or its error."""
    if answer.prediction is None:
        error = element("div", str(answer.error), style=f"color:{_BRIGHT[Decision.REJECT]}")
        return _frame(Decision.REJECT, None, answer.path, error)
    return _card(answer.prediction, answer.content or answer.prediction.source, answer.top)


def cards(prediction: Prediction) -> str:
    """The cards of the first images, side by side."""
    shown = [Markup(card(image)) for image in prediction[:LIMIT]]
    more = len(prediction) - len(shown)
    rest = element("p", f"and {more} more: prediction[{LIMIT}:]", style=_FAINT) if more else None
    return join([element("div", *shown, style="display:flex;flex-wrap:wrap;gap:8px"), rest])


def _card(prediction: ImagePrediction, source: ImageLike | None, top: tuple[ClassProbability, ...]) -> Markup:
    colour = _BRIGHT[prediction.decision]
    bars = [_bar(likely, colour if number == 0 else "#8c959f") for number, likely in enumerate(top)]
    uncertainty = f"uncertainty {spread(prediction)}, {wrong_about(prediction)}"
    named = None if prediction.label_set is None else element("div", f"set: {in_words(prediction.label_set)}")
    decided = None
    if prediction.decision is not None:
        word = element("b", f"{prediction.decision}", style=f"color:{colour}")
        decided = element("div", word, f": {prediction.why}")
    shown, lines = _picture(prediction, source), [*bars, element("div", uncertainty), named, decided]
    return _frame(prediction.decision, shown, prediction.path or "", *lines)


def _frame(decision: Decision | None, shown: Markup | None, path: str, *lines: Markup | None) -> Markup:
    name = element("div", path, style=f"{_FAINT};overflow-wrap:anywhere") if path else None
    style = (
        "display:inline-flex;gap:12px;align-items:flex-start;vertical-align:top;width:460px;max-width:100%;"
        "padding:8px 10px;margin:2px;"
        f"box-sizing:border-box;border:1px solid #8c959f66;border-left:4px solid {_BRIGHT[decision]};border-radius:4px;"
        "font:13px/1.5 system-ui,sans-serif;text-align:left"
    )
    return element("div", shown, element("div", name, *lines, style="flex:1;min-width:0"), style=style)


def _bar(likely: ClassProbability, colour: str) -> Markup:
    """A class, its probability as a bar, and the number."""
    filled = element("div", style=f"width:{100 * likely.probability:.1f}%;height:100%;background:{colour}")
    return element(
        "div",
        element("span", likely.label, style="width:96px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"),
        element("div", filled, style="flex:1;height:10px;background:#8c959f33;border-radius:2px;overflow:hidden"),
        element("span", f"{likely.probability:.1%}", style="width:52px;text-align:right"),
        style="display:flex;gap:8px;align-items:center",
        title=likely.label,
    )


def _picture(prediction: ImagePrediction, source: ImageLike | None) -> Markup | None:
    """A small inline PNG, above its maps; None for an unknown or unreadable image."""
    if source is None:
        return None
    try:
        drawn = picture(source, _SIZE)
    except ImageError:
        return None
    shown = [(prediction.label, drawn), *panels(prediction, drawn)]
    images = [_inline(caption, image) for caption, image in shown]
    return images[0] if len(images) == 1 else element("div", *images, style="flex:none;display:grid;gap:2px")


def _inline(caption: str, image: Image.Image) -> Markup:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    uri = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return element("img", src=uri, alt=caption, title=caption, style="border-radius:3px;flex:none")
