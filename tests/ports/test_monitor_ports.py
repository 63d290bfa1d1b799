"""The betting step in C++ and JavaScript gives the evidence of the golden stream, as Python does."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

from uce_edge import Monitor
from uce_edge.monitor.state import StoredReference

FILE = GOLDEN / "monitor.json"
SCRIPT = """
    import { readFileSync } from 'node:fs';
    const { Monitor } = await import(process.argv[1]);
    const golden = JSON.parse(readFileSync(process.argv[2], 'utf8'));
    const monitor = new Monitor(golden.monitor, golden.alpha, golden.seed);
    for (const answer of golden.answers) {
      const alarm = monitor.add(answer);
      console.log(monitor.logEvidence, Number(alarm));
    }
"""


@pytest.fixture(scope="module")
def golden() -> dict[str, object]:
    document: dict[str, object] = json.loads(FILE.read_text())
    return document


def check(lines: list[str], golden: dict[str, object]) -> None:
    told = np.array([list(map(float, line.split())) for line in lines])
    np.testing.assert_allclose(told[:, 0], golden["log_evidence"], rtol=0, atol=1e-9)
    first = int(told[:, 1].argmax()) + 1
    assert first == golden["alarm"]
    assert told[first - 1 :, 1].all()


def test_python_gives_the_golden_evidence(golden: dict) -> None:
    monitor = Monitor.start(StoredReference.from_document(golden["monitor"]), "", golden["alpha"], seed=golden["seed"])
    lines = []
    for answer in golden["answers"]:
        monitor.add_scores(answer)
        lines.append(f"{monitor.log_evidence!r} {int(monitor.alarm is not None)}")
    check(lines, golden)


def test_cpp_gives_the_golden_evidence(golden: dict, tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path / "monitor"
    words = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "examples" / "cpp"]
    words += [Path(__file__).with_name("monitor.cpp"), "-o", program]
    built = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, FILE], capture_output=True, text=True, check=True)
    check(done.stdout.splitlines(), golden)


def test_javascript_gives_the_golden_evidence(golden: dict) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    module = (ROOT / "examples" / "node" / "monitor.mjs").as_uri()
    words = [node, "--input-type=module", "--eval", SCRIPT, module, str(FILE)]
    check(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines(), golden)
