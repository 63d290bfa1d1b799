import json
import math

import numpy as np
import pytest
from helpers.errors import raises
from scipy.stats import beta, binom

from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.rejection.guarantee import (
    TARGETS,
    Guarantee,
    NoGuaranteeError,
    check_possible,
    curve,
    error_at,
    find,
    images_needed,
    upper_bound,
)
from uce_edge.rejection.promises import Promise

# Upper bounds


@pytest.mark.parametrize("confidence", [0.51, 0.9, 0.95, 0.999, 1 - 1e-12])
@pytest.mark.parametrize("images", [1, 2, 3, 10, 137, 5_000, 100_000, 1_000_000])
def test_upper_bound_is_clopper_pearson(images, confidence):
    for errors in {0, 1, 2, images // 100, images // 3, images // 2, images - 2, images - 1, images}:
        if 0 <= errors <= images:
            exact = 1.0 if errors == images else beta.isf(1 - confidence, errors + 1, images - errors)
            assert upper_bound(errors, images, confidence) == pytest.approx(exact, abs=1e-10, rel=1e-8)


def test_upper_bound_is_the_rate_at_which_so_few_errors_are_improbable():
    for errors, images in [(0, 59), (3, 100), (40, 97), (999, 20_000)]:
        assert binom.cdf(errors, images, upper_bound(errors, images, 0.95)) == pytest.approx(0.05, abs=1e-9)


def test_upper_bound_without_images_knows_nothing():
    assert upper_bound(0, 0, 0.95) == 1.0
    assert upper_bound(np.int64(0), np.int64(1), np.float32(0.75)) == 0.75


def test_images_needed_is_the_smallest_number():
    assert images_needed(0.05, 0.95) == 59
    assert images_needed(0.01, 0.95) == 299
    for target in (0.001, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.6, 0.9, 0.99):
        for confidence in (0.6, 0.75, 0.9, 0.95, 0.99, 0.999999):
            needed = images_needed(target, confidence)
            assert upper_bound(0, needed, confidence) <= target + 1e-12
            assert upper_bound(0, needed - 1, confidence) > target - 1e-12
            found = find(np.linspace(0, 1, needed), np.zeros(needed, bool), target, confidence)
            assert found.accepted == needed


def test_too_few_images_are_told_how_many_it_takes():
    for confidence, needed in [(0.9, 45), (0.95, 59)]:
        right = np.zeros(needed, bool)
        assert find(np.linspace(0, 1, needed), right, 0.05, confidence).coverage == 1
        with raises("promise.too-few-images", NoGuaranteeError) as caught:
            find(np.linspace(0, 1, needed - 1), right[1:], 0.05, confidence)
        assert caught.value.fields == {"images": needed - 1, "needed": needed}


def test_too_few_images_for_any_proof_are_refused_with_the_number_it_takes():
    check_possible(59, Promise(0.05))
    least = math.ceil(1000 * beta.isf(0.05, 1, 8)) / 1000
    for images, given, grouped, facts in (
        (58, None, False, ("58 ", " 59")),
        (8, 16, False, (" 59 ", " 118 ", " 16 ", f" {least} ")),
        (0, None, False, (" 59",)),
        (58, None, True, (" groups ", "one image of each group")),
    ):
        with raises("promise.too-few-images", UsageError) as caught:
            check_possible(images, Promise(0.05), given, grouped=grouped)
        assert caught.value.fields == {"images": images, "needed": 59}
        assert all(fact in str(caught.value) for fact in facts)


def test_the_curve_says_of_every_error_what_is_found_for_it():
    uncertainty, wrong = drawn(np.random.default_rng(1), 600)
    with pytest.raises(NoGuaranteeError) as refused:
        find(uncertainty, wrong, 0.012, 0.9)
    rows = refused.value.curve
    assert rows == curve(uncertainty, wrong, 0.9, above=0.012)
    found = {row.target_error: row for row in rows}
    assert 3 < len(rows) <= 6
    for target in (target for target in TARGETS if 0.012 < target <= rows[-1].target_error):
        if target in found:
            assert found[target] == find(uncertainty, wrong, target, 0.9)
            accepted = uncertainty <= np.float32(found[target].threshold)
            assert accepted.mean() == found[target].coverage
            assert binom.cdf(wrong[accepted].sum(), accepted.sum(), target) <= 0.1 + 1e-12
        else:
            with pytest.raises(NoGuaranteeError):
                find(uncertainty, wrong, target, 0.9)


def test_the_curve_ends_where_every_image_is_accepted_and_is_empty_where_nothing_can_be_promised():
    assert [row.coverage for row in curve(np.linspace(0, 1, 100), np.zeros(100, bool), 0.95)] == [1]
    assert curve(np.linspace(0, 1, 100), np.ones(100, bool), 0.95) == ()


# The promise

POWER, FLOOR, SLOPE = 1.6, 0.01, 0.75
"""A population: H = U**1.6, wrong with probability 0.01 + 0.75 H; below t it errs 0.01 + 0.75 t / 2.6 on average."""


def drawn(rng, n):
    uncertainty = (rng.random(n) ** POWER).astype(np.float32)
    return uncertainty, rng.random(n) < FLOOR + SLOPE * uncertainty


def true_error(threshold):
    return FLOOR + SLOPE * threshold / (POWER + 1)


def best_coverage(target):
    return min(1.0, (target - FLOOR) * (POWER + 1) / SLOPE) ** (1 / POWER)


@pytest.mark.parametrize(
    ("n", "target", "confidence", "share"),
    [(1000, 0.1, 0.95, 0.7), (1000, 0.2, 0.95, 0.9), (400, 0.2, 0.8, 0.85)],
)
def test_the_promise_is_kept(n, target, confidence, share):
    rng = np.random.default_rng(0)
    kept, coverage = [], []
    for _ in range(1000):
        try:
            threshold = find(*drawn(rng, n), target, confidence).threshold
        except NoGuaranteeError:  # promises nothing, breaks nothing, accepts nothing
            threshold = 0.0
        kept.append(true_error(threshold) <= target + 1e-7)
        coverage.append(threshold ** (1 / POWER))
    assert np.mean(kept) >= confidence
    assert np.mean(coverage) >= share * best_coverage(target)


def test_the_promise_is_kept_where_the_error_falls_and_rises_and_ties_are_heavy():
    values = np.linspace(0.1, 0.9, 8)
    mass = np.array([0.05, 0.2, 0.05, 0.2, 0.1, 0.1, 0.1, 0.2])
    error = np.array([0.3, 0.06, 0.4, 0.06, 0.25, 0.1, 0.05, 0.11])
    risk = np.cumsum(mass * error) / np.cumsum(mass)
    rng, kept = np.random.default_rng(1), []
    for _ in range(600):
        place = rng.choice(8, 600, p=mass)
        try:
            found = find(values[place], rng.random(600) < error[place], 0.12, 0.9)
        except NoGuaranteeError:
            kept.append(True)
        else:
            kept.append(risk[values <= found.threshold][-1] <= 0.12)
    assert risk.min() < 0.12 < risk.max()
    assert np.mean(kept) >= 0.9


def test_a_bound_at_a_fixed_threshold_holds():
    rng = np.random.default_rng(2)
    held = [error_at(*drawn(rng, 300), 0.3, 0.95).error_bound >= true_error(0.3) for _ in range(1000)]
    assert np.mean(held) >= 0.95


# What is found


def by_definition(uncertainty, wrong, threshold):
    accepted = np.asarray(uncertainty, np.float32) <= np.float32(threshold)
    return int(accepted.sum()), int(np.asarray(wrong)[accepted].sum())


@pytest.mark.parametrize("decimals", [1, 2, 9])
@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_the_accepted_images(decimals, seed):
    uncertainty, wrong = drawn(np.random.default_rng(seed), 3000)
    uncertainty = uncertainty.round(decimals)
    found = find(uncertainty, wrong, 0.15, 0.95)
    accepted, errors = by_definition(uncertainty, wrong, found.threshold)
    assert (found.accepted, found.images) == (accepted, 3000)
    assert found.error == errors / accepted
    assert found.coverage == accepted / 3000
    assert (found.target_error, found.confidence) == (0.15, 0.95)
    assert upper_bound(errors, accepted, 0.95) - 1e-9 <= found.error_bound <= 0.15
    same = error_at(uncertainty, wrong, found.threshold, 0.95)
    assert (same.accepted, same.error, same.target_error) == (accepted, found.error, None)
    assert same.error_bound == upper_bound(errors, accepted, 0.95)


def test_the_order_of_the_images_does_not_matter():
    uncertainty, wrong = drawn(np.random.default_rng(3), 2000)
    uncertainty = uncertainty.round(2)
    order = np.random.default_rng(4).permutation(2000)
    found = find(uncertainty, wrong, 0.15, 0.95)
    assert find(uncertainty, wrong, 0.15, 0.95) == found
    assert find(uncertainty[order], wrong[order], 0.15, 0.95) == found


def test_more_images_a_larger_target_or_less_confidence_accept_more():
    few, many = (find(*drawn(np.random.default_rng(5), n), 0.1, 0.95).coverage for n in (1000, 100_000))
    assert few < many < best_coverage(0.1) + 0.005
    images = drawn(np.random.default_rng(6), 4000)
    assert find(*images, 0.1, 0.95).threshold < find(*images, 0.15, 0.95).threshold < find(*images, 0.2, 0.95).threshold
    assert find(*images, 0.15, 0.999).threshold < find(*images, 0.15, 0.6).threshold


def test_all_right():
    found = find(np.linspace(0, 0.4, 500), np.zeros(500, bool), 0.01, 0.95)
    assert (found.threshold, found.accepted, found.error, found.coverage) == (1.0, 500, 0.0, 1.0)
    assert found.error_bound == pytest.approx(upper_bound(0, 500, 0.95))


def test_all_wrong():
    with raises("promise.unprovable", NoGuaranteeError) as caught:
        find(np.linspace(0, 1, 500), np.ones(500, bool), 0.01, 0.95)
    assert caught.value.fields == {"needed": 299, "accepted": 299, "errors": 299}


def test_errors_only_among_the_most_certain_do_not_hide_the_rest():
    wrong = np.zeros(5000, bool)
    wrong[:80] = True  # every early start fails, a later one passes
    assert find(np.linspace(0, 1, 5000), wrong, 0.05, 0.95).coverage == 1


def test_ties_everywhere_are_accepted_together_or_not_at_all():
    same = np.full(500, 0.25)
    wrong = np.arange(500) % 100 == 0
    found = find(same, wrong, 0.05, 0.95)
    assert (found.accepted, found.threshold) == (500, 1.0)
    # One candidate: nothing is searched, and the whole risk is its own.
    assert found.error_bound == pytest.approx(upper_bound(5, 500, 0.95))
    with raises("promise.unprovable") as caught:
        find(same, np.arange(500) % 10 == 0, 0.05, 0.95)
    assert (caught.value.fields["accepted"], caught.value.fields["errors"]) == (500, 50)


def test_a_tie_is_not_split_at_the_threshold():
    uncertainty = np.repeat([0.1, 0.2, 0.3], [400, 300, 300])
    wrong = np.repeat([False, True], [700, 300])
    found = find(uncertainty, wrong, 0.05, 0.95)
    assert found.accepted == 700
    assert 0.2 < found.threshold < 0.3


def test_one_image():
    assert find([0.7], [False], 0.6, 0.55).threshold == 1.0
    with raises("promise.unprovable") as caught:
        find([0.7], [True], 0.6, 0.55)
    assert (caught.value.fields["accepted"], caught.value.fields["errors"]) == (1, 1)
    with raises("promise.too-few-images") as caught:
        find([0.7], [False], 0.01, 0.95)
    assert caught.value.fields == {"images": 1, "needed": 299}
    assert issubclass(NoGuaranteeError, UceEdgeError)
    assert NoGuaranteeError.exit_code == 1


@pytest.mark.parametrize("edge", [0.3, 0.1, 0.7, 1e-45, 1e-30, 1.0])
def test_the_threshold_splits_neighbouring_float32_numbers_as_a_model_does(edge):
    edge = np.float32(edge)
    below = np.nextafter(edge, np.float32(0))
    uncertainty = np.repeat([below, edge], [300, 300])
    wrong = np.repeat([False, True], [300, 300])
    found = find(uncertainty, wrong, 0.05, 0.95)
    stored = json.loads(json.dumps(found.to_document()))["threshold"]
    assert np.float32(stored) == below
    np.testing.assert_array_equal(uncertainty > np.float32(stored), wrong)  # as Model.predict rejects
    assert found.accepted == 300


def test_what_float32_cannot_tell_apart_is_a_tie():
    uncertainty = np.repeat([0.3, 0.3 + 1e-12], [300, 300])
    with pytest.raises(NoGuaranteeError):
        find(uncertainty, np.repeat([False, True], [300, 300]), 0.05, 0.95)
    # 0.3 as a double is below 0.3 as a float32, and yet accepts it.
    at = error_at(np.float32([0.3, 0.2, 0.4]), [True, False, False], 0.3, 0.95)
    assert (at.accepted, at.error, at.threshold) == (2, 0.5, 0.3)


def test_error_at_a_threshold_that_accepts_nothing():
    at = error_at([0.5, 0.6], [True, False], 0.0, 0.9)
    assert at == Guarantee(0.0, None, 0.9, error_bound=1.0, error=None, coverage=0.0, accepted=0, images=2)
    assert error_at([0.5, 0.6], [True, False], 1, 0.9).accepted == 2


# As JSON


def test_json_round_trip():
    images = drawn(np.random.default_rng(7), 2000)
    for made in (
        find(*images, np.float32(0.125), np.float64(0.95)),
        error_at(*images, np.float32(0.3), 0.95),
        error_at([0.5], [True], 0.2, 0.95),
    ):
        assert Guarantee.from_document(json.loads(json.dumps(made.to_document()))) == made


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": None}, "threshold"),
        ({"error": "none"}, "error"),
        ({"confidence": math.nan}, "confidence"),
        ({"accepted": 11}, "accepted"),
        ({"accepted": 2.5}, "accepted"),
        ({"images": 0}, "images"),
    ],
)
def test_damaged_json_is_refused(change, field):
    values = Guarantee(0.3, 0.05, 0.95, 0.04, 0.0, 0.5, 5, 10).to_document()
    with raises(f"argument.{field}"):
        Guarantee.from_document(values | change)
    with raises("argument.threshold"):
        Guarantee.from_document({name: value for name, value in values.items() if name != "threshold"})


# What is refused


@pytest.mark.parametrize(
    ("uncertainty", "wrong", "named"),
    [
        ([], [], "the shape of uncertainty"),
        ([[0.1]], [[True]], "the shape of uncertainty"),
        ([0.1, math.nan], [True, False], "uncertainty[1]"),
        ([0.1, 1.5], [True, False], "uncertainty[1]"),
        ([-0.1, 0.5], [True, False], "uncertainty[0]"),
        (["a"], [True], "uncertainty"),
        ([0.1, 0.2], [True], "the shape of wrong"),
        ([0.1], [[True]], "the shape of wrong"),
        ([0.1, 0.2], [0, 1], "wrong"),
        ([0.1, 0.2], [0.0, math.nan], "wrong"),
    ],
)
def test_images_are_checked(uncertainty, wrong, named):
    for call in (find, error_at):
        with raises("argument.wrong" if "wrong" in named else "argument.uncertainty") as caught:
            call(uncertainty, wrong, 0.5, 0.95)
        assert caught.value.fields["argument"] == named


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.1, math.nan, math.inf, True, "0.1", None])
def test_target_is_checked(value):
    for call in (lambda: find([0.1], [False], value, 0.95), lambda: images_needed(value, 0.95)):
        with raises("argument.target_error"):
            call()


@pytest.mark.parametrize("value", [0.5, 1, 0, 95, math.nan, True, "0.95", None])
def test_confidence_is_checked(value):
    for call in (
        lambda: find([0.1], [False], 0.1, value),
        lambda: error_at([0.1], [False], 0.1, value),
        lambda: upper_bound(0, 1, value),
        lambda: images_needed(0.1, value),
    ):
        with raises("argument.confidence"):
            call()


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, True, "0.3", None])
def test_threshold_is_checked(value):
    with raises("argument.threshold"):
        error_at([0.1], [False], value, 0.95)


@pytest.mark.parametrize(("errors", "images"), [(-1, 3), (4, 3), (0, -1), (1.0, 3), (True, 3), (0, None)])
def test_counts_are_checked(errors, images):
    with pytest.raises(UsageError) as caught:
        upper_bound(errors, images, 0.95)
    assert caught.value.code in ("argument.errors", "argument.images")


def test_few_images_promise_something_where_only_the_most_certain_are_good() -> None:
    """Of 300 images the most certain 125 have one error, but the most certain half has eight."""
    wrong = np.zeros(300, np.bool_)
    wrong[[60, *range(130, 144, 2)]] = True
    wrong[160:] = True
    promise = find(np.linspace(0, 1, 300), wrong, 0.05, 0.95)
    assert 120 <= promise.accepted <= 130
    assert promise.error_bound <= 0.05
