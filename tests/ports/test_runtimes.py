"""The program that holds other runtimes to the goldens, with those that are here."""

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.port_cases import CASES, MODEL, PER_IMAGE, from_the_future, variant


@pytest.fixture(scope="module")
def runtimes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtimes", GOLDEN / "runtimes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["onnxruntime", "uce_edge"])
def test_the_goldens_pass(runtimes: ModuleType, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():  # the program silences one for good
        assert runtimes.main(name) == 0
    files = len({case["model"] for case in CASES}) + (name == "uce_edge")  # which reads contract 1, too
    assert capsys.readouterr().out.count(f"{name}: digits-") == files


@pytest.mark.parametrize("name", ["onnxruntime", "uce_edge"])
def test_a_file_of_a_later_minor_version_is_answered_as_today(runtimes: ModuleType, name: str, tmp_path: Path) -> None:
    assert runtimes.outputs_read(from_the_future(tmp_path)) == PER_IMAGE
    case = next(case for case in CASES if case["model"] == MODEL.name)
    image = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
    seeds = np.array(case["seeds"], np.int32)
    with warnings.catch_warnings():
        later, today = (
            runtimes.open_model(name, file, len(seeds))(image, seeds) for file in (from_the_future(tmp_path), MODEL)
        )
    for ours, theirs in zip(later, today, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_contract_is_refused(runtimes: ModuleType, tmp_path: Path) -> None:
    file = variant(tmp_path, lambda document: document.update(contract=3))
    with pytest.raises(SystemExit, match="follows model contract 3, and this program reads contract 2"):
        runtimes.open_model("onnxruntime", file, 25)
