"""The C++ example on every golden, and what it refuses."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import json
import re
import subprocess
from pathlib import Path

import onnx
import pytest
from conftest import ROOT
from helpers.cpp_build import CPP, HEADERS, build, compiled  # noqa: F401
from helpers.port_cases import CONTRACT, GATED, IMAGE, MODEL, Port, PortTests, answer, check_contract, command, refusal
from helpers.port_frame_cases import FrameTests
from helpers.port_gate_cases import GateTests
from helpers.port_probe_cases import ProbeTests

from uce_edge import contract


@pytest.fixture(scope="module")
def port(build: Path) -> Port:
    return command(build / "uce_edge_predict")


def test_the_header_spells_the_contract_as_python_does(build: Path) -> None:
    """By a program of two dozen lines that is built against it."""
    library, program = build / "lib" / "libonnxruntime.so.1", build / "contract"
    sources = [Path(__file__).with_name("contract.cpp"), library, f"-Wl,-rpath,{library.parent}"]
    compiled("c++", program, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", CPP, "-isystem", HEADERS, *sources)
    edges = [value for case in CONTRACT["accept"] for value in (case["uncertainty"], case["threshold"])]
    words = [program, *("nan" if value is None else repr(value) for value in edges)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    check_contract(json.loads(done.stdout))


class TestCpp(PortTests, GateTests, ProbeTests, FrameTests):
    """All of it, and what only a reader of ONNX metadata meets."""

    def test_the_readme_shows_what_its_command_prints(self, port: Port) -> None:
        text = (ROOT / "examples" / "cpp" / "README.md").read_text()
        shown = dict(re.findall(r'"(\w+)": ([-+.e0-9]+|null|"[^"]+")', text[: text.index("(broken here)")]))
        said = answer(port, GATED, ROOT / "tests" / "golden" / "black.raw", "--reject", "auto")
        assert set(shown) == set(said) - {"probabilities"}
        for name, value in shown.items():
            wanted = json.loads(value)
            assert said[name] == (pytest.approx(wanted, rel=1e-5) if isinstance(wanted, float) else wanted), name

    def test_a_file_without_our_metadata_is_refused(self, port: Port, tmp_path: Path) -> None:
        model = onnx.load(MODEL)
        del model.metadata_props[:]
        onnx.save(model, tmp_path / "other.onnx")
        rule = "is an ONNX file, but not a uce-edge model: it has no metadata under uce_edge."
        assert refusal(port, tmp_path / "other.onnx", IMAGE) == f"{tmp_path / 'other.onnx'} {rule}"

    @pytest.mark.parametrize(
        "text",
        [
            '{"contract": 2',
            '{"contract": 2} x',
            '{"a": "\\ud800"}',
            '{"a": "\\q"}',
            "{'a': 1}",
            '{"a": 1-2}',
            "[" * 999,
        ],
    )
    def test_damaged_metadata_is_refused(self, port: Port, tmp_path: Path, text: str) -> None:
        model = onnx.load(MODEL)
        next(item for item in model.metadata_props if item.key == contract.KEY).value = text
        onnx.save(model, tmp_path / "damaged.onnx")
        said = refusal(port, tmp_path / "damaged.onnx", IMAGE)
        assert said.startswith(f"{tmp_path / 'damaged.onnx'} has damaged metadata: ")
