"""What does fitting a calibration map cost: against PyTorch's optimisers, and on a billion logits?

The fits in numpy and in PyTorch take turns, each in a process of its own, so that a noisy machine disturbs both alike.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from uce_edge.calibration.logits import StoredLogits, images_per_block
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))  # the oracle of the tests
from helpers.made_logits import drawn, noisy

FITTED = [Method.TEMPERATURE, Method.VECTOR, Method.AUX]
ROUNDS = 5
LIMIT = 1.5  # of PyTorch's time
SMALL = 25, 5_000, 10  # samples, images, classes
LARGE = 25, 50_000, 1_000
MEMORY_MIB = 512  # the logits are 4,768 in float32


def child(*arguments: str) -> dict[str, float]:
    # Both libraries take all cores: the variable would bind PyTorch alone.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("method", FITTED)
def test_a_fit_in_numpy_against_one_in_pytorch(benchmark, capsys, method: Method) -> None:
    """Best and median of the rounds; both reach the same likelihood."""

    def measure() -> dict[str, list[dict[str, float]]]:
        fits: dict[str, list[dict[str, float]]] = {"numpy": [], "torch": []}
        for _ in range(ROUNDS):
            for library, rounds in fits.items():
                rounds.append(child(library, method))
        return fits

    fits = benchmark.pedantic(measure, rounds=1)
    ours, theirs = ([fit["seconds"] for fit in fits[library]] for library in ("numpy", "torch"))
    best, median = min(ours) / min(theirs), statistics.median(ours) / statistics.median(theirs)
    benchmark.extra_info.update({"best_ratio": best, "median_ratio": median})
    with capsys.disabled():
        print(f" {method}: best {best:.2f}x of {min(theirs):.2f} s, median {median:.2f}x")
    assert fits["numpy"][0]["nll"] == pytest.approx(fits["torch"][0]["nll"], abs=1e-4)
    assert best <= LIMIT


@pytest.mark.large
@pytest.mark.parametrize("method", [Method.TEMPERATURE, Method.VECTOR])
def test_calibration_of_a_billion_logits(benchmark, capsys, method: Method) -> None:
    """50,000 images x 1,000 classes x 25 passes: 5 GB on disk, and a bounded part of it in memory."""
    fit = benchmark.pedantic(child, args=("large", method), rounds=1)
    benchmark.extra_info.update(fit)
    with capsys.disabled():
        print(f" {method}: {fit['seconds']:.0f} s, peak {fit['peak_mib']:.0f} MiB of the whole process")
    assert fit["temperature"] == pytest.approx(2.0, rel=0.02)
    assert fit["peak_mib"] < MEMORY_MIB


def by_numpy(method: Method) -> dict[str, float]:
    logits, labels = noisy(*SMALL)
    started = time.perf_counter()
    fitted = fit_map(method, logits, labels)
    return {"seconds": time.perf_counter() - started, "nll": fitted.outcome.nll_after}


def by_torch(method: Method) -> dict[str, float]:
    from helpers import torch_maps

    logits, labels = noisy(*SMALL)
    torch_maps.fit(
        Method.TEMPERATURE, logits[:, :10], labels[:10]
    )  # what PyTorch loads at first use is no part of a fit
    held = np.zeros(len(labels), np.bool_)
    held[np.random.default_rng(0).permutation(len(labels))[: len(labels) // 5]] = True  # as fit_map with seed 0
    started = time.perf_counter()
    _, nll = torch_maps.fit(method, logits, labels, held)
    return {"seconds": time.perf_counter() - started, "nll": nll}


def large(method: Method) -> dict[str, float]:
    """Labels from softmax(z), and logits that are twice as large: T = 2."""
    import resource

    samples, images, classes = LARGE
    rng = np.random.default_rng(0)
    labels = np.empty(images, np.int64)
    count = images_per_block(images, samples, classes)

    def blocks():
        for start in range(0, images, count):
            z = 3 * rng.standard_normal((min(count, images - start), classes), np.float32)
            labels[start : start + len(z)] = drawn(z.astype(np.float64), rng)
            yield np.broadcast_to(2 * z, (samples, *z.shape))

    stored = StoredLogits(blocks())
    started = time.perf_counter()
    values = fit_map(method, stored, labels).parameters
    seconds = time.perf_counter() - started
    temperature = values["temperature"][0] if "temperature" in values else 1 / float(np.mean(values["vector"]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "temperature": temperature, "peak_mib": peak}


if __name__ == "__main__":
    kind, name = sys.argv[1:]
    sys.stdout.write(json.dumps({"numpy": by_numpy, "torch": by_torch, "large": large}[kind](Method(name))))
