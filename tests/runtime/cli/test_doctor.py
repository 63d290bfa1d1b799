"""`doctor`: what is installed, what a session gets, and the remedy for what does not work."""

import json
import sys
from pathlib import Path

import onnxruntime
import pytest
from conftest import Call

import uce_edge
from uce_edge import models
from uce_edge.runtime import diagnosis


def test_a_sound_installation_has_no_problems(call: Call) -> None:
    said = call("doctor")
    assert said.code == 0
    assert "All is well." in said.out
    report = json.loads(call("doctor", "--json").out)
    assert report["uce-edge"] == uce_edge.__version__
    assert report["packages"]["onnxruntime"] == onnxruntime.__version__
    assert report["sessions obtained"]["cpu"] == "CPUExecutionProvider"
    assert report["problems"] == []
    assert report["bundled model"].startswith("as published; its probe images are answered within")


def test_a_changed_model_in_the_box_is_a_problem(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = bytearray(models.bundled().read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "m.onnx").write_bytes(content)
    monkeypatch.setattr(models, "bundled", lambda: tmp_path / "m.onnx")
    said = call("doctor")
    assert said.code == 1
    assert "m.onnx" in said.out


@pytest.mark.parametrize(
    ("installed", "problem"),
    [
        ({}, "ONNX Runtime"),
        (
            {"onnxruntime": "1", "onnxruntime-gpu": "1"},
            "onnxruntime and onnxruntime-gpu",
        ),
    ],
)
def test_the_wrong_wheels_are_a_problem_with_a_remedy(
    call: Call, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], problem: str
) -> None:
    monkeypatch.setattr(diagnosis, "_version", installed.get)
    said = call("doctor", "--json")
    assert said.code == 1
    (problems,) = json.loads(said.out)["problems"]
    assert problems.startswith(problem)
    assert "pip install" in problems


def test_cuda_that_is_listed_and_does_not_start_names_what_it_needs(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cuda = onnxruntime.InferenceSession, "CUDAExecutionProvider"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [cuda, "CPUExecutionProvider"])
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda *a, providers, **k: real(*a, providers=[name for name in providers if name != cuda], **k),
    )
    said = call("doctor")
    assert said.code == 1
    assert "cuda: no" in said.out
    assert "problem   CUDA" in said.out
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]'" in said.out


def test_an_absent_runtime_is_no_crash(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = call("doctor")
    assert said.code == 1
    assert 'Run: pip install "uce-edge[cpu]"' in said.out
