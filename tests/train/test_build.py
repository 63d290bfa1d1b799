"""One command from labelled photos to a promised file, and refusals before anything slow."""

from pathlib import Path

import numpy as np
import pytest
from conftest import Call
from PIL import Image

from uce_edge.runtime.model import Model


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright pictures, 200 of them: a network learns them in seconds."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, level in (("bright", 180), ("dark", 40)):
        (folder / name).mkdir()
        for i in range(100):
            pixels = rng.integers(level, level + 70, (18, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:03}.png")
    return folder


def test_photos_become_a_promised_file_with_a_report(photos: Path, tmp_path: Path, call: Call) -> None:
    out, run = tmp_path / "photos.onnx", tmp_path / "run"
    words = ("build", photos, "--target-error", 0.3, "--backbone", "none", "--size", "16x16", "--budget", "40s",
             "--run", run, "--out", out)  # fmt: skip
    made = call(*words)
    assert made.code == 0, made.err
    for number, stage in enumerate(("train", "calibrate", "export", "evaluate"), 1):
        assert f"[{number}/4] uce-edge {stage} " in made.err
    promise = Model(out).metadata.promise
    assert promise is not None
    assert promise.target_error == 0.3
    assert "<html" in out.with_suffix(".html").read_text(encoding="utf-8")
    weights = (run / "weights.safetensors").stat().st_mtime_ns
    again = call(*words)
    assert again.code == 0, again.err
    assert (run / "weights.safetensors").stat().st_mtime_ns == weights, "a finished training is not repeated"


def test_impossible_requests_are_refused_before_training(photos: Path, tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    base = ("build", photos, "--backbone", "none", "--size", "16x16", "--run", run, "--out", tmp_path / "x.onnx")
    few = call(*base, "--target-error", 0.001)
    assert few.code == 2
    assert "in all" in few.err, "it tells how many photos the promise takes"
    assert call(*base, "--target-error", "bird=0.1,other=0.2").code == 2
    assert call(*base[:-1], tmp_path / "x.html").code == 2
    assert call(*base, "--budget", "soon").code == 2
    lonely = tmp_path / "one"
    (lonely / "only").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(lonely / "only" / "a.png")
    assert call("build", lonely, *base[2:]).code == 2
    assert not run.exists()
