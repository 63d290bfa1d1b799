"""Draw the evidence over time as an SVG file."""

import math
from collections.abc import Sequence

from uce_edge.monitor.state import STATISTICS, WORDS, State
from uce_edge.output.report.markup import Markup, element, join
from uce_edge.output.report.svg import SERIES, Frame, Series, drawing, marker, text

_WIDTH, _HEIGHT = 640.0, 330.0
_LEAST = -2.0  # decades: the smallest evidence that is drawn
_STYLE = """
svg { background: #fff; font-family: system-ui, sans-serif; color: #16202c; }
text { fill: #16202c; font-size: 12.5px; } .tick, .label { fill: #55606e; } .tick { font-size: 11.5px; }
.note { font-weight: 650; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
.grid { stroke: #e8ecf0; } .axis { stroke: #55606e; } .threshold { stroke: #16202c; stroke-dasharray: 4 3; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.mark { fill: currentColor; stroke: #fff; }
.c1 { color: #0068a8; } .c2 { color: #c65200; } .c3 { color: #00835f; } .alarm { stroke: #b3261e; stroke-width: 1.5; }
"""


def evidence_plot(state: State) -> str:
    """Draw the evidence of every statistic, the alarm level and the alarm."""
    limit = -math.log10(state.alpha)
    names = [name for name in STATISTICS if name in state.tracks]
    lines = {name: _points(state, name) for name in names}
    highest = max([limit, *(y for points in lines.values() for _, y in points)])
    frame = Frame(
        62, 62, _WIDTH - 84, _HEIGHT - 118, (0.0, float(max(state.images, 1))), (_LEAST, highest * 1.08 + 0.3)
    )
    step = max(1, math.ceil((frame.y_range[1] - _LEAST) / 7))
    decades = [float(decade) for decade in range(int(_LEAST), math.floor(frame.y_range[1]) + 1, step)]
    parts = [
        element("style", Markup(_STYLE)),
        frame.axes("images", "evidence for a change (1 is none)", x_format=_count, y_format=_power, y_ticks=decades),
        element("line", class_="threshold", x1=frame.left, x2=frame.right, y1=frame.y(limit), y2=frame.y(limit)),
        text(frame.left + 6, frame.y(limit) - 6, f"alarm at {1 / state.alpha:,.0f}", class_="note"),
        *(frame.line(lines[name], SERIES[STATISTICS.index(name)]) for name in names),
        _legend(names, frame),
    ]
    if state.alarm is not None:
        for image, dash in ((state.alarm.since_image, "2 3"), (state.alarm.image, None)):
            x = frame.x(image)
            parts.append(
                element("line", class_="alarm", x1=x, x2=x, y1=frame.top, y2=frame.bottom, stroke_dasharray=dash)
            )
        words = f"alarm at image {state.alarm.image:,}, begun at about {state.alarm.since_image:,} (dotted)"
        parts.append(text(frame.right, frame.top - 12, words, anchor="end", class_="note"))
    title = "Evidence that the images have changed"
    outcome = "no alarm" if state.alarm is None else f"an alarm at image {state.alarm.image}"
    description = f"{state.images} images, {outcome}."
    drawn = drawing("evidence", title, description, _HEIGHT, *parts, width=_WIDTH)
    size = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:g}" height="{_HEIGHT:g}"'
    return drawn.replace("<svg", size, 1) + "\n"


def _points(state: State, name: str) -> list[tuple[float, float]]:
    """The start, at evidence 1 for all statistics together, and the history."""
    start = (0.0, -math.log10(len(state.tracks)))
    history = ((float(point.image), point.evidence.get(name, 0.0) / math.log(10)) for point in state.history)
    return [start, *((x, max(y, _LEAST)) for x, y in history)]


def _legend(names: Sequence[str], frame: Frame) -> Markup:
    parts, x = [], frame.left
    for name in names:
        series: Series = SERIES[STATISTICS.index(name)]
        line = element("path", d=f"M{x:.0f} 18h26", class_=f"line {series.colour}", stroke_dasharray=series.dash)
        parts += [line, marker(x + 13, 18, series), text(x + 32, 22, WORDS[name])]
        x += 52 + 7.2 * len(WORDS[name])
    return join(parts)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _power(decade: float) -> str:
    return f"{10**decade:g}" if abs(decade) <= 4 else f"1e{decade:.0f}"
