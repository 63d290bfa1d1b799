"""Files in ONNX Runtime's own format: the same answers and metadata, and nothing half-way on disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call, Digits
from helpers.errors import raises
from PIL import Image

from uce_edge import Model
from uce_edge.models import bundled
from uce_edge_export import ort_format

GOLDENS = ["digits-mc", "digits-moments", "digits-factored", "digits-factored-moments"]


@pytest.fixture(params=GOLDENS)
def onnx_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN / f"{request.param}.onnx", tmp_path))


def test_the_answers_and_the_metadata_are_those_of_the_onnx_file(onnx_file: Path, rng: np.random.Generator) -> None:
    written = ort_format.convert(onnx_file)
    assert written == onnx_file.with_suffix(".ort")
    before, after = Model(onnx_file, "cpu"), Model(written, "cpu")
    assert after.metadata == before.metadata
    images = rng.integers(0, 256, (40, 8, 8, 1), np.uint8)
    theirs, ours = before.predict(images, seed=3), after.predict(images, seed=3)
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error", "error_probability"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-6, err_msg=name)
    assert ours.labels == theirs.labels


def test_the_commands_take_it(call: Call, tmp_path: Path) -> None:
    written = ort_format.convert(shutil.copy(GOLDEN / "digits-moments.onnx", tmp_path))
    Image.new("L", (8, 8), 90).save(tmp_path / "gray.png")
    described = json.loads(call("info", written, "--json").out)
    assert described == json.loads(call("info", written.with_suffix(".onnx"), "--json").out)
    [answer] = json.loads(call("predict", "--model", written, tmp_path / "gray.png", "--json").out)
    assert answer["status"] == "ok"
    assert call("bench", "--model", written, "--samples", "2", "--threads", 1).code == 0


def test_export_writes_it_beside_the_onnx_file(digits: Digits, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    said = call("export", digits.run, "--inference", "deterministic", "--ort", "--out", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.onnx", "m.ort"]
    assert f"Wrote {tmp_path / 'm.ort'}" in said.err
    assert Model(tmp_path / "m.ort", "cpu").metadata == Model(out, "cpu").metadata


def test_export_refuses_noise_as_inputs_before_any_work(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("export", digits.run, "--noise", "input", "--ort", "--out", tmp_path / "m.onnx")
    assert said.code == 2
    assert "--ort" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_other_answers_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(shutil.copy(GOLDEN / "digits-mc.onnx", tmp_path))
    path.with_suffix(".ort").write_bytes(b"precious")
    monkeypatch.setattr(ort_format, "TOLERANCE", -1.0)
    with raises("ort.different"):
        ort_format.convert(path)
    assert path.with_suffix(".ort").read_bytes() == b"precious"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["digits-mc.onnx", "digits-mc.ort"]


def test_calibrate_asks_for_the_onnx_file(call: Call) -> None:
    said = call("calibrate", "digits.ort", "--data", "images")
    assert said.code == 2
    assert "Calibrate the .onnx file" in said.err


def test_only_onnx_files_are_converted(tmp_path: Path) -> None:
    with raises("argument.path"):
        ort_format.convert(tmp_path / "model.ort")


def test_weights_of_half_precision_stay_small(tmp_path: Path) -> None:
    original = Path(shutil.copy(bundled("mc", "waste"), tmp_path))
    assert ort_format.convert(original).stat().st_size < 1.1 * original.stat().st_size
