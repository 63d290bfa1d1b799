"""Measure the latency of one image against the number of passes.

This takes a second or two in this process. `uce-edge bench` is more precise: it uses separate processes, and measures
memory, too.
"""

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge._util.progress import progress
from uce_edge.runtime.model import GuaranteeWarning, Model, SamplesWarning

PASSES = (1, 5, 10, 25, 50, 100)
_SECONDS = 0.15  # per number of passes
_MIN_RUNS, _MAX_RUNS = 5, 50
_TOO_LONG = 0.5  # seconds: a slower model does not run more passes


@dataclass(frozen=True)
class Latency:
    """Latency of single images; the three lists have one entry per number of passes."""

    passes: tuple[int, ...]
    p50_ms: tuple[float, ...]
    p95_ms: tuple[float, ...]
    provider: str


def measure(model: Model, image: npt.NDArray[Any]) -> Latency:
    """Time single requests.

    Args:
        model: The model.
        image: One image of its size.
    """
    fixed = not model.metadata.takes_seeds
    own = model.metadata.samples
    counts = [own] if fixed else sorted({*PASSES, own})
    rows: list[tuple[int, float, float]] = []
    with warnings.catch_warnings(), progress("timing", len(counts)) as advance:
        for kind in (SamplesWarning, GuaranteeWarning):  # a sweep uses other N than the calibration on purpose
            warnings.simplefilter("ignore", kind)
        for passes in counts:
            seconds = _time(model, image[None], None if fixed else passes)
            p50, p95 = np.percentile(seconds, [50, 95])
            rows.append((passes, round(float(p50) * 1e3, 4), round(float(p95) * 1e3, 4)))
            advance(1)
            if p50 > _TOO_LONG:
                break
    measured, medians, tails = zip(*rows, strict=True)
    return Latency(measured, medians, tails, model.provider)


def _time(model: Model, batch: npt.NDArray[Any], passes: int | None) -> list[float]:
    model.predict(batch, passes)  # the first call of a shape plans its memory
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _SECONDS and len(seconds) < _MAX_RUNS):
        start = time.perf_counter()
        model.predict(batch, passes)
        seconds.append(time.perf_counter() - start)
    return seconds
