"""The parts of a report below its answer, each a heading, a sentence that says how to read it, and its content."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from uce_edge.evaluation import Evaluation
from uce_edge.evaluation.class_results import Classes
from uce_edge.evaluation.latency import Latency
from uce_edge.evaluation.ood import OutOfDistribution
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

_TESTED = {"ece": "confidence", "tuce": "uncertainty"}  # metrics that a test decides
_CLASSES = 30  # names that are shown at once


class Section(NamedTuple):
    """One part of the page."""

    anchor: str
    title: str
    lead: str
    content: Markup


def sections(evaluation: Evaluation) -> list[Section]:
    """What this evaluation has something to say about."""
    parts = [
        Section(
            "metrics",
            "Metrics",
            f"On {wording.count(evaluation.images, 'image')}, each with what a perfectly calibrated twin would score: "
            f"a "
            "model with the same probabilities whose labels really follow them. ▲ marks a model that is not "
            "calibrated, by a two-sided test over bins of the confidence (ECE) or of the uncertainty (T-UCE). The twin "
            f"of UCE is for information: overconfidence can lower UCE, too. {wording.INTERVALS}",
            _metrics(evaluation),
        ),
        Section(
            "reliability",
            "Reliability",
            "Points on the diagonal mean what they say. Entropy is not a probability of error, so a perfectly "
            "calibrated model is not on the diagonal of the second chart, but on the dotted line with triangles.",
            chart_grid(charts.reliability(kind, diagram) for kind, diagram in evaluation.reliability.items()),
        ),
        Section(
            "rejection",
            "Rejection",
            "The most uncertain images are rejected first. The bound holds for one threshold that was fixed before "
            "looking at these images.",
            _rejection(evaluation),
        ),
    ]
    parts.insert(1, _classes(evaluation.classes))
    parts += [_foreign(evaluation, ood, number) for number, ood in enumerate(evaluation.ood)]
    if evaluation.shift is not None:
        parts.append(_shift(evaluation.shift, evaluation.metadata.image, gated=evaluation.gated is not None))
    parts.append(_images(evaluation))
    if evaluation.latency is not None:
        parts.append(_latency(evaluation.latency, evaluation))
    parts.append(Section("card", "Model card", "What the file says of itself.", _card(evaluation.metadata, evaluation)))
    return parts


def _classes(classes: Classes) -> Section:
    return Section(
        "classes",
        "Classes",
        f"Every class against all others, each share with its interval ({classes.interval}). "
        "Sensitivity and specificity belong to the model. PPV and NPV also depend on how common a class is: they hold "
        "where the classes are as frequent as in these images.",
        join([rate_table(classes), confusion(classes)]),
    )


def chart_grid(figures: Iterable[Markup], kind: str = "") -> Markup:
    """Charts beside each other, as many as there is room for."""
    return element("div", *figures, class_=f"charts {kind}".strip())


def card_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table as a part of the page."""
    return element("div", charts.table(head, rows), class_="card table")


def _metrics(evaluation: Evaluation) -> Markup:
    head = ["metric", "value", "95 % interval", "calibrated twin", "difference", "meaning"]
    rows, group = [], ""
    for name, score in evaluation.metrics.items():
        spoken = wording.METRICS[name]
        if spoken.group != group:
            group = spoken.group
            rows.append(element("tr", element("th", group, colspan=len(head), scope="colgroup"), class_="group"))
        meaning = spoken.meaning
        marked = (name in _TESTED and evaluation.reliability[_TESTED[name]].test.flagged) or None
        if name.startswith("classwise") and evaluation.unpredicted_classes:
            meaning += f" {wording.count(evaluation.unpredicted_classes, 'class')} never predicted and left out."
        rows.append(
            element(
                "tr",
                element("th", spoken.title, scope="row"),
                element("td", element("strong", wording.score(score.value, spoken))),
                element("td", wording.interval(score.low, score.high, spoken)),
                element("td", wording.score(score.twin, spoken)),
                element(
                    "td",
                    wording.score(score.difference, spoken, signed=True),
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
    whose = {"asked": "asked for", "stored": "stored in the file", "example": "an example: none is stored"}
    rows = [
        [
            f"{wording.threshold(point.measured.threshold)} ({whose[point.origin]})",
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


def _foreign(evaluation: Evaluation, ood: OutOfDistribution, number: int) -> Section:
    rows = [wording.separation(name, detection) for name, detection in ood.detection.items()]
    head = ["score", "AUROC", "95 % interval", "FPR at 95 %", "95 % interval"]
    lead = (
        f"{wording.count(ood.images, 'image')} of {ood.name}, which have no right label here. AUROC is the chance "
        "that a foreign image has the larger score than an own one; FPR at 95 % is the share of foreign images that is "
        f"accepted where 95 % of the own ones are. The threshold in use accepts {percent(ood.accepted)} of them."
    )
    if ood.gated is not None and evaluation.gated is not None:
        lead += (
            f" With the gate against foreign images it is {percent(ood.gated)}; the gate turns away "
            f"{percent(evaluation.gated.own_rejected)} of the own images."
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
    title = "Foreign images" if len(evaluation.ood) == 1 else f"Foreign images: {ood.name}"
    return Section(numbered("foreign", number), title, lead, join([card_table(head, rows), missing, by_kind, drawn]))


def _shift(shift: Shift, spec: ImageSpec, *, gated: bool) -> Section:
    lead = (
        f"The same {wording.count(shift.images, 'image')}, damaged more and more. A model that notices loses coverage "
        f"as "
        f"fast as accuracy: what it still accepts at uncertainty ≤ {wording.threshold(shift.threshold)} stays right."
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
    """The damage that the network was trained with, apart from the other kinds."""
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
    return join([element("h3", "All severities, by what training has seen"), card_table(head, rows)])


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
    lead = (
        f"Measured on {latency.provider} of the machine that wrote this report; uce-edge bench measures with more care."
    )
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
