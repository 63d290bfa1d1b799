import math
from itertools import combinations

import numpy as np
import pytest
from helpers.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from test_metrics import TWO, densenet, predictions, quick, softmax

from uce_edge.metrics import calibrated_twin, kernel, skce


def pair(p, y, i, j, bandwidth):
    """One term of the sum, as Widmann et al. define it."""
    one_hot = np.eye(p.shape[1])
    similarity = math.exp(-sum((p[i] - p[j]) ** 2) / (2 * bandwidth**2))
    return similarity * sum((one_hot[y[i]] - p[i]) * (one_hot[y[j]] - p[j]))


def labels_of(p, rng):
    """Labels drawn from the probabilities."""
    return (rng.random((len(p), 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)


def test_by_hand():
    # |e_0 - e_1|^2 = 2, so k = 1/e at a bandwidth of 1. CalibrationErrors.jl tests its biased
    # form on the same table: (2 + 2 - 2 * 2/e) / 4 = 1 - 1/e with both labels wrong.
    assert skce(np.eye(2), [1, 0], bandwidth=1) == pytest.approx(-2 / math.e, rel=1e-12)
    assert skce(np.eye(2), [0, 1]) == 0
    assert skce(np.eye(2), [0, 0]) == 0
    assert skce(np.tile([1.0, 0.0], (3, 1)), [1, 1, 1]) == pytest.approx(2)  # as wrong as can be
    assert skce(np.full((2, 2), 0.5), [0, 1]) == -0.5


@quick
@given(
    predictions(), st.integers(2, 14), st.sampled_from([0.2, 0.5, 1.0]), st.integers(0, 3), st.sampled_from([1, 2**16])
)
def test_matches_definition(case, block, bandwidth, seed, chunk):
    p, y = case
    if len(y) < 2:
        with raises("metric.too-few-images"):
            skce(p, y)
        return
    order = np.random.default_rng(seed).permutation(len(y))
    block = min(block, len(y))
    blocks = [order[start : start + block] for start in range(0, len(y), block)]
    whole = [b for b in blocks if len(b) == block]
    want = np.mean([pair(p, y, i, j, bandwidth) for b in whole for i, j in combinations(b, 2)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "CHUNK_ELEMENTS", chunk)
        got = skce(p, y, bandwidth=bandwidth, block=min(block, 14), seed=seed)
    assert got == pytest.approx(want, abs=1e-12)


@quick
@given(predictions().filter(lambda case: len(case[1]) > 1), st.data())
def test_one_block_uses_all_pairs_in_any_order(case, draw):
    p, y = case
    order = draw.draw(st.permutations(range(len(y))))
    want = np.mean([pair(p, y, i, j, 0.5) for i, j in combinations(range(len(y)), 2)])
    assert skce(p[order], y[order], block=1000, seed=draw.draw(st.integers(0, 9))) == pytest.approx(want, abs=1e-12)


def test_unbiased_at_perfect_calibration():
    p = np.random.default_rng(1).dirichlet([0.5] * 4, size=400)
    twin = calibrated_twin(skce, p, resamples=300)
    assert abs(twin.value) < 4 * twin.spread / math.sqrt(300)
    biased = twin.value + np.mean(1 - (p**2).sum(axis=1)) / 400  # what pairs with oneself would add, one block
    assert abs(biased) > 4 * twin.spread / math.sqrt(300)


def test_images_sorted_by_class_are_no_miscalibration():
    rng = np.random.default_rng(2)
    p = rng.dirichlet([0.5] * 4, size=4000)
    y = labels_of(p, rng)
    spread = calibrated_twin(skce, p, resamples=30).spread
    order = np.argsort(y, kind="stable")
    neighbours = np.mean([pair(p[order], y[order], i, i + 1, 0.5) for i in range(0, 4000, 2)])
    assert neighbours > 10 * spread
    assert abs(skce(p[order], y[order])) < 4 * spread


def test_a_larger_block_varies_less():
    p = np.random.default_rng(3).dirichlet([0.5] * 4, size=600)
    linear, blocks = (calibrated_twin(skce, p, resamples=100, block=block).spread for block in (2, 32))
    assert blocks < linear / 2


def test_overconfidence_shows_in_published_logits():
    logits, labels = densenet()
    p = softmax(logits.astype(np.float64))
    twin = calibrated_twin(skce, p, resamples=20)
    raw, cooled = skce(p, labels), skce(softmax(logits.astype(np.float64) / 2), labels)
    assert raw > 10 * twin.spread
    assert abs(cooled) < raw / 2
    assert skce(p, labels) == raw
    assert skce(p, labels, seed=1) != raw


@pytest.mark.parametrize("bandwidth", [0, -1, math.inf, math.nan, "median"])
def test_bad_bandwidth(bandwidth):
    with raises("argument.bandwidth"):
        skce(TWO, [0, 1], bandwidth=bandwidth)


@pytest.mark.parametrize(("option", "value"), [("block", 1), ("block", 2.0), ("seed", -1)])
def test_bad_whole_numbers(option, value):
    with raises(f"argument.{option}"):
        skce(TWO, [0, 1], **{option: value})
