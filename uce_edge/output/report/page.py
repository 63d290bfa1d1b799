"""Render the HTML page of a report."""

import shlex
from collections.abc import Iterable, Sequence
from importlib import resources

from uce_edge import __version__
from uce_edge.evaluation import Evaluation
from uce_edge.evaluation.threshold_curves import Operating, Origin
from uce_edge.output.report import summary
from uce_edge.output.report.markup import Markup, element, join
from uce_edge.output.report.sections import Section, sections
from uce_edge.output.wording import count

# The page loads nothing and runs no script, even if a class name contains HTML.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render(evaluation: Evaluation) -> str:
    """Render an evaluation."""
    metadata = evaluation.metadata
    passes = count(evaluation.samples, "pass")
    about = (
        f"{metadata.architecture or 'A classifier'}, {len(metadata.classes)} classes, "
        f"{count(evaluation.images, 'image')}, {passes}, seed {evaluation.seed}"
    )
    return document(
        f"{evaluation.model} on {evaluation.data}, {evaluation.part}",
        about,
        _answer(evaluation),
        evaluation.notes,
        summary.findings(evaluation),
        sections(evaluation),
        _command(evaluation),
    )


def document(
    title: str,
    about: str,
    answer: Markup,
    notes: Sequence[str],
    findings: Iterable[tuple[str, str]],
    parts: Sequence[Section],
    command: str,
) -> str:
    """Render a page.

    Args:
        title: The heading.
        about: The line below the heading.
        answer: The main result.
        notes: Caveats of the numbers.
        findings: Other results, each a topic and a sentence or two.
        parts: The sections.
        command: The command that writes the page again.
    """
    style = resources.files("uce_edge.output.report").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"uce-edge {__version__}"),
        element("title", f"{title} – uce-edge"),
        element("style", Markup(style)),
    )
    found = (join([element("dt", what), element("dd", text)]) for what, text in findings)
    body = element(
        "body",
        element(
            "main",
            element("header", element("h1", title), element("div", about, class_="quiet")),
            element("nav", *(element("a", part.title, href=f"#{part.anchor}") for part in parts)),
            answer,
            bool(notes) and element("ul", *(element("li", note) for note in notes), class_="notes"),
            element("dl", *found, class_="card findings"),
            *(
                element("section", element("h2", part.title), element("p", part.lead), part.content, id=part.anchor)
                for part in parts
            ),
            element("footer", "Made with uce-edge ", __version__, ": ", element("code", command)),
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _answer(evaluation: Evaluation) -> Markup:
    point = evaluation.rejection[0]
    return element(
        "section",
        element("p", summary.headline(evaluation), class_="headline"),
        _decisions(point),
        element("p", summary.measured(point, evaluation), class_="quiet"),
        class_="card answer",
    )


def _decisions(point: Operating) -> Markup:
    """All images as one bar: accepted and right, accepted and wrong, rejected."""
    counts = point.measured
    rejected = counts.images - counts.accepted - point.rejected_errors
    shares = [
        ("is-right", counts.accepted - point.errors, "accepted and right"),
        ("is-wrong", point.errors, "accepted and wrong"),
        ("is-rejected-wrong", point.rejected_errors, "rejected, would have been wrong"),
        ("is-rejected", rejected, "rejected, would have been right"),
    ]
    words = ", ".join(f"{number:,} {what}" for _, number, what in shares)
    bar = [element("span", class_=kind, style=f"flex-grow:{number}") for kind, number, _ in shares if number]
    keys = [element("li", element("i", class_=kind), f"{number:,} {what}") for kind, number, what in shares]
    return join(
        [
            element("div", *bar, class_="bar-of", role="img", aria_label=words),
            element("ul", *keys, class_="bar-keys"),
        ]
    )


def _command(evaluation: Evaluation) -> str:
    """The command that writes this report again."""
    parts = ["uce-edge", "evaluate", evaluation.model, "--data", evaluation.data]
    for ood in evaluation.ood:
        parts += ["--ood", ood.name]
    if evaluation.rejection[0].origin is Origin.ASKED:
        parts += ["--reject", str(evaluation.rejection[0].measured.threshold)]
    if evaluation.shift is not None:
        parts += ["--corrupt", "--corrupt-images", str(evaluation.shift.images)]
    if evaluation.latency is None:
        parts.append("--no-latency")
    if evaluation.samples != evaluation.metadata.samples:
        parts += ["--samples", str(evaluation.samples)]
    if evaluation.seed:
        parts += ["--seed", str(evaluation.seed)]
    return shlex.join([*parts, "--report", "report.html"])
