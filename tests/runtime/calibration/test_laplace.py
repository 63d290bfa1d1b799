"""The posterior of a last layer, against the dense matrices that its factors stand for."""

import math

import numpy as np
import pytest
from helpers.errors import raises

from uce_edge.calibration import laplace_posterior
from uce_edge.calibration.laplace_posterior import Curvature, Laplace, LaplaceError, Trial

N, FEATURES, CLASSES, PRECISION = 40, 5, 3, 0.7


@pytest.fixture
def layer(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, weights with the bias, and logits."""
    features, weights = rng.normal(size=(N, FEATURES)), rng.normal(size=(CLASSES, FEATURES + 1))
    return features, weights, features @ weights[:, :-1].T + weights[:, -1]


def dense(features: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """A x B as one matrix, weights class by class."""
    with_bias = np.column_stack([features, np.ones(len(features))])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    of_classes = np.mean([np.diag(row) - np.outer(row, row) for row in p], axis=0)
    return np.kron(of_classes, with_bias.T @ with_bias)


def test_the_covariance_is_that_of_the_dense_posterior_up_to_a_shift_of_all_logits(layer, rng) -> None:
    features, _, logits = layer
    posterior = Laplace(laplace_posterior.curvature(features, logits), PRECISION)
    precision = dense(features, logits) + PRECISION * np.eye(CLASSES * (FEATURES + 1))
    new = rng.normal(size=(4, FEATURES))
    centre = np.eye(CLASSES) - 1 / CLASSES  # the softmax does not see a shift
    for one, ours in zip(new, posterior.covariance(new), strict=True):
        jacobian = np.kron(np.eye(CLASSES), np.append(one, 1))
        full = jacobian @ np.linalg.inv(precision) @ jacobian.T
        np.testing.assert_allclose(ours, centre @ full @ centre, atol=1e-12)


def test_draws_have_the_mean_and_the_covariance_of_the_posterior(layer, rng) -> None:
    features, _, logits = layer
    posterior = Laplace(laplace_posterior.curvature(features, logits), PRECISION)
    drawn = posterior.draw(logits[:2], features[:2], rng.normal(size=(200_000, CLASSES - 1)))
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(0), logits[:2], atol=0.01)
    for i, covariance in enumerate(posterior.covariance(features[:2])):
        np.testing.assert_allclose(np.cov(drawn[:, i].T), covariance, atol=0.02 * np.trace(covariance))


def test_some_images_stand_for_all(layer) -> None:
    features, _, logits = layer
    twice = laplace_posterior.curvature(np.tile(features, (2, 1)), np.tile(logits, (2, 1)))
    half = laplace_posterior.curvature(features, logits, images=2 * N)
    np.testing.assert_allclose(
        Laplace(half, 1.0).covariance(features), Laplace(twice, 1.0).covariance(features), rtol=1e-9
    )


def test_the_prior_precision_maximises_the_dense_marginal_likelihood(layer) -> None:
    features, weights, logits = layer
    curvature = dense(features, logits)

    def evidence(precision: float) -> float:
        size = len(curvature)
        determinant = np.linalg.slogdet(curvature + precision * np.eye(size))[1]
        return (size * math.log(precision) - precision * (weights**2).sum() - determinant) / 2

    found = laplace_posterior.by_marginal_likelihood(laplace_posterior.curvature(features, logits), weights)
    assert evidence(found) > max(evidence(0.99 * found), evidence(1.01 * found))


def overconfident(rng: np.random.Generator, images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features and logits of a layer whose weights are off by noise, and labels by the weights without it."""
    features = rng.normal(size=(images, FEATURES))
    truth = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))
    wrong = truth + 1.5 * np.random.default_rng(2).normal(size=truth.shape)
    p = np.exp(features @ truth.T) / np.exp(features @ truth.T).sum(1, keepdims=True)
    labels = np.array([rng.choice(CLASSES, p=row) for row in p])
    return features, 3 * features @ wrong.T, labels


def test_held_out_images_choose_the_best_of_the_precisions_that_were_tried(rng) -> None:
    found = laplace_posterior.curvature(*overconfident(rng, 30)[:2])
    trial = Trial(found, *overconfident(rng, 400), rng.normal(size=(50, CLASSES - 1)))
    best = laplace_posterior.by_held_out_nll(trial)
    assert best.nll == min(trial(precision).nll for precision in trial.grid())
    assert best.nll < best.nll_without  # weights that are off: here, doubting them helps
    assert trial(1e12).nll == pytest.approx(best.nll_without, abs=1e-4)


@pytest.mark.parametrize("change", ["few", "nan", "shape", "certain"])
def test_images_that_cannot_tell_are_refused(layer, change: str) -> None:
    features, _, logits = layer
    match change:
        case "few":
            features, logits, code = features[:2], logits[:2], "posterior.too-few-images"
        case "nan":
            features, code = np.where(features > 1, np.nan, features), "model.not-finite"
        case "shape":
            features, code = features[:-1], "argument.features"
        case _:
            logits, code = 1e4 * logits, "posterior.flat"
    with raises(code) as caught:
        laplace_posterior.curvature(features, logits)
    assert isinstance(caught.value, LaplaceError) or change == "shape"


def test_weights_that_are_all_zero_have_no_likeliest_prior(layer) -> None:
    found: Curvature = laplace_posterior.curvature(layer[0], layer[2])
    with raises("model.untrained"):
        laplace_posterior.by_marginal_likelihood(found, np.zeros((CLASSES, FEATURES + 1)))
