import math

import numpy as np
import pytest
from helpers.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from test_metrics import TWO, loop_gap, predictions, quick, sample

from uce_edge.metrics import (
    accuracy,
    adaptive_ece,
    adaptive_uce,
    brier,
    debiased_ece,
    ece,
    mce,
    normalized_entropy,
    reliability_curve,
    uce,
)


def scores(p, y, kind):
    """Score and outcome of each image, in plain lists."""
    hits = p.argmax(axis=1) == y
    if kind == "confidence":
        return p.max(axis=1).tolist(), hits.tolist()
    return normalized_entropy(p).tolist(), (~hits).tolist()


def equal_mass(values, bins):
    """The definition: the i-th smallest of n belongs to bin i * bins // n, and equal values to their first one's."""
    return [sum(other < value for other in values) * bins // len(values) for value in values]


def grouped(values, outcomes, place):
    """Per bin that has images: their number, mean score and mean outcome."""
    for m in sorted(set(place)):
        members = [i for i, at in enumerate(place) if at == m]
        yield len(members), np.mean([values[i] for i in members]), np.mean([outcomes[i] for i in members])


# Equal mass


def test_equal_mass_by_hand():
    p = np.array([[0.5, 0.5], [0.625, 0.375], [0.75, 0.25], [0.875, 0.125]])
    y = np.array([1, 0, 1, 0])
    assert adaptive_ece(p, y, bins=2) == (abs(1 - 1.125) + abs(1 - 1.625)) / 4
    assert adaptive_ece(p, y, bins=4) == (0.5 + 0.375 + 0.75 + 0.125) / 4
    assert adaptive_ece(p, y, bins=1) == ece(p, y, bins=1) == 0.1875


def test_equal_values_share_the_lowest_of_their_bins():
    p = np.array([[0.5, 0.5], [0.75, 0.25], [0.75, 0.25], [1.0, 0.0]])
    y = np.array([0, 0, 1, 1])
    assert adaptive_ece(p, y, bins=2) == (abs(2 - 2) + abs(0 - 1)) / 4  # both .75 join .5; 1 stays alone


@pytest.mark.parametrize(("metric", "kind"), [(adaptive_ece, "confidence"), (adaptive_uce, "uncertainty")])
@quick
@given(case=predictions(), bins=st.integers(1, 20), draw=st.data())
def test_equal_mass_matches_definition_in_any_order(metric, kind, case, bins, draw):
    p, y = case
    values, outcomes = scores(p, y, kind)
    groups = grouped(values, outcomes, equal_mass(values, bins))
    want = sum(n / len(y) * abs(outcome - score) for n, score, outcome in groups)
    assert metric(p, y, bins=bins) == pytest.approx(want, abs=1e-12)
    order = draw.draw(st.permutations(range(len(y))))
    assert metric(p[order], y[order], bins=bins) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize(("count", "bins"), [(1500, 15), (1400, 7)])
def test_equal_mass_matches_a_plain_split_without_ties(count, bins):
    p, y = sample(count, 10, seed=5)
    for metric, kind in ((adaptive_ece, "confidence"), (adaptive_uce, "uncertainty")):
        values, outcomes = (np.array(column, dtype=float) for column in scores(p, y, kind))
        order = np.argsort(values)
        parts = zip(np.split(values[order], bins), np.split(outcomes[order], bins), strict=True)
        want = np.mean([abs(outcome.mean() - score.mean()) for score, outcome in parts])
        assert metric(p, y, bins=bins) == pytest.approx(want, abs=1e-12)


def test_fewer_images_than_bins():
    p, y = np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([0, 1])
    assert adaptive_ece(p, y, bins=50) == ece(p, y, bins=50) == (0.25 + 0.5) / 2
    assert mce(p, y, bins=50) == 0.5


# Maximum


@quick
@given(predictions(), st.integers(1, 20))
def test_mce_matches_definition(case, bins):
    p, y = case
    values, outcomes = scores(p, y, "confidence")
    place = [next(m for m in range(bins) if value <= (m + 1) / bins) for value in values]
    want = max(abs(outcome - score) for _, score, outcome in grouped(values, outcomes, place))
    assert mce(p, y, bins=bins) == pytest.approx(want, abs=1e-12)
    assert mce(p, y, bins=bins) >= ece(p, y, bins=bins) - 1e-12


@pytest.mark.parametrize(("classes", "bins"), [(2, 15), (10, 7), (100, 15)])
def test_mce_matches_torchmetrics(classes, bins):
    torch = pytest.importorskip("torch")
    classification = pytest.importorskip("torchmetrics.classification")
    p, y = sample(1500, classes, seed=classes, bins=bins)
    reference = classification.MulticlassCalibrationError(classes, n_bins=bins, norm="max")
    want = float(reference(torch.from_numpy(p), torch.from_numpy(y)))
    assert mce(p, y, bins=bins) == pytest.approx(want, abs=2e-6)


# Debiased


def test_debiased_by_hand():
    certain, fair = np.tile([1.0, 0.0], (4, 1)), np.tile([0.75, 0.25], (4, 1))
    half = np.array([0, 0, 1, 1])
    assert debiased_ece(certain, half, bins=1) == pytest.approx(math.sqrt(0.5**2 - 0.25 / 3))
    assert debiased_ece(fair, half, bins=1) == 0  # chance alone makes a gap of .25 here
    assert debiased_ece(certain, np.zeros(4, dtype=int), bins=1) == 0
    assert debiased_ece(certain, np.ones(4, dtype=int), bins=1) == 1
    both = np.concatenate([certain, fair])
    want = (4 * (0.25 - 0.25 / 3) + 4 * (0.0625 - 0.25 / 3)) / 8
    assert debiased_ece(both, np.tile(half, 2), bins=2) == pytest.approx(math.sqrt(want))


@quick
@given(predictions(), st.integers(1, 6))
def test_debiased_matches_definition(case, bins):
    p, y = case
    values, hits = scores(p, y, "confidence")
    if len(y) < 2 * bins:
        with raises("metric.too-few-images"):
            debiased_ece(p, y, bins=bins)
        return
    groups = grouped(values, hits, equal_mass(values, bins))
    square = sum(n / len(y) * ((a - c) ** 2 - a * (1 - a) / (n - 1)) for n, c, a in groups if n > 1)
    # The root makes 1e-8 of a rounding error of 1e-16.
    assert debiased_ece(p, y, bins=bins) == pytest.approx(math.sqrt(max(0, square)), abs=1e-7)


def test_debiasing_takes_the_floor_away():
    rng = np.random.default_rng(7)
    p = np.column_stack([1 - (q := rng.uniform(0, 0.5, 600)), q])
    draws = [(rng.random(600) < q).astype(int) for _ in range(200)]
    squares = [debiased_ece(p, y) ** 2 for y in draws]
    plain = [adaptive_ece(p, y) ** 2 for y in draws]  # at most the squared L2 error
    assert np.mean(squares) < np.mean(plain) / 2
    assert np.median(squares) < np.median(plain) / 4


# The reliability diagram


def test_curve_by_hand():
    p = np.array([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.875, 0.125]])
    curve = reliability_curve(p, np.array([0, 1, 0, 1]), bins=4)
    assert curve.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.counts.tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(curve.mean_score, [math.nan, 0.5, 0.75, 0.9375])
    np.testing.assert_array_equal(curve.mean_outcome, [math.nan, 0, 1, 0.5])
    assert np.isnan(curve.low).tolist() == np.isnan(curve.high).tolist() == [True, False, False, False]
    uncertain = reliability_curve(np.eye(2)[[0, 1, 1]], [0, 0, 0], bins=2, kind="uncertainty")
    assert uncertain.counts.tolist() == [3, 0]
    np.testing.assert_allclose(uncertain.mean_outcome, [2 / 3, math.nan])


@pytest.mark.parametrize(("metric", "kind"), [(ece, "confidence"), (uce, "uncertainty")])
@quick
@given(case=predictions(), bins=st.integers(1, 20))
def test_curve_adds_up_to_the_error(metric, kind, case, bins):
    p, y = case
    curve = reliability_curve(p, y, bins=bins, kind=kind)
    assert curve.counts.sum() == len(y)
    gaps = np.abs(curve.mean_outcome - curve.mean_score) * curve.counts
    assert np.nansum(gaps) / len(y) == pytest.approx(metric(p, y, bins=bins), abs=1e-12)
    assert np.nansum(gaps) / len(y) == pytest.approx(loop_gap(*scores(p, y, kind), bins), abs=1e-12)
    full = curve.counts > 0
    right = np.nansum(curve.mean_outcome * curve.counts) / len(y)
    assert right == pytest.approx(accuracy(p, y) if kind == "confidence" else 1 - accuracy(p, y), abs=1e-12)
    rounded = curve.mean_score[full] * bins
    assert (rounded <= np.flatnonzero(full) + 1 + 1e-9).all()
    assert (rounded >= np.flatnonzero(full) - 1e-9).all()


@pytest.mark.parametrize("kind", ["confidence", "uncertainty"])
def test_interval_matches_scipy(kind):
    stats = pytest.importorskip("scipy.stats")
    p, y = sample(300, 4, seed=11)
    y[p.max(axis=1) > 0.95] = p.argmax(axis=1)[p.max(axis=1) > 0.95]  # a bin where all are right
    curve = reliability_curve(p, y, bins=20, kind=kind)
    assert (curve.mean_outcome == (1 if kind == "confidence" else 0)).any()
    for m in np.flatnonzero(curve.counts):
        successes = round(curve.mean_outcome[m] * curve.counts[m])
        want = stats.binomtest(successes, int(curve.counts[m])).proportion_ci(0.95, method="wilson")
        assert (curve.low[m], curve.high[m]) == pytest.approx((want.low, want.high), abs=1e-12)


def test_bad_kind():
    with raises("argument.kind"):
        reliability_curve(TWO, [0, 1], kind="entropy")


# Brier


def test_brier_by_hand():
    assert brier([[0.75, 0.25]], [0]) == 0.125  # both classes count
    assert brier([[1, 0], [0, 1]], [0, 1]) == 0
    assert brier([[1, 0], [0, 1]], [1, 0]) == 2
    p = np.array([[0.5, 0.5]])
    brier(p, [0])
    assert p.tolist() == [[0.5, 0.5]]  # a float64 table is read, not written


@quick
@given(predictions())
def test_brier_matches_definition(case):
    p, y = case
    want = [sum((x - (c == label)) ** 2 for c, x in enumerate(row)) for row, label in zip(p, y, strict=True)]
    assert brier(p, y) == pytest.approx(np.mean(want), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 10])
def test_brier_matches_sklearn(classes):
    reference = pytest.importorskip("sklearn.metrics")
    p, y = sample(500, classes, seed=classes)
    if classes == 2:  # it scores one probability: half of ours
        want = 2 * reference.brier_score_loss(y, p[:, 1])
    else:
        want = reference.brier_score_loss(y, p, labels=range(classes), scale_by_half=False)
    assert brier(p, y) == pytest.approx(want, abs=1e-12)
