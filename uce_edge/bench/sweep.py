"""Measure a model, its deterministic file and other engines."""

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from uce_edge._util.progress import progress
from uce_edge.bench.engine import OWN_WORKER, Engine
from uce_edge.bench.job import Job, Timing, start, timed
from uce_edge.bench.measurements import Measurement, Report, extra_pass, measurement
from uce_edge.errors import UceEdgeError
from uce_edge.runtime.model import Model

ROUNDS = 3  # the engines take turns, so that a slow minute of the machine hits all of them


_MODEL, _BASELINE = "", "baseline"  # beside the names of engines


class _Run(NamedTuple):
    """A worker and its job."""

    worker: str
    job: Job


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
    """Measure every N and every batch.

    Each engine runs in its own process; the engines take turns.

    Args:
        model: The file.
        samples: Numbers of passes.
        batches: Numbers of images in a request.
        baseline: The deterministic file of the same network. It runs as many images as the model has image-passes; for
            a model whose passes are drawn from a single one, as many as there are images.
        compare: Other engines, for one image.
        device: As in `Model`.
        threads: Of every engine; None for all cores.
        rounds: How many times the engines take their turns, each time in a new process.
    """
    metadata = Model(model, device).metadata
    spec = metadata.image
    job = Job(
        str(model), threads=threads, architecture=metadata.architecture.removesuffix(" (untrained)"),
        classes=len(metadata.classes), image=(spec.height, spec.width, spec.channels), dtype=spec.dtype,
    )  # fmt: skip
    measurements: list[Measurement] = []
    medians: dict[int, list[float]] = {}
    provider = ""
    with tempfile.TemporaryDirectory() as folder:
        others, skipped = _prepared(compare if 1 in batches else (), replace(job, samples=min(samples)), Path(folder))
        with progress("measuring", len(samples) * len(batches) * rounds) as advance:
            for n, batch in product(samples, batches):
                runs = {_MODEL: _Run(OWN_WORKER, replace(job, samples=n, batch=batch, device=device))}
                if baseline is not None:
                    images = batch if metadata.runs_once else n * batch
                    runs[_BASELINE] = _Run(OWN_WORKER, replace(job, path=str(baseline), batch=images, device=device))
                if batch == 1:
                    runs |= {name: _Run(run.worker, replace(run.job, samples=n)) for name, run in others.items()}
                timings = _take_turns(runs, rounds, advance)
                ours, base = timings.pop(_MODEL), timings.pop(_BASELINE, [])
                provider = ours[-1].provider
                if batch == 1:
                    medians[n] = [float(np.median(timing.seconds)) * 1e3 for timing in ours]
                measurements.append(measurement(n, batch, ours, base, timings))
    slope, interval = extra_pass(medians)
    return Report(
        str(model), None if baseline is None else str(baseline), provider, threads, rounds, measurements, slope,
        interval, skipped,
    )  # fmt: skip


def side_by_side(
    files: Mapping[str, Path],
    reference: str,
    *,
    device: str = "auto",
    threads: int | None = None,
    rounds: int = ROUNDS,
) -> dict[str, Measurement]:
    """Measure one image with several files, taking turns.

    Args:
        files: The files, by name.
        reference: The name of the file that ratios refer to.
        device: As in `Model`.
        threads: As in `sweep`.
        rounds: As in `sweep`.
    """
    runs, passes = {}, {}
    for name, path in files.items():
        metadata = Model(path, device).metadata
        image, passes[name] = metadata.image, metadata.samples
        shape = (image.height, image.width, image.channels)
        runs[name] = _Run(OWN_WORKER, Job(str(path), device=device, threads=threads, image=shape, dtype=image.dtype))
    with progress("timing", rounds) as advance:
        timings = _take_turns(runs, rounds, advance)
    return {name: measurement(passes[name], 1, timings[name], timings[reference]) for name in files}


def _take_turns(runs: Mapping[str, _Run], rounds: int, advance: Callable[[int], None]) -> dict[str, list[Timing]]:
    """The timings of every run in every round."""
    timings: dict[str, list[Timing]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            timings[name].append(timed(run.worker, run.job))
        advance(1)
    return timings


def _prepared(engines: Sequence[Engine], job: Job, folder: Path) -> tuple[dict[str, _Run], dict[str, str]]:
    """The usable engines, and reasons for skipping the others."""
    runs: dict[str, _Run] = {}
    skipped: dict[str, str] = {}
    for engine in engines:
        try:
            runs[engine.name] = _tried(engine, replace(job, engine=engine.name), folder)
        except UceEdgeError as error:
            skipped[engine.name] = str(error)
    return runs, skipped


def _tried(engine: Engine, job: Job, folder: Path) -> _Run:
    """Run a job once to check an engine.

    Raises:
        UceEdgeError: It cannot run the job.
    """
    for package in engine.needs:
        if importlib.util.find_spec(package) is None:
            raise UceEdgeError(f"{package} is not installed: {engine.install}", "part.missing")
    if engine.maker is not None:
        job = replace(job, path=str(folder / f"{engine.name}.onnx"))
        start(engine.maker, job)
    timed(engine.worker, job)
    return _Run(engine.worker, job)
