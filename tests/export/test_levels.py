"""The level of the novelty gate: what every level costs, and that choosing one leaves the promise valid."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Call, Digits

from uce_edge.calibration.novelty import LEVEL, cutoff
from uce_edge.contract import Method
from uce_edge.datasets import synthetic_ood
from uce_edge.datasets.splits import Split
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import NoveltyPromise, Promise, RejectBy
from uce_edge.runtime.model import Model
from uce_edge_export.check import novelty_levels
from uce_edge_export.check.novelty_levels import Costs
from uce_edge_export.recalibration import Recalibrated, recalibrate

GOLDEN = Path(__file__).parents[1] / "golden"


def calibrated(
    digits: Digits, out: Path, promise: Promise | None = None, level: float | None = None, held_out: Split | None = None
) -> Recalibrated:
    """The digits file, calibrated anew on 270 images: 135 are the reference."""
    data = digits.dataset.splits["calibration"]
    held_out = digits.dataset.splits["guarantee"] if held_out is None else held_out
    return recalibrate(
        digits.model, out, data, Method.TEMPERATURE, promise=promise, novelty=NoveltyPromise(level), held_out=held_out
    )


def costs_of(done: Recalibrated) -> Costs:
    assert done.costs is not None
    return done.costs


def test_every_level_says_what_it_accepts_of_own_and_of_far_images(digits: Digits, tmp_path: Path) -> None:
    done = calibrated(digits, tmp_path / "m.onnx", level=0.04)
    costs, model = costs_of(done), Model(done.path, "cpu")
    # 135 images cannot promise 1 or 2 %.
    assert [(row.level, row.used) for row in costs.rows] == [(0.03, False), (0.04, True), (0.05, False)]
    assert (costs.target_error, costs.images) == (None, 135)
    reference = digits.dataset.splits["calibration"].halves()[1]
    said = model.predict(reference.images)
    made = synthetic_ood.far(model.metadata.image, synthetic_ood.CHOICE, each=novelty_levels.EACH)
    strange, kinds = model.predict(made.images).novelty, np.array(made.kinds)
    for row in costs.rows:
        limit = np.float32(cutoff(135, row.level).cutoff)
        kept = said.novelty > limit
        assert row.coverage == kept.mean()
        assert row.error == (said.class_ids != reference.labels)[kept].mean()
        assert row.far == {kind: (strange > limit)[kinds == kind].mean() for kind in synthetic_ood.CHOICE}


def test_with_a_promise_every_level_has_a_threshold_of_its_own(digits: Digits, tmp_path: Path) -> None:
    promise = Promise(0.2)
    done = calibrated(digits, tmp_path / "m.onnx", promise)
    costs, model = costs_of(done), Model(done.path, "cpu")
    assert costs.target_error == 0.2
    reference = digits.dataset.splits["calibration"].halves()[1]
    said = model.predict(reference.images)
    wrong = said.class_ids != reference.labels
    for row in costs.rows:
        familiar = said.novelty > np.float32(cutoff(135, row.level).cutoff)
        found = guarantee.find(said.uncertainty[familiar], wrong[familiar], 0.2, 0.95)
        assert row.coverage == found.accepted / 135
        assert row.error == found.error


@pytest.mark.parametrize("score", [RejectBy.CONFIDENCE, RejectBy.AUTO])
def test_a_promise_about_the_confidence_is_shown_too(digits: Digits, tmp_path: Path, score: RejectBy) -> None:
    costs = costs_of(calibrated(digits, tmp_path / "m.onnx", Promise(0.2, score=score)))
    assert costs.target_error == 0.2
    assert all(row.coverage > 0.5 for row in costs.rows)


def test_if_the_reference_cannot_prove_the_error_the_gate_is_shown_alone(digits: Digits, tmp_path: Path) -> None:
    costs = costs_of(calibrated(digits, tmp_path / "m.onnx", Promise(0.02)))
    assert costs.target_error is None
    assert costs.rows == costs_of(calibrated(digits, tmp_path / "n.onnx")).rows


def test_guarantee_images_have_no_say_in_the_table(digits: Digits, tmp_path: Path) -> None:
    whole = digits.dataset.splits["guarantee"]
    scrambled = Split(whole.images[::-1].copy(), np.roll(whole.labels, 1))
    first, other = (
        calibrated(digits, tmp_path / f"{number}.onnx", Promise(0.2), held_out=kept)
        for number, kept in enumerate((whole, scrambled))
    )
    assert first.costs == other.costs
    assert first.metadata.rule != other.metadata.rule


def test_the_level_is_fixed_before_the_threshold_is_searched(digits: Digits, tmp_path: Path) -> None:
    kept = digits.dataset.splits["guarantee"]
    for level in (LEVEL, 0.05):
        done = calibrated(digits, tmp_path / f"{level}.onnx", Promise(0.1), level)
        rule, said = done.metadata.rule, Model(done.path, "cpu").predict(kept.images)
        assert rule is not None
        assert rule.gate is not None
        assert (rule.gate.level, rule.cutoff) == (level, cutoff(135, level).cutoff)
        familiar = said.novelty > np.float32(rule.cutoff)
        wrong = said.class_ids != kept.labels
        assert rule.threshold == guarantee.find(said.uncertainty[familiar], wrong[familiar], 0.1, 0.95).threshold


def test_calibrate_prints_the_table_takes_a_level_and_info_shows_it(digits: Digits, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    said = call("calibrate", digits.model, "--data", "digits", "--novelty-level", 0.04, "--json", "--out", out)
    assert said.code == 0, said.err
    lines = said.err.splitlines()
    head = next(line for line in lines if line.startswith("level "))
    assert all(kind in head for kind in synthetic_ood.CHOICE)
    assert not any(kind in said.err for kind in synthetic_ood.JUDGE), "these are kept out of every choice"
    assert [line.split("  ")[0] for line in lines if "%" in line and line[0] in "345"] == [
        "3.0 %",
        "4.0 % (used)",
        "5.0 %",
    ]
    rows = json.loads(said.out)["novelty_levels"]
    assert [row["level"] for row in rows] == [0.03, 0.04, 0.05]
    assert set(rows[0]["far"]) == set(synthetic_ood.CHOICE)
    assert "At most 4.0 % of the images" in call("info", out).out


def test_export_of_files_takes_a_level_too(call: Call, tmp_path: Path) -> None:
    sources, out = (GOLDEN / "digits-mc.onnx", GOLDEN / "digits-factored.onnx"), tmp_path / "m.onnx"
    assert call("export", "--from", *sources, "--novelty-level", 0.05, "--out", out).code == 2
    assert call("export", "--from", *sources, "--data", "digits", "--novelty-level", 2).code == 2
    words = ("export", "--from", *sources, "--data", "digits", "--samples", 2, "--out", out)
    said = call(*words, "--novelty-level", 0.05)
    assert said.code == 0, said.err
    assert "5.0 % (used)" in said.err
    rule = Model(out, "cpu").metadata.rule
    assert rule is not None
    assert rule.gate is not None
    assert rule.gate.level == 0.05


def test_the_old_name_of_the_option_still_works(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("calibrate", digits.model, "--data", "digits", "--foreign", 0.05, "--out", tmp_path / "m.onnx")
    assert said.code == 0, said.err
    assert "5.0 % (used)" in said.err


def test_a_quiet_command_shows_no_table(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("calibrate", digits.model, "--data", "digits", "--out", tmp_path / "m.onnx", "--quiet")
    assert (said.code, said.err, said.out) == (0, "", "")
