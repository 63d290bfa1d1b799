import math

import numpy as np
import pytest
from helpers.errors import raises
from test_metrics import NUMBERS, TWO, densenet, named, sample, softmax

from uce_edge.metrics import (
    Interval,
    Probabilities,
    accuracy,
    auroc,
    bootstrap,
    brier,
    calibrated_twin,
    classwise_uce,
    debiased_ece,
    ece,
    nll,
    normalized_entropy,
    reliability_curve,
    resampling,
    skce,
    uce,
)
from uce_edge.metrics import probabilities as reading

# The calibrated twin


def test_twin_of_a_coin_has_an_error_of_one_half():
    twin = calibrated_twin(uce, np.full((1000, 2), 0.5), resamples=400)
    spread = math.sqrt(0.25 / 1000)  # UCE is 1 - error here, and the error is binomial
    assert twin.value == pytest.approx(0.5, abs=4 * spread / 20)
    assert twin.spread == pytest.approx(spread, rel=0.15)


def test_twin_of_a_certain_model_is_always_right():
    p = np.eye(3)[[0, 2, 1, 1]]
    assert calibrated_twin(accuracy, p).value == 1
    assert calibrated_twin(nll, p) == resampling.Twin(0, 0)


def test_twin_has_the_expected_values():
    p, _ = sample(2000, 6, seed=3)
    for metric, want in (
        (accuracy, p.max(axis=1).mean()),
        (brier, 1 - (p**2).sum(axis=1).mean()),
        (nll, normalized_entropy(p).mean() * math.log(6)),
    ):
        twin = calibrated_twin(metric, p)
        assert twin.value == pytest.approx(want, abs=4 * twin.spread / 10)
    assert calibrated_twin(ece, p).value < 0.05 < calibrated_twin(uce, p).value  # UCE is not 0 at calibration


@pytest.mark.parametrize("elements", [1, 64, 2**18])
def test_labels_are_drawn_by_the_inverse_cdf(monkeypatch, elements):
    monkeypatch.setattr(resampling, "BLOCK_ELEMENTS", elements)
    p = np.random.default_rng(5).dirichlet([0.3] * 7, size=200)
    p[::4] = np.eye(7)[np.arange(50) % 7]
    p[1::4] = np.roll(np.eye(7), 1, axis=1)[np.arange(50) % 7] / 2 + np.eye(7)[np.arange(50) % 7] / 2
    scaled = p * 1.0005  # within the tolerance of the sum
    draws = np.random.default_rng(8).random((200, 30))
    want = [[next(c for c in range(7) if row[: c + 1].sum() > u) for u in us] for row, us in zip(p, draws, strict=True)]
    for table in (p, scaled):
        labels = resampling._draw(Probabilities(table), 30, np.random.default_rng(8))
        np.testing.assert_array_equal(labels, np.transpose(want))
        assert labels.dtype == np.uint8


def test_extreme_draws_stay_in_their_row_and_off_impossible_classes():
    class Extreme:
        def __init__(self, value):
            self.value = value

        def random(self, shape):
            return np.full(shape, self.value)

    p = np.tile([[0.0, 0.5, 0.5, 0.0], [0.25, 0.0, 0.75, 0.0]], (50_000, 1))
    for value, want in ((0.0, [1, 0]), (np.nextafter(1, 0), [2, 2])):
        labels = resampling._draw(Probabilities(p), 2, Extreme(value))
        np.testing.assert_array_equal(labels, np.tile(want, (2, 50_000)))


def test_labels_of_many_classes():
    p = np.zeros((3, 70_000), dtype=np.float32)
    p[[0, 1, 2], [0, 300, 69_999]] = 1
    assert resampling._draw(Probabilities(p), 2, np.random.default_rng(0)).tolist() == [[0, 300, 69_999]] * 2


@named(NUMBERS | {"debiased_ece": debiased_ece})
def test_twin_is_the_mean_and_deviation_over_plain_draws(metric):
    p, _ = sample(60, 4, seed=18)
    labels = resampling._draw(Probabilities(p), 5, np.random.default_rng(4))
    values = [metric(p, drawn) for drawn in labels]
    deviation = math.sqrt(sum((value - sum(values) / 5) ** 2 for value in values) / 4)
    twin = calibrated_twin(metric, p, resamples=5, seed=4)
    assert (twin.value, twin.spread) == pytest.approx((sum(values) / 5, deviation), abs=1e-12)


def test_twin_keeps_an_own_score_and_options():
    p, _ = sample(300, 4, seed=6)
    assert calibrated_twin(auroc, p, score=normalized_entropy(p)) == calibrated_twin(auroc, p)
    assert calibrated_twin(uce, p, bins=3) != calibrated_twin(uce, p)


def test_seed_decides():
    p, y = sample(200, 4, seed=2)
    for draw in (lambda **o: calibrated_twin(uce, p, resamples=9, **o), lambda **o: bootstrap(uce, p, y, **o)):
        assert draw() == draw(seed=0)
        assert draw() != draw(seed=1)


# The bootstrap


@named(NUMBERS | {"debiased_ece": debiased_ece})
def test_bootstrap_matches_plain_resampling(metric):
    p, y = sample(60, 4, seed=12)
    rng, values = np.random.default_rng(3), []
    for _ in range(41):
        rows = np.sort(rng.integers(60, size=60))
        values.append(metric(p[rows].copy(), y[rows]))
    values.sort()
    got = bootstrap(metric, p.astype(np.float64), y, level=0.75, resamples=41, seed=3)
    assert got.value == metric(p, y)
    bias = np.mean(values) - got.value
    low, high = values[5] - bias, values[35] - bias  # 1/8 of 40 steps from each end
    assert (got.low, got.high) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("metric", [ece, classwise_uce])
def test_the_interval_of_a_metric_with_a_floor_holds_its_value(metric):
    p, _ = sample(400, 10, seed=17)
    y = np.array([np.random.default_rng(row).choice(10, p=q / q.sum()) for row, q in enumerate(p)])
    got = bootstrap(metric, p, y)
    assert got.low < got.value < got.high


def test_interval_of_the_accuracy_is_binomial():
    p, y = sample(2500, 5, seed=13)
    got = bootstrap(accuracy, p, y, resamples=1000)
    half = 1.96 * math.sqrt(got.value * (1 - got.value) / 2500)
    assert got.high - got.value == pytest.approx(half, rel=0.2)
    assert got.value - got.low == pytest.approx(half, rel=0.2)
    narrow = bootstrap(accuracy, p, y, resamples=1000, level=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * half * 0.6745 / 1.96, rel=0.25)


def test_own_score_is_drawn_along_with_the_images():
    p, y = sample(200, 4, seed=14)
    assert bootstrap(auroc, p, y, score=normalized_entropy(p).tolist()) == bootstrap(auroc, p, y)
    assert bootstrap(auroc, p, y, score="confidence") == bootstrap(auroc, p, y, score=1 - p.max(axis=1))


def test_classwise_survives_classes_that_come_and_go():
    p, y = sample(40, 20, seed=15)
    got = bootstrap(classwise_uce, p, y, resamples=50)
    assert 0 < got.low < got.high < 1
    assert got.value == classwise_uce(p, y)


def test_infinite_likelihood_stays_infinite():
    p = np.array([[1.0, 0.0]] + [[0.5, 0.5]] * 30)
    assert bootstrap(nll, p, [1] * 31) == Interval(math.inf, pytest.approx(math.log(2)), math.inf)


def test_the_table_is_checked_and_reduced_once(monkeypatch):
    p, y = sample(100, 4, seed=16)
    calls = []
    for name in ("_check", "_entropy"):
        real = getattr(reading, name)
        monkeypatch.setattr(reading, name, lambda *given, real=real, name=name: (calls.append(name), real(*given))[1])
    bootstrap(uce, p, y, resamples=20)
    assert sorted(calls) == ["_check", "_entropy"]
    calls.clear()
    calibrated_twin(classwise_uce, p, resamples=20)
    assert sorted(calls) == ["_check", "_entropy"]


def test_published_logits_are_told_apart_from_calibration():
    logits, labels = densenet()
    p = Probabilities(softmax(logits.astype(np.float64)))
    for metric in (ece, uce, classwise_uce, skce):
        interval, twin = bootstrap(metric, p, labels, resamples=40), calibrated_twin(metric, p, resamples=20)
        assert interval.low <= interval.value <= interval.high
        assert interval.low > twin.value + 3 * twin.spread


# Refusals


@pytest.mark.parametrize("resamples", [0, 1, 2.5, True])
def test_bad_resamples(resamples):
    for call in (
        lambda: calibrated_twin(uce, TWO, resamples=resamples),
        lambda: bootstrap(uce, TWO, [0, 1], resamples=resamples),
    ):
        with raises("argument.resamples"):
            call()


@pytest.mark.parametrize("seed", [-1, None, 0.5])
def test_bad_seed(seed):
    for call in (lambda: calibrated_twin(uce, TWO, seed=seed), lambda: bootstrap(uce, TWO, [0, 1], seed=seed)):
        with raises("argument.seed"):
            call()


@pytest.mark.parametrize("level", [0, 1, 95, -0.5, math.nan, "95%"])
def test_bad_level(level):
    with raises("argument.level"):
        bootstrap(uce, TWO, [0, 1], level=level)


@pytest.mark.parametrize("value", [math.nan, None, True, "0.5", np.ones(2)])
def test_a_metric_must_return_one_number(value):
    def odd(probabilities, labels):
        return value

    for call in (lambda: calibrated_twin(odd, TWO), lambda: bootstrap(odd, TWO, [0, 1])):
        with raises("argument.metric"):
            call()


def test_a_metric_of_many_numbers_is_refused():
    with raises("argument.metric"):
        bootstrap(reliability_curve, TWO, [0, 1])


def test_a_metric_undefined_on_a_resample_is_an_error():
    p, y = sample(30, 3, seed=17)
    y = p.argmax(axis=1)
    y[0] = (y[0] + 1) % 3  # one error, which a resample misses with a chance of 1/e
    with raises("argument.metric"):
        bootstrap(auroc, p, y)
    with raises("metric.undefined"):
        bootstrap(auroc, p, p.argmax(axis=1))
    with raises("argument.metric"):
        calibrated_twin(auroc, np.eye(2))


def test_options_of_the_metric_are_checked_by_the_metric():
    with raises("argument.bins"):
        bootstrap(uce, TWO, [0, 1], bins=0)
