"""Evaluation of a file with a cutoff on novelty: several out-of-distribution sets, corrupted images."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Call, Digits
from helpers.errors import raises

from uce_edge import metrics
from uce_edge.contract import Method
from uce_edge.datasets import synthetic_ood
from uce_edge.datasets.splits import Split
from uce_edge.evaluation import Evaluation, evaluate
from uce_edge.output.report import page, summary
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge.rejection.rule import Reason
from uce_edge.runtime.model import Model
from uce_edge_export.recalibration import recalibrate


@pytest.fixture(scope="module")
def file(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gated") / "gated.onnx"
    parts = [digits.dataset.splits[name] for name in ("calibration", "guarantee")]
    data = Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    recalibrate(
        digits.model, out, data, Method.TEMPERATURE, promise=Promise(0.05, 0.9), novelty=NoveltyPromise(0.05, 0.9)
    )
    return out


@pytest.fixture(scope="module")
def evaluated(digits: Digits, file: Path) -> Evaluation:
    test, model = digits.dataset.splits["test"], Model(file, "cpu")
    outside = {
        "inverted": 255 - test.images[:60],
        "far": synthetic_ood.far(model.metadata.image, synthetic_ood.JUDGE, each=10).images,
    }
    return evaluate(model, test.images, test.labels, outside=outside, corrupt=30, resamples=20)


def test_own_images_are_counted_as_the_rule_decides(digits: Digits, file: Path, evaluated: Evaluation) -> None:
    test, model = digits.dataset.splits["test"], Model(file, "cpu")
    said = model.predict(test.images, reject="auto")
    accepted = np.array([decision == "accept" for decision in said.decisions])
    gated = evaluated.gated
    assert gated is not None
    assert gated.coverage == pytest.approx(accepted.mean())
    assert gated.error == pytest.approx((said.class_ids != test.labels)[accepted].mean())
    rejected = [reason in (Reason.OUT_OF_DISTRIBUTION, Reason.BOTH) for reason in said.reasons or ()]
    assert gated.own_rejected == pytest.approx(np.mean(rejected))
    assert gated.level == 0.05


def test_every_ood_set_is_scored_by_every_score(digits: Digits, file: Path, evaluated: Evaluation) -> None:
    test, model = digits.dataset.splits["test"], Model(file, "cpu")
    assert [ood.name for ood in evaluated.ood] == ["inverted", "far"]
    inverted = evaluated.ood[0]
    own, other = model.predict(test.images), model.predict(255 - test.images[:60], reject="auto")
    assert set(inverted.detection) == {"uncertainty", "confidence", "model_uncertainty", "novelty", "both"}
    novelty = inverted.detection["novelty"].auroc
    assert novelty.value == pytest.approx(metrics.ood_auroc(own.novelty_score, other.novelty_score))
    assert novelty.low is not None
    assert novelty.high is not None
    assert novelty.low <= novelty.value <= novelty.high
    assert inverted.gated == pytest.approx(np.mean([decision == "accept" for decision in other.decisions]))
    assert inverted.gated <= inverted.accepted


def test_both_together_is_the_product_of_the_shares_that_are_at_least_as_extreme(
    digits: Digits, file: Path, evaluated: Evaluation
) -> None:
    model = Model(file, "cpu")
    own, other = (
        model.predict(images)
        for images in (digits.dataset.splits["test"].images, 255 - digits.dataset.splits["test"].images[:60])
    )

    def share(values: np.ndarray, among: np.ndarray) -> np.ndarray:
        return (1 + (among[None] >= values[:, None]).sum(axis=1)) / (1 + len(among))

    inside, outside = (
        -np.log(share(said.uncertainty, own.uncertainty) * share(said.novelty_score, own.novelty_score))
        for said in (own, other)
    )
    # Products that are equal may be rounded apart, which breaks a tie.
    expected = pytest.approx(metrics.ood_auroc(inside, outside), abs=1e-4)
    assert evaluated.ood[0].detection["both"].auroc.value == expected


def test_damaged_images_are_counted_with_and_without_the_gate(evaluated: Evaluation) -> None:
    assert evaluated.shift is not None
    conditions = [one for curve in evaluated.shift.curves.values() for one in curve]
    assert all(one.gated_coverage is not None for one in conditions)
    assert sum(one.gated_coverage or 0 for one in conditions) < sum(one.coverage for one in conditions)


def test_the_page_shows_all_of_it(evaluated: Evaluation) -> None:
    text = page.render(evaluated)
    for word in (
        "Out of distribution: inverted",
        "Out of distribution: far",
        "ood-2",
        "chart-mixture-2",
        "accepted with the gate",
    ):
        assert word in text
    assert text.count('id="chart-mixture"') == 1
    found = [sentence for about, sentence in summary.findings(evaluated) if about == "Out of distribution"]
    assert len(found) == 2
    assert "cutoff" in found[0]
    json.dumps(evaluated.as_dict(), allow_nan=False)


def test_the_command_takes_several_sets_and_makes_the_far_one(
    digits: Digits, file: Path, call: Call, tmp_path: Path
) -> None:
    test = digits.dataset.splits["test"]
    np.savez(tmp_path / "test.npz", x=test.images[:60], y=test.labels[:60])
    np.savez(tmp_path / "inverted.npz", x=255 - test.images[:30], y=np.zeros(30, int))
    asked = (
        "evaluate", file, "--data", tmp_path / "test.npz", "--ood", tmp_path / "inverted.npz", "--ood", "far",
        "--no-latency",
    )  # fmt: skip
    said = call(*asked)
    assert said.code == 0, said.err
    for word in ("inverted.npz", "far", "with the gate", "own images rejected", "novelty"):
        assert word in said.out
    document = json.loads(call(*asked, "--json").out)
    assert [ood["name"] for ood in document["ood"]] == ["inverted.npz", "far"]
    assert document["ood"][1]["images"] == 6 * synthetic_ood.EACH, "shuffled own images are among them"
    assert document["gated"]["level"] == 0.05


def seen_by(file: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Model:
    model = Model(file, "cpu")
    monkeypatch.setattr(model, "metadata", dataclasses.replace(model.metadata, seen=names))
    return model


def test_what_training_saw_is_reported_apart(digits: Digits, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test, model = digits.dataset.splits["test"], seen_by(file, ("noise", "blur", "plasma"), monkeypatch)
    others = synthetic_ood.far(model.metadata.image, synthetic_ood.CHOICE, each=10)
    result = evaluate(
        model, test.images, test.labels, outside={"far": others.images, "black": np.zeros_like(test.images[:5])},
        kinds={"far": others.kinds}, corrupt=30, resamples=2,
    )  # fmt: skip
    outside, black = result.ood
    assert black.kinds == black.apart == (), "nobody says of which kind they are"
    assert {kind.name: kind.seen for kind in outside.kinds} == {name: name == "noise" for name in synthetic_ood.CHOICE}
    assert [(group.name, group.images) for group in outside.apart] == [
        ("unseen in training", 50), ("seen in training", 10),
    ]  # fmt: skip
    unseen, noise = outside.apart
    said, own = model.predict(others.images), model.predict(test.images)
    assert noise.auroc["uncertainty"] == pytest.approx(metrics.ood_auroc(own.uncertainty, said.uncertainty[:10]))
    assert unseen.auroc["novelty"] == pytest.approx(metrics.ood_auroc(own.novelty_score, said.novelty_score[10:]))
    assert (50 * unseen.accepted + 10 * noise.accepted) / 60 == pytest.approx(outside.accepted)
    shift = result.shift
    assert shift is not None
    assert [(group.kinds, group.seen) for group in shift.apart] == [
        (("brightness", "contrast", "jpeg", "pixelate"), False), (("noise", "blur"), True),
    ]  # fmt: skip
    trained = shift.apart[1]
    damaged = [one for kind in ("noise", "blur") for one in shift.curves[kind][1:]]
    assert trained.coverage == pytest.approx(np.mean([one.coverage for one in damaged]))
    wrong = sum(round(one.coverage * 30) * (one.error or 0) for one in damaged)
    assert trained.error == pytest.approx(wrong / (30 * trained.coverage * len(damaged)))
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert [kind["seen"] for kind in document["ood"][0]["kinds"]] == [True, *[False] * 5]
    assert [group["seen"] for group in document["shift"]["apart"]] == [False, True]
    text = page.render(result)
    assert "noise (seen in training)" in text
    assert "noise, blur, plasma" in text
    assert "unseen: brightness, contrast, jpeg, pixelate" in text


def test_a_file_that_does_not_say_what_it_saw_claims_nothing(evaluated: Evaluation, digits: Digits, file: Path) -> None:
    assert evaluated.shift is not None
    assert evaluated.shift.apart == evaluated.ood[1].apart == ()
    test, model = digits.dataset.splits["test"], Model(file, "cpu")
    images, kinds = synthetic_ood.far(model.metadata.image, synthetic_ood.JUDGE, each=2)
    result = evaluate(model, test.images, test.labels, outside={"far": images}, kinds={"far": kinds}, resamples=2)
    assert [kind.seen for kind in result.ood[0].kinds] == [None] * 5
    assert "seen in training" not in page.render(result)
    with raises("argument.kinds"):
        evaluate(model, test.images, test.labels, outside={"far": images}, kinds={"far": ["noise"]})
