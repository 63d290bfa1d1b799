"""Prediction sets: limits by hand, simulated coverage, ties, NaN, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest

from uce_edge._util.field_rules import RecordError
from uce_edge.calibration import conformal, label_sets
from uce_edge.calibration.conformal import Penalty
from uce_edge.calibration.label_sets import GRAINS, RANKED, LabelSets, SetPromise, scores
from uce_edge.contract import SetScore
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.rejection.fitting import Circumstances

HOW = Circumstances(samples=1, seed=0, data="", date="2026-01-01", grouped=False)
CLASSES = tuple("abcdefghij")
RAPS = Penalty(2**-5, 2)


def drawn(rng: np.random.Generator, images: int, classes: int = 10) -> tuple[Any, Any]:
    """Probabilities of an overconfident model, and labels by the true ones."""
    logits = rng.normal(0, 2, (images, classes))
    true = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (true.cumsum(-1) < rng.random((images, 1))).sum(-1).clip(max=classes - 1)
    model = true**2 / (true**2).sum(-1, keepdims=True)
    return model.astype(np.float32), labels


def fitted(
    score: SetScore = SetScore.LAC, alpha: float = 0.1, images: int = 200, *, by_class: bool = False
) -> LabelSets:
    table, labels = drawn(np.random.default_rng(0), images)
    penalty = RAPS if score is SetScore.RAPS else Penalty()
    return conformal.fit(table, labels, SetPromise(alpha, score, by_class), CLASSES, HOW, penalty)


def by_definition(row: Any, score: SetScore, penalty: float, free: int) -> list[float]:
    """The scores of one image, from the formulas of the contract."""
    if score is SetScore.LAC:
        return [float(np.float32(1) - p) for p in row]
    coarse = [np.floor(float(p) * GRAINS) / GRAINS for p in row]
    likely = sorted(coarse, reverse=True)[:RANKED]
    found = []
    for own in coarse:
        rank = sum(other >= own for other in likely)
        found.append(sum(other for other in likely if other > own) + min(penalty * max(rank - free, 0), 2))
    return found


@pytest.mark.parametrize("score", SetScore)
@pytest.mark.parametrize("classes", [2, 10, 300])
def test_the_scores_are_those_of_the_contract(score: SetScore, classes: int) -> None:
    table, _ = drawn(np.random.default_rng(1), 20, classes)
    table[0] = 1 / classes  # all equal
    table[1, :2], table[1, 2:] = 0.5, 0
    penalty = RAPS if score is SetScore.RAPS else Penalty()
    wanted = [by_definition(row, score, *penalty) for row in table]
    np.testing.assert_array_equal(scores(table, score, *penalty), np.array(wanted, np.float32))


def test_the_likeliest_label_has_score_0_and_equal_labels_have_equal_scores() -> None:
    table = np.array([[0.5, 0.25, 0.25, 0.0]], np.float32)
    assert scores(table, SetScore.APS).tolist() == [[0, 0.5, 0.5, 1]]
    assert scores(table, SetScore.RAPS, 0.25, 1).tolist() == [[0, 1.0, 1.0, 1.75]]  # ranks 1, 3, 3, 4
    assert scores(table, SetScore.LAC).tolist() == [[0.5, 0.75, 0.75, 1]]


@pytest.mark.parametrize(
    ("images", "alpha", "place"),
    [(19, 0.05, 19), (20, 0.05, 20), (99, 0.05, 95), (39, 0.05, 38), (9, 0.1, 9), (29, 0.1, 27)],
)
def test_the_limit_is_the_right_order_statistic(images: int, alpha: float, place: int) -> None:
    """Also where (n + 1)(1 - alpha) is a whole number that floats miss."""
    own = np.random.default_rng(0).permutation(np.arange(1, images + 1)).astype(np.float32)
    assert conformal.limit_of(own, alpha) == place


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 19), (0.1, 9), (0.01, 99), (0.3, 3), (0.07, 14)])
def test_the_fewest_images_have_a_finite_limit_and_one_less_has_not(alpha: float, needed: int) -> None:
    assert conformal.images_needed(alpha) == needed
    assert np.isfinite(conformal.limit_of(np.zeros(needed, np.float32), alpha))
    assert np.isinf(conformal.limit_of(np.zeros(needed - 1, np.float32), alpha))


@pytest.mark.parametrize("score", SetScore)
@pytest.mark.parametrize(("images", "classes"), [(19, 10), (50, 2), (200, 10)])
def test_simulated_coverage_is_what_is_promised(score: SetScore, images: int, classes: int) -> None:
    """Within four standard errors of at least 1 - alpha, and, for scores without ties, of at most 1 / (n + 1) more."""
    rng, alpha, trials, new = np.random.default_rng(0), 0.1, 400, 20
    penalty = RAPS if score is SetScore.RAPS else Penalty()
    covered = []
    for _ in range(trials):
        limits = conformal.limits(*drawn(rng, images, classes), SetPromise(alpha, score), penalty)
        table, labels = drawn(rng, new, classes)
        inside = scores(table, score, *penalty) <= limits
        covered.append(inside[np.arange(new), labels].mean())
    error = 4 * np.std(covered) / np.sqrt(trials)
    assert np.mean(covered) >= 1 - alpha - error
    if score is SetScore.LAC:
        assert np.mean(covered) <= 1 - alpha + 1 / (images + 1) + error


def test_every_class_is_covered_with_a_limit_of_its_own_and_not_with_one_for_all() -> None:
    """Class 0 is hard: its images look like class 1."""

    def images(rng: np.random.Generator, each: int) -> tuple[Any, Any]:
        labels = np.repeat(np.arange(3), each)
        logits = rng.normal(0, 1, (len(labels), 3)) + 3 * np.eye(3)[np.where(labels == 0, 1, labels)]
        return (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(np.float32), labels

    rng, rates = np.random.default_rng(0), {True: [], False: []}  # type: dict[bool, list[Any]]
    for _, by_class in itertools.product(range(200), (True, False)):
        limits = conformal.limits(*images(rng, 30), SetPromise(0.1, SetScore.LAC, by_class), Penalty())
        table, labels = images(rng, 20)
        right = (scores(table, SetScore.LAC) <= limits)[np.arange(60), labels]
        rates[by_class].append(right.reshape(3, 20).mean(-1))
    each = {by_class: np.mean(found, axis=0) for by_class, found in rates.items()}
    assert each[True].min() > 0.89
    assert each[False][0] < 0.8


def test_the_fit_stores_what_it_measured() -> None:
    for score, by_class in itertools.product(SetScore, (False, True)):
        sets = fitted(score, images=400, by_class=by_class)
        table, labels = drawn(np.random.default_rng(0), 400)
        inside = sets.contains(table)
        assert sets.coverage == inside[np.arange(400), labels].mean() >= 0.9
        assert sets.size == pytest.approx(inside.sum(-1).mean(), abs=1e-6)
        assert (sets.images, len(sets.limits)) == (400, 10 if by_class else 1)
        assert LabelSets.from_document(sets.to_document()) == sets


def test_the_penalty_of_raps_makes_smaller_sets_of_many_classes() -> None:
    rng = np.random.default_rng(0)
    promise = SetPromise(0.1, SetScore.RAPS)
    chosen = conformal.choose_penalty(*drawn(rng, 300, 100), promise)
    data, (new, _) = drawn(rng, 500, 100), drawn(rng, 500, 100)
    sizes = [
        (scores(new, SetScore.RAPS, *penalty) <= conformal.limits(*data, promise, penalty)).sum(-1).mean()
        for penalty in (chosen, Penalty())
    ]
    assert chosen.penalty > 0
    assert sizes[0] < sizes[1]
    assert conformal.choose_penalty(*data, SetPromise(0.1, SetScore.APS)) == Penalty()


@pytest.mark.parametrize("score", SetScore)
def test_numbers_that_are_not_numbers_have_an_empty_set(score: SetScore) -> None:
    table = np.array([[np.nan] * 10, [0.1] * 10, [np.nan] + [0.1] * 9], np.float32)
    inside = fitted(score, 0.005, 400).contains(table)
    assert inside.any(-1).tolist() == [False, True, False]


def test_a_few_images_without_numbers_count_as_wrong_and_many_are_refused() -> None:
    table, labels = drawn(np.random.default_rng(0), 200)
    plain = conformal.fit(table, labels, SetPromise(0.1), CLASSES, HOW)
    table[:10] = np.nan
    worse = conformal.fit(table, labels, SetPromise(0.1), CLASSES, HOW)
    assert worse.limits > plain.limits
    table[:30] = np.nan
    with pytest.raises(
        UceEdgeError, match="30 of 200 held-out images have probabilities that are not numbers"
    ) as caught:
        conformal.fit(table, labels, SetPromise(0.1), CLASSES, HOW)
    assert caught.value.code == "sets.not-finite"


def test_too_few_images_are_refused_with_their_counts() -> None:
    labels = np.repeat(np.arange(3), (25, 18, 3))
    conformal.check_possible(labels, SetPromise(0.05), ("a", "b", "c"))
    with pytest.raises(
        UsageError, match=r"needs 19 images of each, and there are too few of these: b \(18\), c \(3\)\."
    ):
        conformal.check_possible(labels, SetPromise(0.05, by_class=True), ("a", "b", "c"))
    with pytest.raises(UsageError, match=r"needs 99 images in the half .*, and there are 46") as caught:
        conformal.check_possible(labels, SetPromise(0.01), ("a", "b", "c"), halved=True)
    assert caught.value.code == "sets.few"


@pytest.mark.parametrize("alpha", [0, 1, -0.1, float("nan"), "0.1", True])
def test_a_share_outside_0_and_1_is_refused(alpha: Any) -> None:
    with pytest.raises(RecordError):
        SetPromise(alpha)


@pytest.mark.parametrize(
    "change", [{"limits": []}, {"limits": [5]}, {"score": "none"}, {"penalty": 0.5}, {"free": 2.5}]
)
def test_stored_sets_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        LabelSets.from_document(fitted().to_document() | change)
    with pytest.raises(RecordError, match="multiple"):
        LabelSets.from_document(fitted(SetScore.RAPS).to_document() | {"penalty": 0.1})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ((), "none of the labels"),
        (("cat",), "cat"),
        (("cat", "dog"), "cat or dog"),
        (("cat", "dog", "frog"), "cat, dog or frog"),
        (tuple(f"c{number}" for number in range(1003)), "c0, c1, c2 and 1,000 more"),
    ],
)
def test_a_set_in_words(labels: tuple[str, ...], words: str) -> None:
    assert label_sets.in_words(labels) == words


def test_the_promise_in_words_says_what_it_is_not() -> None:
    text = label_sets.describe(fitted(images=400, by_class=True), CLASSES)
    assert "at least 90 % of the images of every class" in text
    assert "no promise about a single image, the accepted images, or out-of-distribution images" in text
