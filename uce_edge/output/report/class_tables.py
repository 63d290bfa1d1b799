"""Tables of the rates and the confusion of classes."""

import math

from uce_edge.evaluation.class_results import MOST, Classes
from uce_edge.metrics import Proportion
from uce_edge.output import wording
from uce_edge.output.report import charts
from uce_edge.output.report.markup import Markup, element, join

_MATRIX = "Images by true class (row) and predicted label (column). A fuller colour is a larger share of the row."


def rate_table(classes: Classes) -> Markup:
    """Sensitivity, specificity, PPV and NPV of all or the worst classes."""
    shown = classes.shown
    head = ["class", "images", "labelled so", *wording.RATE_TITLES]
    rows = [
        [one.name, f"{one.images:,}", f"{one.predicted:,}", *(_cell(getattr(one, rate)) for rate in wording.RATES)]
        for one in shown
    ]
    table = element("div", charts.table(head, rows), class_="card table")
    if len(shown) == len(classes.rates):
        return table
    note = f"The {len(shown)} of {len(classes.rates)} classes with the lowest sensitivity; the JSON has all."
    return join([table, element("p", note, class_="quiet")])


def confusion(classes: Classes) -> Markup:
    """The matrix of a few classes, or the most confused pairs of many."""
    if classes.confusion is None:
        return _pairs(classes)
    names = [one.name for one in classes.rates]
    top = element(
        "tr", element("th", "truth ↓ label →", scope="col"), *(element("th", name, scope="col") for name in names)
    )
    rows = []
    for truth, (name, counts) in enumerate(zip(names, classes.confusion.tolist(), strict=True)):
        images = sum(counts)
        cells = [
            element(
                "td",
                f"{count:,}" if count else "·",
                class_="hit" if label == truth else "miss" if count else None,
                style=f"--share:{100 * count / images:.0f}%" if count else None,
                title=f"{count:,} of {images:,} images of {name} labelled {names[label]}",
            )
            for label, count in enumerate(counts)
        ]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    table = element("table", element("thead", top), element("tbody", *rows), class_="confusion")
    return join(
        [
            element("h3", "Confusion matrix"),
            element("p", _MATRIX),
            element("div", element("div", table, class_="scroll"), class_="card table"),
        ]
    )


def _pairs(classes: Classes) -> Markup:
    if not classes.confused:
        return element("p", "No image is labelled as another class.", class_="quiet")
    rows = [[one.truth, one.label, f"{one.count:,}", wording.percent(one.share)] for one in classes.confused]
    return join(
        [
            element("h3", "Most confused classes"),
            element("p", f"The pairs with most images, {MOST} at most, of {len(classes.rates)} classes."),
            element(
                "div",
                charts.table(["truth", "label", "images", "of the true class"], rows),
                class_="card table",
            ),
        ]
    )


def _cell(counted: Proportion) -> Markup:
    if math.isnan(counted.value):
        return join([wording.MISSING])
    note = f"{counted.count:,} of {counted.of:,}"
    ends = element("span", wording.interval(counted.low, counted.high, wording.SHARE), class_="interval")
    return join([element("strong", wording.percent(counted.value), title=note), ends])
