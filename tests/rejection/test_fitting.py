"""Promises of a fitted rule, by simulation: the true rates are known, and 1,000 rules are fitted to fresh images."""

import numpy as np
import pytest

from uce_edge.calibration.novelty import Reference, cutoff
from uce_edge.rejection.fitting import Circumstances, choose_score, fit_rule
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyGuarantee, Promise, RejectBy
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.prediction import Prediction

REDRAWS = 1000
HOW = Circumstances(25, 0, "", "2026-01-01", grouped=False)
GATE = RejectRule(cutoff=0.01, gate=NoveltyGuarantee(0.02, 0.95, 200, data=""))


def said(uncertainty: np.ndarray, novelty: np.ndarray) -> Prediction:
    """The answers of a file that always predicts class 0."""
    n, blank = len(uncertainty), np.zeros(len(uncertainty), np.float32)
    return Prediction(
        class_ids=np.zeros(n, np.int32), labels=["0"] * n, probabilities=np.ones((n, 2), np.float32),
        uncertainty=uncertainty.astype(np.float32), model_uncertainty=blank, standard_error=blank,
        error_probability=blank, decisions=[None] * n, samples=25, drawn=np.full(n, 25, np.int32), seed=0,
        novelty=novelty, classes=("0", "1"),
    )  # fmt: skip


@pytest.mark.parametrize(("images", "level"), [(200, 0.05), (299, 0.01)])
def test_both_promises_hold_in_95_of_100_redraws(images: int, level: float) -> None:
    rng = np.random.default_rng(images)
    promise = Promise(0.15, 0.95)
    chosen = cutoff(images, level)
    gate = RejectRule(cutoff=chosen.cutoff, gate=NoveltyGuarantee(level, 0.95, images, data=""))
    rank = int(chosen.cutoff * (images + 1))
    kept_familiar = kept_error = promised = 0
    for _ in range(REDRAWS):
        scores = rng.random(images).astype(np.float32)
        reference = Reference.of(scores)
        # The score at which an image begins to be rejected; the share beyond it is the share of own images lost.
        edge = float(np.sort(scores)[images - rank])
        kept_familiar += 1 - edge <= level
        # Errors grow with the uncertainty u, and steeply with the score s: P(wrong) = 0.2 u + 0.3 s^2.
        u, s = rng.random((2, 400))
        wrong = rng.random(400) < 0.2 * u + 0.3 * s**2
        rule = fit_rule(said(u, reference(s)), wrong.astype(np.int64), promise, gate, HOW)
        if isinstance(rule, NoGuaranteeError):
            continue
        assert rule is not None
        assert rule.threshold is not None
        promised += 1
        # The mean of 0.2 u + 0.3 s^2 over u <= t and s <= edge.
        true_error = 0.1 * rule.threshold + 0.1 * edge**2
        kept_error += true_error <= promise.target_error
    assert kept_familiar / REDRAWS >= 0.935
    assert promised > 100  # or it would be proven of nothing
    assert (REDRAWS - promised + kept_error) / REDRAWS >= 0.935
    assert kept_error < promised  # a promise that never fails was too careful


def test_coverage_is_of_all_images_and_the_error_of_those_that_are_accepted() -> None:
    u = np.linspace(0, 1, 1000)
    outside = np.arange(1000) % 10 == 0
    novelty = np.where(outside, 0, 0.5).astype(np.float32)
    wrong = (outside | (u > 0.8)).astype(np.int64)  # every image outside is wrong, and nothing else below 0.8
    rule = fit_rule(said(u, novelty), wrong, Promise(0.02), GATE, HOW)
    assert isinstance(rule, RejectRule)
    assert rule.threshold is not None
    assert rule.promise is not None
    assert 0.75 < rule.threshold < 0.82
    accepted = int((~outside & (u <= rule.threshold)).sum())
    assert (rule.promise.images, rule.promise.accepted, rule.promise.coverage) == (1000, accepted, accepted / 1000)
    # The uncertainty alone accepts those outside, and could promise nothing.
    assert isinstance(fit_rule(said(u, novelty), wrong, Promise(0.02), RejectRule(), HOW), NoGuaranteeError)


def test_when_all_images_are_outside_nothing_is_promised() -> None:
    blank = np.zeros(50, np.float32)
    assert isinstance(fit_rule(said(blank, blank), np.zeros(50, np.int64), Promise(0.1), GATE, HOW), NoGuaranteeError)


def test_without_a_promise_the_rule_is_the_gate_or_nothing() -> None:
    blank = np.zeros(50, np.float32)
    assert fit_rule(said(blank, blank), np.zeros(50, np.int64), None, GATE, HOW) == GATE
    assert fit_rule(said(blank, blank), np.zeros(50, np.int64), None, RejectRule(), HOW) is None


def test_auto_takes_the_confidence_only_where_it_is_better_beyond_doubt(rng: np.random.Generator) -> None:
    """Classes that are often wrong between two, and right among many: there the entropy misleads."""
    n = 1000
    two = np.tile([0.52, 0.48, 0, 0, 0, 0], (n, 1))
    many = np.tile([0.6, 0.08, 0.08, 0.08, 0.08, 0.08], (n, 1))
    p = np.concatenate([two, many]) + rng.uniform(0, 1e-3, (2 * n, 6))
    p /= p.sum(-1, keepdims=True)
    labels = np.array([rng.choice(6, p=row) for row in p])
    p = p.astype(np.float32)
    assert choose_score(p, labels) is RejectBy.CONFIDENCE
    assert choose_score(p[:40], labels[:40]) is RejectBy.UNCERTAINTY
    assert choose_score(p[:n], labels[:n]) is RejectBy.UNCERTAINTY
