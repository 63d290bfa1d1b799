"""The charts of a report: figures with title, drawing and numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence

from uce_edge.evaluation.batch_mixture import BATCH
from uce_edge.evaluation.latency import Latency
from uce_edge.evaluation.ood import OutOfDistribution
from uce_edge.evaluation.results import Reliability
from uce_edge.evaluation.shift import Condition
from uce_edge.evaluation.threshold_curves import Operating, Origin, RiskCurve, Thresholds
from uce_edge.output.report.markup import Markup, element, join, numbered
from uce_edge.output.report.svg import MANY, SERIES, WIDTH, Frame, Series, ceiling, drawing, sample, text
from uce_edge.output.wording import MISSING, SCORES, SHARE, at_most, number, percent, threshold
from uce_edge.output.wording import score as score_text

LEFT, TOP = 48, 34
ACROSS = WIDTH - LEFT - 10
"""The position and the width of a chart's frame."""
_COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_TWIN = Series("c3", "2 3", "triangle")


def reliability(kind: str, diagram: Reliability) -> Markup:
    """A reliability diagram with Wilson intervals, above the counts of the bins."""
    curve, series = diagram.curve, SERIES[0]
    outcome = "accuracy" if kind == "confidence" else "error"
    main, strip = Frame(LEFT, TOP, ACROSS, 220), Frame(LEFT, 268, ACROSS, 44, y_range=(0, 1))
    bins = [
        (index, int(curve.counts[index]), float(curve.mean_score[index]), float(curve.mean_outcome[index]))
        for index in range(len(curve.counts))
        if curve.counts[index]
    ]
    parts = [
        main.axes(y_label=f"{outcome}, %", y_format=whole_percent, x_ticks=[]),
        element("line", class_="ideal", x1=main.x(0), y1=main.y(0), x2=main.x(1), y2=main.y(1)),
    ]
    if kind == "uncertainty":
        parts.append(main.line([(score, float(diagram.twin[index])) for index, _, score, _ in bins], _TWIN, True))
    for index, _, score, _ in bins:
        parts.append(whisker(main, score, float(curve.low[index]), float(curve.high[index]), series))
    parts.append(main.line([(score, rate) for _, _, score, rate in bins], series, class_="faint"))
    most, rows = max(count for _, count, _, _ in bins), []
    for index, count, score, rate in bins:
        low, high = float(curve.edges[index]), float(curve.edges[index + 1])
        inside = f"{percent(float(curve.low[index]))} to {percent(float(curve.high[index]))}"
        place = f"{kind} {low:.2f} to {high:.2f}"
        note = f"{place}: {count:,} images, {outcome} {percent(rate)} ({inside})"
        parts.append(main.mark(score, rate, series, note))
        parts.append(strip.bar(low, high, 0, 0.72 * count / most, "bar", note))
        middle, top = strip.x((low + high) / 2), strip.y(0.72 * count / most) - 3
        parts.append(text(middle, top, _short(count), anchor="middle", class_="tiny"))
        twin = percent(float(diagram.twin[index]))
        gap = score_text(rate - float(diagram.twin[index]), SHARE, signed=True)
        rows.append([f"{low:.2f} – {high:.2f}", f"{count:,}", number(score), percent(rate), inside, twin, gap])
    parts.append(strip.axes(kind, x_format="{:g}".format, y_ticks=[]))
    parts.append(text(4, strip.top + 14, "images", class_="tick"))
    legend = [(series, f"{outcome} with its 95 % interval"), (None, f"{kind} equal to {outcome}")]
    if kind == "uncertainty":
        legend.append((_TWIN, "a perfectly calibrated model"))
    title = f"{kind.capitalize()} against {outcome}"
    description = (
        f"Reliability diagram: mean {kind} against {outcome} in {len(curve.counts)} bins, with the number of images in "
        "each."
    )
    head = [kind, "images", f"mean {kind}", outcome, "95 % interval", "if calibrated", "difference"]
    return figure(title, legend, drawing(f"reliability-{kind}", title, description, 352, *parts), table(head, rows))


def risk_coverage(
    curves: Mapping[str, RiskCurve], points: Sequence[Operating], names: Mapping[str, str] = SCORES
) -> Markup:
    """Error against coverage, for every score or every file."""
    # One error among the very first images would dominate the scale.
    settled = [
        risk for curve in curves.values() for at, risk in zip(curve.coverage, curve.risk, strict=True) if at > 0.05
    ]
    frame = Frame(LEFT, TOP, ACROSS, 288, y_range=(0, ceiling(map(float, settled), 0.01)))
    parts, columns = [], []
    legend: list[tuple[Series | None, str]] = []
    for series, (score, curve) in zip(MANY, curves.items(), strict=False):
        line = frame.line(zip(map(float, curve.coverage), map(float, curve.risk), strict=True), series)
        parts.append(line)
        legend.append((series, f"{names[score]}, AURC {percent(curve.aurc, 2)}"))
        at = [min(int(curve.coverage.searchsorted(share)), len(curve.risk) - 1) for share in _COVERAGES]
        columns.append([percent(float(curve.risk[index])) for index in at])
    marks = [
        _operating(frame, point.measured.coverage, point.measured.error, point, row)
        for row, point in enumerate(points)
        if point.measured.error is not None
    ]
    title = "Error against coverage"
    description = (
        "Risk-coverage curve: the error rate of the accepted images against the share that is accepted, the most "
        "certain first."
    )
    labels = "accepted images (coverage), %", "error of the accepted, %"
    axes = frame.axes(*labels, x_format=whole_percent, y_format=some_percent)
    lines = frame.clipped("risk-coverage", *parts)
    head = ["coverage", *(names[score] for score in curves)]
    rows = [[percent(share, 0), *cells] for share, *cells in zip(_COVERAGES, *columns, strict=True)]
    drawn = drawing("risk-coverage", title, description, 362, axes, lines, *marks)
    return figure(title, legend, drawn, table(head, rows))


def thresholds(curve: Thresholds, points: Sequence[Operating]) -> Markup:
    """Error and its bound against the threshold, with the coverage below."""
    grid, error, bound, coverage = (
        [float(value) for value in values]
        for values in (curve.thresholds, curve.error, curve.error_bound, curve.coverage)
    )
    # With few accepted images the bound is near 100 %, and no sensible choice.
    settled = [high for high, share in zip(bound, coverage, strict=True) if share >= 0.3 * max(coverage)]
    top = ceiling([value for value in [*settled, *error] if not math.isnan(value)], 0.01)
    main = Frame(LEFT, TOP, ACROSS, 190, y_range=(0, top))
    strip = Frame(LEFT, 262, ACROSS, 60)
    actual, limit = SERIES[0], SERIES[1]
    upper, lower = list(zip(grid, bound, strict=True)), list(zip(grid, error, strict=True))
    covered = list(zip(grid, coverage, strict=True))
    parts = [
        main.axes(y_label="error of the accepted, %", y_format=some_percent, x_ticks=[]),
        main.clipped(
            "thresholds", main.area(upper, lower, "band c2"), main.line(upper, limit), main.line(lower, actual)
        ),
        strip.axes("threshold on the uncertainty", "accepted, %", y_format=whole_percent, y_ticks=[0, 0.5, 1]),
        strip.area(covered, [(at, 0.0) for at in grid], "band c1"),
        strip.line(covered, actual),
    ]
    for row, point in enumerate(points):
        chosen = point.measured.threshold
        parts.append(main.vertical(chosen, spelled(point), row))
        parts.append(strip.vertical(chosen))
        if point.measured.error is not None:
            parts.append(main.mark(chosen, min(point.measured.error, top), SERIES[3], decided(point)))
            parts.append(strip.mark(chosen, point.measured.coverage, SERIES[3], decided(point)))
    title = "Error against the threshold"
    description = (
        "The error rate of the images whose uncertainty is at most the threshold, its 95 percent upper bound, and the "
        "share of images that is accepted."
    )
    rows = [
        [f"{at:.2f}", percent(share), percent(rate), MISSING if math.isnan(high) else at_most(high)]
        for at, share, rate, high in zip(grid, coverage, error, bound, strict=True)
        if round(at * 100) % 10 == 0
    ]
    legend: list[tuple[Series | None, str]] = [(actual, "error"), (limit, "its 95 % upper bound")]
    head = ["threshold", "accepted", "error", "95 % bound"]
    return figure(title, legend, drawing("thresholds", title, description, 362, *parts), table(head, rows))


def mixture(ood: OutOfDistribution, number: int = 0) -> Markup:
    """Mean uncertainty of a batch against its out-of-distribution share."""
    at, mean, deviation = (
        [float(value) for value in values] for values in (ood.fractions, ood.mean_uncertainty, ood.batch_deviation)
    )
    upper = [(x, y + d) for x, y, d in zip(at, mean, deviation, strict=True)]
    lower = [(x, max(y - d, 0.0)) for x, y, d in zip(at, mean, deviation, strict=True)]
    frame = Frame(LEFT, TOP, ACROSS, 230, y_range=(0, ceiling(y for _, y in upper)))
    series = SERIES[0]
    title = "Mean uncertainty of a batch"
    description = (
        f"Mean uncertainty of {BATCH} images with a growing out-of-distribution share, with the standard deviation "
        "from batch to batch."
    )
    parts = [
        frame.axes("out-of-distribution images, %", "mean uncertainty", x_format=whole_percent),
        frame.area(upper, lower, "band c1"),
        frame.line(zip(at, mean, strict=True), series),
    ]
    legend = [(series, f"mean over batches of {BATCH}, ± one standard deviation")]
    return figure(title, legend, drawing(numbered("mixture", number), title, description, 304, *parts))


def histograms(ood: OutOfDistribution, points: Sequence[Operating], number: int = 0) -> Markup:
    """Histograms of the uncertainty: in-distribution up, out-of-distribution down."""
    inside, outside = ([float(value) for value in values] for values in (ood.inside, ood.outside))
    top = ceiling([*inside, *outside])
    frame = Frame(LEFT, TOP, ACROSS, 230, y_range=(-top, top))
    edges = [float(edge) for edge in ood.edges]
    parts = []
    for low, high, up, down in zip(edges, edges[1:], inside, outside, strict=False):
        place = f"uncertainty {low:.2f} to {high:.2f}"
        notes = f"{place}: {percent(up)} in distribution", f"{place}: {percent(down)} out of distribution"
        parts.append(frame.bar(low, high, 0, up, "bar c1", notes[0]))
        parts.append(frame.bar(low, high, 0, -down, "bar c2", notes[1]))
    parts += [frame.vertical(point.measured.threshold, spelled(point), row) for row, point in enumerate(points)]
    axis = frame.y(0)
    parts += [
        element("line", class_="axis", x1=frame.left, x2=frame.right, y1=axis, y2=axis),
        text(frame.right, frame.top + 58, "in distribution ↑", anchor="end", class_="label"),
        text(frame.right, frame.bottom - 12, "out of distribution ↓", anchor="end", class_="label"),
    ]
    title = "Uncertainty in and out of distribution"
    description = "Histograms of the uncertainty: in-distribution images upwards, out-of-distribution images downwards."
    axes = frame.axes("uncertainty", "share of the images, %", y_format=lambda value: some_percent(abs(value)))
    return figure(title, [], drawing(numbered("histograms", number), title, description, 304, axes, *parts))


def shifted(kind: str, conditions: Sequence[Condition], pictures: Markup) -> Markup:
    """Results of one corruption by severity, above an example image."""
    frame = Frame(38, 30, 246, 176, x_range=(0, len(conditions) - 1))
    parts = []
    for series, (key, _) in zip(SERIES, SHIFTED, strict=True):
        values = [(float(one.severity), float(getattr(one, key))) for one in conditions]
        parts.append(frame.line(values, series))
        parts += [frame.mark(x, y, series, f"severity {x:g}: {percent(y)}") for x, y in values]
    axes = frame.axes(
        "severity", "%", x_ticks=[one.severity for one in conditions], y_format=whole_percent,
        x_format=lambda value: f"{value:g}" if value else "none",
    )  # fmt: skip
    title = "JPEG" if kind == "jpeg" else kind.capitalize()
    description = (
        f"Accuracy, coverage, mean uncertainty and UCE as {kind} grows from none to severity {conditions[-1].severity}."
    )
    drawn = drawing(f"shift-{kind}", title, description, 250, axes, *parts, width=300)
    return figure(title, [], join([drawn, pictures]))


SHIFTED = (
    ("accuracy", "accuracy"),
    ("coverage", "accepted (coverage)"),
    ("uncertainty", "mean uncertainty"),
    ("uce", "UCE"),
)


def latency(timing: Latency, own: int) -> Markup:
    """Milliseconds per image against the number of passes."""
    upper = list(zip(map(float, timing.passes), timing.p95_ms, strict=True))
    middle = list(zip(map(float, timing.passes), timing.p50_ms, strict=True))
    frame = Frame(LEFT, TOP, ACROSS, 210, x_range=(0, max(timing.passes)), y_range=(0, ceiling(timing.p95_ms)))
    parts = [frame.area(upper, middle, "band c1"), frame.vertical(own, f"N = {own}")]
    parts.append(frame.line(middle, SERIES[0]))
    parts += [frame.mark(x, y, SERIES[0], f"{x:g} passes: {y:.3g} ms") for x, y in middle]
    title = "Time for one image"
    description = (
        "Median and 95th percentile of the milliseconds for one image against the number of Monte Carlo passes."
    )
    rows = [
        [f"{n}", f"{half:.3g}", f"{most:.3g}"]
        for n, half, most in zip(timing.passes, timing.p50_ms, timing.p95_ms, strict=True)
    ]
    return figure(
        title,
        [(SERIES[0], "median; the band ends at the 95th percentile")],
        drawing("latency", title, description, 284, frame.axes("Monte Carlo passes N", "milliseconds"), *parts),
        table(["passes", "median ms", "95 % ms"], rows),
    )


def figure(
    title: str, legend: Iterable[tuple[Series | None, str]], drawn: Markup, numbers: Markup | None = None
) -> Markup:
    """A drawing with its title, legend and collapsed numbers."""
    return element(
        "figure",
        element("figcaption", title),
        keys(legend),
        drawn,
        numbers and element("details", element("summary", "The numbers"), numbers),
    )


def keys(legend: Iterable[tuple[Series | None, str]]) -> Markup | None:
    """A legend; None stands for the diagonal."""
    ideal = element("path", d="M1 13L27 1", class_="ideal")
    diagonal = element("svg", ideal, viewBox="0 0 28 14", class_="sample", aria_hidden="true")
    entries = [element("li", sample(series) if series else diagonal, words) for series, words in legend]
    return element("ul", *entries, class_="legend") if entries else None


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that scrolls on a narrow screen."""
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element("div", element("table", element("thead", top), element("tbody", *body)), class_="scroll")


def spelled(point: Operating) -> str:
    """A threshold, marked if it is stored."""
    return f"{'stored ' if point.origin is Origin.STORED else ''}{threshold(point.measured.threshold)}"


def decided(point: Operating) -> str:
    """The results of a threshold in one line."""
    counts = point.measured
    return (
        f"uncertainty at most {threshold(counts.threshold)}: {percent(counts.coverage)} accepted, "
        f"error {percent(counts.error)}, at most {at_most(counts.error_bound)}"
    )


def _operating(frame: Frame, x: float, y: float, point: Operating, row: int) -> Markup:
    y = min(y, frame.y_range[1])
    mark = frame.mark(x, y, SERIES[3], decided(point))
    place = text(frame.x(x) - 9, frame.y(y) - 9 - 14 * row, f"≤ {spelled(point)}", anchor="end", class_="note")
    return join([mark, place])


def whisker(frame: Frame, x: float, low: float, high: float, series: Series) -> Markup:
    """An interval around a value."""
    at, top, bottom = frame.x(x), frame.y(high), frame.y(low)
    path = f"M{at - 3:.1f} {top:.1f}h6M{at:.1f} {top:.1f}V{bottom:.1f}M{at - 3:.1f} {bottom:.1f}h6"
    return element("path", d=path, class_=f"whisker {series.colour}")


def _short(count: int) -> str:
    return f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"


def whole_percent(value: float) -> str:
    """A share for an axis in percent."""
    return f"{100 * value:.0f}"


def some_percent(value: float) -> str:
    """A share with three digits, for short axes."""
    return f"{100 * value:.3g}"
