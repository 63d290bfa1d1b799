"""Measurements of a sweep, and the cost of a pass."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from uce_edge.bench.job import Timing
from uce_edge.runtime.early_stopping import student


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
    """One number of passes, with baseline and other engines."""

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
        """The cost of one more pass, in words.

        None when only one N was measured.
        """
        if self.ms_per_extra_pass is None or self.slope_interval is None:
            return None
        if self.slope_interval[0] <= 0:
            return "One more pass costs too little to be measured"
        return f"One more pass costs {self.ms_per_extra_pass:.3g} ms"


def measurement(
    samples: int,
    batch: int,
    model: Sequence[Timing],
    baseline: Sequence[Timing] = (),
    others: Mapping[str, Sequence[Timing]] | None = None,
) -> Measurement:
    """Medians and ratios of the timings of all rounds."""
    ours, theirs = _seconds(model), _seconds(baseline)
    p50, p95 = (float(value) * 1e3 for value in np.percentile(ours, [50, 95]))
    base = float(np.median(theirs)) * 1e3 if theirs else None
    compared = {name: _seconds(timings) for name, timings in (others or {}).items()}
    return Measurement(
        samples=samples,
        batch=batch,
        p50_ms=round(p50, 4),
        p95_ms=round(p95, 4),
        best_ms=round(min(ours) * 1e3, 4),
        images_per_second=round(batch * 1e3 / p50, 2),
        peak_mb=max((timing.peak_mb for timing in model if timing.peak_mb is not None), default=None),
        baseline_p50_ms=None if base is None else round(base, 4),
        ratio=None if base is None else round(p50 / base, 3),
        ratio_best=round(min(ours) / min(theirs), 3) if theirs else None,
        others={
            name: Other(
                p50_ms=round(float(np.median(seconds)) * 1e3, 4),
                best_ms=round(min(seconds) * 1e3, 4),
                speedup=round(float(np.median(seconds)) * 1e3 / p50, 3),
                speedup_best=round(min(seconds) / min(ours), 3),
            )
            for name, seconds in compared.items()
        },
    )


def _seconds(timings: Sequence[Timing]) -> list[float]:
    """Of single calls, over all rounds."""
    return [seconds for timing in timings for seconds in timing.seconds]


def extra_pass(medians: Mapping[int, Sequence[float]]) -> tuple[float | None, tuple[float, float] | None]:
    """Milliseconds per extra pass, with a 95 % interval.

    The interval comes from the spread of the rounds around the line.

    Args:
        medians: For every N, the median latency of each round in milliseconds.
    """
    if len(medians) < 2:
        return None, None
    x = np.repeat(list(medians), [len(values) for values in medians.values()]).astype(np.float64)
    y = np.concatenate([np.array(values) for values in medians.values()])
    slope, offset = np.polyfit(x, y, 1)
    residual = y - slope * x - offset
    error = math.sqrt(float((residual**2).sum()) / max(1, len(x) - 2) / float(((x - x.mean()) ** 2).sum()))
    reach = student(0.025, max(1, len(x) - 2)) * error
    return round(float(slope), 4), (round(float(slope - reach), 4), round(float(slope + reach), 4))
