"""What does uncertainty cost? Writes docs/benchmarks.md and its picture.

    python benchmarks/report.py [NETWORK ...]

Every engine runs in a process of its own, and they take turns. Weights are random: speed does not depend on them.
"""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from start import commands

from uce_edge.bench.plot import plot
from uce_edge.bench.sweep import sweep
from uce_edge.cli.engines import ENGINES
from uce_edge.model import Model
from uce_edge.providers import onnxruntime

THREADS = 2
SAMPLES = 25
ROUNDS = 7
DOCS = Path(__file__).resolve().parent.parent / "docs"
COMPARED = list(ENGINES.values())
PLOTTED = [ENGINES[name] for name in ("pytorch", "naive", "openvino")]


def export(network: str, inference: str, folder: Path) -> Path:
    """An untrained file of this network."""
    out = folder / f"{network}-{inference}.onnx"
    command = ["export", "--untrained", network, "--inference", inference, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "uce_edge", *command], check=True, capture_output=True)
    return out


def main(networks: list[str]) -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        exact, one_pass, engines, memory, skipped = [], [], [], [], {}
        for network in networks:
            files = {kind: export(network, kind, folder) for kind in ("mc", "moments", "deterministic")}
            plain = files["deterministic"]
            passes = sweep(
                files["mc"], [SAMPLES], baseline=plain, compare=COMPARED, device="cpu", threads=THREADS, rounds=ROUNDS
            )
            m = passes.measurements[0]
            skipped |= passes.skipped
            exact.append(
                f"| {network} | {m.p50_ms:.1f} | {m.baseline_p50_ms:.1f} | {m.ratio_best:.2f}x | {m.ratio:.2f}x |"
            )
            for name, other in m.others.items():
                engines.append(
                    f"| {network} | {name} | {other.p50_ms:.1f} | {other.speedup_best:.1f}x | {other.speedup:.1f}x |"
                )
            moments = sweep(files["moments"], [100], baseline=plain, device="cpu", threads=THREADS, rounds=ROUNDS)
            o = moments.measurements[0]
            one_pass.append(
                f"| {network} | {o.p50_ms:.2f} | {o.baseline_p50_ms:.2f} | {o.ratio_best:.2f}x | {o.ratio:.2f}x | "
                f"{m.best_ms / o.best_ms:.1f}x | {m.p50_ms / o.p50_ms:.1f}x |"
            )
            if not memory:  # a thousand passes of a large network take minutes
                curve = sweep(
                    files["mc"], [1, 5, 10, 25, 50], baseline=plain, compare=PLOTTED, device="cpu", threads=THREADS
                )
                plot(curve, DOCS / "benchmarks.png")
                loads = load_time(files)
                many = sweep(files["mc"], [SAMPLES, 1000], device="cpu", threads=THREADS)
                few, lots = (row.peak_mb for row in many.measurements)
                slope = curve.ms_per_extra_pass
                memory.append(f"| {network} | {few:.0f} | {lots:.0f} | {lots / few:.2f}x | {slope:.3g} |")
            print(exact[-1], one_pass[-1], *memory, *engines, sep="\n", flush=True)
        start = cold_start(export("resnet8", "mc", folder), folder)
    notes = [f"\n{name} was skipped: {reason}." for name, reason in skipped.items()]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "torch", "numpy"))
    page = PAGE.format(
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {THREADS} threads",
        versions=versions, python=platform.python_version(), exact="\n".join(exact), moments="\n".join(one_pass),
        engines="\n".join([*engines, *notes]), memory="\n".join(memory), start=start, loads=loads,
        n=SAMPLES, first=networks[0],
    )  # fmt: skip
    (DOCS / "benchmarks.md").write_text(page)
    print("Wrote docs/benchmarks.md")


def load_time(files: dict[str, Path]) -> str:
    """From a file to a model that can answer, beside a bare session."""
    taken = take_turns(
        {
            "`Model`, exact passes": lambda: Model(files["mc"], "cpu"),
            "`Model`, moments": lambda: Model(files["moments"], "cpu"),
            "a bare session, exact passes": lambda: onnxruntime().InferenceSession(files["mc"]),
            "a bare session, deterministic": lambda: onnxruntime().InferenceSession(files["deterministic"]),
        }
    )
    return "\n".join(rows(taken))


def cold_start(model: Path, folder: Path) -> str:
    """`uce-edge predict one.png` against a bare script, end to end."""
    lines = commands(model, folder)
    taken = take_turns(
        {name: partial(subprocess.run, line, check=True, capture_output=True) for name, line in lines.items()}
    )
    ours, bare = taken.values()
    ratio = f"| ratio | {min(ours) / min(bare):.2f}x | {statistics.median(ours) / statistics.median(bare):.2f}x |"
    return "\n".join([*rows(taken), ratio])


def take_turns(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of every way, 15 times, so that a slow minute of the machine hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(15):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - begin)
    return taken


def rows(taken: dict[str, list[float]]) -> list[str]:
    """Best and median as rows of a table."""
    return [f"| {name} | {min(v) * 1e3:.0f} | {statistics.median(v) * 1e3:.0f} |" for name, v in taken.items()]


PAGE = """# Benchmarks

Written by `make bench` (`benchmarks/report.py`) on {machine}; Python {python}, {versions}.
Ratios are of engines that took turns in one run, each in a process of its own, 32x32 images, random weights;
milliseconds are an illustration. "best" compares the best calls of each, "median" the medians.

## Exact passes: one image at N = {n}

The floor is 2.0x of the deterministic network on {n} images: every noisy layer is two.

| network | ms | deterministic, {n} images, ms | ratio, best | ratio, median |
| --- | --- | --- | --- | --- |
{exact}

![Milliseconds against N for the file, the deterministic one and other engines](benchmarks.png)

How many times faster the file is than other engines with the same {n} passes:

| network | engine | ms | faster, best | faster, median |
| --- | --- | --- | --- | --- |
{engines}

Where the rest above 2.0x goes: squaring, square root, noise, product, sum, ReLU, and the way out of ONNX Runtime's
blocked layout and back, each of which reads and writes every activation. ResNet-20 has few channels, so that this is a
quarter of its time; the deterministic file has ReLU and residual sums inside its convolutions. Tried, and not kept:

- Entering the blocked layout by an identity (a 1x1 depthwise convolution or a 1x1 pooling of the noise), so that sum,
  residual sum and ReLU fuse into convolutions and the square stays blocked: three passes over memory fewer, 3 to 4 %
  faster here; but runtimes without that layout, such as WebAssembly, would pay for a convolution more.
- Calls of 5, 9 or 13 passes, to stay in the cache: slower on ResNet-20, no difference on ResNet-34, where 3 are slower.
- Adding the residual to mu first; table rows of 128 or 512 numbers; ONNX Runtime's parallel execution mode (1.8 times
  the time).

## One pass: moments, 100 draws

| network | ms | deterministic, one image, ms | ratio, best | ratio, median | faster than N = {n}, best | median |
| --- | --- | --- | --- | --- | --- | --- |
{moments}

Twice the convolutions, and for every ReLU 17 to 21 small nodes: they are what keeps ResNet-20, whose layers are small,
from the ratio of larger networks.

## Memory and the price of a pass

| network | peak MB at N = {n} | at N = 1000 | ratio | ms per extra pass |
| --- | --- | --- | --- | --- |
{memory}

## Loading and cold start

Loading {first}:

| | best, ms | median, ms |
| --- | --- | --- |
{loads}

ResNet-8, N = {n}, from the shell and back:

| | best, ms | median, ms |
| --- | --- | --- |
{start}
"""

if __name__ == "__main__":
    main(sys.argv[1:] or ["resnet20", "resnet34"])
