"""What do the metrics cost: on 1,000,000 x 1,000 memory-mapped probabilities, and bootstrapped on 10,000 x 10?"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from uce_edge import metrics

IMAGES, CLASSES, TILE = 1_000_000, 1_000, 10_000
EXTRA_MIB = 256  # a float64 copy would be 7,630 MiB, the file itself is 3,815


def _middle(interval: metrics.Interval) -> float:
    return (interval.low + interval.high) / 2


# The table repeats a small one, which is the oracle: each metric, and how far the two may be apart.
METRICS = {
    "ece": (metrics.ece, 1e-9),
    "uce": (metrics.uce, 1e-9),
    "adaptive_ece": (metrics.adaptive_ece, 1e-9),
    "classwise_uce": (metrics.classwise_uce, 1e-9),
    "classwise_ece_kull": (partial(metrics.classwise_ece, by="kull"), 1e-9),
    "mce": (metrics.mce, 1e-9),
    "brier": (metrics.brier, 1e-9),
    "nll": (metrics.nll, 1e-9),
    "aurc": (metrics.aurc, 1e-9),
    "auroc": (partial(metrics.auroc, score="confidence"), 1e-9),
    "fpr_at_95": (partial(metrics.fpr_at_95, score="confidence"), 1e-9),
    # These depend on the number of images too.
    "debiased_ece": (metrics.debiased_ece, 3e-3),
    "skce": (metrics.skce, 2e-4),
    "calibrated_twin": (lambda p, y: metrics.calibrated_twin(metrics.uce, p, resamples=20).value, 1e-3),
    "bootstrap": (lambda p, y: _middle(metrics.bootstrap(metrics.uce, p, y, resamples=20)), 3e-3),
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


@pytest.mark.large
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured with Linux's /proc")
@pytest.mark.parametrize("name", METRICS)
def test_a_billion_probabilities(benchmark, capsys, table: Path, name: str) -> None:
    found = benchmark.pedantic(child, args=(table, name), rounds=1)
    benchmark.extra_info.update(found)
    with capsys.disabled():  # the table of times has no column for it
        print(f" {name}: {found['seconds']:.1f} s, {found['extra_mib']:.0f} MiB")
    metric, tolerance = METRICS[name]
    assert found["value"] == pytest.approx(metric(*tile()), abs=tolerance)
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
    value = METRICS[name][0](p, y)
    seconds = time.perf_counter() - started
    finished.set()
    watcher.join()
    sys.stdout.write(json.dumps({"value": value, "seconds": seconds, "extra_mib": peak - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
