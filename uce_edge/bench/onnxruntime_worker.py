"""The worker of `uce-edge bench`, in ONNX Runtime.

Run as `python -m uce_edge.bench.onnxruntime_worker JSON`.
"""

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.bench.job import Job, Timing
from uce_edge.runtime.model import Model

_SECONDS = 0.4  # per worker, after warm-up
_MIN_RUNS, _MAX_RUNS = 5, 200


def measure(run: Callable[[], object], provider: str) -> Timing:
    """Time single calls after a warm-up; measure peak memory."""
    for _ in range(2):
        run()
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _SECONDS and len(seconds) < _MAX_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return Timing(seconds, _peak_mb(), provider)


def random_images(job: Job) -> npt.NDArray[Any]:
    """Random images, always the same."""
    return np.random.default_rng(0).integers(0, 256, (job.batch, *job.image)).astype(job.dtype)


def work(job: Job) -> Timing:
    """Time the requests of a job."""
    warnings.simplefilter("ignore")  # a sweep uses other N than the calibration on purpose
    model = Model(job.path, job.device, threads=job.threads)
    images = random_images(job)
    return measure(lambda: model.predict(images, job.samples), model.provider)


def _peak_mb() -> float | None:
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
    print(work(Job.from_json(sys.argv[1])).to_json())
