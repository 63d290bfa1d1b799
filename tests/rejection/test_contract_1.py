"""Files of contract 1: one rule is made of their four keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, Call

from uce_edge import contract
from uce_edge.contract import RuleScore
from uce_edge.contract_1 import convert
from uce_edge.errors import ModelFileError
from uce_edge.metadata import Metadata
from uce_edge.runtime.model import Model

OLD = GOLDEN / "digits-minor-0.onnx"
HOW = {"samples": 25, "seed": 0, "data": "", "date": "2026-01-01"}
REJECT = {
    "threshold": 0.3, "target_error": 0.05, "confidence": 0.95, "error_bound": 0.049, "error": 0.03, "coverage": 0.8,
    "accepted": 80, "images": 100, **HOW,
}  # fmt: skip
GATE = {"cutoff": 0.01, "level": 0.02, "confidence": 0.95, "images": 135, "data": ""}
CLASS = {"target_error": 0.05, "error_bound": 0.049, "error": 0.025, "coverage": 0.8, "accepted": 40, "images": 50}
CLASSES = {
    "limits": [CLASS | {"threshold": 0.3}, CLASS | {"threshold": -1.0, "accepted": 0, "error": None, "coverage": 0.0}],
    "confidence": 0.95, "tested": 2, **HOW,
}  # fmt: skip


def document(**keys: Any) -> dict[str, Any]:
    about = {
        "contract": 1, "classes": ["a", "b"], "image": {"height": 8, "width": 8, "channels": 1}, "inference": "mc",
        "samples": 25, "outputs": ["novelty", "novelty_score"],
    }  # fmt: skip
    return about | keys


@pytest.mark.parametrize(
    ("keys", "score", "limits", "cutoff"),
    [
        ({}, None, None, None),
        ({"reject": REJECT}, RuleScore.UNCERTAINTY, (0.3,), None),
        ({"reject": REJECT, "rule": {"foreign": GATE}}, RuleScore.UNCERTAINTY, None, 0.01),
        (
            {"reject": REJECT, "rule": {"foreign": GATE, "uncertain": REJECT | {"threshold": 0.4}}},
            RuleScore.UNCERTAINTY, (0.4,), 0.01,
        ),
        ({"reject": REJECT, "doubt": REJECT | {"threshold": 0.2}}, RuleScore.CONFIDENCE, (0.2,), None),
        (
            {"doubt": REJECT | {"threshold": 0.2}, "rule": {"foreign": GATE, "uncertain": REJECT}},
            RuleScore.CONFIDENCE, (0.2,), 0.01,
        ),
        ({"reject": REJECT, "per_class": CLASSES}, RuleScore.UNCERTAINTY, (0.3, -1.0), None),
        ({"per_class": CLASSES, "rule": {"foreign": GATE}}, RuleScore.UNCERTAINTY, (0.3, -1.0), 0.01),
    ],
)  # fmt: skip
def test_the_key_that_was_applied_becomes_the_rule(
    keys: dict[str, Any], score: RuleScore | None, limits: tuple[float, ...] | None, cutoff: float | None
) -> None:
    read = Metadata.from_properties({contract.KEY: json.dumps(document(**keys))}, "old.onnx")
    if score is None:
        assert read.rule is None
        return
    assert read.rule is not None
    assert (read.rule.score, read.rule.limits, read.rule.cutoff) == (score, limits, cutoff)
    assert (read.rule.promise is None) == (limits is None)
    if read.rule.by_class:
        assert read.rule.promise is not None
        assert (read.rule.promise.coverage, read.rule.promise.error, read.rule.promise.target_error) == (
            0.4, 0.025, 0.05,
        )  # fmt: skip


@pytest.mark.parametrize("key", ["reject", "rule", "doubt", "per_class"])
@pytest.mark.parametrize("junk", [0, "x", [], [1], {}, {"limits": 1}, {"foreign": 3}, {"threshold": "x"}, True])
def test_damaged_keys_are_refused_in_one_sentence(key: str, junk: object) -> None:
    with pytest.raises(ModelFileError) as caught:
        Metadata.from_properties({contract.KEY: json.dumps(document(**{key: junk}))}, "old.onnx")
    assert f"`{key}" in str(caught.value)


def test_conversion_leaves_other_keys_alone() -> None:
    assert convert(document(card={"a": 1}))["card"] == {"a": 1}


def test_a_file_of_contract_1_decides_by_the_numpy_reference() -> None:
    model = Model(OLD, "cpu")
    assert model.metadata.contract == 1
    assert model.metadata.rule is not None
    images = np.stack([np.frombuffer((GOLDEN / f"{name}.raw").read_bytes(), np.uint8) for name in ("digit-0", "noise")])
    said = model.predict(images.reshape(2, 8, 8, 1), reject="auto")
    (limit,) = model.metadata.rule.limits or ()
    assert [decision == "accept" for decision in said.decisions] == (said.uncertainty <= np.float32(limit)).tolist()


def test_export_converts_a_file(tmp_path: Path, call: Call) -> None:
    new = tmp_path / "new.onnx"
    said = call("export", OLD, "--out", new)
    assert (said.code, new.with_suffix(".json").exists()) == (0, True), said.err
    before, after = Model(OLD, "cpu"), Model(new, "cpu")
    assert (before.metadata.contract, after.metadata.contract) == (1, 2)
    assert after.metadata.rule == before.metadata.rule
    images = np.stack([np.frombuffer(path.read_bytes(), np.uint8).reshape(8, 8, 1) for path in GOLDEN.glob("*.raw")])
    ours, theirs = (model.predict(images, reject="auto") for model in (before, after))
    assert ours.reasons == theirs.reasons
    np.testing.assert_array_equal(ours.probabilities, theirs.probabilities)
