"""How long until the first answer: a whole process, and the loading of a file."""

import subprocess
from pathlib import Path

import pytest
from cold_start import commands

from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import onnxruntime


@pytest.mark.parametrize("command", ["uce-edge predict one.png", "a bare script"])
def test_cold_start(benchmark, models: dict[str, Model], tmp_path: Path, command: str) -> None:
    line = commands(models["exact"].path, tmp_path)[command]
    done = benchmark.pedantic(subprocess.run, (line,), {"capture_output": True, "check": True}, rounds=7)
    assert done.stdout


@pytest.mark.parametrize("form", ["exact", "factored", "deterministic"])
def test_load(benchmark, models: dict[str, Model], form: str) -> None:
    path = models[form].path
    assert benchmark(Model, path, "cpu", threads=2).metadata.layers == models[form].metadata.layers


@pytest.mark.filterwarnings("ignore::uce_edge.errors.IntegrityWarning")
def test_load_without_the_digests(benchmark, models: dict[str, Model]) -> None:
    """What comparing the digests costs: `test_load` may take 1.1 times as long."""
    path = models["exact"].path
    assert benchmark(Model, path, "cpu", threads=2, verify=False).digests is None


def test_load_with_onnxruntime_alone(benchmark, models: dict[str, Model]) -> None:
    path = models["exact"].path
    assert benchmark(onnxruntime().InferenceSession, path, providers=["CPUExecutionProvider"]).get_inputs()
