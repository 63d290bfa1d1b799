"""The goldens that every port is held to, by the Python runtime itself."""

import json
import warnings

import numpy as np
import onnxruntime
import pytest
from conftest import GOLDEN

from uce_edge import Model, contract
from uce_edge.errors import UceEdgeWarning
from uce_edge.rejection.rule import Reason

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
    # One image of the reference more or less is rounding.
    tolerances = {contract.LOGITS: 2e-5, contract.NOVELTY: 1 / (_reference_images(case["model"]) + 1) + 1e-6}
    for name, value in zip(names, sessions[case["model"]].run(names, feed), strict=True):
        wanted = np.array(case["outputs"][name]["values"]).reshape(case["outputs"][name]["shape"])
        np.testing.assert_allclose(value, wanted, atol=tolerances.get(name, 1e-6), rtol=1e-5)


def _reference_images(model: str) -> int:
    """How many images the novelty of a file counts; 0 for a file without it."""
    rule = json.loads((GOLDEN / model).with_suffix(".json").read_text()).get("rule")
    return 0 if rule is None else int(rule["gate"]["images"])


def test_the_goldens_decide_both_ways_with_every_file() -> None:
    kinds = (
        "minor-0", "mc", "moments", "factored", "factored-moments", "novelty", "bernoulli", "laplace", "ensemble",
    )  # fmt: skip
    assert {(case["model"], case["decision"]) for case in CASES} == {
        (f"digits-{kind}.onnx", outcome) for kind in kinds for outcome in ("accept", "reject")
    }


def test_the_goldens_have_every_reason_and_python_gives_it() -> None:
    cases = [case for case in CASES if "cutoff" in case]
    assert {case["reason"] for case in cases} == {None, *Reason}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UceEdgeWarning)  # some cases have other passes than those of the promise
        for case in cases:
            pixels = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
            seed, samples = case["seeds"][0] // contract.MAX_SAMPLES, len(case["seeds"])
            (answer,) = Model(GOLDEN / case["model"], "cpu").predict(pixels, samples, seed, "auto")
            assert (answer.decision, answer.reason) == (case["decision"], case["reason"])


def test_the_gate_changes_no_answer() -> None:
    plain, gated = (
        {
            (case["image"], *case["seeds"]): {
                name: value for name, value in case["outputs"].items() if "novelty" not in name
            }
            for case in CASES
            if case["model"] == f"digits-{kind}.onnx"
        }
        for kind in ("mc", "novelty")
    )
    assert plain.items() <= gated.items()
