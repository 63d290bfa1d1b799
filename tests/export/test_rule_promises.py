"""Both promises of a rule, by simulation: the true rates are known, and 1,000 files are fitted to images drawn anew."""

import numpy as np
import pytest

from uce_edge.calibration.novelty import Reference, cutoff
from uce_edge.datasets.splits import Split
from uce_edge.prediction import Prediction
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import Promise, StoredCutoff
from uce_edge_export.promise import rule_for

REDRAWS = 1000


def said(uncertainty: np.ndarray, novelty: np.ndarray) -> Prediction:
    """What a file that always answers class 0 says of some images."""
    n, blank = len(uncertainty), np.zeros(len(uncertainty), np.float32)
    return Prediction(
        class_ids=np.zeros(n, np.int32), labels=["0"] * n, probabilities=np.ones((n, 2), np.float32),
        uncertainty=uncertainty.astype(np.float32), model_uncertainty=blank, standard_error=blank,
        error_probability=blank, decisions=[None] * n, samples=25, drawn=np.full(n, 25, np.int32), seed=0,
        novelty=novelty,
    )  # fmt: skip


@pytest.mark.parametrize(("images", "level"), [(200, 0.05), (299, 0.01)])
def test_both_promises_hold_in_95_of_100_redraws(images: int, level: float) -> None:
    rng = np.random.default_rng(images)
    promise = Promise(0.15, 0.95)
    chosen = cutoff(images, level)
    foreign = StoredCutoff(chosen.cutoff, level, 0.95, images, data="")
    rank = int(chosen.cutoff * (images + 1))
    kept_familiar = kept_error = promised = 0
    for _ in range(REDRAWS):
        scores = rng.random(images).astype(np.float32)
        reference = Reference.of(scores)
        # The score at which an image begins to be foreign; its share beyond is the share of familiar images lost.
        edge = float(np.sort(scores)[images - rank])
        kept_familiar += 1 - edge <= level
        # Errors grow with the uncertainty u, and steeply with the score s: P(wrong) = 0.2 u + 0.3 s^2.
        u, s = rng.random((2, 400))
        wrong = rng.random(400) < 0.2 * u + 0.3 * s**2
        data = Split(np.zeros((400, 1), np.uint8), wrong.astype(np.int64))
        rule = rule_for(said(u, reference(s)), data, promise, foreign)
        if isinstance(rule, NoGuaranteeError):
            continue
        assert rule.uncertain is not None
        promised += 1
        # The mean of 0.2 u + 0.3 s^2 over u <= t and s <= edge.
        true_error = 0.1 * rule.uncertain.threshold + 0.1 * edge**2
        kept_error += true_error <= promise.target_error
    assert kept_familiar / REDRAWS >= 0.935
    assert promised > 100  # or it would be proven of nothing
    assert (REDRAWS - promised + kept_error) / REDRAWS >= 0.935
    assert kept_error < promised  # a promise that never fails was too careful


def test_coverage_is_of_all_images_and_the_error_of_those_that_both_let_through() -> None:
    u = np.linspace(0, 1, 1000)
    foreign = np.arange(1000) % 10 == 0
    novelty = np.where(foreign, 0, 0.5).astype(np.float32)
    wrong = foreign | (u > 0.8)  # every foreign image is wrong, and nothing else below 0.8
    data = Split(np.zeros((1000, 1), np.uint8), wrong.astype(np.int64))
    gate = StoredCutoff(0.01, 0.02, 0.95, 200, data="")
    rule = rule_for(said(u, novelty), data, Promise(0.02), gate)
    assert not isinstance(rule, NoGuaranteeError)
    assert rule.uncertain is not None
    assert 0.75 < rule.uncertain.threshold < 0.82
    assert rule.uncertain.images == 1000
    accepted = int((~foreign & (u <= rule.uncertain.threshold)).sum())
    assert (rule.uncertain.accepted, rule.uncertain.coverage) == (accepted, accepted / 1000)
    # The uncertainty alone lets the foreign ones through, and could promise nothing.
    alone = rule_for(said(u, np.full(1000, 0.5, np.float32)), data, Promise(0.02), gate)
    assert isinstance(alone, NoGuaranteeError)


def test_when_all_images_are_foreign_nothing_is_promised() -> None:
    data = Split(np.zeros((50, 1), np.uint8), np.zeros(50, np.int64))
    gate = StoredCutoff(0.01, 0.02, 0.95, 200, data="")
    refused = rule_for(said(np.zeros(50), np.zeros(50, np.float32)), data, Promise(0.1), gate)
    assert isinstance(refused, NoGuaranteeError)
    assert "All 50 guarantee images are foreign" in str(refused)
