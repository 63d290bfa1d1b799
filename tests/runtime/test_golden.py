"""The goldens that every port is held to, by the Python runtime itself."""

import json

import numpy as np
import onnxruntime
import pytest
from conftest import GOLDEN

from uce_edge import contract

CASES = json.loads((GOLDEN / "cases.json").read_text())


@pytest.fixture(scope="module")
def sessions() -> dict[str, onnxruntime.InferenceSession]:
    files = sorted({case["model"] for case in CASES})
    return {name: onnxruntime.InferenceSession(GOLDEN / name, providers=["CPUExecutionProvider"]) for name in files}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']}-{case['image']}-{case['seeds'][0]}")
def test_every_output_is_the_golden_one(sessions: dict[str, onnxruntime.InferenceSession], case: dict) -> None:
    pixels = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
    feed = {contract.IMAGE: pixels, contract.SEEDS: np.array(case["seeds"], np.int32)}
    names = list(case["outputs"])
    for name, found in zip(names, sessions[case["model"]].run(names, feed), strict=True):
        wanted = np.array(case["outputs"][name]["values"]).reshape(case["outputs"][name]["shape"])
        np.testing.assert_allclose(found, wanted, atol=2e-5 if name == contract.LOGITS else 1e-6, rtol=1e-5)


def test_the_goldens_decide_both_ways_with_every_file() -> None:
    assert {(case["model"], case["decision"]) for case in CASES} == {
        (f"digits-{kind}.onnx", outcome) for kind in ("mc", "moments", "factored") for outcome in ("accept", "reject")
    }
