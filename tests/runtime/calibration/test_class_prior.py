"""Another mix of classes: the corrected probabilities are those of Bayes, and EM finds the shares."""

import numpy as np
import pytest
from helpers.errors import raises
from scipy import optimize

from uce_edge import UsageError
from uce_edge.calibration import maps
from uce_edge.calibration.class_prior import ClassPrior, estimated, log_ratio, rare, shares_of, subset
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.contract import Method
from uce_edge.metadata import Calibration

CLASSES = ("cat", "dog", "owl")
MEANS = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
OLD, NEW = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.1, 0.3])


def drawn(shares: np.ndarray, images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log densities of Gaussians with equal spread, and the classes that they were drawn from."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, images, p=shares)
    points = MEANS[labels] + rng.normal(0, 1, (images, 2))
    return -((points[:, None] - MEANS) ** 2).sum(-1) / 2, labels


def posterior(log_density: np.ndarray, shares: np.ndarray) -> np.ndarray:
    weighted = np.exp(log_density) * shares
    return np.asarray(weighted / weighted.sum(-1, keepdims=True))


def test_a_shift_gives_the_posterior_of_the_new_mix() -> None:
    density, labels = drawn(NEW, 500, 0)
    logits = ArrayLogits(np.log(posterior(density, OLD))[None])
    found = maps.shifted(Calibration(Method.NONE), log_ratio(NEW, OLD), logits, labels)
    np.testing.assert_allclose(maps.probabilities(found, logits), posterior(density, NEW), atol=1e-6)
    assert found.outcome.nll_after < found.outcome.nll_before


def test_em_maximises_the_likelihood_of_the_shares() -> None:
    density, _ = drawn(NEW, 4_000, 1)
    p = posterior(density, OLD)

    def loss(free: np.ndarray) -> float:
        shares = np.exp(np.append(free, 0)) / np.exp(np.append(free, 0)).sum()
        # The imaginary images of the old shares are a Dirichlet prior.
        return float(-np.log((p * shares / OLD).sum(-1)).sum() - 3 * (OLD * np.log(shares)).sum())

    best = np.append(optimize.minimize(loss, np.zeros(2)).x, 0)
    found = estimated(p, OLD)
    np.testing.assert_allclose(found, np.exp(best) / np.exp(best).sum(), atol=1e-4)
    np.testing.assert_allclose(found, NEW, atol=0.05)


def test_a_fitted_shift_removes_a_bias() -> None:
    density, labels = drawn(OLD, 4_000, 2)
    bias = np.array([0.8, -0.4, -0.4])
    logits = ArrayLogits((np.log(posterior(density, OLD)) + bias)[None])
    found = maps.fit_shift(Calibration(Method.NONE), logits, labels)
    np.testing.assert_allclose(found - found.mean(), -bias, atol=0.15)


def test_the_subset_has_the_new_shares_and_is_as_large_as_possible() -> None:
    labels = np.repeat([0, 1, 2], (200, 500, 300))
    kept = subset(labels, NEW, CLASSES)
    counts = np.bincount(labels[kept])
    assert counts[0] == 200
    np.testing.assert_allclose(counts, 200 / 0.6 * NEW, atol=1)
    assert len(np.unique(kept)) == len(kept)


def test_many_rare_classes_keep_their_share_together() -> None:
    """Each of 99 classes has a third of an image."""
    labels, shares = np.repeat(np.arange(100), 150), np.full(100, 0.2 / 99)
    shares[0] = 0.8
    kept = labels[subset(labels, shares, [str(name) for name in range(100)])]
    assert (kept == 0).mean() == pytest.approx(0.8, abs=0.01)
    assert np.bincount(kept)[1:].max() == 1


def test_classes_without_a_share_are_drawn_together() -> None:
    """Of 1,000 classes with some ten images each, the scarcest does not decide."""
    rng = np.random.default_rng(0)
    labels, classes = rng.integers(0, 1_000, 10_000), [f"c{number}" for number in range(1_000)]
    labels[:4] = 0
    shares = ClassPrior({"c0": 0.01}).shares(classes, shares_of(labels, 1_000))
    with raises("calibrate.class-prior"):
        subset(np.delete(labels, np.flatnonzero(labels == 7)), shares, classes)
    kept = labels[subset(labels, shares, classes, {"c0"})]
    assert (kept == 0).mean() == pytest.approx(0.01, abs=0.001)
    assert len(np.unique(kept)) > 600


def test_rare_classes_are_estimated_and_drawn_together() -> None:
    """Three classes with many images, and 500 with about eight. The first becomes three times as frequent."""
    rng, many = np.random.default_rng(4), 503
    old = np.append(np.full(3, 0.1), np.full(500, 0.7 / 500))
    new = old * np.append([3, 0.5, 0.5], np.full(500, 6 / 7))
    labels, truth = rng.choice(many, 6_000, p=old), rng.choice(many, 2_000, p=new)
    seen = rng.normal(4.0 * (np.arange(many) == truth[:, None]), 1)  # of every class: 4 more where it is the image's
    likely = np.exp(4 * seen - 8)
    counts, names = np.bincount(labels, minlength=many), [str(number) for number in range(many)]
    p, before = likely * counts, counts / len(labels)
    p /= p.sum(axis=1, keepdims=True)
    together = rare(counts)
    assert not together[:3].any()
    assert together[3:].mean() > 0.99
    alone, shares = estimated(p, before), estimated(p, before, together)
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(shares[:3], new[:3], atol=0.03)
    np.testing.assert_allclose(shares[together] / shares[together].sum(), before[together] / before[together].sum())
    assert np.abs(shares - new).sum() < np.abs(alone - new).sum()
    labels = np.delete(labels, np.flatnonzero(labels == 7))  # in a part of the images, none is of a rare class
    with raises("calibrate.class-prior"):
        subset(labels, shares, names)
    kept = labels[subset(labels, shares, names, np.array(names)[~together].tolist())]
    np.testing.assert_allclose(np.bincount(kept, minlength=many)[:3] / len(kept), shares[:3], atol=0.002)
    assert len(np.unique(kept)) > 300


def test_shares_of_rare_classes_alone_are_refused() -> None:
    with raises("calibrate.class-prior"):
        rare(np.full(1_000, 10))
    assert not rare(np.array([19, 20, 500])).any(), "one rare class has a share of its own"


def test_the_shift_of_passes_that_differ_is_fitted_from_the_ratio_on() -> None:
    """The average of shifted passes moves less than the shifted average."""
    density, labels = drawn(OLD, 4_000, 3)
    kept = subset(labels, NEW, CLASSES)
    rng = np.random.default_rng(3)
    passes = np.log(posterior(density, OLD)) + rng.normal(0, 2, (9, 4_000, 3))
    logits = ArrayLogits(passes[:, kept].astype(np.float32))
    ratio, none = log_ratio(NEW, OLD), Calibration(Method.NONE)
    refitted = maps.fit_shift(none, logits, labels[kept], around=ratio)
    before, after = (maps.shifted(none, shift, logits, labels[kept]).outcome for shift in (ratio, refitted))
    assert after.nll_after < before.nll_after
    means = [maps.probabilities(maps.shifted(none, s, logits, labels[kept]), logits).mean(0) for s in (ratio, refitted)]
    assert np.abs(means[1] - NEW).max() < 0.6 * np.abs(means[0] - NEW).max()


@pytest.mark.parametrize(("text", "shares"), [("cat=0.6", [0.6, 0.25, 0.15]), ("cat=0.5,dog=0.5", [0.5, 0.5, 0])])
def test_classes_without_a_share_divide_the_rest(text: str, shares: list[float]) -> None:
    np.testing.assert_allclose(ClassPrior.parse(text).shares(CLASSES, OLD), shares)


@pytest.mark.parametrize("text", ["cat", "cat=x", "cat=2", "cat=0.5,cat=0.5", "cow=0.5", "cat=0.9,dog=0.9"])
def test_wrong_shares_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="class_prior"):
        ClassPrior.parse(text).shares(CLASSES, OLD)


def test_a_class_without_labelled_images_is_refused() -> None:
    with raises("calibrate.class-prior"):
        subset(np.repeat([0, 1], 200), NEW, CLASSES)
