"""Latency and memory against the number of passes, each measurement in a process of its own.

Run as a module (`python -m uce_edge.bench JSON`) it is the worker: one model, one number of passes.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uce_edge.errors import MissingPartError, UceEdgeError, UsageError, expected
from uce_edge.progress import progress

ROUNDS = 3  # model and baseline take turns, so that a slow minute of the machine hits both
_SECONDS = 0.4  # per worker, after warm-up
_MIN_RUNS, _MAX_RUNS = 5, 200
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Measurement:
    """One number of passes on one image, and the baseline on as many images when there is one."""

    samples: int
    p50_ms: float
    p95_ms: float
    best_ms: float
    images_per_second: float
    peak_mb: float | None
    baseline_p50_ms: float | None = None
    ratio: float | None = None
    ratio_best: float | None = None


@dataclass(frozen=True)
class Report:
    """A sweep over N."""

    model: str
    baseline: str | None
    provider: str
    threads: int | None
    rounds: int
    measurements: list[Measurement]
    ms_per_extra_pass: float | None
    """Slope of the median latency over N; None when only one N was measured."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def sweep(
    model: Path,
    samples: Sequence[int],
    *,
    baseline: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Report:
    """Measure every N in `samples`; the baseline (the deterministic twin) runs N images for N passes."""
    import numpy as np

    measurements = []
    provider = ""
    with progress("measuring", total=len(samples) * ROUNDS) as advance:
        for n in samples:
            ours: list[float] = []
            twin: list[float] = []
            peak = None
            for _ in range(ROUNDS):
                result = _in_own_process(model, n, 1, device, threads)
                ours += result["seconds"]
                peak = max(filter(None, (peak, result["peak_mb"])), default=None)
                provider = result["provider"]
                if baseline is not None:
                    twin += _in_own_process(baseline, None, n, device, threads)["seconds"]
                advance(1)
            p50, p95 = (float(value) * 1e3 for value in np.percentile(ours, [50, 95]))
            base = float(np.median(twin)) * 1e3 if twin else None
            measurements.append(
                Measurement(
                    samples=n,
                    p50_ms=round(p50, 4),
                    p95_ms=round(p95, 4),
                    best_ms=round(min(ours) * 1e3, 4),
                    images_per_second=round(1e3 / p50, 2),
                    peak_mb=peak,
                    baseline_p50_ms=None if base is None else round(base, 4),
                    ratio=None if base is None else round(p50 / base, 3),
                    ratio_best=round(min(ours) / min(twin), 3) if twin else None,
                )
            )
    slope = None
    if len(set(samples)) > 1:
        slope = round(float(np.polyfit(list(samples), [m.p50_ms for m in measurements], 1)[0]), 4)
    return Report(
        str(model),
        None if baseline is None else str(baseline),
        provider,
        threads,
        ROUNDS,
        measurements,
        slope,
    )


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

    n = [m.samples for m in report.measurements]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot(n, [m.p50_ms for m in report.measurements], "o-", color="#1f5fa8", label="one image, median")
    axes.fill_between(
        n, [m.best_ms for m in report.measurements], [m.p95_ms for m in report.measurements],
        color="#1f5fa8", alpha=0.15, linewidth=0, label="best to 95th percentile",
    )  # fmt: skip
    if report.baseline is not None:
        twin = [m.baseline_p50_ms or 0.0 for m in report.measurements]
        axes.plot(n, twin, "s--", color="#8a8a8a", label="deterministic twin, N images")
    axes.set(xlabel="Monte Carlo passes N", ylabel="milliseconds", xlim=(0, None), ylim=(0, None))
    if report.ms_per_extra_pass is not None:
        axes.set_title(f"One more pass costs {report.ms_per_extra_pass:.3g} ms", loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
    plt.close(figure)


def _in_own_process(path: Path, samples: int | None, batch: int, device: str, threads: int | None) -> dict[str, Any]:
    job = {"path": str(path), "samples": samples, "batch": batch, "device": device, "threads": threads}
    done = subprocess.run(
        [sys.executable, "-m", "uce_edge.bench", json.dumps(job)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UceEdgeError(f"The measurement failed: {reason}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _work(job: dict[str, Any]) -> dict[str, Any]:
    import warnings

    import numpy as np

    from uce_edge.model import Model

    warnings.simplefilter("ignore")  # a sweep uses other N than the calibration on purpose
    model = Model(job["path"], job["device"], threads=job["threads"])
    spec = model.metadata.image
    shape = (job["batch"], spec.height, spec.width, spec.channels)
    images = np.random.default_rng(0).integers(0, 256, shape).astype(spec.dtype)
    for _ in range(2):
        model.predict(images, job["samples"])
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _SECONDS and len(seconds) < _MAX_RUNS):
        start = time.perf_counter()
        model.predict(images, job["samples"])
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "peak_mb": _peak_mb(), "provider": model.provider}


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
