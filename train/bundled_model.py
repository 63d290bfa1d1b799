"""Makes the bundled model, step by step, and writes its card.

    python train/bundled_model.py commands      # what to run, in order
    python train/bundled_model.py novelty       # give both files the gate against foreign images; all else stays
    python train/bundled_model.py card          # evaluate both files; write docs/model-card.md and the cards inside
    python train/bundled_model.py seal          # give both files digests and probe images again; all else stays

CIFAR-10 as `cifar10.npz`, and CIFAR-100's test images as foreign ones, lie under $UCE_EDGE_DATA.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from uce_edge.bench.report import Measurement
from uce_edge.bench.sweep import sweep
from uce_edge.contract import Inference
from uce_edge.datasets.splits import load
from uce_edge.files import replacing
from uce_edge.metadata import Metadata, StoredScore
from uce_edge.model import Model
from uce_edge.models import BUNDLED, DEFAULT, bundled
from uce_edge.report.words import percent
from uce_edge_export.gating import add_gate
from uce_edge_export.publish import Draft, publish

ROOT = Path(__file__).resolve().parent.parent
RUN = "runs/cifar10-resnet9"
EPOCHS, SEED = 20, 0
COMMANDS = (
    f"torchrun --nproc-per-node 2 -m uce_edge train --data cifar10 --arch resnet9 --p 0.05 --epochs {EPOCHS} "
    f"--batch-size 64 --optimiser sgd --learning-rate 0.1 --weight-decay 0.0005 --flip --out {RUN}",
    f"uce-edge calibrate {RUN} --method temperature --target-error 0.05",
    *(f"uce-edge export {RUN} --inference {kind} --out uce_edge/models/cifar10-{kind}.onnx" for kind in BUNDLED),
)
SHOWN = {
    "accuracy": "accuracy", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "uce": "UCE",
    "classwise_uce": "classwise UCE", "aurc": "AURC", "auroc": "AUROC of errors",
}  # fmt: skip
LIMITS = (
    "Ten kinds of things in photos of 32x32 pixels; a larger photo is shrunk to that, and its detail is gone.",
    "It has no class for people, plants, food or furniture, and rejects only a part of them.",
    "Unknown things that look like known ones are rarely foreign to it.",
    "On damaged images (noise, blur, strong contrast) its uncertainty rises less than its error.",
    "The promise of the stored threshold holds for images drawn like CIFAR-10's, with the stored passes and seed.",
    "Not for decisions about people, and not for safety.",
)
LICENCE = "MIT, as this project; CIFAR-10 (Krizhevsky, 2009) is free to use with citation."


def main(step: str) -> None:
    """Run one step."""
    if step == "commands":
        print("\n".join(COMMANDS))
    elif step == "novelty":
        add_novelty()
    elif step == "card":
        write_card()
    elif step == "seal":
        seal()
    else:
        raise SystemExit(__doc__)


def add_novelty() -> None:
    """Fit the gate on the calibration images, and its rule on the guarantee images, of the training itself."""
    data = load("cifar10").splits
    for kind in BUNDLED:
        path = bundled(kind)
        known = Model(path, "cpu").metadata.hashes.splits
        for name in ("calibration", "guarantee"):
            if data[name].sha256() != known[name]:
                raise SystemExit(f"The {name} images of CIFAR-10 are not those of the training.")
        metadata = add_gate(path, path, data["calibration"], data["guarantee"])
        print(path.name, metadata.rule)


def seal() -> None:
    """Renew what tells a changed file; the graphs stay to the byte."""
    for kind in BUNDLED:
        path = bundled(kind)
        metadata = Model(path, "cpu").metadata
        with replacing(path.with_suffix(".json")) as described, replacing(path) as temporary:
            draft = Draft(temporary, path.read_bytes(), metadata)
            draft.seal()
            described.write_text(draft.metadata.to_json(indent=2) + "\n")
        print(path.name, draft.metadata.digests)


def write_card() -> None:
    """Evaluate what is bundled, and say it in the files and in docs/model-card.md."""
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in load("cifar10").splits.items())
    results = {kind: _evaluated(bundled(kind), corrupt=kind is DEFAULT) for kind in BUNDLED}
    for kind, result in results.items():
        path = bundled(kind)
        metadata = replace(
            Model(path, "cpu").metadata,
            metrics={name: _short(result["metrics"][name]) for name in SHOWN},
            card={
                "data": f"CIFAR-10: {sizes}; tested on {result['images']} test images",
                "commands": list(COMMANDS),
                "seed": SEED,
                "limits": list(LIMITS),
                "licence": LICENCE,
            },
        )
        with publish(ir.load(path), metadata, path):
            pass  # the graph stays as it is
    page = _page(sizes, results, {kind: Model(bundled(kind), "cpu").metadata for kind in BUNDLED}, _latency())
    (ROOT / "docs" / "model-card.md").write_text(page)
    print("Wrote docs/model-card.md")


def _evaluated(path: Path, corrupt: bool) -> dict[str, Any]:
    command = [
        "evaluate",
        str(path),
        "--data",
        "cifar10",
        "--ood",
        "cifar100",
        "--ood",
        "far",
        "--no-latency",
        "--json",
    ]
    command += ["--corrupt", "--corrupt-images", "200"] if corrupt else []
    done = subprocess.run(
        [sys.executable, "-m", "uce_edge", *command], check=True, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _latency() -> dict[Inference, Measurement]:
    """One image, 2 threads, beside the deterministic file on one image."""
    with tempfile.TemporaryDirectory() as folder:
        deterministic = Path(folder) / "deterministic.onnx"
        command = ["export", "--untrained", "resnet9", "--inference", "deterministic", "--out", str(deterministic)]
        subprocess.run([sys.executable, "-m", "uce_edge", *command], check=True, capture_output=True)
        measured = {}
        for kind in BUNDLED:
            passes = Model(bundled(kind), "cpu").metadata.samples
            report = sweep(bundled(kind), [passes], baseline=deterministic, device="cpu", threads=2)
            measured[kind] = report.measurements[0]
    return measured


def _short(score: dict[str, Any]) -> StoredScore:
    names = ("value", "low", "high", "twin")
    return StoredScore(*(None if score[name] is None else round(score[name], 5) for name in names))


def _page(
    sizes: str,
    results: dict[Inference, dict[str, Any]],
    files: dict[Inference, Metadata],
    latency: dict[Inference, Measurement],
) -> str:
    rows = []
    for name, title in SHOWN.items():
        cells = []
        for kind in BUNDLED:
            score = results[kind]["metrics"][name]
            shown = (lambda x: f"{x:.4f}") if name in ("nll", "brier") else percent
            twin = "" if score["twin"] is None else f", *{shown(score['twin'])}*"
            cells.append(f"{shown(score['value'])} ({shown(score['low'])} to {shown(score['high'])}){twin}")
        rows.append(f"| {title} | {' | '.join(cells)} |")
    foreign, lost, promised = [], [], []
    for kind in BUNDLED:
        gated, point = results[kind]["gated"], results[kind]["rejection"][0]
        for outside in results[kind]["ood"]:
            scores = (outside["detection"][name]["auroc"] for name in ("uncertainty", "novelty", "both"))
            areas = (f"{percent(s['value'])} ({percent(s['low'])} to {percent(s['high'])})" for s in scores)
            foreign.append(
                f"| {kind}, {outside['images']:,} of {outside['name']} | {' | '.join(areas)} | "
                f"{percent(outside['accepted'])} | {percent(outside['gated'])} |"
            )
        lost.append(
            f"| {kind} | {percent(gated['level'])} | {percent(gated['foreign'], 2)} | {gated['threshold']:.4g} | "
            f"{percent(gated['coverage'])} | {percent(gated['error'], 2)} |"
        )
        stored = files[kind].reject
        target = None if stored is None else stored.target_error
        promised.append(
            f"| {kind} | {point['threshold']:.4g} | {percent(target)} | {percent(point['coverage'])} | "
            f"{percent(point['error'], 2)} | {percent(point['error_bound'], 2)} |"
        )
    damaged = [
        f"| {what} | "
        + " | ".join(
            f"{percent(one['coverage'], 0)} / {percent(one['error'], 0)}, "
            f"{percent(one['gated_coverage'], 0)} / {percent(one['gated_error'], 0)}"
            for one in curve[1:]
        )
        + " |"
        for what, curve in results[DEFAULT]["shift"]["curves"].items()
    ]
    speed = [
        f"| {kind} | {m.samples} | {m.p50_ms:.2f} | {_times(m, kind)} | "
        f"{files[kind].costs.macs_once / 1e6:.1f} M + {files[kind].costs.macs_per_pass / 1e6:.2f} M a pass | "
        f"{bundled(kind).stat().st_size / 1e6:.2f} MB |"
        for kind, m in latency.items()
    ]
    hashes = "\n".join(f"| {name} | `{value}` |" for name, value in files[DEFAULT].hashes.splits.items())
    return PAGE.format(
        default=DEFAULT, sizes=sizes, tested=f"{results[DEFAULT]['images']:,}",
        commands="\n".join(f"    {line}" for line in ("export UCE_EDGE_DATA=data", *COMMANDS)),
        seed=SEED, epochs=EPOCHS, p=files[DEFAULT].layers[0].p, hashes=hashes, rows="\n".join(rows),
        foreign="\n".join(foreign), lost="\n".join(lost), promised="\n".join(promised), damaged="\n".join(damaged),
        speed="\n".join(speed), limits="\n".join(f"- {line}" for line in LIMITS), licence=LICENCE,
        temperature=", ".join(f"{kind} {files[kind].calibration.temperature:.4f}" for kind in BUNDLED),
    )  # fmt: skip


def _times(m: Measurement, kind: Inference) -> str:
    """Against the deterministic file: moments beside one image, exact passes beside as many images."""
    beside = "one image" if kind is Inference.MOMENTS else f"{m.samples} images"
    return f"{m.ratio_best:.2f}x / {m.ratio:.2f}x of the deterministic file on {beside}"


PAGE = """# Model card: the model in the box

Written by `python train/bundled_model.py card`, which evaluates the committed files. `uce-edge info --all` shows the
same from inside a file; `uce-edge evaluate --data cifar10 --ood cifar100` measures it again.

**What.** A ResNet-9 (262,000 weights, 32x32 pixels) that tells airplane, automobile, bird, cat, deer, dog, frog, horse,
ship and truck apart, with Gaussian dropout in every weight layer but the first (p = {p}). Two files, one network:
`mc` draws exact passes, `moments` propagates mean and variance in one pass and draws the last layer. `predict` takes
`{default}` unless told otherwise.

**Data.** CIFAR-10: {sizes} images. All numbers below are of {tested} test images, which nothing was fitted on.

| split | SHA-256 |
| --- | --- |
{hashes}

**Made by** ({epochs} epochs, seed {seed}):

{commands}

Temperatures: {temperature}.

## What it is worth

The value, its 95 % bootstrap interval, and *what a perfectly calibrated model with the same probabilities would score*.

| | mc | moments |
| --- | --- | --- |
{rows}

## The stored threshold (`--reject auto`)

| | threshold | promised error, 95 % confidence | accepted | error of the accepted | its 95 % bound |
| --- | --- | --- | --- | --- | --- |
{promised}

## The gate against foreign images

| | own images lost: promised, 95 % confidence | lost | threshold of the rule | accepted by both | error of these |
| --- | --- | --- | --- | --- | --- |
{lost}

## What it should reject, and does not

Images of CIFAR-100, none of its classes, and of the set `far`: noise, single colours, gratings, checkerboards, text.

| | AUROC of the uncertainty | of the novelty | of both | accepted by the uncertainty | by both gates |
| --- | --- | --- | --- | --- | --- |
{foreign}

200 test images, damaged at five severities, `{default}`: share that the stored threshold accepts / error of these, and
the same with the gate against foreign images.

| | 1 | 2 | 3 | 4 | 5 |
| --- | --- | --- | --- | --- | --- |
{damaged}

Limits:

{limits}

## Price

One image, 2 threads, best / median; milliseconds are an illustration.

| | passes | ms | cost | multiply-accumulates | file |
| --- | --- | --- | --- | --- | --- |
{speed}

**Licence.** {licence}
"""

if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
