"""T-UCE, its test, and intervals that cover: against oracles, and in a short form of the simulation."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.errors import raises
from scipy import stats
from test_metrics import sample
from torchmetrics.functional.classification import binary_calibration_error

from uce_edge import metrics
from uce_edge.metrics import intervals

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "studies"))
import trust_simulation as simulation

sys.path.pop(0)


# T-UCE


def expected_and_wrong(p, y):
    return 1 - p.max(axis=1).astype(np.float64), (p.argmax(axis=1) != y).astype(np.float64)


def test_tuce_is_the_gap_to_the_expected_error_bin_by_bin():
    p, y = sample(500, 6, seed=1)
    expected, wrong = expected_and_wrong(p, y)
    cell = np.clip(np.ceil(metrics.normalized_entropy(p) * 15) - 1, 0, 14)
    want = sum(abs((wrong - expected)[cell == one].sum()) for one in range(15)) / 500
    assert metrics.tuce(p, y) == pytest.approx(want, abs=1e-12)


def test_tuce_of_two_classes_is_torchmetrics_ece_where_the_bins_are_the_same():
    """With one bin, bins of H and bins of the confidence are the same."""
    p, y = sample(500, 2, seed=2)
    want = binary_calibration_error(torch.tensor(p.max(axis=1)), torch.tensor(p.argmax(axis=1) == y).long(), n_bins=1)
    assert metrics.tuce(p, y, bins=1) == pytest.approx(float(want), abs=1e-6)


@pytest.mark.parametrize("by", ["predicted", "true"])
def test_classwise_tuce_counts_class_by_class(by):
    p, y = sample(300, 4, seed=3)
    label, cell = p.argmax(axis=1), np.clip(np.ceil(metrics.normalized_entropy(p) * 15) - 1, 0, 14)
    values = []
    for name in range(4):
        total = 0.0
        for one in range(15):
            if by == "predicted":
                rows = (cell == one) & (label == name)
                total += abs((y[rows] != name).sum() - (1 - p[rows].max(axis=1)).sum())
            else:
                rows = (cell == one) & (label != name)
                total += abs((y[rows] == name).sum() - p[rows, name].sum())
        values.append(total / ((label if by == "predicted" else y) == name).sum())
    assert metrics.classwise_tuce(p, y, by=by) == pytest.approx(np.mean(values), abs=1e-6)


@pytest.mark.parametrize("metric", [metrics.tuce, metrics.debiased_tuce, metrics.classwise_tuce])
def test_overconfidence_raises_every_form_although_it_lowers_the_uce(metric):
    calibrated, overconfident = (simulation.Population(10, t, 20_000) for t in (1.0, 1.2))
    values = [metric(one.claimed[rows], y) for one in (calibrated, overconfident) for rows, y in [one.draw(5_000)]]
    assert values[1] > 1.3 * values[0]
    rows, y = overconfident.draw(5_000)
    claimed = overconfident.claimed[rows]
    assert metrics.uce(claimed, y) < metrics.calibrated_twin(metrics.uce, claimed, resamples=10).value


def test_classwise_by_true_class_is_only_chance_for_a_calibrated_model():
    population = simulation.Population(5, 1.0, 20_000)
    rows, y = population.draw(20_000)
    assert metrics.classwise_tuce(population.claimed[rows], y, by="true") < 0.05


# The test


def test_of_one_bin_the_p_value_is_near_the_binomial_one():
    p = np.tile([0.8, 0.2], (400, 1))
    for errors in (80, 95, 100, 110):
        y = (np.arange(400) < errors).astype(int)
        want = stats.binomtest(errors, 400, 0.2).pvalue
        got = metrics.calibration_test(p, y, resamples=1999).p_value
        assert got == pytest.approx(want, abs=0.03), errors


@pytest.mark.parametrize(("temperature", "verdict"), [(1.2, "overconfident"), (1 / 1.2, "underconfident")])
@pytest.mark.parametrize("kind", ["uncertainty", "confidence"])
def test_both_directions_are_found_and_named(temperature, verdict, kind):
    population = simulation.Population(10, temperature, 20_000)
    for _ in range(10):
        rows, y = population.draw(5_000)
        found = metrics.calibration_test(population.claimed[rows], y, kind=kind, resamples=199)
        assert found.verdict == verdict
        assert (found.error > found.expected) == (verdict == "overconfident")


def test_errors_in_the_wrong_places_are_uneven():
    p = np.repeat([[0.95, 0.05], [0.6, 0.4]], 1000, axis=0)
    y = np.concatenate([np.arange(1000) < 200, np.arange(1000) < 250]).astype(int)  # 20 and 25 %, for 5 and 40 %
    assert metrics.calibration_test(p, y).verdict == "uneven"


def test_a_calibrated_model_is_seldom_flagged_and_one_seed_gives_one_answer():
    found = simulation.flags(1_000, 10, 60)
    assert found["calibrated"] <= 0.1
    assert min(found["T = 1.2"], found["T = 1/1.2"], found["T = 1.4"]) >= 0.9
    p, y = sample(200, 3, seed=4)
    assert metrics.calibration_test(p, y) == metrics.calibration_test(p, y)


# Intervals


def test_the_influence_of_an_image_on_the_aurc_is_what_leaving_it_out_changes():
    p, y = sample(400, 5, seed=5)
    p[::7] = p[0]  # ties
    estimate = intervals.ESTIMATES["aurc"](*intervals.inputs(p, y))
    assert estimate.value == pytest.approx(metrics.aurc(p, y), abs=1e-12)
    assert estimate.parts.sum() == pytest.approx(0, abs=1e-12)
    without = [metrics.aurc(np.delete(p, i, axis=0), np.delete(y, i)) for i in range(400)]
    jackknife = estimate.value - np.array(without)
    assert np.corrcoef(jackknife, estimate.parts)[0, 1] > 0.99
    assert np.std(estimate.parts) == pytest.approx(np.std(jackknife), rel=0.05)


@pytest.mark.parametrize("metric", intervals.ESTIMATES)
def test_an_estimate_is_the_metric(metric):
    p, y = sample(300, 4, seed=6)
    assert metrics.interval(metric, p, y).value == pytest.approx(getattr(metrics, metric)(p, y), abs=1e-9)


@pytest.mark.parametrize("metric", intervals.OTHERS)
def test_an_interval_of_its_own_is_around_the_metric(metric):
    p, y = sample(300, 4, seed=7)
    found = metrics.interval(metric, p, y)
    assert found.value == pytest.approx(getattr(metrics, metric)(p, y), abs=1e-9)
    assert found.low <= found.value <= found.high


def test_intervals_of_a_mean_and_of_an_area_are_those_of_scipy_where_rare_images_do_not_count():
    p, y = sample(20_000, 3, seed=8)
    surprise = -np.log(p[np.arange(len(y)), y].astype(np.float64))
    found = metrics.interval("nll", p, y)
    assert found.high - found.value == pytest.approx(intervals.WIDTH * stats.sem(surprise), rel=0.05)
    own, foreign = stats.norm.rvs(loc=[[0], [1]], size=(2, 3000), random_state=1)
    area = intervals.separation(own, foreign)
    assert area.value == pytest.approx(stats.mannwhitneyu(foreign, own).statistic / 9e6, abs=1e-12)


def test_errors_that_were_not_seen_are_allowed_for():
    p, y = sample(1_000, 4, seed=9)
    for metric in ("accuracy", "nll", "aurc"):
        same = metrics.difference(metric, p, p, y)
        assert same.low < 0 == same.value < same.high
    perfect = metrics.interval("accuracy", p, p.argmax(axis=1))
    assert perfect.value == 1
    assert 1 - perfect.low == pytest.approx(3 / 1_000, rel=0.1)  # the rule of three


def test_rare_confident_errors_are_covered_where_a_bootstrap_misses_them():
    population = simulation.Population(10, 1.0, 20_000)
    rare = population.rivals()["rare confident errors"]
    true = [simulation.truths(claimed, population.true)["aurc"] for claimed in (rare, population.claimed)]
    missed, covered = 0, 0
    for _ in range(40):
        rows, y = population.draw(1_000)
        pair = rare[rows], population.claimed[rows]
        covered += simulation.inside(metrics.difference("aurc", *pair, y), true[0] - true[1])
        drawn = metrics.bootstrap_difference(metrics.aurc, *pair, y, resamples=40)
        missed += not simulation.inside(drawn, true[0] - true[1])
    assert covered >= 38
    assert missed >= 8


def test_every_interval_of_evaluate_and_compare_covers_in_a_short_simulation():
    cells = [*simulation.coverage(1_000, 10, 40, 20_000), *simulation.separations(1_000, 40)]
    assert {what for what, _, _ in cells} >= {
        *simulation.MEASURED,
        *(f"{one}, difference" for one in simulation.COMPARED),
    }
    assert min(share for _, _, share in cells) >= 0.8  # 40 draws at 95 % have 32 hits or fewer once in 10,000 times
    assert np.mean([share for _, _, share in cells]) >= 0.94


def test_what_has_no_interval_says_so():
    p, y = sample(40, 3, seed=10)
    assert metrics.interval("mce", p, y) is None
    assert metrics.difference("mce", p, p, y) is None
    with raises("metric.too-few-images"):
        metrics.interval("skce", p, y)
    with raises("metric.infinite"):
        metrics.interval("nll", np.eye(2), [1, 0])
    assert math.isfinite(metrics.interval("nll", p, y).high)


def test_a_model_with_hardly_an_error_does_not_win_by_being_too_sure(rng):
    """Errors of 1 in 1,000 are often not among the images; then the surest model has the smallest NLL of all."""
    n, error, wins, covered = 1_000, 1e-3, 0, 0
    honest = np.tile([1 - error, error], (n, 1))
    sure = np.tile([1 - error / 10, error / 10], (n, 1))
    true = -(1 - error) * math.log(1 - error / 10) - error * math.log(error / 10)
    for _ in range(100):
        y = (rng.random(n) < error).astype(int)
        wins += metrics.difference("nll", sure, honest, y).high < 0
        found = metrics.interval("nll", sure, y)
        covered += found.low <= true <= found.high
    assert wins == 0
    assert covered >= 90


def test_debiased_errors_of_a_calibrated_model_hold_0_where_errors_are_rare(rng):
    p = np.tile([0.999, 0.001], (1_000, 1))
    for metric in ("debiased_ece", "debiased_tuce"):
        held = [metrics.interval(metric, p, (rng.random(1_000) < 1e-3).astype(int)).low == 0 for _ in range(60)]
        assert np.mean(held) >= 0.95


def test_the_auroc_of_two_models_is_paired_image_by_image():
    p, y = sample(4_000, 4, seed=3)
    other = p.copy()
    other[0] = np.roll(p[0], 1)  # one label more or less is right: all others keep their places
    found, alone = metrics.difference("auroc", p, other, y), metrics.interval("auroc", p, y)
    assert found.high - found.low < 0.5 * (alone.high - alone.low)
