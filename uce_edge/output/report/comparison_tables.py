"""The tables and the page of a comparison."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from uce_edge.evaluation.comparison import COMPARED, OOD_SCORES, Compared, Comparison
from uce_edge.output import wording
from uce_edge.output.report import charts, comparison_charts, verdict
from uce_edge.output.report.markup import Markup, element, join, numbered
from uce_edge.output.report.page import document
from uce_edge.output.report.sections import Section, card_table, chart_grid
from uce_edge.output.wording import METRICS, MISSING, SCORES, SHARE, percent


class Table(NamedTuple):
    """Column names, and rows of text."""

    head: list[str]
    rows: list[list[str]]


def quality(comparison: Comparison) -> Table:
    """Every metric of every file, and the twin of the UCE."""
    head = ["file", *(METRICS[metric].title for metric in COMPARED)]
    at = head.index("UCE") + 1
    head.insert(at, "calibrated twin")
    rows = []
    for one in comparison.files:
        scores = one.evaluation.metrics
        row = [one.name, *(wording.score(scores[metric].value, METRICS[metric]) for metric in COMPARED)]
        row.insert(at, wording.score(scores["uce"].twin, METRICS["uce"]))
        rows.append(row)
    return Table(head, rows)


def differences(comparison: Comparison) -> Table:
    """Every file less the reference, with paired intervals."""
    head = [f"less {comparison.reference}", *(METRICS[metric].title for metric in COMPARED)]
    rows = [
        [
            one.name,
            *(
                verdict.difference(one.differences[metric], METRICS[metric]) if metric in one.differences else MISSING
                for metric in COMPARED
            ),
        ]
        for one in comparison.files
        if one.name != comparison.reference
    ]
    return Table(head, rows)


def promises(comparison: Comparison) -> Table | None:
    """The results of the stored rules; None if no file has one."""
    if not any(one.kept for one in comparison.files):
        return None
    rows = [[one.name, *([MISSING] * 5 if one.kept is None else _kept(one))] for one in comparison.files]
    less = f"accepted, less {comparison.reference}"
    return Table(["the stored rule", "promised error", "accepted", "error", "95 % bound", less], rows)


def _kept(one: Compared) -> list[str]:
    kept = one.kept
    assert kept is not None
    return [
        wording.at_most(kept.target_error),
        percent(kept.coverage),
        percent(kept.error),
        wording.at_most(kept.error_bound),
        MISSING if one.coverage is None else verdict.difference(one.coverage, SHARE),
    ]


def set_sizes(comparison: Comparison) -> Table | None:
    """The prediction sets of every file; None if no file has any."""
    if not any(one.evaluation.sets for one in comparison.files):
        return None
    rows = []
    for one in comparison.files:
        sets, gap = one.evaluation.sets, one.set_size
        if sets is None:
            rows.append([one.name, *[MISSING] * 4])
            continue
        less = MISSING if gap is None else f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"
        promised = f"{100 * (1 - sets.alpha):.4g}{' of every class' if sets.by_class else ''}"
        rows.append([one.name, promised, wording.proportion(sets.covered), f"{sets.size.value:.2f}", less])
    less = f"mean size, less {comparison.reference}"
    return Table(["prediction sets", "promised, %", "with the true label, %", "mean size", less], rows)


def detection(comparison: Comparison, at: int) -> Table:
    """The AUROC of every score of every file on an out-of-distribution set."""
    name = comparison.files[0].evaluation.ood[at].name
    gated = any(one.evaluation.ood[at].gated is not None for one in comparison.files)
    scores = OOD_SCORES if gated else OOD_SCORES[:1]
    head = [f"out of distribution: {name}"]
    for score in scores:
        head += [f"AUROC: {SCORES[score]}", f"less {comparison.reference}"]
    rows = []
    for one in comparison.files:
        ood = one.evaluation.ood[at]
        row = [one.name]
        for score in scores:
            found, gap = ood.detection.get(score), one.ood.get(name, {}).get(score)
            row.append(MISSING if found is None else percent(found.auroc.value))
            row.append(MISSING if gap is None else verdict.difference(gap, SHARE))
        rows.append([*row, percent(ood.accepted), *([percent(ood.gated)] if gated else [])])
    return Table([*head, "accepted", *(["with the gate"] if gated else [])], rows)


def prices(comparison: Comparison) -> Table:
    """The cost of one image with every file."""
    measured = any(one.price.measured for one in comparison.files)
    head = ["price of one image", "passes", "MB", "million MACs", "ratio"]
    head += ["ms, median", "ratio", "ms, best", "ratio"] if measured else []
    rows = []
    for one in comparison.files:
        cost, timed = one.price, one.price.measured
        row = [one.name, f"{cost.passes}", f"{cost.file_mb:.2f}"]
        row.append(MISSING if cost.macs is None else f"{cost.macs / 1e6:,.1f}")
        row.append(_times(one.macs_ratio))
        if timed is not None:
            row += [f"{timed.p50_ms:.3g}", _times(timed.ratio), f"{timed.best_ms:.3g}", _times(timed.ratio_best)]
        rows.append(row)
    return Table(head, rows)


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{verdict.times(ratio)}x"


def tables(comparison: Comparison) -> list[Table]:
    """All tables in order."""
    detected = [detection(comparison, at) for at in range(len(comparison.files[0].evaluation.ood))]
    optional = [table for table in (promises(comparison), set_sizes(comparison)) if table]
    return [quality(comparison), differences(comparison), *optional, *detected, prices(comparison)]


def how_timed(comparison: Comparison) -> str:
    """The setup of the measurement, as a sentence."""
    cores = wording.count(comparison.threads, "thread") if comparison.threads else "all cores"
    provider = comparison.files[0].evaluation.provider.removesuffix("ExecutionProvider")
    return f"One image at a time, {provider}, {cores}; the files took turns, each in its own process."


def render(comparison: Comparison, command: Sequence[str]) -> str:
    """Render the page.

    Args:
        comparison: The results.
        command: The words of the command that writes the page again.
    """
    one = comparison.files[0].evaluation
    title = f"{len(comparison.files)} files on {one.data}, {one.part}"
    about = (
        f"{', '.join(file.name for file in comparison.files)}: {len(one.metadata.classes)} classes, "
        f"{wording.count(one.images, 'image')}, seed {one.seed}"
    )
    answer = element(
        "section",
        element("p", verdict.sentence(comparison), class_="headline"),
        element(
            "p",
            "Judged by accuracy (labels), NLL (probabilities) and AURC (which images are rejected first). A tie is a "
            "difference whose paired 95 % interval contains 0. The intervals are for one difference at a time and do "
            "not include the variation between training runs.",
            class_="quiet",
        ),
        class_="card answer",
    )
    found = verdict.findings(comparison)
    return document(title, about, answer, comparison.notes, found, _sections(comparison), shlex.join(command))


def _sections(comparison: Comparison) -> list[Section]:
    lead = f"Differences are a file's value less that of {comparison.reference}. {wording.INTERVALS}"
    parts = [
        Section(
            "quality",
            "Quality",
            f"{lead} T-UCE judges the uncertainty. The paper's UCE is not 0 for a perfect file and can be smaller for "
            "an overconfident one.",
            join([_quality(comparison), element("h3", "Differences"), _stacked(differences(comparison))]),
        )
    ]
    kept = promises(comparison)
    names = {one.name: one.name for one in comparison.files}
    curves = {one.name: one.evaluation.risk_coverage["uncertainty"] for one in comparison.files}
    drawn = [charts.risk_coverage(curves, (), names), comparison_charts.reliability(comparison)]
    parts.append(
        Section(
            "curves",
            "Rejection and confidence",
            "In the first chart the most uncertain images are rejected first, and lower is better. In the second one, "
            f"bins with fewer than {comparison_charts.FEW} images are left out.",
            chart_grid(drawn),
        )
    )
    if kept is not None:
        lead = (
            "The results of reject auto, with the cutoff on novelty of a file that has one. A larger coverage at the "
            "same promised error is better, as long as the error stays below it."
        )
        parts.append(Section("promise", "At the promised error", lead, _stacked(kept)))
    sized = set_sizes(comparison)
    if sized is not None:
        lead = "Of files that keep the same promise, the one with the smaller sets says more."
        parts.append(Section("sets", "Prediction sets", lead, _stacked(sized)))
    for at, ood in enumerate(comparison.files[0].evaluation.ood):
        lead = (
            f"{wording.count(ood.images, 'image')} of {ood.name}, which have no right label here. AUROC is the chance "
            "that an out-of-distribution image has a larger score than an in-distribution image."
        )
        title = f"Out of distribution: {ood.name}"
        parts.append(Section(numbered("ood", at), title, lead, _stacked(detection(comparison, at))))
    paid = [figure for metric in ("nll", "aurc") if (figure := comparison_charts.price(comparison, metric)) is not None]
    timed = any(one.price.measured for one in comparison.files)
    lead = "Multiply-accumulates (MACs) are those that the files state, at their own numbers of passes."
    lead = f"{how_timed(comparison)} {lead}" if timed else lead
    parts.append(Section("price", "Price", lead, join([card_table(*prices(comparison)), chart_grid(paid)])))
    lead = "The compared files. For all results of one file: uce-edge evaluate FILE --report"
    parts.append(Section("files", "Files", lead, card_table(*_files(comparison))))
    return parts


def _stacked(table: Table) -> Markup:
    """A table with the bracketed interval of each value below it."""
    rows = []
    for row in table.rows:
        split = [cell.removesuffix(")").partition(" (") for cell in row[1:]]
        cells = (
            [element("strong", value), element("span", ends, class_="interval")] if ends else [value]
            for value, _, ends in split
        )
        rows.append([row[0], *(join(cell) for cell in cells)])
    return card_table(table.head, rows)


def _quality(comparison: Comparison) -> Markup:
    """The first table with an interval below every value."""
    table = quality(comparison)
    rows = []
    for one, row in zip(comparison.files, table.rows, strict=True):
        cells = [element("th", one.name, scope="row")]
        for title, value in zip(table.head[1:], row[1:], strict=True):
            metric = next((name for name in COMPARED if METRICS[name].title == title), None)
            below = None
            if metric is not None:
                measured = one.evaluation.metrics[metric]
                ends = wording.interval(measured.low, measured.high, METRICS[metric])
                below = element("span", ends, class_="interval")
            cells.append(element("td", element("strong", value) if metric else value, below))
        rows.append(element("tr", *cells, class_="reference" if one.name == comparison.reference else None))
    top = element("thead", element("tr", *(element("th", cell, scope="col") for cell in table.head)))
    inner = element("div", element("table", top, element("tbody", *rows)), class_="scroll")
    return element("div", inner, class_="card table")


def _files(comparison: Comparison) -> Table:
    rows = []
    for one in comparison.files:
        metadata = one.evaluation.metadata
        kind = str(metadata.inference) + (f", {metadata.posterior}" if metadata.posterior else "")
        kind += f", {metadata.members} members" if metadata.members > 1 else ""
        calibrated = str(metadata.calibration.method)
        rows.append([one.name, metadata.architecture or MISSING, kind, calibrated, one.evaluation.model_sha256[:16]])
    return Table(["file", "network", "inference", "calibration", "SHA-256, first digits"], rows)
