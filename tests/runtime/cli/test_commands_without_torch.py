"""What a device does that has ONNX Runtime and the ONNX tools, and nothing to train with."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.nets import Net, simple

from uce_edge.runtime.model import Model

ABSENT = ("torch", "safetensors", "onnxscript", "sklearn", "matplotlib", "scipy")
CODE = f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); from uce_edge.cli import main; main(sys.argv[1:])"


@pytest.fixture
def device(digits, tmp_path):
    """The command line in a process that cannot import what trains; a model and labelled images lie beside it."""
    split = digits.dataset.splits["test"]
    np.savez(tmp_path / "labelled.npz", x=split.images[:120], y=split.labels[:120])

    def called(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CODE, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return called


@pytest.mark.parametrize("method", ["temperature", "vector", "aux"])
def test_a_model_file_is_calibrated(digits, device, tmp_path, method):
    asked = ["calibrate", digits.model, "--data", "labelled.npz", "--out", "new.onnx", "--method", method, "--json"]
    done = device(*asked)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["method"], report["images"]) == (method, 120)
    assert report["nll_after"] <= report["nll_before"]
    assert Model(tmp_path / "new.onnx", "cpu").metadata.calibration.method == method


def test_a_model_file_is_evaluated(digits, device, tmp_path):
    done = device("evaluate", digits.model, "--data", "labelled.npz", "--json", "--report", "report.html")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == 120
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_an_onnx_classifier_is_exported(device, tmp_path):
    (tmp_path / "net.onnx").write_bytes(simple(Net()).SerializeToString())
    for inference in ("mc", "moments"):
        done = device("export", "--from", "net.onnx", "--inference", inference, "--out", f"{inference}.onnx")
        assert done.returncode == 0, done.stderr
        assert Model(tmp_path / f"{inference}.onnx", "cpu").metadata.inference == inference


def test_a_run_needs_torch_and_says_so(digits, device):
    done = device("calibrate", digits.run)
    assert done.returncode == 1
    assert "Calibrating a run needs torch" in done.stderr
