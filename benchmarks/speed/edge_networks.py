"""What does uncertainty cost on the networks that devices run, and the way to such a file?

    python benchmarks/speed/edge_networks.py [ratios] [steps]     # both: less than ten minutes on a quiet machine

Writes its section of docs/benchmarks.md. `steps` needs the extra `backbones`. Weights are random or hardly trained:
neither time nor memory depends on them. What was measured is kept in build/edge-networks.json, so that `ratios` or
`steps` alone leave the other table.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from uce_edge.bench.sweep import side_by_side
from uce_edge.contract import Inference, Sigma
from uce_edge.errors import UceEdgeError
from uce_edge_export.options import FileKind, Options
from uce_edge_train.networks.untrained import export_untrained

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, KEPT = ROOT / "docs" / "benchmarks.md", ROOT / "build" / "edge-networks.json"
TITLE = "## Networks that devices run"
SAMPLES, RATE, THREADS, ROUNDS, CLASSES = 25, 0.01, 2, 3, 10

LITE0, MOBILENET, VIT = NETWORKS = ("efficientnet-lite0", "mobilenetv3-small", "vit-tiny")
"""At the size that each is made for, 224x224."""
PLAIN = "plain"
TAIL, FEW_LAYERS = ("tail",), ("no-depthwise",)
FORMS = {
    f"{SAMPLES} passes, all layers, exact": FileKind(),
    f"{SAMPLES} passes, all layers, factored": FileKind(options=Options(sigma=Sigma.FACTORED)),
    f"{SAMPLES} passes, all layers, by channel": FileKind(options=Options(sigma=Sigma.CHANNEL)),
    f"{SAMPLES} passes, all but depthwise, factored": FileKind(options=Options(FEW_LAYERS, sigma=Sigma.FACTORED)),
    f"{SAMPLES} passes, all but depthwise, by channel": FileKind(options=Options(FEW_LAYERS, sigma=Sigma.CHANNEL)),
    f"{SAMPLES} passes, tail": FileKind(options=Options(TAIL)),
    "moments, all layers, exact": FileKind(Inference.MOMENTS),
    "moments, all layers, factored": FileKind(Inference.MOMENTS, options=Options(sigma=Sigma.FACTORED)),
    "moments, tail": FileKind(Inference.MOMENTS, options=Options(TAIL)),
}
NOT_MEASURED = {(VIT, form) for form in FORMS if "depthwise" in form or "channel" in form}
"""A transformer's noisy layers are linear: none is depthwise, none has channels."""
AIMS = {
    (LITE0, f"{SAMPLES} passes, tail"): 1.5,
    (LITE0, f"{SAMPLES} passes, all layers, factored"): 1.6 * SAMPLES,
    (LITE0, f"{SAMPLES} passes, all layers, by channel"): 1.6 * SAMPLES,
    (LITE0, "moments, all layers, factored"): 1.8,
    (LITE0, "moments, tail"): 1.15,
    (MOBILENET, f"{SAMPLES} passes, all layers, factored"): 1.5 * SAMPLES,
    (MOBILENET, f"{SAMPLES} passes, all layers, by channel"): 1.5 * SAMPLES,
    (MOBILENET, "moments, all layers, factored"): 2.0,
    (MOBILENET, "moments, tail"): 1.15,
    (VIT, f"{SAMPLES} passes, all layers, factored"): 1.3 * SAMPLES,
}
"""At most so many times one plain pass."""

SIDE, CALIBRATION, FEW, EPOCHS = 160, 207, 10, 2
COLOURS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
"""One of every class."""
STEP_AIMS = {
    f"all layers, {FEW} passes: calibrate and export": 200,
    f"tail, {SAMPLES} passes: calibrate and export": 60,
    "all layers: export of moments": 150,
}
"""At most so many CPU seconds."""


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    cpu_seconds: float
    """User and system, of all threads."""
    peak_gb: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu_seconds + other.cpu_seconds, max(self.peak_gb, other.peak_gb))


def ratios(folder: Path) -> list[list[Any]]:
    """Network, form, milliseconds, and the best and median ratio to a plain pass."""
    found: list[list[Any]] = []
    for network in NETWORKS:
        forms = {PLAIN: FileKind(Inference.DETERMINISTIC)} | FORMS
        files = {}
        for number, (form, kind) in enumerate(forms.items()):
            if (network, form) not in NOT_MEASURED:
                out = folder / f"{network}-{number}.onnx"
                try:
                    files[form] = export_untrained(network, out, kind, None if form == PLAIN else RATE, CLASSES).path
                except UceEdgeError as error:
                    print(f"{network}, {form}: {error}", flush=True)
        for form, m in side_by_side(files, PLAIN, device="cpu", threads=THREADS, rounds=ROUNDS).items():
            found.append([network, form, m.p50_ms, m.ratio_best, m.ratio])
            print(*found[-1], flush=True)
    return found


def steps(folder: Path) -> list[list[Any]]:
    """Step, CPU seconds and peak memory of every command from images to a file."""
    images, found = manifest(folder), []

    def step(what: str, *arguments: str | Path) -> Cost:
        cost = command(*arguments)
        found.append([what, cost.cpu_seconds, cost.peak_gb])
        print(*found[-1], flush=True)
        return cost

    for noisy, samples in (("tail", SAMPLES), ("all", FEW)):
        run, name = folder / noisy, "tail" if noisy == "tail" else "all layers"
        kind = ("--backbone", LITE0, "--size", f"{SIDE}x{SIDE}", "--p", str(RATE), "--epochs", str(EPOCHS))
        what = f"{name}: `train`, {EPOCHS} epochs of 32 images"
        step(what, "train", "--data", images, *kind, "--noisy", noisy, "--out", run)
        both = step(f"{name}: `calibrate --samples {samples}`", "calibrate", run, "--samples", str(samples))
        both += step(f"{name}: `export`", "export", run, "--out", folder / "mc.onnx")
        found.append([f"{name}, {samples} passes: calibrate and export", both.cpu_seconds, both.peak_gb])
        once = ("--inference", "moments", "--out", folder / "moments.onnx")
        step(f"{name}: export of moments", "export", run, *once)
    return found


def command(*arguments: str | Path) -> Cost:
    """Run `uce-edge` in a process of its own."""
    line = [sys.executable, "-m", "uce_edge", *map(str, arguments)]
    with tempfile.TemporaryFile() as messages, subprocess.Popen(line, stdout=messages, stderr=messages) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            messages.seek(0)
            raise RuntimeError(f"{' '.join(line)}: {messages.read().decode()[-2000:]}")
    peak = used.ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, KiB elsewhere
    return Cost(used.ru_utime + used.ru_stime, peak)


def manifest(folder: Path) -> Path:
    """A table of made pictures in four splits."""
    rng = np.random.default_rng(0)
    rows = ["path,label,split"]
    for split, count in (("train", 32), ("calibration", CALIBRATION), ("guarantee", CALIBRATION), ("test", 12)):
        for number in range(count):
            # Enlarged noise compresses as photos do. Its colour is easy to learn: `calibrate` refuses a mere guess.
            colours = rng.integers(0, 128, (SIDE // 8, SIDE // 8, 3)) + 127 * COLOURS[number % len(COLOURS)]
            coarse = Image.fromarray(colours.astype(np.uint8))
            path = folder / f"{split}-{number}.png"
            coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
            rows.append(f"{path.name},{'abcdef'[number % len(COLOURS)]},{split}")
    table = folder / "images.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def section(kept: dict[str, list[list[Any]]]) -> str:
    """The section of the page."""
    price, way, aims = [], [], []
    for network, form, ms, best, median in kept.get("ratios", []):
        each = f"{best / SAMPLES:.2f}x" if str(SAMPLES) in form else ""
        price.append(f"| {network} | {form} | {ms:.1f} | {best:.2f}x | {median:.2f}x | {each} |")
        if most := AIMS.get((network, form)):
            aims.append(f"| {network}, {form} | at most {most:g}x | {best:.2f}x | {'yes' if best <= most else 'no'} |")
    for what, seconds, memory in kept.get("steps", []):
        way.append(f"| {what} | {seconds:.0f} | {memory:.2f} |")
        if limit := STEP_AIMS.get(what):
            met = "yes" if seconds <= limit else "no"
            aims.append(f"| {what} | at most {limit} CPU s | {seconds:.0f} CPU s | {met} |")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {THREADS} threads"
    lists = {"price": price, "way": way, "aims": aims}
    return TEXT.format(machine=machine, **{name: "\n".join(lines) for name, lines in lists.items()})


def stored_section() -> str:
    """The section that the page has."""
    found = re.search(rf"^{TITLE}\n.*?(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return found[0] if found else section({})


def main(parts: list[str]) -> None:
    """Measure, and write the section."""
    warnings.simplefilter("ignore")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            kept[part] = {"ratios": ratios, "steps": steps}[part](Path(folder))
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept))
    text, new = PAGE.read_text(), section(kept)
    before = stored_section()
    text = (
        text.replace(before, new)
        if before in text
        else text.replace("## Memory and the price", f"{new}## Memory and the price", 1)
    )
    PAGE.write_text(text)
    print(f"Wrote the section of {PAGE}")


TEXT = f"""{TITLE}

Written by `benchmarks/speed/edge_networks.py` on {{machine}}. One image of 224x224 and {CLASSES} classes in every
form, against one plain pass of the same network; each file ran in a process of its own, in turns. The last column is
the price of a pass.

| network | form | ms | ratio, best | ratio, median | a pass |
| --- | --- | --- | --- | --- | --- |
{{price}}

The maps of these networks are large and their convolutions cheap, so that steps between the convolutions cost most.
Moments compute mean and variance of maps above 32x32 on a [grid](science.md#one-pass-moments) of at least 14x14
positions; at all positions they compute what the plain network computes. With a noisy tail, mean and deviation of the
last convolution are computed once; a pass draws its outputs, pools them and runs the classifier.

From images to a file, for EfficientNet-Lite0 at {SIDE}x{SIDE} with {CALIBRATION} calibration and as many guarantee
images. CPU seconds are user and system time of all threads; every command is a process of its own.

| step | CPU s | peak GB |
| --- | --- | --- |
{{way}}

| aim | | reached | met |
| --- | --- | --- | --- |
{{aims}}

"""

if __name__ == "__main__":
    main(sys.argv[1:] or ["ratios", "steps"])
