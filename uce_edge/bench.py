"""Latency and memory against the number of passes, each measurement in a process of its own.

Run as a module (`python -m uce_edge.bench JSON`) it is the worker: one model, one number of passes.
"""

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

from uce_edge import contract
from uce_edge.adaptive import student
from uce_edge.contract import Inference
from uce_edge.errors import MissingPartError, UceEdgeError, UsageError, expected
from uce_edge.metadata import Metadata
from uce_edge.model import Model
from uce_edge.progress import progress

ROUNDS = 3  # model and baseline take turns, so that a slow minute of the machine hits both
_SECONDS = 0.4  # per worker, after warm-up
_MIN_RUNS, _MAX_RUNS = 5, 200
PICTURES = (".png", ".svg", ".pdf")
_OURS = "#1f5fa8"


class Engine(StrEnum):
    """What else can run the passes of one image."""

    PYTORCH = "pytorch"
    """All passes as one batch."""
    PYTORCH_LOOP = "pytorch-loop"
    """One pass after another."""
    NAIVE = "naive"
    """The same graph with the runtime's own random numbers."""
    OPENVINO = "openvino"
    """The same file in OpenVINO."""


@dataclass(frozen=True)
class Other:
    """Another engine at one number of passes."""

    p50_ms: float
    best_ms: float
    speedup: float
    """How many times faster the model file is, by medians."""
    speedup_best: float


@dataclass(frozen=True)
class Measurement:
    """One number of passes, and beside it the baseline and other engines."""

    samples: int
    batch: int
    p50_ms: float
    p95_ms: float
    best_ms: float
    images_per_second: float
    peak_mb: float | None
    baseline_p50_ms: float | None = None
    ratio: float | None = None
    ratio_best: float | None = None
    others: dict[str, Other] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A sweep over N and over the batch."""

    model: str
    baseline: str | None
    provider: str
    threads: int | None
    rounds: int
    measurements: list[Measurement]
    ms_per_extra_pass: float | None
    """Slope of the median latency of one image over N; None when only one N was measured."""
    slope_interval: tuple[float, float] | None
    """Its 95 % interval, over the rounds."""
    skipped: dict[str, str]
    """Engines that could not run, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def cores(self) -> str:
        """What it was measured with, in words."""
        return f"{self.threads} threads" if self.threads else "all cores"

    def price(self) -> str | None:
        """What one more pass costs, in words; None when only one N was measured."""
        if self.ms_per_extra_pass is None or self.slope_interval is None:
            return None
        if self.slope_interval[0] <= 0:
            return "One more pass costs too little to be measured"
        return f"One more pass costs {self.ms_per_extra_pass:.3g} ms"


def sweep(
    model: Path,
    samples: Sequence[int],
    *,
    batches: Sequence[int] = (1,),
    baseline: Path | None = None,
    compare: Sequence[Engine] = (),
    device: str = "auto",
    threads: int | None = None,
    rounds: int = ROUNDS,
) -> Report:
    """Measure every N and every batch, each engine in a process of its own, taking turns.

    Args:
        model: The file.
        samples: Numbers of passes.
        batches: Numbers of images in a request.
        baseline: The deterministic twin. It runs as many images as the model has image-passes; for a moments model,
            whose passes are drawn from a single one, as many as there are images.
        compare: Other engines, for one image.
        device: As in `Model`.
        threads: Of every engine; None for all cores.
        rounds: How many times the engines take their turns, each time in a new process.
    """
    import numpy as np

    metadata = Model(model, device).metadata
    measurements, skipped = [], {}
    medians: dict[int, list[float]] = {}
    provider = ""
    with (
        tempfile.TemporaryDirectory() as folder,
        progress("measuring", len(samples) * len(batches) * rounds) as advance,
    ):
        naive = Path(folder) / "naive.onnx"
        for n, batch in product(samples, batches):
            jobs = {"": _job(model, n, batch, device, threads)}
            if baseline is not None:
                images = batch if metadata.inference is Inference.MOMENTS else n * batch
                jobs["baseline"] = _job(baseline, None, images, device, threads)
            for engine in compare if batch == 1 else ():
                if engine not in skipped:
                    try:
                        jobs[engine] = _job_of(engine, model, metadata, n, threads, naive)
                    except UceEdgeError as error:
                        skipped[str(engine)] = str(error)
            seconds: dict[str, list[float]] = {name: [] for name in jobs}
            peak = None
            for _ in range(rounds):
                for name, job in jobs.items():
                    result = _in_own_process(job)
                    seconds[name] += result["seconds"]
                    if not name:
                        peak = max(filter(None, (peak, result["peak_mb"])), default=None)
                        provider = result["provider"]
                        if batch == 1:
                            medians.setdefault(n, []).append(float(np.median(result["seconds"])) * 1e3)
                advance(1)
            measurements.append(_measurement(n, batch, seconds, peak))
    slope, interval = _slope(medians)
    return Report(
        str(model), None if baseline is None else str(baseline), provider, threads, rounds, measurements, slope,
        interval, skipped,
    )  # fmt: skip


def _measurement(n: int, batch: int, seconds: dict[str, list[float]], peak: float | None) -> Measurement:
    import numpy as np

    ours, twin = seconds.pop(""), seconds.pop("baseline", [])
    p50, p95 = (float(value) * 1e3 for value in np.percentile(ours, [50, 95]))
    base = float(np.median(twin)) * 1e3 if twin else None
    return Measurement(
        samples=n,
        batch=batch,
        p50_ms=round(p50, 4),
        p95_ms=round(p95, 4),
        best_ms=round(min(ours) * 1e3, 4),
        images_per_second=round(batch * 1e3 / p50, 2),
        peak_mb=peak,
        baseline_p50_ms=None if base is None else round(base, 4),
        ratio=None if base is None else round(p50 / base, 3),
        ratio_best=round(min(ours) / min(twin), 3) if twin else None,
        others={
            name: Other(
                p50_ms=round(float(np.median(values)) * 1e3, 4),
                best_ms=round(min(values) * 1e3, 4),
                speedup=round(float(np.median(values)) * 1e3 / p50, 3),
                speedup_best=round(min(values) / min(ours), 3),
            )
            for name, values in seconds.items()
        },
    )


def _slope(medians: dict[int, list[float]]) -> tuple[float | None, tuple[float, float] | None]:
    """Milliseconds per extra pass, and its interval from the spread of the rounds around the line."""
    import numpy as np

    if len(medians) < 2:
        return None, None
    x = np.repeat(list(medians), [len(values) for values in medians.values()]).astype(np.float64)
    y = np.concatenate([np.array(values) for values in medians.values()])
    slope, offset = np.polyfit(x, y, 1)
    residual = y - slope * x - offset
    error = math.sqrt(float((residual**2).sum()) / max(1, len(x) - 2) / float(((x - x.mean()) ** 2).sum()))
    reach = student(0.975, max(1, len(x) - 2)) * error
    low, high = slope - reach, slope + reach
    return round(float(slope), 4), (round(float(low), 4), round(float(high), 4))


def _job(path: Path, samples: int | None, batch: int, device: str, threads: int | None) -> dict[str, Any]:
    worker = "uce_edge.bench"
    return {
        "worker": worker,
        "path": str(path),
        "samples": samples,
        "batch": batch,
        "device": device,
        "threads": threads,
    }


def _job_of(
    engine: Engine, model: Path, metadata: Metadata, samples: int, threads: int | None, naive: Path
) -> dict[str, Any]:
    """What a worker needs to run the same passes in another engine.

    Raises:
        UceEdgeError: It cannot, and why.
    """
    if engine is Engine.OPENVINO:
        if importlib.util.find_spec("openvino") is None:
            raise UceEdgeError("openvino is not installed: pip install openvino")
        job = _job(model, samples, 1, "cpu", threads) | {"engine": str(engine)}
        _in_own_process(job)  # does it take the file?
        return job
    for package in ("torch", *(("onnxscript",) if engine is Engine.NAIVE else ())):
        if importlib.util.find_spec(package) is None:
            raise UceEdgeError(f'{package} is not installed: pip install "uce-edge[train,export]"')
    architecture = metadata.architecture.removesuffix(" (untrained)")
    spec = metadata.image
    job = {
        "worker": "uce_edge_train.timing", "engine": str(engine), "architecture": architecture, "threads": threads,
        "classes": len(metadata.classes), "image": [spec.height, spec.width, spec.channels], "samples": samples,
    }  # fmt: skip
    if engine is not Engine.NAIVE:
        _in_own_process(job | {"samples": 1})  # is the network one that can be built from its name?
        return job
    if not naive.exists():
        _start(job | {"worker": "uce_edge_train.naive", "out": str(naive)})
    return _job(naive, samples, 1, "cpu", threads)


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before minutes of measuring."""
    if path.suffix.lower() not in PICTURES:
        raise UsageError(
            expected("`plot`", f"a file name ending in {', '.join(PICTURES)}", str(path), "Use: --plot latency.png")
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPartError("Plotting", "matplotlib", "train") from None


def plot(report: Report, path: Path) -> None:
    """Draw latency against N as a picture."""
    from uce_edge.files import replacing

    check_plot(path)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    alone = [m for m in report.measurements if m.batch == 1]
    n = [m.samples for m in alone]
    lines: dict[str, tuple[list[float], str, str]] = {Path(report.model).stem: ([m.p50_ms for m in alone], "o-", _OURS)}
    if report.baseline is not None:
        lines["deterministic twin"] = ([m.baseline_p50_ms or 0.0 for m in alone], "s--", "#6b6b6b")
    for engine, marker, colour in zip(Engine, "^vDX", ("#c1440e", "#b06a1c", "#4b7a2c", "#7a4fa3"), strict=True):
        if all(engine in m.others for m in alone):
            lines[engine] = ([m.others[engine].p50_ms for m in alone], f"{marker}-", colour)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.fill_between(n, [m.best_ms for m in alone], [m.p95_ms for m in alone], color=_OURS, alpha=0.15, linewidth=0)
    for i, (values, style, colour) in enumerate(lines.values()):
        axes.plot(n, values, style, color=colour, linewidth=1.2 if i else 2.4, markersize=5 if i else 7)
    axes.set(xlabel="Monte Carlo passes N", ylabel="milliseconds, one image", xlim=(0, None), ylim=(0, None))
    axes.margins(x=0)
    top = axes.get_ylim()[1]
    heights = _apart([values[-1] for values, _, _ in lines.values()], 0.11 * top)
    for i, ((name, (values, _, colour)), height) in enumerate(zip(lines.items(), heights, strict=True)):
        axes.annotate(
            f"{name}\n{values[-1] / alone[-1].p50_ms:.1f}x the time" if i else name, (1, height),
            xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points", color=colour, va="center",
            weight="normal" if i else "bold", size=10,
        )  # fmt: skip
    if (price := report.price()) is not None:
        figure.suptitle(price, x=0.01, ha="left", size=15)
    provider = report.provider.removesuffix("ExecutionProvider")
    note = f"median, band from best to 95th percentile; {provider}, {report.cores()}"
    axes.set_title(note, loc="left", size=9, color="#555555")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
    plt.close(figure)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights of labels, moved up as little as keeps them from covering each other."""
    placed = list(heights)
    below = -math.inf
    for i in sorted(range(len(placed)), key=lambda i: heights[i]):
        placed[i] = below = max(placed[i], below + gap)
    return placed


def _in_own_process(job: dict[str, Any]) -> dict[str, Any]:
    return json.loads(_start(job))  # type: ignore[no-any-return]


def _start(job: dict[str, Any]) -> str:
    """Run a worker and give what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", job["worker"], json.dumps(job)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UceEdgeError(f"The measurement failed: {reason}")
    return done.stdout


def measure(run: Callable[[], object]) -> dict[str, Any]:
    """Seconds of single calls after a warm-up, and the peak memory of this process."""
    for _ in range(2):
        run()
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _SECONDS and len(seconds) < _MAX_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "peak_mb": _peak_mb()}


def _work(job: dict[str, Any]) -> dict[str, Any]:
    import warnings

    import numpy as np

    warnings.simplefilter("ignore")  # a sweep uses other N than the calibration on purpose
    model = Model(job["path"], job["device"], threads=job["threads"])
    spec = model.metadata.image
    shape = (job["batch"], spec.height, spec.width, spec.channels)
    images = np.random.default_rng(0).integers(0, 256, shape).astype(spec.dtype)
    if job.get("engine") == Engine.OPENVINO:
        return _openvino(job, images) | {"provider": "OpenVINO"}
    return measure(lambda: model.predict(images, job["samples"])) | {"provider": model.provider}


def _openvino(job: dict[str, Any], images: Any) -> dict[str, Any]:
    import numpy as np
    import openvino

    options = {"INFERENCE_NUM_THREADS": job["threads"]} if job["threads"] else {}
    compiled = openvino.Core().compile_model(job["path"], "CPU", options)
    feed = {contract.IMAGE: images}
    if len(compiled.inputs) > 1:
        feed[contract.SEEDS] = np.arange(job["samples"], dtype=np.int32)
    return measure(lambda: compiled(feed))


def _peak_mb() -> float | None:
    """Peak resident memory of this process in MB; None where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the parent's memory at the fork, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return round(int(line.split()[1]) / 1024, 1)
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**2 if sys.platform == "darwin" else 1024), 1)


if __name__ == "__main__":
    print(json.dumps(_work(json.loads(sys.argv[1]))))
