"""What does uncertainty cost on the networks that devices run, and what does the way to such a file cost?

    python benchmarks/speed/edge_networks.py            # prints both tables of docs/benchmarks.md

Files are made by the command line. Weights are random or hardly trained: neither time nor memory depends on them.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from uce_edge.bench.sweep import side_by_side

SAMPLES = 25
NETWORKS = {"efficientnet-lite0": ("mc", "moments"), "mobilenetv3-small": ("mc", "moments"), "vit-tiny": ("mc",)}
"""Whose passes and moments are measured, at the size that the network is made for, 224x224."""
LITE0 = "efficientnet-lite0"
PLAIN = "deterministic"

AIMS = {
    f"one image, {SAMPLES} passes, tail, {LITE0}": 1.5,
    f"a pass of {SAMPLES}, all layers, {LITE0}": 1.6,
    f"moments, all layers, {LITE0}": 1.8,
    f"moments, tail, {LITE0}": 1.15,
    f"a pass of {SAMPLES}, all layers, mobilenetv3-small": 1.5,
    "moments, all layers, mobilenetv3-small": 2.0,
    f"a pass of {SAMPLES}, all layers, vit-tiny": 1.3,
}
"""At most so many times one plain pass, with factored sigma."""

SIDE, CALIBRATION, FEW = 160, 207, 10
AMOUNTS = {
    f"calibrate and export, {FEW} passes, all layers": (200, "CPU s"),
    f"calibrate and export, {SAMPLES} passes, tail": (60, "CPU s"),
    "export of moments, all layers": (150, "CPU s"),
    "peak memory of that": (1.0, "GB"),
}
"""At most so much for EfficientNet-Lite0 at 160x160 with 207 calibration images."""


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    cpu_seconds: float
    """User and system, of all threads."""
    peak_gb: float


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


@cache
def takes(name: str, option: str) -> bool:
    """Whether a command has an option."""
    done = subprocess.run(
        [sys.executable, "-m", "uce_edge", name, "--help"], capture_output=True, text=True, check=True
    )
    return option in done.stdout


def ratio_rows(folder: Path, threads: int, rounds: int, reached: dict[str, float]) -> list[str]:
    """Every network and form, against one plain pass."""
    lines = []
    for network, inferences in NETWORKS.items():
        files = {PLAIN: folder / f"{network}.onnx"}
        command("export", "--untrained", network, "--inference", PLAIN, "--out", files[PLAIN])
        layers = ["all layers", *(["tail"] if network == LITE0 and takes("export", "--noisy") else [])]
        for inference in inferences:
            for noisy in layers:
                for sigma in ("exact", "factored"):
                    name = f"{inference}, {noisy}, {sigma} sigma"
                    files[name] = folder / f"{network} {name}.onnx"
                    more = ["--noisy", noisy] if noisy == "tail" else []
                    kind = ["--inference", inference, "--sigma", sigma, *more]
                    command("export", "--untrained", network, *kind, "--out", files[name])
        for name, m in side_by_side(files, PLAIN, device="cpu", threads=threads, rounds=rounds).items():
            if name == PLAIN:
                continue
            assert m.ratio_best is not None
            assert m.ratio is not None
            inference, noisy, sigma = name.split(", ")
            passes = m.samples if inference == "mc" and noisy == "all layers" else 1
            what = "moments" if inference == "moments" else f"a pass of {m.samples}" if passes > 1 else "one image"
            form = f"{what}, {noisy}" if what != "one image" else f"{what}, {m.samples} passes, {noisy}"
            best, median = m.ratio_best / passes, m.ratio / passes
            if sigma == "factored sigma":
                reached[f"{form}, {network}"] = best
            lines.append(f"| {network} | {form} | {sigma} | {m.p50_ms:.1f} | {best:.2f}x | {median:.2f}x |")
            print(lines[-1], flush=True)
    return lines


def step_rows(folder: Path, reached: dict[str, float]) -> list[str]:
    """CPU time and memory of every command from images to a file."""
    images = manifest(folder)
    lines = []

    def step(what: str, *arguments: str | Path) -> Cost:
        cost = command(*arguments)
        lines.append(f"| {what} | {cost.cpu_seconds:.0f} | {cost.peak_gb:.2f} |")
        print(lines[-1], flush=True)
        return cost

    for noisy, samples in (("all layers", FEW), ("tail", SAMPLES)):
        if noisy == "tail" and not takes("train", "--noisy"):
            continue
        run, more = folder / noisy, ["--noisy", noisy] if noisy == "tail" else []
        kind = [
            "--arch",
            LITE0,
            "--size",
            f"{SIDE}x{SIDE}",
            "--p",
            "0.01",
            "--epochs",
            "1",
            "--batch-size",
            "16",
            *more,
        ]
        step(f"`train`, {noisy}, one epoch of 32 images", "train", "--data", images, *kind, "--out", run)
        fitted = step(f"`calibrate --samples {samples}`, {noisy}", "calibrate", run, "--samples", str(samples))
        written = step(f"`export`, {noisy}", "export", run, "--out", folder / "mc.onnx")
        total = fitted.cpu_seconds + written.cpu_seconds
        reached[f"calibrate and export, {samples} passes, {noisy}"] = total
        once = step(
            f"`export --inference moments`, {noisy}",
            "export", run, "--inference", "moments", "--out", folder / "moments.onnx",
        )  # fmt: skip
        if noisy == "all layers":
            reached["export of moments, all layers"] = once.cpu_seconds
            reached["peak memory of that"] = once.peak_gb
    return lines


def manifest(folder: Path) -> Path:
    """A table of made pictures in four splits."""
    rng = np.random.default_rng(0)
    rows = ["path,label,split"]
    for split, count in (("train", 32), ("calibration", CALIBRATION), ("guarantee", 12), ("test", 12)):
        for number in range(count):
            # Enlarged noise compresses as photos do.
            coarse = Image.fromarray(rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8))
            path = folder / f"{split}-{number}.png"
            coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
            rows.append(f"{path.name},{'abcdef'[number % 6]},{split}")
    table = folder / "images.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def aim_rows(reached: dict[str, float]) -> list[str]:
    """Every aim that was measured, and whether this run kept it."""
    aims = {what: (most, "x") for what, most in AIMS.items()} | {
        what: (most, f" {unit}") for what, (most, unit) in AMOUNTS.items()
    }
    return [
        f"| {what} | at most {most:g}{unit} | {reached[what]:.{0 if most > 10 else 2}f}{unit} | "
        f"{'yes' if reached[what] <= most else 'no'} |"
        for what, (most, unit) in aims.items()
        if what in reached
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found: dict[str, float] = {}
        ratio_rows(Path(place), 2, 5, found)
        step_rows(Path(place), found)
        print(*aim_rows(found), sep="\n")
