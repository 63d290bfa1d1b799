"""Logits of many images in blocks: what was given comes back, and memory does not grow with their number."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises

from uce_edge.calibration.logits import ArrayLogits, StoredLogits, images_per_block


def test_stored_logits_come_back_as_often_as_asked(rng: np.random.Generator) -> None:
    given = [rng.standard_normal((3, count, 4)).astype(np.float32) for count in (5, 5, 2)]
    stored = StoredLogits(iter(given))
    assert (stored.samples, stored.images, stored.classes, len(stored)) == (3, 12, 4, 3)
    for _ in range(2):
        for before, after in zip(given, stored, strict=True):
            np.testing.assert_array_equal(before, after)


def test_logits_are_stored_as_float32_in_any_layout(rng: np.random.Generator) -> None:
    values = rng.standard_normal((4, 6, 3))
    (block,) = StoredLogits([values.transpose(2, 1, 0)])
    assert block.dtype == np.float32
    np.testing.assert_array_equal(block, values.transpose(2, 1, 0).astype(np.float32))


def test_blocks_are_about_equal() -> None:
    assert images_per_block(100, 25, 10) == 100
    step = images_per_block(50_000, 25, 1000)
    sizes = [min(step, 50_000 - start) for start in range(0, 50_000, step)]
    assert step * 25 * 1000 < 1.01 * 2**22
    assert min(sizes) > step / 2
    assert images_per_block(3, 4096, 100_000) == 1


def test_an_array_is_cut_into_blocks() -> None:
    values = np.zeros((25, 300, 1000), np.float32)
    values[0, :, 0] = np.arange(300)
    blocks = ArrayLogits(values)
    assert len(blocks) == len(list(blocks)) == 2
    np.testing.assert_array_equal(np.concatenate(list(blocks), axis=1), values)


def test_no_image_is_refused() -> None:
    with raises("argument.logits"):
        StoredLogits([])


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda prefix: full.open("w+b"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with raises("file.unwritable"):
        StoredLogits([np.zeros((5, 100, 1000), np.float32)])


def test_logits_need_no_more_memory_than_a_block() -> None:
    """80 MB of logits, fitted by a process whose peak hardly rises."""
    pytest.importorskip("resource", reason="memory is measured with a Unix call")
    script = """
import resource, sys
import numpy as np
from uce_edge.calibration.logits import StoredLogits
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
small, rng = int(sys.argv[1]), np.random.default_rng(0)
blocks = (rng.standard_normal((5, 100, 1000), np.float32) for _ in range(4 if small else 40))
stored = StoredLogits(blocks)
fit_map(Method.TEMPERATURE, stored, rng.integers(0, 1000, stored.images))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    few, many = (
        int(subprocess.run([sys.executable, "-c", script, small], check=True, capture_output=True, text=True).stdout)
        for small in ("1", "0")
    )
    assert many - few < 30
