"""The folder of a dossier: pages for people, files for programs."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from uce_edge.dossier import change_control, regulation
from uce_edge.dossier.contents import Dossier
from uce_edge.errors import UsageError, expected
from uce_edge.output.report import page
from uce_edge.output.report.class_tables import rate_table
from uce_edge.output.report.markup import Markup, element, join
from uce_edge.output.report.sections import Section, card_table
from uce_edge.output.wording import at_most, percent

INDEX, REPORT, DATA, BILL = "index.html", "report.html", "dossier.json", "sbom.cdx.json"
FILES = {
    INDEX: "this page",
    REPORT: "all metrics with charts, as uce-edge evaluate --report writes them",
    DATA: "everything, for programs",
    BILL: "the software bill of materials, CycloneDX 1.6",
}
_KEPT = {True: "kept", False: "BROKEN", None: "these images cannot decide"}


def check_place(out: Path) -> None:
    """Refuse a place that holds something else than a dossier."""
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / DATA).is_file())):
        rule = "a new folder, or the folder of an earlier dossier, which is replaced"
        raise UsageError(expected("`out`", rule, out, "Choose another folder"), "dossier.place", path=out)


def write(dossier: Dossier, out: Path, command: str) -> None:
    """Write all files, or none.

    Args:
        dossier: The contents.
        out: The folder; an earlier dossier there is replaced.
        command: The command that writes it again.
    """
    check_place(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        (draft / INDEX).write_text(render(dossier, command), encoding="utf-8")
        (draft / REPORT).write_text(page.render(dossier.evaluation), encoding="utf-8")
        (draft / DATA).write_text(json.dumps(dossier.as_dict(), indent=2, allow_nan=False), encoding="utf-8")
        (draft / BILL).write_text(dossier.bill, encoding="utf-8")
        draft.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        draft.replace(out)
    except OSError as error:
        raise UsageError(
            expected("`out`", "a folder that can be written", f"{out} ({error.strerror})", "Choose another folder"),
            "dossier.place",
            path=out,
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def render(dossier: Dossier, command: str) -> str:
    """The page for people."""
    evaluation = dossier.evaluation
    accuracy = evaluation.metrics["accuracy"]
    files = element("ul", *(element("li", element("a", name, href=name), f": {text}") for name, text in FILES.items()))
    use = dossier.intended_use or "Not stated. The maker must add it: --intended-use."
    findings = [
        ("Intended use", use),
        ("Model", f"sha256 {evaluation.model_sha256}"),
        ("Accuracy", f"{percent(accuracy.value)} on {evaluation.images:,} test images"),
        *(("Promise", f"{one.promise}: {_KEPT[one.kept]} ({one.here})") for one in dossier.promises),
    ]
    return page.document(
        f"Dossier of {evaluation.model}",
        f"Made on {dossier.created} from {dossier.data.name}, {dossier.data.part}. No legal advice.",
        element("section", files, class_="card answer"),
        (),
        findings,
        _sections(dossier),
        command,
    )


def _sections(dossier: Dossier) -> list[Section]:
    return [
        Section("model", "Model", "What the file states about itself.", _pairs(dossier.model)),
        Section("data", "Data", "The images of this dossier took part in no fit.", _data(dossier)),
        Section("metrics", "Metrics", "The report has all metrics with charts.", _metrics(dossier)),
        Section("subgroups", "Subgroups", _SUBGROUPS, _subgroups(dossier)),
        Section("promises", "Promises", "Each promise, how it was proved, and these images.", _promises(dossier)),
        Section("limits", "Known limits", "Read these before you rely on an answer.", _list(dossier.limits)),
        Section("change", "Change control", _CHANGE, _change(dossier)),
        Section("log", "Log and replay", _LOG, _list(_REPLAY)),
        Section("questions", "Questions of regulators", _QUESTIONS, _questions()),
    ]


_SUBGROUPS = "By the columns that were requested with --by. Few images give wide intervals."
_CHANGE = (
    "Recalibration on the device changes numbers, never the network. A changed file is used after it has passed these "
    "checks on the images of this dossier."
)
_LOG = "Every decision can be recorded in a log whose lines hold each other's hashes, and computed again later."
_REPLAY = (
    "Record: uce-edge predict IMAGES --model MODEL.onnx --reject auto --audit decisions.jsonl",
    "Each line has the digest of the image and of the model file, the seed, the passes, the outputs and the decision.",
    "Check: uce-edge replay decisions.jsonl. It reports changed, missing and added lines, and other answers.",
    "Watch: uce-edge monitor decisions.jsonl --state state.json. It raises an alarm when the images change.",
)
_QUESTIONS = (
    "Where this dossier answers questions of the FDA's guidance on predetermined change control plans and of articles "
    "11, 12 and 15 of the EU AI Act. It is no legal advice, and the lists are not complete."
)


def _pairs(rows: dict[str, list[str]]) -> Markup:
    return _texts((), [(name, join(element("div", line) for line in lines)) for name, lines in rows.items()])


def _texts(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table of sentences, which wrap, unlike numbers."""
    top = element("thead", element("tr", *(element("th", cell, scope="col", class_="meaning") for cell in head)))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell, class_="meaning") for cell in others))
        for first, *others in rows
    ]
    table = element("table", bool(head) and top, element("tbody", *body))
    return element("div", element("div", table, class_="scroll"), class_="card table")


def _data(dossier: Dossier) -> Markup:
    card = dossier.data
    rows = {
        "images": [f"{card.images:,}: {card.name}, {card.part}"],
        "classes": [f"{name}: {count:,}" for name, count in list(card.by_class.items())[:50]],
        "groups": ["images are independent" if card.groups is None else f"{card.groups:,}"],
        "sha256": [card.sha256],
        "digests of the splits of training": [f"{name}: {digest}" for name, digest in card.training.items()],
    }
    return _pairs(rows)


def _metrics(dossier: Dossier) -> Markup:
    rows = [
        (
            name,
            *("undefined" if value is None else f"{value:.4g}" for value in (one.value, one.low, one.high, one.twin)),
        )
        for name, one in dossier.evaluation.metrics.items()
    ]
    classes = dossier.evaluation.classes
    return join(
        [
            card_table(("metric", "value", "low", "high", "calibrated twin"), rows),
            element("h3", "By class"),
            element("p", f"Every class against all others, each share with its interval ({classes.interval})."),
            rate_table(classes),
        ]
    )


def _subgroups(dossier: Dossier) -> Markup:
    if not dossier.subgroups:
        return element("p", "None were requested.", class_="quiet")
    head = ("", "images", "accuracy", "95 % interval", "accepted", "wrong among them", "95 % bound")
    tables = []
    for column, found in dossier.subgroups.items():
        rows = [
            (
                one.value,
                f"{one.images:,}",
                percent(one.accuracy),
                f"{percent(one.accuracy_low)} to {percent(one.accuracy_high)}",
                f"{one.accepted:,}",
                f"{one.errors:,}",
                "" if one.error_bound is None else at_most(one.error_bound),
            )
            for one in found
        ]
        tables += [element("h3", column), card_table(head, rows)]
    return join(tables)


def _promises(dossier: Dossier) -> Markup:
    if not dossier.promises:
        return element("p", "The file makes no promise: uce-edge calibrate --target-error.", class_="quiet")
    rows = [(_KEPT[one.kept], one.promise, one.proved_on, one.here) for one in dossier.promises]
    return _texts(("", "promise", "proved on", "here"), rows)


def _change(dossier: Dossier) -> Markup:
    may = [(element("code", name), text) for name, text in change_control.MAY_CHANGE.items()]
    checks = [(one.name, one.condition, element("code", one.command)) for one in dossier.checks]
    return join(
        [
            _texts(("may change", "what it is"), may),
            element("h3", "Must not change"),
            _list(change_control.MUST_NOT_CHANGE),
            _texts(("check", "passes when", "command"), checks),
        ]
    )


def _questions() -> Markup:
    return _texts(("source", "question", "answered by"), [tuple(one) for one in regulation.QUESTIONS])


def _list(items: tuple[str, ...] | list[str]) -> Markup:
    return element("ul", *(element("li", item) for item in items), class_="card")
