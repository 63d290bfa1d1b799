import math

import numpy as np
import pytest
from helpers.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from test_metrics import TWO, densenet, predictions, quick, sample, softmax

from uce_edge.metrics import (
    accuracy,
    aurc,
    auroc,
    error_at,
    fpr_at_95,
    normalized_entropy,
    ood_auroc,
    ood_fpr_at_95,
    risk_coverage,
)

RANKED = [risk_coverage, aurc, auroc, fpr_at_95]
SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=25)


def uncertainty(p, score):
    return (normalized_entropy(p) if score == "uncertainty" else 1 - p.max(axis=1)).tolist()


def risk_at(values, wrong, threshold):
    accepted = [error for value, error in zip(values, wrong, strict=True) if value <= threshold]
    return len(accepted) / len(values), sum(accepted) / len(accepted) if accepted else math.nan


# Risk and coverage

HAND = np.array([[1.0, 0.0], [0.75, 0.25], [0.75, 0.25], [0.5, 0.5]])


def test_curve_by_hand():
    curve = risk_coverage(HAND, [0, 0, 1, 1], score="confidence")
    assert curve.thresholds.tolist() == [0, 0.25, 0.5]
    assert curve.coverage.tolist() == [0.25, 0.75, 1]
    assert curve.risk.tolist() == [0, 1 / 3, 0.5]
    assert aurc(HAND, [0, 0, 1, 1], score="confidence") == pytest.approx((0 + 2 / 3 + 0.5) / 4)


def test_error_at_by_hand():
    found = error_at(HAND, [0, 0, 1, 1], thresholds=[0.3, -1, 0.25, 7, 0], score="confidence")
    assert found.thresholds.tolist() == [0.3, -1, 0.25, 7, 0]
    assert found.coverage.tolist() == [0.75, 0, 0.75, 1, 0.25]
    np.testing.assert_array_equal(found.risk, [1 / 3, math.nan, 1 / 3, 0.5, 0])
    everything = error_at(HAND, [0, 0, 1, 1], thresholds=np.array([-np.inf, np.inf]))
    np.testing.assert_array_equal(everything.risk, [math.nan, 0.5])


@pytest.mark.parametrize("score", ["uncertainty", "confidence"])
@quick
@given(case=predictions(), thresholds=st.lists(st.floats(-0.1, 1.1), min_size=1, max_size=5), draw=st.data())
def test_selection_matches_definition_in_any_order(score, case, thresholds, draw):
    p, y = case
    values, wrong = uncertainty(p, score), (p.argmax(axis=1) != y).tolist()
    distinct = sorted(set(values))
    order = draw.draw(st.permutations(range(len(y))))
    curve = risk_coverage(p[order], y[order], score=score)
    want = [risk_at(values, wrong, t) for t in distinct]
    np.testing.assert_array_equal(curve.thresholds, distinct)
    np.testing.assert_allclose(np.column_stack([curve.coverage, curve.risk]), want, rtol=1e-15)
    own = np.mean([risk_at(values, wrong, value)[1] for value in values])
    assert aurc(p[order], y[order], score=score) == pytest.approx(own, abs=1e-12)
    found = error_at(p[order], y[order], thresholds=thresholds + distinct, score=score)
    want = [risk_at(values, wrong, t) for t in thresholds + distinct]
    np.testing.assert_allclose(np.column_stack([found.coverage, found.risk]), want, rtol=1e-15)


def test_area_is_the_mean_over_k_without_ties():
    p, y = sample(300, 5, seed=1)
    wrong = (p.argmax(axis=1) != y)[np.argsort(normalized_entropy(p))]
    assert aurc(p, y) == pytest.approx(np.mean(np.cumsum(wrong) / np.arange(1, 301)), abs=1e-12)


@pytest.mark.parametrize(("labels", "want"), [([0, 0, 0, 0], 0), ([1, 1, 1, 1], 1)])
def test_all_right_and_all_wrong(labels, want):
    assert aurc(HAND, labels) == want
    assert risk_coverage(HAND, labels).risk.tolist() == [want] * 3
    for metric in (auroc, fpr_at_95):
        with raises("metric.undefined"):
            metric(HAND, labels)


# Ranking


def test_ranking_by_hand():
    assert ood_auroc([1, 2], [3, 4]) == 1
    assert ood_auroc([3, 4], [1, 2]) == 0
    assert ood_auroc([1, 1, 1], [1]) == 0.5
    assert ood_auroc([1, 3], [2, 3]) == (1 + 0 + 1 + 0.5) / 4
    inside = np.arange(20)
    assert ood_fpr_at_95(inside, [17, 18, 18.5, 19]) == 0.5  # 18 is the 19th: 95 % are accepted
    assert ood_fpr_at_95(inside[:19], [17, 18, 18.5, 19]) == 0.5  # 18 of 19 would be too few
    assert ood_fpr_at_95([0, math.inf], [5, math.inf]) == 1
    assert auroc(HAND, [0, 0, 1, 1], score="confidence") == (1 + 0.5 + 1 + 1) / 4
    assert fpr_at_95(HAND, [0, 0, 1, 1], score="confidence") == 0.5


@quick
@given(SCORES, SCORES)
def test_two_sets_match_definition_and_sklearn(inside, outside):
    pairs = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    assert ood_auroc(inside, outside) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert ood_auroc(outside, inside) == pytest.approx(1 - np.mean(pairs), abs=1e-12)
    threshold = min(t for t in inside if 100 * sum(i <= t for i in inside) >= 95 * len(inside))
    want = np.mean([o <= threshold for o in outside])
    assert ood_fpr_at_95(inside, outside) == want
    reference = pytest.importorskip("sklearn.metrics")
    outer = [0] * len(inside) + [1] * len(outside)
    assert ood_auroc(inside, outside) == pytest.approx(reference.roc_auc_score(outer, inside + outside), abs=1e-12)
    accepting = reference.roc_curve(outer, [-s for s in inside + outside], pos_label=0, drop_intermediate=False)
    assert ood_fpr_at_95(inside, outside) == accepting[0][np.argmax(accepting[1] >= 0.95)]


@pytest.mark.parametrize("score", ["uncertainty", "confidence"])
def test_errors_match_sklearn(score):
    reference = pytest.importorskip("sklearn.metrics")
    p, y = sample(800, 6, seed=4)
    p, y = np.concatenate([p, p[:100]]), np.concatenate([y, (y[:100] + 1) % 6])  # ties of right and wrong
    wrong, values = p.argmax(axis=1) != y, np.array(uncertainty(p, score))
    assert auroc(p, y, score=score) == pytest.approx(reference.roc_auc_score(wrong, values), abs=1e-12)
    assert auroc(p, y, score=score) == ood_auroc(values[~wrong], values[wrong])
    assert fpr_at_95(p, y, score=score) == ood_fpr_at_95(values[~wrong], values[wrong])


def test_published_logits():
    reference = pytest.importorskip("sklearn.metrics")
    logits, labels = densenet()
    p = softmax(logits.astype(np.float64))
    wrong = p.argmax(axis=1) != labels
    assert auroc(p, labels) == pytest.approx(reference.roc_auc_score(wrong, normalized_entropy(p)), abs=1e-12)
    assert error_at(p, labels, thresholds=[1.0]).risk[0] == pytest.approx(1 - accuracy(p, labels), abs=1e-12)
    assert aurc(p, labels) < 1 - accuracy(p, labels)  # rejecting by H helps


# The score


def test_own_score_ranks_like_the_named_ones():
    p, y = sample(200, 3, seed=9)
    for name in ("uncertainty", "confidence"):
        own = np.array(uncertainty(p, name))
        for metric in (aurc, auroc, fpr_at_95):
            assert metric(p, y, score=own) == metric(p, y, score=name)
            assert metric(p, y, score=(3 * own + 1).tolist()) == metric(p, y, score=name)
        found, named = (error_at(p, y, thresholds=[0.2], score=s) for s in (own, name))
        assert (found.risk[0], found.coverage[0]) == (named.risk[0], named.coverage[0])
    assert auroc(p, y) == auroc(p, y, score="uncertainty") != auroc(p, y, score="confidence")
    oracle = (p.argmax(axis=1) != y).astype(int)
    assert auroc(p, y, score=oracle) == 1
    assert auroc(p, y, score=-oracle) == 0
    assert fpr_at_95(p, y, score=oracle) == 0


BAD_SCORES = {  # and the argument that the error names
    "word": ("entropy", "score"),
    "length": ([0.1, 0.2, 0.3], "the shape of score"),
    "axes": ([[0.1, 0.2]], "the shape of score"),
    "nan": ([0.1, math.nan], "score[1]"),
    "text": (["a", "b"], "score"),
}


@pytest.mark.parametrize("metric", RANKED)
@pytest.mark.parametrize("case", BAD_SCORES)
def test_bad_score(metric, case):
    score, named = BAD_SCORES[case]
    with raises("argument.score") as caught:
        metric(TWO, [0, 1], score=score)
    assert caught.value.fields["argument"] == named


BAD_SETS = {
    "empty": ([], "the shape of {}"),
    "scalar": (0.5, "the shape of {}"),
    "table": ([[0.5, 0.5]], "the shape of {}"),
    "nan": ([0.5, math.nan], "{}[1]"),
    "text": (["a"], "{}"),
    "ragged": ([[0.5], [0.5, 1.0]], "{}"),
}


@pytest.mark.parametrize("case", BAD_SETS)
def test_bad_sets_and_thresholds(case):
    bad, named = BAD_SETS[case]
    for metric in (ood_auroc, ood_fpr_at_95):
        with raises("argument.inside") as caught:
            metric(bad, [0.5])
        assert caught.value.fields["argument"] == named.format("inside")
        with raises("argument.outside") as caught:
            metric([0.5], bad)
        assert caught.value.fields["argument"] == named.format("outside")
    with raises("argument.thresholds") as caught:
        error_at(TWO, [0, 1], thresholds=bad)
    assert caught.value.fields["argument"] == named.format("thresholds")
