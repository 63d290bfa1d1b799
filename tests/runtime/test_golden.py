"""The goldens that every port is held to, by the Python runtime itself."""

import json
import warnings

import numpy as np
import onnxruntime
import pytest
from conftest import GOLDEN

from uce_edge import Model, contract
from uce_edge.errors import UceEdgeWarning
from uce_edge.rejection.rule import REASONS, Code

CASES = json.loads((GOLDEN / "cases.json").read_text())


@pytest.fixture(scope="module")
def sessions() -> dict[str, onnxruntime.InferenceSession]:
    files = sorted({case["model"] for case in CASES})
    return {name: onnxruntime.InferenceSession(GOLDEN / name, providers=["CPUExecutionProvider"]) for name in files}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']}-{case['image']}-{case['seeds'][:1]}")
def test_every_output_is_the_golden_one(sessions: dict[str, onnxruntime.InferenceSession], case: dict) -> None:
    pixels = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
    seeds = {contract.SEEDS: np.array(case["seeds"], np.int32)} if case["seeds"] else {}
    feed = {contract.IMAGE: pixels} | seeds
    names = list(case["outputs"])
    # One image of the reference more or less is rounding.
    tolerances = {contract.LOGITS: 2e-5, contract.NOVELTY: 1 / (_reference_images(case["model"]) + 1) + 1e-6}
    for name, value in zip(names, sessions[case["model"]].run(names, feed), strict=True):
        wanted = np.array(case["outputs"][name]["values"]).reshape(case["outputs"][name]["shape"])
        np.testing.assert_allclose(value, wanted, atol=tolerances.get(name, 1e-6), rtol=1e-5)


def _reference_images(model: str) -> int:
    """How many images the novelty of a file counts; 0 for a file without it."""
    rule = json.loads((GOLDEN / model).with_suffix(".json").read_text()).get("rule") or {}
    return int(rule["gate"]["images"]) if "gate" in rule else 0


def test_the_goldens_decide_both_ways_with_every_rule() -> None:
    accepted = {case["model"] for case in CASES if case["decision"] == Code.ACCEPT}
    rejected = {case["model"] for case in CASES if case["decision"] != Code.ACCEPT}
    assert accepted - rejected == {"digits-rule-none.onnx", "digits-sets-lac.onnx", "digits-sets-aps.onnx"}
    assert rejected <= accepted


def test_the_goldens_have_every_decision_and_python_gives_it() -> None:
    assert {case["decision"] for case in CASES} == set(Code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UceEdgeWarning)  # some cases have other passes than those of the promise
        for case in CASES:
            model = Model(GOLDEN / case["model"], "cpu")
            if model.metadata.rule is None:
                continue
            pixels = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
            seed, samples = (case["seeds"] or [0])[0] // contract.MAX_SAMPLES, len(case["seeds"]) or None
            answer = model.predict(pixels, samples, seed, "auto")[0]
            assert (REASONS.index(answer.reason), answer.reason) == (case["decision"], case["reason"])
