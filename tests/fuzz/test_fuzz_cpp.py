"""The JSON parser of the C++ port under the sanitizers of the compiler."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import GOLDEN, ROOT

LONG = int(os.environ.get("UCE_EDGE_FUZZ", "0"))
SOURCE = Path(__file__).resolve().parent / "json_fuzz.cpp"
CHECKED = ["-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "examples" / "cpp"), str(SOURCE)]
CORPUS = [GOLDEN / "contract.json", GOLDEN / "digits-mc.json"]


def built(program: Path, *words: str) -> Path:
    said = subprocess.run([*words, *CHECKED, "-o", str(program)], capture_output=True, text=True, check=False)
    if "cannot find -l" in said.stderr or "unsupported option" in said.stderr:
        pytest.skip(f"{words[0]} has no sanitizers here")
    assert said.returncode == 0, said.stderr
    return program


def test_damaged_metadata_is_parsed_or_refused(tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None or os.name == "nt":
        pytest.skip("there is no C++ compiler with sanitizers")
    program = built(tmp_path / "fuzz", compiler, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    wanted = 500 * (LONG or 1)
    corpus = [*CORPUS, *sorted(GOLDEN.glob("digits-*.json"))] if LONG else CORPUS
    done = subprocess.run([program, "0", str(wanted), *corpus], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    print(f"C++ parser: {wanted} damaged documents: {counts}")
    assert min(counts.values()) > 0
    assert sum(counts.values()) == wanted


@pytest.mark.skipif(not LONG, reason="a minute: make fuzz")
@pytest.mark.skipif(shutil.which("clang++") is None, reason="libFuzzer comes with clang++, which is not installed")
def test_libfuzzer_finds_nothing(tmp_path: Path) -> None:
    flags = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-DUCE_EDGE_LIBFUZZER")
    program = built(tmp_path / "fuzz", "clang++", *flags)
    found = tmp_path / "corpus"
    found.mkdir()
    for path in CORPUS:
        shutil.copy(path, found)
    command = [program, "-max_total_time=60", "-max_len=20000", f"-artifact_prefix={tmp_path}/", found]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
