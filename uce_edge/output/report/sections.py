"""The sections of a report, each with a heading and a lead."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from uce_edge.evaluation import Evaluation
from uce_edge.evaluation.class_results import Classes
from uce_edge.evaluation.latency import Latency
from uce_edge.evaluation.ood import OutOfDistribution
from uce_edge.evaluation.set_results import Sets
from uce_edge.evaluation.shift import Shift
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.output import wording
from uce_edge.output.report import charts
from uce_edge.output.report.class_tables import confusion, rate_table
from uce_edge.output.report.markup import Markup, element, join, numbered
from uce_edge.output.report.svg import SERIES
from uce_edge.output.report.thumbnails import gallery, strip
from uce_edge.output.wording import percent
from uce_edge.rejection.description import describe

_TESTED = {"ece": "confidence", "tuce": "uncertainty"}  # metrics with a significance test
_CLASSES = 30  # the most class names before the rest is collapsed


class Section(NamedTuple):
    """One part of the page."""

    anchor: str
    title: str
    lead: str
    content: Markup


def sections(evaluation: Evaluation) -> list[Section]:
    """The sections of an evaluation."""
    parts = [
        Section(
            "metrics",
            "Metrics",
            f"On {wording.count(evaluation.images, 'image')}, each with the score of a perfectly calibrated twin: a "
            "model with the same probabilities whose labels follow them. ▲ marks a model that is not calibrated, by a "
            "two-sided test over bins of the confidence (ECE) or of the uncertainty (T-UCE). The twin of UCE is for "
            f"information: overconfidence can lower UCE, too. {wording.INTERVALS}",
            _metrics(evaluation),
        ),
        Section(
            "reliability",
            "Reliability",
            "In the first chart, a perfectly calibrated model is on the diagonal. Entropy is not a probability of "
            "error, so in the second chart it is on the dotted line with triangles.",
            chart_grid(charts.reliability(kind, diagram) for kind, diagram in evaluation.reliability.items()),
        ),
        Section(
            "rejection",
            "Rejection",
            "The most uncertain images are rejected first. The bound holds for one threshold that was chosen without "
            "these images.",
            _rejection(evaluation),
        ),
    ]
    parts.insert(1, _classes(evaluation.classes))
    if evaluation.sets is not None:
        parts.append(_sets(evaluation.sets, evaluation.classes))
    parts += [_out_of_distribution(evaluation, ood, number) for number, ood in enumerate(evaluation.ood)]
    if evaluation.shift is not None:
        parts.append(_shift(evaluation.shift, evaluation.metadata.image, gated=evaluation.gated is not None))
    parts.append(_images(evaluation))
    if evaluation.latency is not None:
        parts.append(_latency(evaluation.latency, evaluation))
    parts.append(Section("card", "Model card", "The metadata of the file.", _card(evaluation.metadata, evaluation)))
    return parts


def _classes(classes: Classes) -> Section:
    return Section(
        "classes",
        "Classes",
        f"Every class against all others, each share with its interval ({classes.interval}). "
        "Sensitivity and specificity are properties of the model. PPV and NPV also depend on prevalence: they hold "
        "where the classes are as frequent as in these images.",
        join([rate_table(classes), confusion(classes)]),
    )


def _sets(sets: Sets, classes: Classes) -> Section:
    about = "of every class" if sets.by_class else "together"
    return Section(
        "sets",
        "Prediction sets",
        f"The labels that an image may have. The promise is about all images {about} that are like those that fitted "
        "the sets. Nothing is promised for sets of one size, for accepted images alone, or for out-of-distribution "
        f"images. Intervals: {classes.interval}.",
        card_table(wording.SETS, wording.sets(sets, [one.name for one in classes.shown])),
    )


def chart_grid(figures: Iterable[Markup], kind: str = "") -> Markup:
    """Charts in a responsive grid."""
    return element("div", *figures, class_=f"charts {kind}".strip())


def card_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table in a card."""
    return element("div", charts.table(head, rows), class_="card table")


def _metrics(evaluation: Evaluation) -> Markup:
    head = ["metric", "value", "95 % interval", "calibrated twin", "difference", "meaning"]
    rows, group = [], ""
    for name, score in evaluation.metrics.items():
        words = wording.METRICS[name]
        if words.group != group:
            group = words.group
            rows.append(element("tr", element("th", group, colspan=len(head), scope="colgroup"), class_="group"))
        meaning = words.meaning
        marked = (name in _TESTED and evaluation.reliability[_TESTED[name]].test.flagged) or None
        if name.startswith("classwise") and evaluation.unpredicted_classes:
            meaning += f" {wording.count(evaluation.unpredicted_classes, 'class')} never predicted and left out."
        rows.append(
            element(
                "tr",
                element("th", words.title, scope="row"),
                element("td", element("strong", wording.score(score.value, words))),
                element("td", wording.interval(score.low, score.high, words)),
                element("td", wording.score(score.twin, words)),
                element(
                    "td",
                    wording.score(score.difference, words, signed=True),
                    marked and " ▲",
                    class_="above" if marked else None,
                ),
                element("td", meaning, score.why and element("em", f" {score.why}"), class_="meaning"),
            )
        )
    top = element(
        "thead",
        element(
            "tr",
            *(element("th", cell, scope="col") for cell in head[:-1]),
            element("th", head[-1], scope="col", class_="meaning"),
        ),
    )
    table = element("table", top, element("tbody", *rows))
    return element("div", element("div", table, class_="scroll"), class_="card table")


def _rejection(evaluation: Evaluation) -> Markup:
    points = evaluation.rejection
    origins = {"asked": "requested", "stored": "stored in the file", "example": "an example: none is stored"}
    rows = [
        [
            f"{wording.threshold(point.measured.threshold)} ({origins[point.origin]})",
            f"{point.measured.accepted:,} of {point.measured.images:,}",
            percent(point.measured.coverage),
            percent(point.measured.error),
            wording.at_most(point.measured.error_bound),
        ]
        for point in points
    ]
    head = ["uncertainty at most", "accepted", "coverage", "error", "95 % upper bound"]
    drawn = [charts.thresholds(evaluation.thresholds, points), charts.risk_coverage(evaluation.risk_coverage, points)]
    classes = (
        card_table(wording.LIMITS, wording.limits(evaluation.kept_classes)) if evaluation.kept_classes else Markup()
    )
    return join([card_table(head, rows), classes, chart_grid(drawn)])


def _out_of_distribution(evaluation: Evaluation, ood: OutOfDistribution, number: int) -> Section:
    rows = [wording.separation(name, detection) for name, detection in ood.detection.items()]
    head = ["score", "AUROC", "95 % interval", "FPR at 95 %", "95 % interval"]
    lead = (
        f"{wording.count(ood.images, 'image')} of {ood.name}, which have no right label here. AUROC is the chance that "
        "an out-of-distribution image has a larger score than an in-distribution image. FPR at 95 % is the share of "
        "them that is accepted where 95 % of the in-distribution images are. The threshold in use accepts "
        f"{percent(ood.accepted)} of them."
    )
    if ood.gated is not None and evaluation.gated is not None:
        lead += (
            f" With the cutoff on novelty it is {percent(ood.gated)}; the cutoff rejects "
            f"{percent(evaluation.gated.own_rejected)} of the in-distribution images."
        )
    gated = ood.gated is not None
    kinds = [
        [
            kind.name,
            wording.known(kind.seen),
            percent(kind.auroc["uncertainty"]),
            *([percent(kind.auroc["both"])] if gated else []),
            percent(kind.accepted),
            *([percent(kind.gated)] if gated else []),
        ]
        for kind in (*ood.kinds, *ood.apart)
    ]
    of_kinds = ["kind", "training", "AUROC: uncertainty H", *(["AUROC: both"] if gated else []), "accepted"]
    of_kinds += ["with the gate"] if gated else []
    by_kind = card_table(of_kinds, kinds) if kinds else Markup()
    drawn = chart_grid([charts.mixture(ood, number), charts.histograms(ood, evaluation.rejection[:1], number)])
    reasons = {detection.auroc.why for detection in ood.detection.values()} - {None}
    missing = join(element("p", reason, class_="quiet") for reason in sorted(map(str, reasons)))
    title = "Out of distribution" if len(evaluation.ood) == 1 else f"Out of distribution: {ood.name}"
    return Section(numbered("ood", number), title, lead, join([card_table(head, rows), missing, by_kind, drawn]))


def _shift(shift: Shift, spec: ImageSpec, *, gated: bool) -> Section:
    lead = (
        f"The same {wording.count(shift.images, 'image')} with growing damage. The coverage of a good model falls as "
        "fast as its accuracy, so that the images it accepts at uncertainty ≤ "
        f"{wording.threshold(shift.threshold)} are still right."
    )
    legend = charts.keys(zip(SERIES, [title for _, title in charts.SHIFTED], strict=True))
    drawn = chart_grid(
        (charts.shifted(kind, curve, strip(shift.pictures[kind], spec, kind)) for kind, curve in shift.curves.items()),
        "small",
    )
    untouched = next(iter(shift.curves.values()))[0]
    worst = [("none", untouched)]
    worst += [(wording.marked(kind, shift.seen(kind)), curve[-1]) for kind, curve in shift.curves.items()]
    head = ["damage", "accuracy", "mean uncertainty", "UCE", "accepted", "error of the accepted"]
    head += ["accepted with the gate", "error of these"] if gated else []
    rows = [
        [
            kind,
            percent(one.accuracy),
            wording.number(one.uncertainty),
            percent(one.uce),
            percent(one.coverage),
            percent(one.error),
            *([percent(one.gated_coverage), percent(one.gated_error)] if gated else []),
        ]
        for kind, one in worst
    ]
    content = join(
        [legend, drawn, element("h3", "At the worst severity"), card_table(head, rows), _apart(shift, gated)]
    )
    return Section("shift", "Damaged images", lead, content)


def _apart(shift: Shift, gated: bool) -> Markup:
    """The corruptions seen in training, apart from the unseen ones."""
    if not shift.apart:
        return Markup()
    head = ["kinds", "accuracy", "accepted", "error of the accepted"]
    head += ["accepted with the gate", "error of these"] if gated else []
    rows = [
        [
            f"{wording.known(group.seen)}: {', '.join(group.kinds)}",
            *map(percent, (group.accuracy, group.coverage, group.error)),
            *(map(percent, (group.gated_coverage, group.gated_error)) if gated else []),
        ]
        for group in shift.apart
    ]
    return join([element("h3", "All severities, seen and unseen in training"), card_table(head, rows)])


def _images(evaluation: Evaluation) -> Section:
    spec = evaluation.metadata.image
    parts = [element("h3", "Most uncertain"), gallery(evaluation.most_uncertain, spec)]
    parts.append(element("h3", "Wrong, and most certain of it"))
    if evaluation.confidently_wrong:
        parts.append(gallery(evaluation.confidently_wrong, spec))
    else:
        parts.append(element("p", "None: every label is right.", class_="quiet"))
    lead = "✓ marks right labels, ✗ wrong ones beside the truth."
    if any(one.name is None for one in (*evaluation.most_uncertain, *evaluation.confidently_wrong)):
        lead += " Images are numbered from 0, in the order of the data."
    return Section("images", "Images to look at", lead, join(parts))


def _latency(latency: Latency, evaluation: Evaluation) -> Section:
    own = dict(zip(latency.passes, latency.p50_ms, strict=True)).get(evaluation.samples)
    lead = f"Measured on {latency.provider} of the machine that wrote this report; uce-edge bench is more precise."
    if own is not None:
        lead = f"One image takes {own:.3g} ms at N = {evaluation.samples}. {lead}"
    if len(latency.passes) < 2:  # a deterministic model, or one too slow for more
        return Section("latency", "Latency", lead, Markup())
    return Section(
        "latency", "Latency", lead, chart_grid([charts.latency(latency, evaluation.metadata.samples)], "one")
    )


def _card(metadata: Metadata, evaluation: Evaluation) -> Markup:
    spec, calibration = metadata.image, metadata.calibration
    names = metadata.classes
    classes: list[object] = [f"{len(names)}: {', '.join(names[:_CLASSES])}"]
    if len(names) > _CLASSES:
        rest = ", ".join(names[_CLASSES:])
        classes.append(element("details", element("summary", f"and {len(names) - _CLASSES} more"), rest))
    fitted = str(calibration.method)
    if calibration.temperature is not None:
        fitted += f", T = {calibration.temperature:.4f}"
    if calibration.samples:
        fitted += f", fitted at N = {calibration.samples}"
    if calibration.report is not None:
        fitted += f" on {wording.count(calibration.report.images, 'image')}"
    noise = str(metadata.noise)
    if rates := [f"{layer.p:.3g}" for layer in sorted(metadata.layers, key=lambda layer: layer.p)]:
        span = rates[0] if rates[0] == rates[-1] else f"{rates[0]} to {rates[-1]}"
        noise += f", {wording.count(len(rates), 'noisy layer')}, dropout rate {span}"
    rows: dict[str, object] = {
        "file": f"{evaluation.model}, contract {metadata.contract}",
        "network": metadata.architecture or "unknown",
        "classes": join(classes),
        "image": f"{spec.height} × {spec.width} × {spec.channels}, {spec.dtype}",
        "inference": f"{metadata.inference}, {wording.count(metadata.samples, 'pass')} by default",
        "noise": noise,
        "calibration": fitted,
        "training saw": ", ".join(metadata.seen),
    }
    if metadata.rule is not None:
        rows["stored rule"] = describe(metadata.rule, metadata.classes)
    if metadata.costs is not None:
        total = metadata.costs.macs(metadata.samples)
        rows["cost"] = f"{2 * total / 1e6:,.1f} MFLOPs per image at {metadata.samples} passes"
    rows["SHA-256, file"] = element("code", evaluation.model_sha256)
    for name, digest in metadata.hashes.named().items():
        rows[f"SHA-256, {name.replace('/', ' ')}"] = element("code", digest)
    rows["made with"] = ", ".join(f"{tool} {version}" for tool, version in sorted(metadata.tools.items()))
    pairs = (join([element("dt", name), element("dd", content)]) for name, content in rows.items() if content)
    return element("dl", *pairs, class_="card")
