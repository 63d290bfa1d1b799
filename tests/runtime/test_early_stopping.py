"""Drawing only the passes that a decision needs."""

import itertools
import json
import warnings

import numpy as np
import pytest
from conftest import Call, Digits
from helpers.errors import raises
from scipy.stats import t

from uce_edge.contract import RuleScore
from uce_edge.errors import UsageError
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime import early_stopping
from uce_edge.runtime.model import Model, SamplesWarning
from uce_edge.runtime.prediction import Summary, summarise


def test_looks_end_with_the_last() -> None:
    assert early_stopping.looks(100) == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 62, 77, 96, 100]
    assert early_stopping.looks(10) == [5, 10]
    assert early_stopping.looks(3) == [3]


@pytest.mark.parametrize("freedom", [4, 9, 31, 1000])
def test_quantiles_are_student_s(freedom: int) -> None:
    for tail in (0.1, 0.05, 0.01, 0.002):
        assert early_stopping.student(tail, freedom) == pytest.approx(t.isf(tail, freedom), rel=0.01)


def draw(rng: np.random.Generator, images: int, passes: int, classes: int = 10, spread: float = 0.8) -> np.ndarray:
    """Passes of images of every difficulty."""
    centre = rng.normal(scale=2.5, size=(1, images, classes))
    logits = centre + rng.normal(scale=spread, size=(passes, images, classes))
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return (shifted / shifted.sum(-1, keepdims=True)).astype(np.float32)


def outcome(summary: Summary, rule: RejectRule) -> np.ndarray:
    """The label of what is accepted; -1 for what is rejected."""
    accepted = rule.accept(summary.uncertainty, summary.probabilities, None)
    return np.where(accepted, summary.probabilities.argmax(-1), -1)


@pytest.mark.parametrize("spread", [0.4, 0.8, 1.5])
@pytest.mark.parametrize("error", [0.2, 0.05])
@pytest.mark.parametrize(
    "rule", [RejectRule(limits=(0.3,)), RejectRule(RuleScore.CONFIDENCE, (0.3,))], ids=["uncertainty", "confidence"]
)
def test_stopping_early_hardly_ever_changes_an_outcome_near_the_threshold_too(
    rng: np.random.Generator, rule: RejectRule, error: float, spread: float
) -> None:
    """At every distance from the threshold, and over all looks together."""
    images, most = 4000, 100
    passes = draw(rng, images, most, spread=spread)
    everything = summarise(passes)
    score = everything.uncertainty if rule.score is RuleScore.UNCERTAINTY else 1 - everything.probabilities.max(-1)
    truth, distance = outcome(everything, rule), np.abs(score - 0.3)
    stopped, drawn, waiting = truth.copy(), np.full(images, most), np.arange(images)
    for count in early_stopping.looks(most)[:-1]:
        done = early_stopping.settled(passes[:count, waiting], rule, error, most)
        chosen = waiting[done]
        stopped[chosen], drawn[chosen] = outcome(summarise(passes[:count, chosen]), rule), count
        waiting = waiting[~done]
    for low, high in itertools.pairwise((0, 0.01, 0.02, 0.04, 0.08, 1)):
        near = (low <= distance) & (distance < high)
        differs = (stopped != truth)[near]
        assert differs.mean() < error + 2 * np.sqrt(error / len(differs)), (low, high)
    assert drawn.mean() < (20 if rule.score is RuleScore.UNCERTAINTY else 30)  # and most images need few
    assert (drawn[distance > 0.3] < 15).mean() > (0.6 if rule.score is RuleScore.UNCERTAINTY else 0.5)


def test_a_smaller_error_settles_less(rng: np.random.Generator) -> None:
    passes = draw(rng, 1000, 10)
    settled = [
        early_stopping.settled(passes, RejectRule(limits=(0.3,)), error, 100).sum()
        for error in (5e-324, 1e-300, 0.01, 0.1)
    ]
    assert settled == sorted(settled)
    assert 0 == settled[0] == settled[1] < settled[2] < settled[3]


def test_all_passes_settle_everything(rng: np.random.Generator) -> None:
    assert early_stopping.settled(draw(rng, 100, 25), RejectRule(limits=(0.3,)), 0.01, 25).all()


def test_a_label_alone_needs_no_threshold(rng: np.random.Generator) -> None:
    passes = draw(rng, 500, 16)
    label, with_threshold = (
        early_stopping.settled(passes, limits, 0.1, 100) for limits in (RejectRule(), RejectRule(limits=(0.3,)))
    )
    accepted = summarise(passes).uncertainty <= 0.3
    assert (label | ~with_threshold)[accepted].all()  # what is accepted needs its label, too
    assert (~label & with_threshold)[~accepted].any()  # what is rejected does not


def test_an_answer_is_that_of_the_passes_it_took(digits: Digits) -> None:
    model, images = Model(digits.model, "cpu"), digits.dataset.splits["test"].images[:60]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplesWarning)
        prediction = model.predict(images, 64, seed=1, reject=0.3, adaptive=0.1)
        assert set(prediction.drawn) <= set(early_stopping.looks(64))
        assert prediction.drawn.mean() < 20
        assert len(set(prediction.drawn)) > 1
        for count in set(prediction.drawn):
            chosen = prediction.drawn == count
            same = model.predict(images[chosen], int(count), seed=1, reject=0.3)
            np.testing.assert_allclose(prediction.probabilities[chosen], same.probabilities, atol=1e-6)
            np.testing.assert_allclose(prediction.uncertainty[chosen], same.uncertainty, atol=1e-6)
            np.testing.assert_allclose(prediction.error_probability[chosen], same.error_probability, atol=1e-5)
            assert [prediction.decisions[i] for i in np.flatnonzero(chosen)] == same.decisions
        alone = model.predict(images[7:8], 64, seed=1, reject=0.3, adaptive=0.1)
    assert (prediction[7].passes, prediction[7].uncertainty) == (alone[0].passes, alone[0].uncertainty)


def test_wrong_requests(digits: Digits, call: Call) -> None:
    images = digits.dataset.splits["test"].images[:1]
    for wrong in (0, 1, -0.1, float("nan")):
        with raises("argument.adaptive", UsageError):
            Model(digits.model, "cpu").predict(images, adaptive=wrong)
    with raises("model.single-call", UsageError):
        Model(digits.deterministic, "cpu").predict(images, adaptive=0.1)
    printed = call("predict", "--model", digits.model, digits.image, "--adaptive", 0.1, "--reject", 0.3, "--json")
    assert json.loads(printed.out)[0]["samples"] in (5, 10, 15, 20, 25)
    assert call("predict", "--model", digits.model, digits.image, "--adaptive", 2).code == 2
