"""A stored range gives the golden bytes in C++ and JavaScript, as in Python
(tests/runtime/images/test_gray_range.py)."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, ROOT

FILE = GOLDEN / "range.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]
SCRIPT = """
    import { readFileSync } from 'node:fs';
    const { to8Bits } = await import(process.argv[1]);
    const { cases } = JSON.parse(readFileSync(process.argv[2], 'utf8'));
    const bytes = cases.map(({ range, values }) => to8Bits(Uint16Array.from(values), range ? { range } : {}));
    console.log(JSON.stringify(bytes.map((found) => Array.from(found))));
"""


def test_cpp_gives_the_golden_bytes(tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path / "range"
    words = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "examples" / "cpp"]
    words += [Path(__file__).with_name("range.cpp"), "-o", program]
    built = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    lines = []
    for case in CASES:
        ends = "none none" if case["range"] is None else f"{case['range']['low']} {case['range']['high']}"
        lines.append(f"{len(case['values'])} {ends} {' '.join(map(str, case['values']))}")
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    assert [list(map(int, line.split())) for line in done.stdout.splitlines()] == [case["bytes"] for case in CASES]


def test_javascript_gives_the_golden_bytes() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    module = (ROOT / "examples" / "node" / "range.mjs").as_uri()
    words = [node, "--input-type=module", "--eval", SCRIPT, module, str(FILE)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [case["bytes"] for case in CASES]
