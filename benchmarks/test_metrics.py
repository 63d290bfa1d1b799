"""What do the metrics cost: on 1,000,000 x 1,000 memory-mapped probabilities, and bootstrapped on 10,000 x 10?"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from uce_edge import metrics

IMAGES, CLASSES, TILE = 1_000_000, 1_000, 10_000
EXTRA_MIB = 256  # a float64 copy would be 7,630 MiB, the file itself is 3,815

# The table repeats a small one, of which every metric here is the same: the small one is the oracle.
METRICS = {
    "ece": metrics.ece,
    "uce": metrics.uce,
    "adaptive_ece": metrics.adaptive_ece,
    "classwise_uce": metrics.classwise_uce,
    "classwise_ece_kull": partial(metrics.classwise_ece, by="kull"),
    "mce": metrics.mce,
    "brier": metrics.brier,
    "nll": metrics.nll,
    "aurc": metrics.aurc,
    "auroc": partial(metrics.auroc, score="confidence"),
    "fpr_at_95": partial(metrics.fpr_at_95, score="confidence"),
}
# These depend on the number of images too, and come close.
NEARLY = {
    "debiased_ece": metrics.debiased_ece,
    "skce": metrics.skce,
    "calibrated_twin": lambda p, y: metrics.calibrated_twin(metrics.uce, p, resamples=20).value,
    "bootstrap": lambda p, y: metrics.bootstrap(metrics.uce, p, y, resamples=20).low,
}


def tile() -> tuple[np.ndarray, np.ndarray]:
    """Confident and hesitant predictions, and labels that agree with most of them."""
    rng = np.random.default_rng(0)
    logits = (
        rng.normal(size=(TILE, CLASSES)) + rng.uniform(3, 12, (TILE, 1)) * np.eye(CLASSES)[np.arange(TILE) % CLASSES]
    )
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
    agree = rng.random(TILE) < p.max(axis=1) * 0.9
    return p, np.where(agree, p.argmax(axis=1), rng.integers(CLASSES, size=TILE))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """4 GB on disk for as long as this module runs."""
    folder = tmp_path_factory.mktemp("table")
    p, y = tile()
    with (folder / "p.f32").open("wb") as file:
        for _ in range(IMAGES // TILE):
            p.tofile(file)
    np.save(folder / "y.npy", np.tile(y, IMAGES // TILE))
    yield folder
    (folder / "p.f32").unlink()


def child(folder: Path, name: str) -> dict[str, float]:
    """One metric in a process of its own, whose memory is its own too."""
    command = [sys.executable, __file__, str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", [*METRICS, *NEARLY])
def test_a_billion_probabilities(benchmark, table: Path, name: str) -> None:
    found = benchmark.pedantic(child, args=(table, name), rounds=1)
    benchmark.extra_info.update(found)
    print(f"\n{name}: {found['seconds']:.1f} s, {found['extra_mib']:.0f} MiB")
    print(found, (METRICS | NEARLY)[name](*tile()))
    want = (METRICS | NEARLY)[name](*tile())
    assert found["value"] == pytest.approx(want, **({"abs": 1e-9} if name in METRICS else {"abs": 0.01}))
    assert found["extra_mib"] < EXTRA_MIB


@pytest.mark.parametrize("metric", [metrics.uce, metrics.classwise_uce, metrics.brier, metrics.aurc, metrics.skce])
def test_bootstrap(benchmark, metric) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(10, 0.2), size=10_000)
    y = np.where(rng.random(10_000) < 0.7, p.argmax(axis=1), rng.integers(10, size=10_000))
    found = benchmark.pedantic(metrics.bootstrap, args=(metric, p, y), rounds=3)
    assert found.value == metric(p, y)
    assert found.low <= found.high


def anonymous_mib() -> float:
    """Memory that is no file's: mapped pages of the table belong to the page cache, not to us."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main(folder: Path, name: str) -> None:
    import threading
    import time

    p = np.memmap(folder / "p.f32", dtype=np.float32, mode="r", shape=(IMAGES, CLASSES))
    y = np.load(folder / "y.npy")
    before, peak, finished = anonymous_mib(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not finished.wait(0.005):
            peak = max(peak, anonymous_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    value = (METRICS | NEARLY)[name](p, y)
    seconds = time.perf_counter() - started
    finished.set()
    watcher.join()
    sys.stdout.write(json.dumps({"value": value, "seconds": seconds, "extra_mib": peak - before}))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]), sys.argv[2])
