"""Novelty: the distance against scikit-learn and scipy, the p-value and both sides of its promise by simulation."""

import math

import numpy as np
import pytest
from helpers.errors import raises

from uce_edge.calibration import novelty
from uce_edge.calibration.novelty import Reference, cutoff, fit


def blobs(rng: np.random.Generator, images: int, classes: int = 4, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(images) % classes
    centres = np.random.default_rng(9).standard_normal((classes, size)) * 3
    return centres[labels] + rng.standard_normal((images, size)) + 5, labels


def test_the_covariance_is_that_of_ledoit_and_wolf(rng: np.random.Generator) -> None:
    sklearn = pytest.importorskip("sklearn.covariance")
    residuals = rng.standard_normal((80, 30)) @ rng.standard_normal((30, 30))
    covariance, weight = novelty.shrunk_covariance(residuals, 80)
    expected, shrinkage = sklearn.ledoit_wolf(residuals, assume_centered=True)
    assert np.allclose(covariance, expected)
    assert math.isclose(weight, shrinkage, rel_tol=1e-9)


def test_the_score_is_the_mahalanobis_distance_to_the_nearest_mean(rng: np.random.Generator) -> None:
    distance = pytest.importorskip("scipy.spatial.distance")
    features, labels = blobs(rng, 400)
    fitted = fit(features, labels)
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    means = np.stack([directions[labels == label].mean(axis=0) for label in range(4)])
    covariance, _ = novelty.shrunk_covariance(directions - means[labels], 396)
    inverse = np.linalg.inv(covariance)
    expected = [min(distance.mahalanobis(x, m, inverse) ** 2 for m in means) for x in directions[:20]]
    assert np.allclose(fitted(features[:20]), expected)


def test_the_length_of_the_features_does_not_matter(rng: np.random.Generator) -> None:
    features, labels = blobs(rng, 400)
    fitted = fit(features, labels)
    assert np.allclose(fitted(features), fitted(17 * features))


def test_foreign_features_have_a_small_p_value(rng: np.random.Generator) -> None:
    fitted = fit(*blobs(rng, 2000))
    reference = Reference.of(fitted(blobs(rng, 1000)[0]))
    assert (reference(fitted(-blobs(rng, 100)[0])) < 0.01).all()
    assert np.median(reference(fitted(blobs(rng, 1000)[0]))) == pytest.approx(0.5, abs=0.05)


def test_what_is_not_a_number_is_foreign(rng: np.random.Generator) -> None:
    fitted = fit(*blobs(rng, 2000))
    reference = Reference.of(fitted(blobs(rng, 200)[0]))
    broken = np.full((2, 12), np.nan)
    broken[1] = np.inf
    with np.errstate(invalid="ignore"):
        assert reference(fitted(broken)).tolist() == [0, 0]
    assert reference([np.nan, np.inf]).tolist() == [0, 0]
    assert reference([np.finfo(np.float32).max]).tolist() == pytest.approx([1 / 201])


@pytest.mark.parametrize("images", [1, 10, 499, 1000, 1001, 7000])
def test_kept_scores_round_the_p_value_upwards_and_keep_the_tail_exact(rng: np.random.Generator, images: int) -> None:
    scores = rng.gamma(5.0, size=images).astype(np.float32)
    reference = Reference.of(scores)
    assert reference.images == images
    assert len(reference.scores) <= 1001
    asked = np.concatenate([scores, rng.gamma(5.0, size=300).astype(np.float32), [0.0, 1e9]])
    exact = (1 + (scores[None] >= asked[:, None]).sum(axis=1)) / (images + 1)
    given = reference(asked)
    assert (given >= exact - 1e-6).all()
    tail = exact <= min(1.0, 400 / (images + 1))
    assert np.allclose(given[tail], exact[tail])


@pytest.mark.parametrize(
    ("images", "level", "rank"), [(299, 0.01, 1), (298, 0.0101, 1), (5000, 0.01, 39), (200, 0.05, 5)]
)
def test_the_cutoff_is_the_exact_order_statistic(images: int, level: float, rank: int) -> None:
    beta = pytest.importorskip("scipy.stats").beta
    chosen = cutoff(images, level)
    assert chosen.cutoff == pytest.approx((rank + 0.5) / (images + 1))
    assert beta.cdf(level, rank, images - rank + 1) >= 0.95
    assert beta.cdf(level, rank + 1, images - rank) < 0.95


@pytest.mark.parametrize(("images", "level"), [(200, 0.05), (299, 0.01), (2000, 0.01)])
def test_the_promise_about_familiar_images_holds_in_95_of_100_redraws(images: int, level: float) -> None:
    rng = np.random.default_rng(images)
    chosen = cutoff(images, level)
    kept = 0
    for _ in range(1000):
        # Uniform scores: the true share beyond a cutoff is known without drawing.
        scores = np.sort(rng.random(images))
        rank = math.floor(chosen.cutoff * (images + 1))
        kept += (1 - scores[images - rank]) <= level
    assert 0.935 <= kept / 1000 <= 1.0


def test_200_images_allow_no_less_than_one_and_a_half_percent() -> None:
    assert novelty.smallest_level(200, 0.95) == pytest.approx(0.0149, abs=1e-4)
    with raises("novelty.unprovable"):
        cutoff(200, 0.01)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_a_level_outside_0_and_1_is_refused(level: float) -> None:
    with raises("argument.level"):
        cutoff(1000, level)


def test_too_few_images_are_refused_with_the_number_that_is_enough(rng: np.random.Generator) -> None:
    features, labels = blobs(rng, 53)
    with raises("novelty.too-few-images"):
        fit(features, labels)


def test_fewer_images_than_features_are_shrunk(rng: np.random.Generator) -> None:
    features, labels = blobs(rng, 80, size=100)
    fitted = fit(features, labels)
    assert 0 < fitted.shrinkage <= 1
    assert np.isfinite(fitted(features)).all()


def test_a_class_without_images_is_left_out(rng: np.random.Generator) -> None:
    features, labels = blobs(rng, 400)
    assert len(fit(features[labels != 2], labels[labels != 2]).means) == 3


def test_constant_features_are_refused() -> None:
    with raises("novelty.flat"):
        fit(np.ones((100, 5)), np.arange(100) % 2)


def test_broken_features_are_refused(rng: np.random.Generator) -> None:
    features, labels = blobs(rng, 400)
    features[3, 1] = np.nan
    with raises("model.not-finite"):
        fit(features, labels)


def test_classes_of_a_few_images_share_one_mean(rng: np.random.Generator) -> None:
    classes = 200
    centres = np.random.default_rng(9).standard_normal((classes, 12)) + 5

    def drawn(images: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, classes, images)
        return centres[labels] + rng.standard_normal((images, 12)), labels

    few, many = fit(*drawn(2 * classes)), fit(*drawn(20 * classes))
    assert (few.means.shape, many.means.shape) == ((1, 12), (classes, 12))
    assert np.median(few(drawn(500)[0])) == pytest.approx(12, rel=0.15)  # whitened: one per feature


def test_many_features_have_a_subspace_and_one_variance_outside(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(novelty, "RANK", 3)
    features, labels = blobs(rng, 400)
    fitted = fit(features, labels)
    assert fitted.whitening.shape == (12, 3)
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    means = np.stack([directions[labels == label].mean(axis=0) for label in range(4)])
    variances, vectors = np.linalg.eigh(novelty.shrunk_covariance(directions - means[labels], 396)[0])
    variances[:-3] = variances[:-3].mean()
    centre, inside = directions.mean(axis=0), vectors[:, -3:] @ vectors[:, -3:].T
    means = centre + (means - centre) @ inside  # means differ within the subspace alone
    inverse = vectors / variances @ vectors.T
    expected = [min((x - m) @ inverse @ (x - m) for m in means) for x in directions[:20]]
    np.testing.assert_allclose(fitted(features[:20]), expected, rtol=5e-3)  # float16
