"""Charts of several files together."""

import math
from collections.abc import Callable, Sequence

from uce_edge.evaluation.comparison import Comparison
from uce_edge.output.report.charts import ACROSS, LEFT, TOP, figure, some_percent, table, whisker
from uce_edge.output.report.markup import Markup, element
from uce_edge.output.report.svg import MANY, Frame, Series, drawing
from uce_edge.output.report.verdict import times
from uce_edge.output.wording import METRICS, interval, score

FEW = 20
"""The fewest images of a bin in the chart."""
_STEPS = (1, 2, 5)


def reliability(comparison: Comparison) -> Markup:
    """Accuracy less confidence, against the confidence."""
    lines: list[list[tuple[float, float]]] = []
    for one in comparison.files:
        curve = one.evaluation.reliability["confidence"].curve
        lines.append(
            [
                (float(score), float(outcome - score))
                for score, outcome, images in zip(curve.mean_score, curve.mean_outcome, curve.counts, strict=True)
                if images >= FEW
            ]
        )
    reach = max([abs(gap) for line in lines for _, gap in line] + [0.02])
    reach = math.ceil(reach * 50) / 50
    frame = Frame(LEFT, TOP, ACROSS, 288, y_range=(-reach, reach))
    at = frame.y(0)
    parts = [
        frame.axes("confidence", "accuracy less confidence, %", y_format=_signed_percent),
        element("line", class_="axis", x1=frame.left, x2=frame.right, y1=at, y2=at),
    ]
    parts += [frame.line(line, series, markers=True) for series, line in zip(MANY, lines, strict=False)]
    title = "Confidence against accuracy"
    description = (
        "For every file, accuracy less confidence against the confidence, in bins. Below 0 a file is overconfident, "
        "above 0 underconfident."
    )
    caption = f"{title}: below 0, overconfident"
    return figure(caption, _legend(comparison), drawing("gaps", title, description, 362, *parts))


def price(comparison: Comparison, metric: str) -> Markup | None:
    """A metric with its interval against the price; None without prices."""
    shown = [(series, one) for series, one in zip(MANY, comparison.files, strict=False) if one.ratio]
    if len(shown) < 2:
        return None
    words = METRICS[metric]
    ratios = [math.log10(one.ratio or 1.0) for _, one in shown]
    scores = [one.evaluation.metrics[metric] for _, one in shown]
    ends = [end for one in scores for end in (one.low, one.high, one.value) if end is not None]
    pad = 0.08 * (max(ends) - min(ends) or 1.0)
    frame = Frame(
        LEFT, TOP, ACROSS, 240,
        x_range=(min(ratios) - 0.06, max(*ratios, min(ratios) + 0.3) + 0.06),
        y_range=(min(ends) - pad, max(ends) + pad),
    )  # fmt: skip
    unit = "time" if shown[0][1].price.measured else "multiply-accumulates"
    form: Callable[[float], str] = some_percent if words.percent else "{:.3g}".format
    parts = [
        frame.axes(
            f"{unit} as a multiple of {comparison.reference}",
            f"{words.title}{', %' if words.percent else ''}",
            x_ticks=_multiples(*frame.x_range),
            x_format=lambda at: times(10**at),
            y_format=form,
        )
    ]
    rows = []
    for (series, one), at, measured in zip(shown, ratios, scores, strict=True):
        if measured.value is None:
            continue
        if measured.low is not None and measured.high is not None:
            parts.append(whisker(frame, at, measured.low, measured.high, series))
        note = f"{one.name}: {words.title} {score(measured.value, words)}, {times(one.ratio or 1.0)} times"
        parts.append(frame.mark(at, measured.value, series, note))
        ends_of = interval(measured.low, measured.high, words)
        rows.append([one.name, times(one.ratio or 1.0), score(measured.value, words), ends_of])
    title = f"{words.title} against the price"
    description = f"{words.title} of every file with its 95 percent interval, against its price; lower left is better."
    drawn = drawing(f"price-{metric}", title, description, 314, *parts)
    return figure(title, _legend(comparison), drawn, table(["file", "price", words.title, "95 % interval"], rows))


def _legend(comparison: Comparison) -> list[tuple[Series | None, str]]:
    return [(series, one.name) for series, one in zip(MANY, comparison.files, strict=False)]


def _multiples(low: float, high: float) -> Sequence[float]:
    """Logarithms of powers of ten, with 2 and 5 times them on a short axis."""
    steps = _STEPS if high - low < 2 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    return [at for power in powers for step in steps if low <= (at := power + math.log10(step)) <= high]


def _signed_percent(value: float) -> str:
    return f"{100 * value:+.3g}".replace("-", "−") if value else "0"
