"""Model cards, measured with `uce-edge compare` and `uce-edge evaluate`."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes import Boxed

from uce_edge.contract import Inference
from uce_edge.datasets.splits import load
from uce_edge.metadata import Metadata, StoredScore
from uce_edge.output.wording import percent
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import graph_of, publish

ROOT = Path(__file__).resolve().parent.parent.parent
RIVALS = ROOT / "build" / "box"
THREADS = 2
SHOWN = {
    "accuracy": "accuracy", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "tuce": "T-UCE", "uce": "UCE",
    "classwise_uce": "classwise UCE", "aurc": "AURC", "auroc": "AUROC of errors",
}  # fmt: skip
JUDGED = ("accuracy", "nll", "aurc")
SCORES = ("uncertainty", "novelty", "both")

Found = dict[str, Any]


def write_card(boxed: Boxed) -> None:
    """Measure a model and its baselines; write page and cards."""
    sizes = boxed.sizes or _sizes(boxed)
    compared = _compared(boxed) if boxed.rivals else None
    outside = () if compared else _outside(boxed)
    group = () if boxed.group is None else ("--group", boxed.group)
    evaluated = _program("evaluate", boxed.file(boxed.kinds[0]), "--data", boxed.data, *group, *outside, "--no-latency",
                         "--json", "--corrupt", "--corrupt-images", boxed.damaged)  # fmt: skip
    files = {boxed.file(boxed.kinds[0]).stem: {"evaluation": evaluated}}
    if compared is not None:
        files = {Path(one["name"]).stem: one for one in compared["files"]}
    for kind in boxed.kinds:
        path = boxed.file(kind)
        scores = files[path.stem]["evaluation"]["metrics"]
        model = Model(path, "cpu")
        described = replace(
            model.metadata,
            metrics={name: _short(scores[name]) for name in SHOWN},
            card={
                "data": f"{boxed.called}: {sizes}; tested on {evaluated['images']} test images",
                "commands": list(boxed.commands),
                "seed": boxed.seed,
                "limits": list(boxed.limits),
                "licence": boxed.licence,
            },
        )
        with publish(graph_of(model), described, path):
            pass  # the graph stays as it is
    page = ROOT / "docs" / ("model-card.md" if boxed.name == "cifar10" else f"model-card-{boxed.name}.md")
    metadata = Model(boxed.file(boxed.kinds[0]), "cpu").metadata
    page.write_text(_page(boxed, sizes, files, compared, evaluated["shift"], metadata))
    print(f"Wrote {page}")


def _sizes(boxed: Boxed) -> str:
    """The number of images of every split."""
    splits = load(boxed.data, group=boxed.group).splits
    return ", ".join(f"{len(split):,} {name}" for name, split in splits.items())


def _outside(boxed: Boxed) -> list[str]:
    return [word for name in (*boxed.ood, "far") for word in ("--ood", name)]


def _compared(boxed: Boxed) -> Found:
    """Compare all files on test and out-of-distribution images."""
    with tempfile.TemporaryDirectory() as folder:
        rivals = [RIVALS / f"{name}.onnx" for name in boxed.rivals]
        paths = [*rivals, *map(boxed.file, boxed.kinds)]
        page = Path(folder) / "compare.html"
        return _program("compare", *paths, "--data", boxed.data, *_outside(boxed), "--images", 5_000, "--threads",
                        THREADS, "--report", page, "--json")  # fmt: skip


def _program(*words: object) -> Found:
    print("uce-edge", *words, flush=True)
    line = [sys.executable, "-m", "uce_edge", *map(str, words)]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _short(score: Found) -> StoredScore:
    names = ("value", "low", "high", "twin")
    return StoredScore(*(None if score[name] is None else round(score[name], 5) for name in names))


def _page(
    boxed: Boxed, sizes: str, files: dict[str, Found], compared: Found | None, damage: Found, metadata: Metadata
) -> str:
    own = {kind: files[boxed.file(kind).stem] for kind in boxed.kinds}
    alone = metadata.rule is not None and metadata.rule.threshold is not None
    hashes = [[name, f"`{value}`"] for name, value in metadata.hashes.splits.items()]
    parts = [
        f"# Model card: {boxed.name}",
        f"`python train/box card {boxed.name}` wrote this page from measurements of the bundled files. "
        f"`uce-edge info {boxed.name} --all` shows most of it from inside a file.",
        f"**What.** {boxed.what}",
        f"**Data.** {boxed.called}: {sizes} images. All numbers below are of the test images. Nothing was fitted on "
        "them.",
        *([_table(["split", "SHA-256"], hashes)] if hashes else []),
        f"**Made by** (seed {boxed.seed}):",
        "\n".join(f"    {line}" for line in ("export UCE_EDGE_DATA=data", *boxed.commands)),
        "**Limits.**\n\n" + "\n".join(f"- {line}" for line in boxed.limits),
        *(
            ["**How it was chosen and measured.**\n\n" + "\n".join(f"- {line}" for line in boxed.remarks)]
            if boxed.remarks
            else []
        ),
        "## How good its answers are",
        "In brackets stands a 95 % interval. *In italics* stands what a perfectly calibrated model with the same "
        "probabilities would score. T-UCE judges the uncertainty: UCE compares an entropy with an error rate, is not 0 "
        "even then, and can be smaller for an overconfident model.",
        _table(["", *own], [[title, *(_scored(name, one) for one in own.values())] for name, title in SHOWN.items()]),
        *(() if compared is None else ("## What the uncertainty costs and buys", _rivals(boxed, files, compared))),
        "## What it promises (`--reject auto`)",
        "A promise is about images drawn like the held-out ones, with 95 % confidence, and about all accepted images "
        f"together. The measured shares are of the test images: {boxed.tested}.",
        _promises(own, metadata),
        "## What it should reject",
        f"{boxed.foreign} `far` holds the kinds of made images that no choice looks at ([novelty](novelty.md)).",
        _ood(own, alone),
        _kinds(own[boxed.kinds[0]]),
        f"## Damaged images\n\n{boxed.damaged} test images, damaged in six ways at five severities, "
        f"`{boxed.kinds[0]}`. Each cell shows which share `--reject auto` accepts, and which share of these is wrong.",
        _damage(damage, alone),
        *(_aims(boxed, own[boxed.kinds[0]], damage) if boxed.aims else ()),
        f"**Licence.** {boxed.licence}",
    ]
    return "\n\n".join(parts) + "\n"


def _scored(name: str, one: Found) -> str:
    score = one["evaluation"]["metrics"][name]
    twin = "" if score["twin"] is None else f", *{_shown(name, score['twin'])}*"
    return f"{_shown(name, score['value'])} ({_shown(name, score['low'])} to {_shown(name, score['high'])}){twin}"


def _shown(name: str, value: float) -> str:
    return f"{value:.4f}" if name in ("nll", "brier") else percent(value, 2 if name == "aurc" else 1)


def _named(boxed: Boxed, verdict: str) -> str:
    """Replace file names by the names of the table."""
    for name, called in boxed.rivals.items():
        verdict = verdict.replace(f"{name}.onnx", f"*{called}*")
    return verdict


def _rivals(boxed: Boxed, files: dict[str, Found], compared: Found) -> str:
    reference = Path(compared["reference"]).stem
    rows = []
    for name, one in files.items():
        evaluation = one["evaluation"]
        called = boxed.rivals.get(name, f"**{name}**")
        cells = [_shown(metric, evaluation["metrics"][metric]["value"]) for metric in JUDGED]
        if name != reference:
            cells = [f"{cell} ({_gap(metric, one['differences'][metric])})"
                     for metric, cell in zip(JUDGED, cells, strict=True)]  # fmt: skip
        near = evaluation["ood"][0]
        cells.append(percent(_best(near)["auroc"]["value"]))
        measured, macs = one["price"]["measured"], one["price"]["macs"]
        times = "" if measured is None else f"{measured['ratio_best']:.2f}x / {measured['ratio']:.2f}x"
        cells += [str(one["price"]["passes"]), times, "" if macs is None else f"{macs / 1e6:.0f} M"]
        cells.append(f"{one['price']['file_mb']:.2f}")
        rows.append([called, *cells])
    nearest = files[reference]["evaluation"]["ood"][0]["name"]
    head = ["file", *(SHOWN[name] for name in JUDGED), f"AUROC of {nearest}, both gates", "passes",
            f"time of one image, {compared['threads']} threads, best / median", "MACs", "MB"]  # fmt: skip
    lead = (
        f"Times are multiples of the first row's. In brackets stands the paired 95 % interval of the difference to the "
        f"first row: an interval that holds 0 is a tie. {_named(boxed, compared['verdict'])}"
    )
    return f"{lead}\n\n{_table(head, rows)}"


def _gap(metric: str, difference: Found) -> str:
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    return f"{scale * difference['low']:+.{digits}f} to {scale * difference['high']:+.{digits}f}"


def _best(outside: Found) -> Found:
    """Detection by all the scores that the file has."""
    return next(outside["detection"][name] for name in reversed(SCORES) if name in outside["detection"])  # type: ignore[no-any-return]


def _promises(own: dict[Inference, Found], metadata: Metadata) -> str:
    rows = []
    for kind, one in own.items():
        gated = one["evaluation"]["gated"]
        promised = metadata.promise
        target = None if promised is None else promised.target_error
        rows.append([
            str(kind), percent(gated["level"]), percent(gated["own_rejected"], 2), gated["accepts"],
            percent(target), percent(gated["coverage"]), percent(gated["error"], 2),
        ])  # fmt: skip
    head = ["", "in-distribution images that it may reject", "it does", "it accepts", "error of the accepted, at most",
            "accepted", "error of these"]  # fmt: skip
    lines = [
        f"`{kind}`: {percent(sets['covered']['value'])} of its label sets have the true label, where at least "
        f"{percent(1 - sets['alpha'])} are promised; a set has {sets['size']['value']:.1f} labels on average."
        for kind, one in own.items()
        if (sets := one["evaluation"]["sets"]) is not None
    ]
    return "\n\n".join([_table(head, rows), *lines])


def _ood(own: dict[Inference, Found], alone: bool) -> str:
    rows = []
    for kind, one in own.items():
        for outside in one["evaluation"]["ood"]:
            areas = [_area(outside["detection"].get(name)) for name in SCORES]
            shares = [percent(outside[name]) for name in (("accepted", "gated") if alone else ("gated",))]
            rows.append([f"{kind}, {outside['images']:,} of {Path(outside['name']).stem}", *areas, *shares])
    accepted = [*(["accepted by the uncertainty alone"] if alone else []), "accepted by `--reject auto`"]
    head = ["", "AUROC of the uncertainty", "of the novelty", "of both", *accepted]
    return _table(head, rows)


def _kinds(one: Found) -> str:
    """What is accepted of every kind of made images."""
    rows = [[kind["name"], percent(kind["gated"])] for outside in one["evaluation"]["ood"] for kind in outside["kinds"]]
    return _table(["made images", "accepted by `--reject auto`"], rows)


def _area(found: Found | None) -> str:
    if found is None:
        return ""
    score = found["auroc"]
    return f"{percent(score['value'])} ({percent(score['low'])} to {percent(score['high'])})"


def _damage(shift: Found, alone: bool) -> str:
    """A table of all kinds and severities, and their means."""
    severities = len(next(iter(shift["curves"].values()))) - 1
    rows = [[what, *(_kept(one) for one in curve[1:])] for what, curve in shift["curves"].items()]
    pooled = [
        f"{', '.join(group['kinds'])} ({'seen' if group['seen'] else 'not seen'} in training): accuracy "
        f"{percent(group['accuracy'])}, accepted {percent(group['gated_coverage'])}, wrong of these "
        f"{percent(group['gated_error'])}"
        + (f"; by the uncertainty alone {percent(group['coverage'])} and {percent(group['error'])}" if alone else "")
        for group in shift["apart"]
    ]
    pairs = [_together(shift["curves"].values(), prefix) for prefix in (("gated_", "") if alone else ("gated_",))]
    totals = [f"accepted {percent(accepted)}, wrong of these {percent(wrong)}" for accepted, wrong in pairs]
    pooled.append(f"all six together: {'; by the uncertainty alone '.join(totals)}")
    head = ["severity", *map(str, range(1, severities + 1))]
    return _table(head, rows) + "\n\nAll severities together:\n\n" + "\n".join(f"- {line}" for line in pooled)


def _aims(boxed: Boxed, one: Found, damage: Found) -> list[str]:
    """Targets, and the values of the default file."""
    evaluation, outside = one["evaluation"], {ood["name"]: ood for ood in one["evaluation"]["ood"]}
    near, (accepted, wrong) = outside[boxed.ood[0]], _together(damage["curves"].values(), "gated_")
    accuracy, nll = (evaluation["metrics"][name]["value"] for name in ("accuracy", "nll"))
    aurc, price = one["differences"]["aurc"], one["price"]["measured"]["ratio_best"]
    auroc, coverage = _best(near)["auroc"]["value"], evaluation["gated"]["coverage"]
    shares = (auroc, near["gated"], outside["far"]["gated"], accepted, wrong, coverage)
    reached = (
        (accuracy, _shown("accuracy", accuracy)),
        (nll, _shown("nll", nll)),
        (aurc["high"], f"{_gap('aurc', aurc)} (95 % interval, in %)"),
        *((share, percent(share)) for share in shares),
        (price, f"{price:.2f}x"),
    )
    rows = [
        [aim.what, aim.target, reached_text, "yes" if aim.met(value) else "no"]
        for aim, (value, reached_text) in zip(boxed.aims, reached, strict=True)
    ]
    head = ["", "aim", "reached", "met"]
    return ["## Targets", f"`{boxed.kinds[0]}`, by the tables above:", _table(head, rows)]


def _kept(one: Found) -> str:
    return f"{percent(one['gated_coverage'], 0)} / {percent(one['gated_error'], 0)}"


def _together(curves: Iterable[Sequence[Found]], prefix: str) -> tuple[float, float]:
    """Acceptance and error over all damaged images."""
    conditions = [one for curve in curves for one in curve[1:]]
    accepted = sum(one[f"{prefix}coverage"] for one in conditions)
    wrong = sum(one[f"{prefix}coverage"] * (one[f"{prefix}error"] or 0) for one in conditions)
    return accepted / len(conditions), wrong / accepted if accepted else 0.0


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
