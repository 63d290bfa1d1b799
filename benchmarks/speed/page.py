"""What does uncertainty cost? Writes docs/benchmarks.md and its picture.

    python benchmarks/speed/page.py [NETWORK ...]

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
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import edge_networks
import throughput
import training
from cold_start import commands, stored_paragraph

from uce_edge.bench.latency_plot import plot
from uce_edge.bench.measurements import Measurement
from uce_edge.bench.sweep import sweep
from uce_edge.cli.bench_engines import ENGINES
from uce_edge.contract import Inference, Sigma
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import onnxruntime
from uce_edge_export import ort_format
from uce_edge_export.options import FileKind, Options
from uce_edge_train.networks.untrained import export_untrained

THREADS = 2
SAMPLES = 25
ROUNDS = 7
DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
COMPARED = list(ENGINES.values())
PLOTTED = [ENGINES[name] for name in ("pytorch", "naive", "openvino")]


# Of every kind of file: the kind of graph, and how sigma is computed.
KINDS: dict[str, tuple[Inference, Sigma | None]] = {
    "exact": (Inference.MC, Sigma.EXACT),
    "factored": (Inference.MC, Sigma.FACTORED),
    "moments": (Inference.MOMENTS, Sigma.EXACT),
    "factored moments": (Inference.MOMENTS, Sigma.FACTORED),
    "deterministic": (Inference.DETERMINISTIC, None),
}
FORMS = {"moments": "exact sigma", "factored moments": "factored sigma"}
LARGE = "mobilenet:network"  # at 224x224, with depthwise layers and ReLU6
LARGE_NAME = "like MobileNetV2, 224x224"

# The aims for the best ratios of a run: at most so many times the same network without noise.
AIMS = {
    "25 passes, factored sigma, resnet34": 1.2,
    "25 passes, factored sigma, resnet20": 1.5,
    "moments, factored sigma, resnet34": 1.4,
    "moments, factored sigma, resnet20": 2.8,
    f"moments, factored sigma, {LARGE_NAME}": 4.0,
    "a step of training, factored sigma, resnet8": 1.5,
    "a step of training, factored sigma, resnet9": 1.5,
    "loading, exact passes": 3.0,
    "loading, factored passes, as .ort": 3.0,
}
SHARES = dict.fromkeys(throughput.FOLDERS, 0.9)
"""At least this share of the slower half's rate."""


def export(network: str, folder: Path, kinds: Iterable[str] = KINDS, size: int = 32) -> dict[str, Path]:
    """Untrained files of a network."""
    files = {}
    for kind in kinds:
        inference, sigma = KINDS[kind]
        wanted = FileKind(inference, options=Options(sigma=sigma))
        out = folder / f"{network.partition(':')[0]} {kind}.onnx"
        files[kind] = export_untrained(network, out, wanted, image=ImageSpec(size, size, 3)).path
    return files


def main(networks: list[str]) -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        passes, one_pass, engines, memory, skipped = [], [], [], [], {}
        reached: dict[str, float] = {}
        measured = partial(sweep, device="cpu", threads=THREADS, rounds=ROUNDS)
        for network in networks:
            files = export(network, folder)
            plain = files["deterministic"]
            for kind in ("exact", "factored"):
                compare = COMPARED if kind == "factored" else []
                report = measured(files[kind], [SAMPLES], baseline=plain, compare=compare)
                m = report.measurements[0]
                passes.append(row(network, f"{kind} sigma", m))
                reached[f"{SAMPLES} passes, {kind} sigma, {network}"] = m.ratio_best
                skipped |= report.skipped
            for name, other in m.others.items():
                engines.append(
                    f"| {network} | {name} | {other.p50_ms:.1f} | {other.speedup_best:.1f}x | {other.speedup:.1f}x |"
                )
            for kind in ("moments", "factored moments"):
                o = measured(files[kind], [100], baseline=plain).measurements[0]
                faster = f"{m.best_ms / o.best_ms:.1f}x | {m.p50_ms / o.p50_ms:.1f}x"
                one_pass.append(f"{row(network, FORMS[kind], o)} {faster} |")
                reached[f"moments, {FORMS[kind]}, {network}"] = o.ratio_best
            if not memory:  # a thousand passes of a large network take minutes
                curve = partial(sweep, samples=[1, 5, 10, 25, 50], device="cpu", threads=THREADS)
                factored = curve(files["factored"], baseline=plain, compare=PLOTTED)
                beside = [curve(files[kind]) for kind in ("exact", "factored moments")]
                plot(factored, DOCS / "benchmarks.png", beside)
                loaded = load_time(files)
                plain_load = min(loaded["`Model`, deterministic"])
                reached["loading, exact passes"] = min(loaded["`Model`, exact"]) / plain_load
                reached["loading, factored passes, as .ort"] = min(loaded["`Model`, factored, as .ort"]) / plain_load
                many = sweep(files["factored"], [SAMPLES, 1000], device="cpu", threads=THREADS)
                few, lots = (entry.peak_mb for entry in many.measurements)
                slope = factored.ms_per_extra_pass
                memory.append(f"| {network} | {few:.0f} | {lots:.0f} | {lots / few:.2f}x | {slope:.3g} |")
            print(*passes[-2:], *one_pass[-2:], *memory, *engines, sep="\n", flush=True)
        large = export(LARGE, folder, ("moments", "factored moments", "deterministic"), 224)
        for kind in ("moments", "factored moments"):
            o = measured(large[kind], [100], baseline=large["deterministic"]).measurements[0]
            one_pass.append(f"{row(LARGE_NAME, FORMS[kind], o)} | |")
            reached[f"moments, {FORMS[kind]}, {LARGE_NAME}"] = o.ratio_best
            print(one_pass[-1], flush=True)
        steps = training_rows(reached)
        start = cold_start(export("resnet8", folder, ["exact"])["exact"], folder)
        folders = throughput_rows(folder, reached)
    notes = [f"\n{name} was skipped: {reason}." for name, reason in skipped.items()]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "torch", "numpy"))
    page = PAGE.format(
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {THREADS} threads",
        versions=versions, python=platform.python_version(), passes="\n".join(passes), moments="\n".join(one_pass),
        engines="\n".join([*engines, *notes]), memory="\n".join(memory), start=start,
        loads="\n".join(rows(loaded)), folders="\n".join(folders), steps="\n".join(steps), n=SAMPLES,
        first=networks[0], aims="\n".join(aim_rows(reached)),
        edge=edge_networks.stored_section(), installed=stored_paragraph(),
    )  # fmt: skip
    (DOCS / "benchmarks.md").write_text(page)
    print("Wrote docs/benchmarks.md")


def row(network: str, form: str, m: Measurement) -> str:
    """A row of a table of ratios to the deterministic file."""
    return f"| {network} | {form} | {m.p50_ms:.2f} | {m.baseline_p50_ms:.2f} | {m.ratio_best:.2f}x | {m.ratio:.2f}x |"


def aim_rows(reached: dict[str, float]) -> list[str]:
    """Every aim, and whether this run kept it."""
    lines = []
    for what, most in AIMS.items():
        if (value := reached.get(what)) is not None:
            lines.append(f"| {what} | at most {most:g}x | {value:.2f}x | {'yes' if value <= most else 'no'} |")
    for what, least in SHARES.items():
        value = reached[what]
        aim = f"| a folder, {what}, of the slower half | at least {least:g} |"
        lines.append(f"{aim} {value:.2f} | {'yes' if value >= least else 'no'} |")
    return lines


def training_rows(reached: dict[str, float]) -> list[str]:
    """Steps of training, beside those without noise."""
    lines = []
    for arch in ("resnet8", "resnet9"):
        taken = training.measure(arch, [training.PLAIN, *Sigma], rounds=3)
        plain = taken.pop(training.PLAIN)
        for sigma, seconds in taken.items():
            best = reached[f"a step of training, {sigma} sigma, {arch}"] = min(seconds) / min(plain)
            median = statistics.median(seconds) / statistics.median(plain)
            lines.append(f"| {arch} | {sigma} sigma | {best:.2f}x | {median:.2f}x |")
            print(lines[-1], flush=True)
    return lines


def load_time(files: dict[str, Path]) -> dict[str, list[float]]:
    """From a file to a model that can answer, beside a bare session of the deterministic file."""
    ways = {f"`Model`, {kind}": partial(Model, path, "cpu") for kind, path in files.items()}
    ways["`Model`, factored, as .ort"] = partial(Model, ort_format.convert(files["factored"]), "cpu")
    ways["a bare session, deterministic"] = partial(onnxruntime().InferenceSession, files["deterministic"])
    return take_turns(ways)


def throughput_rows(folder: Path, reached: dict[str, float]) -> list[str]:
    """Folders of images, each a row."""
    lines = []
    for kind in throughput.FOLDERS:
        place = folder / kind
        place.mkdir()
        r = throughput.measure(throughput.make(kind, place))
        reached[kind] = r.share
        rates = " | ".join(f"{rate:.0f}" for rate in (r.decoding, r.model, r.both))
        lines.append(f"| {kind} | {rates} | {r.share:.2f} | {r.of_sum:.2f} |")
        print(lines[-1], flush=True)
    return lines


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

This page measures the cost of uncertainty: every time is compared with the same network without noise.

Written by `make bench` (`benchmarks/speed/page.py`) on {machine}; Python {python}, {versions}.
Images are 32x32, weights are random. The engines took turns in one run, each in a process of its own. Compare the
ratios: "best" divides the best calls of two engines, "median" their medians. Milliseconds are only an illustration.

## Passes: one image at N = {n}

The baseline is the deterministic network on {n} images. With exact sigma every noisy layer is computed as two layers,
so no ratio can be below 2.0x. With factored sigma it is computed as one layer and a map of one channel: a sum over the
channels, as a product with a row, and a k x k layer on that channel. Where only a ReLU and weight layers follow, the
weights are scaled so that all channels have the same noise, and the root of the map is their deviation.

| network | sigma | ms | deterministic, {n} images, ms | ratio, best | ratio, median |
| --- | --- | --- | --- | --- | --- |
{passes}

![Milliseconds against N for the file, the deterministic one and other engines](benchmarks.png)

The file with factored sigma is faster than other engines with {n} passes by these factors. The other engines compute
sigma exactly.

| network | engine | ms | faster, best | faster, median |
| --- | --- | --- | --- | --- |
{engines}

The time above 1.0x (factored) and 2.0x (exact) goes to squaring, square root, noise, product, sum, ReLU, and the
conversion out of ONNX Runtime's blocked layout and back. Each of these steps reads and writes every activation. They
take a quarter of the time of ResNet-20, which has few channels. The deterministic file computes ReLU and residual sums
inside its convolutions.

## One pass: moments, 100 draws

The baseline is the deterministic network on one image. "faster" compares with {n} passes with factored sigma.

| network | moments with | ms | deterministic, one image, ms | ratio, best | ratio, median | faster, best | median |
| --- | --- | --- | --- | --- | --- | --- | --- |
{moments}

Apart from the convolutions, a ReLU takes 8 to 10 small nodes, and a ReLU6, a SiLU or a HardSwish 11 to 16. Because of
these nodes ResNet-20, whose layers are small, has a higher ratio than larger networks.

{edge}## Memory and the price of a pass

| network | peak MB at N = {n} | at N = 1000 | ratio | ms per extra pass |
| --- | --- | --- | --- | --- |
{memory}

## Loading and cold start

Loading {first}:

| | best, ms | median, ms |
| --- | --- | --- |
{loads}

Loading time does not go to squaring the weights. It goes to the optimisation of some 400 nodes, against 90 of the
deterministic file, and to planning their memory. For the plan ONNX Runtime must know which values are equally large.
The file declares it by using one name for the leading dimension of everything that is sampled. Without that name,
planning took two thirds of the time. Where loading time matters, use `.ort`.

Cold start of ResNet-8 at N = {n}, from the shell command to its end:

| | best, ms | median, ms |
| --- | --- | --- |
{start}

{installed}## Training

A step of training on 128 images, beside the same step without noise. Each kind ran in a process of its own, in turns.

| network | noise | ratio, best | ratio, median |
| --- | --- | --- | --- |
{steps}

The map of one channel is marked as having its channels last. It is the same memory, but oneDNN takes many times as long
for the gradient of a convolution the other way round.

## Folders

`uce-edge predict FOLDER` decodes images in threads while the model runs. The table has images per second with the
bundled `cifar10`, best of five rounds. The last two columns divide the rate of both by that of the slower half, and by
that of the two halves one after the other:

| images | decoding alone, all cores | the model alone, all cores | both | of the slower half | of both halves in turn |
| --- | --- | --- | --- | --- | --- |
{folders}

Decoding and the model share the cores, so neither half can hide behind the other. In the last column, 1.00 is a
processor that never pauses. Pillow's draft mode, which decodes a JPEG at half its size, is not used: its pixels differ
from those of a full image that is resized, and the promises of a file depend on the pixels.

## Targets

Multiples are of the same network without noise, and the best of this run:

| | target | reached | met |
| --- | --- | --- | --- |
{aims}

## Tried and not kept

**Passes.**

- Entering the blocked layout through an identity, a 1x1 depthwise convolution or a 1x1 pooling of the noise. Sum,
  residual sum and ReLU then fuse into convolutions, and the square stays blocked. This saves three passes over memory
  and 3 to 4 % of the time here, but runtimes without that layout, such as WebAssembly, would pay for one more
  convolution.
- Calls of 5, 9 or 13 passes, which fit in the cache: slower on ResNet-20, no difference on ResNet-34. Calls of 3 passes
  are slower on ResNet-34.
- Adding the residual to mu first.
- Table rows of 128 or 512 numbers.
- ONNX Runtime's parallel execution mode, which takes 1.8 times the time.

**Moments.**

- A k x k layer straight to one channel, or a 1x1 layer to one channel before it: slower than a product with a row. ONNX
  Runtime makes 16 channels of one.
- a = sqrt(m^2 + c v) for the mean of a ReLU: only four nodes, but its tail falls too slowly, and uncertainties moved
  1.5 times as far.
- For a ReLU6, the difference of two ReLUs: 19 nodes instead of 12 to 14, and 5.3 times the deterministic network
  instead of 4.1 times in a trial. Clipping by the two ends of the uniform distribution: as many nodes. Three points of
  the same probability: a node less, and answers that are further from those of passes.
- For a ReLU6, the rule of the nearer of its two kinks alone: a quarter fewer nodes, and the same answers while the
  noise is small beside the range of 6. Where it is not, the variance has no bound: a network with random weights failed
  the check of its export.
- Grids of 7x7 positions for large maps instead of 14x14: EfficientNet-Lite0 takes an eighth and MobileNetV3 a quarter
  less time with factored sigma. Whether answers stay as good was seen on ten photos only.
- On grids, what a k x k layer makes of the shift of its input's mean by noise, from weights that are summed over the
  taps: answers of EfficientNet-Lite0 at p = 0.003 were further from those of passes than without (ten photos).
- For a SiLU and a HardSwish, Gauss-Hermite integration at five points: three times the nodes. Three points that keep
  the second-order part of the variance: five nodes more.
- Two 1x1 layers to one channel, for the variance and for the squared mean, instead of a product and a sum over all
  channels: no difference on the network like MobileNetV2, 2 to 5 % slower on the ResNets. As two products with a row
  they are faster, and used.

**Loading.**

- Without a memory plan (`enable_mem_reuse = False`) ResNet-20 loads a fifth faster and answers as fast, but the peak
  memory of ResNet-34 grew by 7 % in one of two runs.
- Switching off the optimisations that find nothing saves a tenth of an exact file's time and a fifth of a factored
  one's, but their names change with ONNX Runtime.

**Training.** Computing the noise in parts of the batch that fit into the cache, or in reused memory, did not help.
"""

if __name__ == "__main__":
    main(sys.argv[1:] or ["resnet20", "resnet34"])
