import math
import os
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from uce_edge import metrics
from uce_edge.errors import UsageError
from uce_edge.metrics import (
    Probabilities,
    accuracy,
    adaptive_ece,
    adaptive_uce,
    aurc,
    auroc,
    bootstrap,
    brier,
    calibrated_twin,
    classwise,
    classwise_ece,
    classwise_uce,
    debiased_ece,
    ece,
    error_at,
    fpr_at_95,
    mce,
    nll,
    normalized_entropy,
    reliability_curve,
    risk_coverage,
    skce,
    uce,
)
from uce_edge.metrics import probabilities as reading
from uce_edge.metrics.binned import bin_of

DENSENET = "logits/densenet40_c10_logits_valtest.npz"

NUMBERS = {
    metric.__name__: metric
    for metric in (ece, uce, adaptive_ece, adaptive_uce, mce, classwise_ece, classwise_uce, nll, accuracy, brier)
} | {
    "classwise_ece by kull": partial(classwise_ece, by="kull"),
    "debiased_ece": partial(debiased_ece, bins=1),  # two images are enough for one bin
    "skce": skce,
    "aurc": aurc,
    "auroc": auroc,
    "fpr_at_95": fpr_at_95,
}
"""Every metric that returns one number."""

EVERY = NUMBERS | {
    "reliability_curve": reliability_curve,
    "risk_coverage": risk_coverage,
    "error_at": partial(error_at, thresholds=[0.5]),
    "bootstrap": partial(bootstrap, uce),
}
"""Everything that takes probabilities and labels."""


def named(functions):
    return pytest.mark.parametrize("metric", functions.values(), ids=functions.keys())


def data(name):
    """A file of the test data, or a skip that tells how to get it."""
    folder = os.environ.get("UCE_EDGE_DATA")
    if folder is None or not (Path(folder) / name).is_file():
        pytest.skip(f"set UCE_EDGE_DATA to a folder that holds {name}")
    return Path(folder) / name


def densenet():
    """The published test logits and labels of a DenseNet-40 on CIFAR-10."""
    with np.load(data(DENSENET)) as arrays:
        return arrays["test_logits"], arrays["test_labels"].reshape(-1)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def sample(count, classes, seed, bins=15):
    """Random predictions and labels with no confidence, entropy or probability near a bin edge."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, min(0.4, 5 / classes)), size=2 * count)
    y = rng.integers(classes, size=2 * count)
    agree = rng.random(2 * count) < 0.6
    y[agree] = p.argmax(axis=1)[agree]
    values = np.column_stack([p, normalized_entropy(p)]) * bins
    edge = values.round()
    clear = ((np.abs(values - edge) > 1e-4) | (edge == 0)).all(axis=1)  # all agree about 0
    assert clear.sum() >= count
    return p[clear][:count], y[clear][:count]


def loop_gap(scores, outcomes, bins):
    """The definition, bin by bin: (lo, hi], with 0 in the first."""
    total = 0.0
    for m in range(bins):
        lo, hi = m / bins, (m + 1) / bins
        inside = [i for i, s in enumerate(scores) if lo < s <= hi or (m == 0 and s == 0)]
        if inside:
            outcome = sum(outcomes[i] for i in inside) / len(inside)
            score = sum(scores[i] for i in inside) / len(inside)
            total += len(inside) / len(scores) * abs(outcome - score)
    return total


def loop_metric(p, y, metric, bins):
    hits = [int(np.argmax(row)) == label for row, label in zip(p, y, strict=True)]
    if metric == "ece":
        return loop_gap([max(row) for row in p.tolist()], hits, bins)
    # The entropy is checked by itself; here its last bit must not decide about a bin.
    return loop_gap(normalized_entropy(p).tolist(), [not hit for hit in hits], bins)


def loop_classwise(p, y, metric, by, bins):
    if by == "kull":
        return [loop_gap(p[:, c].tolist(), (y == c).tolist(), bins) for c in range(p.shape[1])]
    group = p.argmax(axis=1) if by == "predicted" else y
    members = [group == c for c in range(p.shape[1])]
    return [loop_metric(p[m], y[m], metric, bins) if m.any() else math.nan for m in members]


quick = settings(deadline=None, max_examples=40)  # a shared machine can be slow for a moment


@st.composite
def predictions(draw):
    """Small tables of ratios: one-hot and uniform rows, ties, and values exactly on the edges of bins."""
    classes = draw(st.integers(2, 5))
    weights = st.lists(st.integers(0, 4), min_size=classes, max_size=classes).filter(any)
    table = np.array(draw(st.lists(weights, min_size=1, max_size=12)), dtype=np.float64)
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(table), max_size=len(table)))
    return table / table.sum(axis=1, keepdims=True), np.array(labels)


# By hand


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fair_coin_is_calibrated_in_confidence_and_not_in_uncertainty(dtype):
    p, y = np.full((8, 2), 0.5, dtype=dtype), np.array([0, 1] * 4)
    assert ece(p, y) == 0
    assert uce(p, y) == 0.5


def test_zero_entropy_belongs_to_the_first_bin():
    p, y = np.eye(4)[[0, 1, 2, 3]], np.array([0, 0, 0, 0])
    assert uce(p, y) == 0.75
    assert ece(p, y) == 0.75


def test_value_on_an_edge_belongs_to_the_bin_below():
    p = np.array([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.875, 0.125]])
    y = np.array([0, 1, 0, 1])
    low, high = abs(1 - 0.75) + abs(0 - 0.5), abs((1 + 0) - (1 + 0.875))
    assert ece(p, y, bins=4) == (low + high) / 4  # .875 and 1 share (.75, 1], .75 stays below
    assert ece(p, y, bins=1) == abs(2 - 3.125) / 4


def test_entropy_on_an_edge_belongs_to_the_bin_below():
    p, y = np.array([[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0.25] * 4]), np.array([0, 1, 2])
    assert normalized_entropy(p).tolist() == [0.5, 0, 1]
    assert uce(p, y, bins=2) == pytest.approx((abs((0 + 1) - (0.5 + 0)) + 0) / 3)


@pytest.mark.parametrize("bins", range(1, 101))
def test_every_edge_of_every_binning_is_exact(bins):
    edges = np.arange(bins + 1) / bins
    assert bin_of(edges, bins).tolist() == [0, *range(bins)]
    above = np.nextafter(edges[:-1], 2)
    assert bin_of(above, bins).tolist() == list(range(bins))


def test_classwise_by_hand():
    p = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.3, 0.7, 0.0], [0.6, 0.4, 0.0]])
    y = np.array([0, 1, 1, 0])
    got = classwise(p, y, metric="ece", bins=1)
    zero, one = abs(2 - (0.9 + 0.8 + 0.6)) / 3, abs(1 - 0.7)
    np.testing.assert_allclose(got.by_class, [zero, one, math.nan], rtol=1e-12)
    assert got.empty_classes == 1
    assert got.value == pytest.approx((zero + one) / 2)
    by_true = classwise(p, y, metric="ece", bins=1, by="true")
    np.testing.assert_allclose(by_true.by_class, [abs(2 - 1.5) / 2, abs(1 - 1.5) / 2, math.nan], rtol=1e-12)
    kull = classwise(p, y, metric="ece", bins=1, by="kull")
    np.testing.assert_allclose(kull.by_class, [abs(2 - 2.6) / 4, abs(2 - 1.4) / 4, 0], rtol=1e-12)
    assert kull.empty_classes == 0
    assert kull.value == pytest.approx(0.1)


def test_nll_and_accuracy_by_hand():
    p, y = [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], [0, 1]
    assert nll(p, y) == pytest.approx((math.log(2) + math.log(4)) / 2, rel=1e-15)
    assert accuracy(p, y) == 0.5
    assert nll([[1, 0], [0, 1]], [0, 1]) == 0
    assert nll([[1, 0], [0, 1]], [0, 0]) == math.inf
    assert accuracy([[0.5, 0.5]], [0]) == 1  # the first class wins a tie
    assert accuracy([[0.5, 0.5]], [1]) == 0


def test_entropy_keeps_leading_axes():
    p = np.random.default_rng(0).dirichlet(np.ones(5), size=(3, 4)).astype(np.float32)
    h = normalized_entropy(p)
    assert h.shape == (3, 4)
    assert h.dtype == np.float64
    np.testing.assert_array_equal(h[2], normalized_entropy(p[2]))
    np.testing.assert_array_equal(h[2, 1], normalized_entropy(p[2, 1]))


def test_entropy_of_certainty_is_plain_zero():
    h = normalized_entropy(np.eye(3))
    assert h.tolist() == [0, 0, 0]
    assert not np.signbit(h).any()


def test_values_beyond_one_by_rounding_are_clamped():
    certain, undecided = np.array([[1.0005, 0.0]]), np.full((1, 10), 0.10005)
    assert normalized_entropy(certain) == 0
    assert normalized_entropy(undecided) == 1
    assert ece(certain, [0]) == 0
    assert classwise_ece(certain, [0], by="kull") == 0
    assert uce(undecided, [1]) == 0


# Against the definition


@quick
@given(predictions())
def test_entropy_matches_definition(case):
    p, _ = case
    want = [-sum(x * math.log(x) for x in row if x > 0) / math.log(len(row)) for row in p.tolist()]
    got = normalized_entropy(p)
    np.testing.assert_allclose(got, want, atol=1e-14)
    assert ((got >= 0) & (got <= 1)).all()


@quick
@given(predictions(), st.integers(1, 20), st.sampled_from([1, 7, reading.BLOCK_ELEMENTS]))
def test_metrics_match_definition(case, bins, block):
    p, y = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_ELEMENTS", block)
        assert ece(p, y, bins=bins) == pytest.approx(loop_metric(p, y, "ece", bins), abs=1e-12)
        assert uce(p, y, bins=bins) == pytest.approx(loop_metric(p, y, "uce", bins), abs=1e-12)
        assert accuracy(p, y) == np.mean(p.argmax(axis=1) == y)
        for metric, by in [
            ("ece", "predicted"),
            ("ece", "true"),
            ("ece", "kull"),
            ("uce", "predicted"),
            ("uce", "true"),
        ]:
            want = np.array(loop_classwise(p, y, metric, by, bins))
            got = classwise(p, y, metric=metric, bins=bins, by=by)
            np.testing.assert_allclose(got.by_class, want, atol=1e-12)
            assert got.empty_classes == np.isnan(want).sum()
            assert got.value == pytest.approx(np.nanmean(want), abs=1e-12)
            short = classwise_ece if metric == "ece" else classwise_uce
            assert short(p, y, bins=bins, by=by) == got.value


@quick
@given(predictions(), st.integers(1, 20))
def test_one_class_per_image_decomposes(case, bins):
    p, y = case
    sizes = np.bincount(p.argmax(axis=1), minlength=p.shape[1])
    parts = classwise(p, y, metric="uce", bins=bins).by_class
    # Splitting a bin by class can only uncover gaps that cancelled inside it.
    assert np.nansum(parts * sizes) / len(y) >= uce(p, y, bins=bins) - 1e-12


# Against torchmetrics, whose bins are [lo, hi): equal away from the edges


@pytest.mark.parametrize(("classes", "bins"), [(2, 15), (10, 15), (10, 7), (100, 15)])
def test_ece_matches_torchmetrics(classes, bins):
    torch = pytest.importorskip("torch")
    classification = pytest.importorskip("torchmetrics.classification")
    p, y = sample(1500, classes, seed=classes, bins=bins)
    reference = classification.MulticlassCalibrationError(classes, n_bins=bins, norm="l1")
    want = float(reference(torch.from_numpy(p), torch.from_numpy(y)))
    assert ece(p, y, bins=bins) == pytest.approx(want, abs=2e-6)
    assert ece(p.astype(np.float32), y, bins=bins) == pytest.approx(want, abs=2e-6)


@pytest.mark.parametrize(("classes", "bins"), [(2, 15), (10, 7)])
def test_uce_and_one_vs_rest_match_torchmetrics(classes, bins):
    torch = pytest.importorskip("torch")
    classification = pytest.importorskip("torchmetrics.classification")
    p, y = sample(1500, classes, seed=classes, bins=bins)

    def binary(score, outcome):
        # It bins a score in [0, 1] against a yes or no: the same sum, whatever the score means.
        reference = classification.BinaryCalibrationError(n_bins=bins, norm="l1")
        return float(reference(torch.from_numpy(score.copy()), torch.from_numpy(outcome.astype(np.int64))))

    entropy = -(p * np.log(p)).sum(axis=1) / np.log(classes)
    assert uce(p, y, bins=bins) == pytest.approx(binary(entropy, p.argmax(axis=1) != y), abs=2e-6)
    want = np.mean([binary(p[:, c], y == c) for c in range(classes)])
    assert classwise_ece(p, y, bins=bins, by="kull") == pytest.approx(want, abs=2e-6)


# Against published logits


def test_published_densenet40_logits():
    logits, labels = densenet()
    p = softmax(logits.astype(np.float64))
    assert accuracy(p, labels) == pytest.approx(0.9242, abs=1e-12)
    assert ece(p, labels) == pytest.approx(0.0550027, abs=1e-6)
    assert ece(softmax(logits.astype(np.float32)), labels) == pytest.approx(0.0550027, abs=1e-6)
    for metric in EVERY.values():
        with pytest.raises(UsageError, match="pass their softmax"):
            metric(logits, labels)


# Scale


@named(NUMBERS | {"twin": lambda p, y: calibrated_twin(accuracy, p, resamples=2)})
def test_no_float64_copy_of_the_table(metric):
    p = np.full((80_000, 100), 0.01, dtype=np.float32)
    y = np.arange(len(p)) % 100
    tracemalloc.start()
    try:
        metric(p, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < p.nbytes / 2  # a float64 copy would be twice the table


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_softmax_in_low_precision_passes(dtype):
    logits = np.random.default_rng(3).normal(0, 3, size=(500, 1000))
    p = softmax(logits).astype(dtype)
    assert 0 <= uce(p, np.zeros(500, dtype=np.uint8)) <= 1


# Refusals

TWO = np.array([[0.5, 0.5], [1.0, 0.0]])

BAD_TABLES = {  # and the argument that the error names
    "one axis": ([0.5, 0.5], "the shape of probabilities"),
    "three axes": (np.full((2, 2, 2), 0.5), "the shape of probabilities"),
    "one class": (np.ones((2, 1)), "the shape of probabilities"),
    "no image": (np.empty((0, 3)), "the shape of probabilities"),
    "scalar": (0.5, "the shape of probabilities"),
    "nan": ([[0.5, 0.5], [np.nan, 0.5]], "probabilities[1, 0]"),
    "inf": ([[0.5, 0.5], [0.5, np.inf]], "probabilities[1, 1]"),
    "both infinities": ([[0.5, 0.5], [-np.inf, np.inf]], "probabilities[1, 0]"),
    "negative": ([[0.5, 0.5], [1.25, -0.25]], "probabilities[1, 1]"),
    "logits": ([[0.5, 0.5], [3.0, 2.0]], "the sum of probabilities[1]"),
    "huge": ([[0.5, 0.5], [1e308, 1e308]], "the sum of probabilities[1]"),
    "short of 1": ([[0.5, 0.5], [0.5, 0.49]], "the sum of probabilities[1]"),
    "text": ([["a", "b"], ["c", "d"]], "probabilities"),
    "complex": (TWO * 1j, "probabilities"),
    "ragged": ([[0.5, 0.5], [1.0]], "probabilities"),
}

BAD_LABELS = {
    "too few": ([0], "the shape of labels"),
    "one-hot": ([[1, 0], [0, 1]], "the shape of labels"),
    "floats": ([0.0, 1.0], "labels"),
    "booleans": ([True, False], "labels"),
    "ragged": ([[0], [0, 1]], "labels"),
    "too large": ([0, 2], "labels[1]"),
    "negative": ([-1, 0], "labels[0]"),
}


@named(EVERY)
@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_probabilities(metric, case):
    table, named = BAD_TABLES[case]
    with raises("argument.probabilities") as caught:
        metric(table, [0, 1])
    assert caught.value.fields["argument"] == named


@pytest.mark.parametrize("case", [c for c in BAD_TABLES if c not in ("one axis", "three axes")])
def test_bad_probabilities_for_entropy(case):
    table, named = BAD_TABLES[case]
    with raises("argument.probabilities") as caught:
        normalized_entropy(table)
    assert caught.value.fields["argument"] == named


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_probabilities_for_the_twin(case):
    table, named = BAD_TABLES[case]
    with raises("argument.probabilities") as caught:
        calibrated_twin(accuracy, table)
    assert caught.value.fields["argument"] == named


@named(EVERY)
@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels(metric, case):
    labels, named = BAD_LABELS[case]
    with raises("argument.labels") as caught:
        metric(TWO, labels)
    assert caught.value.fields["argument"] == named


@pytest.mark.parametrize(
    "metric",
    [ece, uce, adaptive_ece, adaptive_uce, mce, debiased_ece, classwise_ece, classwise_uce, reliability_curve],
)
@pytest.mark.parametrize("bins", [0, -3, 1.5, True, "15"])
def test_bad_bins(metric, bins):
    with raises("argument.bins"):
        metric(TWO, [0, 1], bins=bins)


def test_bad_grouping_and_metric():
    with raises("argument.by"):
        classwise_uce(TWO, [0, 1], by="kull")
    with raises("argument.by"):
        classwise_ece(TWO, [0, 1], by="label")
    with raises("argument.metric"):
        classwise(TWO, [0, 1], metric="mce")


def test_a_fault_in_a_later_block_is_named_by_its_own_row(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_ELEMENTS", 4)
    p = np.full((9, 2), 0.5)
    p[7] = [0.5, -0.5]
    with raises("argument.probabilities") as caught:
        uce(p, np.zeros(9, dtype=int))
    assert caught.value.fields["argument"] == "probabilities[7, 1]"
    p[7] = [0.5, 0.6]
    with raises("argument.probabilities") as caught:
        uce(p, np.zeros(9, dtype=int))
    assert caught.value.fields["argument"] == "the sum of probabilities[7]"


# One table for several metrics


@quick
@given(predictions(), st.sampled_from([1, 7, 2**18]), st.data())
def test_metrics_of_a_shared_table_and_of_taken_rows(case, block, draw):
    p, y = case
    rows = np.array(draw.draw(st.lists(st.integers(0, len(p) - 1), min_size=1, max_size=15)))
    again = np.array(draw.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=15)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_ELEMENTS", block)
        shared = Probabilities(p)
        for taken, plain, labels in (
            (shared, p, y),
            (shared.take(rows), p[rows], y[rows]),
            (shared.take(rows).take(again), p[rows][again], y[rows][again]),
        ):
            assert len(taken) == len(plain)
            np.testing.assert_array_equal(np.asarray(taken), plain)
            for metric in NUMBERS.values():
                assert outcome(metric, taken, labels) == pytest.approx(outcome(metric, plain, labels), abs=1e-12)


def outcome(metric, p, y):
    """The value, or what the refusal says."""
    try:
        return metric(p, y)
    except UsageError as error:
        return str(error)


def test_a_shared_table_is_checked_and_reduced_once(monkeypatch):
    p, y = sample(50, 4, seed=1)
    calls = []
    for name in ("_check", "_entropy"):
        real = getattr(reading, name)
        monkeypatch.setattr(reading, name, lambda *given, real=real, name=name: (calls.append(name), real(*given))[1])
    shared = Probabilities(p)
    for metric in NUMBERS.values():
        metric(shared, y)
    assert sorted(calls) == ["_check", "_entropy"]


def test_a_fault_is_named_by_its_row_in_the_table_when_rows_are_taken():
    p = np.full((9, 2), 0.5)
    p[7] = [0.5, -0.5]
    with raises("argument.probabilities") as caught:
        Probabilities(p).take(np.array([8, 7]))
    assert caught.value.fields["argument"] == "probabilities[7, 1]"


def test_every_public_name_is_there_and_importing_is_light():
    assert sorted(metrics.__all__) == metrics.__all__
    assert all(hasattr(metrics, name) for name in metrics.__all__)
    heavy = {"torch", "scipy", "sklearn", "numpy.random"}
    code = (
        "import sys, numpy; before = set(sys.modules); import uce_edge.metrics; "  # numpy 1 imports all of itself
        f"found = {heavy} & (set(sys.modules) - before); assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
