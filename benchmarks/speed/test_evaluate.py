"""Does the memory of an evaluation grow with the number of images?"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from uce_edge.runtime.model import Model

MANY, FEW = 10_000, 1_000


def peak_mib(model: str, archive: Path) -> float:
    """The peak of `uce-edge evaluate` at N = 25, in a process of its own."""
    watched = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-m", "uce_edge", "evaluate", model, "--data", archive, "--samples", "25", "--json"]
    done = subprocess.run([sys.executable, "-c", watched, *command], capture_output=True, text=True, check=True)
    return float(done.stdout) / 1024


@pytest.mark.parametrize("models", ["resnet8"], indirect=True)
def test_ten_thousand_images_need_the_memory_of_a_thousand(
    benchmark, capsys, tmp_path: Path, models: dict[str, Model]
) -> None:
    rng, peaks = np.random.default_rng(0), {}
    for count in (FEW, MANY):
        images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{count}.npz", x=images, y=np.arange(count) % 10)
    path = models["exact"].path
    peaks[FEW] = peak_mib(path, tmp_path / f"{FEW}.npz")
    peaks[MANY] = benchmark.pedantic(peak_mib, args=(path, tmp_path / f"{MANY}.npz"), rounds=1)
    pixels = (MANY - FEW) * 32 * 32 * 3 / 2**20
    benchmark.extra_info.update({str(count): peak for count, peak in peaks.items()})
    with capsys.disabled():
        print(f" peak {peaks[FEW]:.0f} MiB for {FEW} images, {peaks[MANY]:.0f} MiB for {MANY}, {pixels:.0f} in pixels")
    assert peaks[MANY] - peaks[FEW] < 2 * pixels + 20  # the archive's bytes and its pixels; the answers take 1 MiB
