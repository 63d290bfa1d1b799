"""Calibration maps: start as the identity, find a known optimum, and never harm the fit."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from helpers.made_logits import drawn, noisy, scaled

from uce_edge.calibration import auxiliary_map
from uce_edge.calibration.logits import ArrayLogits, StoredLogits
from uce_edge.calibration.maps import apply_map, averaged_nll, fit_map, initial, probabilities
from uce_edge.contract import Method
from uce_edge.metadata import Calibration


@pytest.mark.parametrize("method", Method)
def test_every_map_starts_as_the_identity(method: Method, rng: np.random.Generator) -> None:
    z = rng.standard_normal((3, 7, 5))
    np.testing.assert_array_equal(apply_map(method, initial(method, 5), z), z)


def test_the_maps_are_their_formulas(rng: np.random.Generator) -> None:
    z = rng.standard_normal((3, 7, 5))
    some = {name: value + rng.normal(0, 0.3, value.shape) for name, value in initial(Method.AUX, 5).items()}
    np.testing.assert_allclose(apply_map(Method.TEMPERATURE, {"temperature": np.array([1.7])}, z), z / 1.7)
    np.testing.assert_allclose(apply_map(Method.VECTOR, {"vector": np.arange(5.0)}, z), z * np.arange(5))
    for before, after in zip(z.reshape(-1, 5), apply_map(Method.AUX, some, z).reshape(-1, 5), strict=True):
        hidden = some["aux.w1"] @ before + some["aux.b1"]
        wanted = before + some["aux.w2"] @ np.where(hidden > 0, hidden, 0.01 * hidden) + some["aux.b2"]
        np.testing.assert_allclose(after, wanted, rtol=1e-12)


def test_the_nll_is_that_of_the_averaged_prediction(rng: np.random.Generator) -> None:
    z, labels = 4 * rng.standard_normal((6, 50, 4)), rng.integers(0, 4, 50)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    assert averaged_nll(z, labels) == pytest.approx(-np.log(p.mean(0)[np.arange(50), labels]).mean(), rel=1e-12)
    np.testing.assert_allclose(probabilities(Calibration(), ArrayLogits(z)), p.mean(0), rtol=1e-12)
    # Logits beyond the range of exp: the true class is hopeless in every pass.
    hopeless = np.array([[[0.0, 2000.0]], [[0.0, 1000.0]]])
    assert averaged_nll(hopeless, [0]) == pytest.approx(1000 + np.log(2))


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.5, 40.0])
def test_temperature_finds_the_scale_of_the_logits(truth: float) -> None:
    fitted = fit_map(Method.TEMPERATURE, *scaled(4, truth))
    assert fitted.parameters["temperature"][0] == pytest.approx(truth, rel=0.05)
    assert fitted.samples == 4


def test_temperature_is_the_minimum_of_the_averaged_nll() -> None:
    z, labels = noisy(25, 4000, 5)
    best = fit_map(Method.TEMPERATURE, z, labels).parameters["temperature"][0]
    values = [averaged_nll(z / (best * factor), labels) for factor in (0.97, 1.0, 1.03)]
    assert values[1] == min(values)
    # The mean of per-pass NLLs has another optimum; the shipped prediction is the average.
    passwise = [averaged_nll(z.reshape(1, -1, 5) / t, np.tile(labels, 25)) for t in (best, best * 1.1)]
    assert passwise[1] < passwise[0]


def test_vector_scales_classes_one_by_one() -> None:
    z, labels = scaled(1, 1.0, 20000)
    factors = np.array([0.5, 1.0, 2.0, 1.0, 1.5])
    fitted = fit_map(Method.VECTOR, z * factors, labels)
    assert np.allclose(fitted.parameters["vector"], 1 / factors, rtol=0.08)


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("truth", [0.4, 3.0])
def test_no_map_raises_the_nll_of_its_calibration_set(method: Method, truth: float) -> None:
    report = fit_map(method, *scaled(2, truth, 500)).outcome
    assert report.nll_after <= report.nll_before
    if method is not Method.NONE:
        assert report.nll_after < report.nll_before - 0.01


@pytest.mark.parametrize("method", Method)
def test_the_report_is_about_the_map_that_is_returned(method: Method) -> None:
    z, labels = noisy(3, 400, 4)
    fitted = fit_map(method, z, labels)
    before, after = (probabilities(said, ArrayLogits(z)) for said in (Calibration(), fitted))
    right = np.arange(400), labels
    assert fitted.outcome.to_document() == {
        "images": 400,
        "nll_of_chance": pytest.approx(np.log(4), abs=1e-6),
        "nll_before": pytest.approx(-np.log(before[right]).mean(), abs=1e-5),
        "nll_after": pytest.approx(-np.log(after[right]).mean(), abs=1e-5),
        "label_flips": (before.argmax(1) != after.argmax(1)).sum(),
        "accuracy_before": pytest.approx((before.argmax(1) == labels).mean()),
        "accuracy_after": pytest.approx((after.argmax(1) == labels).mean()),
    }


def test_the_derivatives_of_aux_are_differences_of_its_nll(rng: np.random.Generator) -> None:
    z, labels = noisy(3, 40, 4)
    parameters = {name: value + rng.normal(0, 0.2, value.shape) for name, value in auxiliary_map.initial(4).items()}
    for name, derivative in auxiliary_map.gradients(parameters, z, labels).items():
        for place in np.ndindex(derivative.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = parameters | {name: parameters[name].copy()}
                moved[name][place] += step
                values.append(averaged_nll(apply_map(Method.AUX, moved, z.astype(np.float64)), labels))
            assert derivative[place] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_aux_does_not_overfit_a_small_set_with_many_classes() -> None:
    rng = np.random.default_rng(1)
    z = 3 * rng.standard_normal((1, 4000, 50))
    labels = drawn(z[0], rng)
    fitted = fit_map(Method.AUX, z[:, :300], labels[:300])
    plain = averaged_nll(z[:, 300:], labels[300:])

    def unseen(parameters: dict[str, list[float]]) -> float:
        arrays = {name: np.array(value) for name, value in parameters.items()}
        return averaged_nll(apply_map(Method.AUX, arrays, z[:, 300:]), labels[300:])

    assert unseen(fitted.parameters) < plain + 0.02
    wild = fit_map(Method.AUX, z[:, :300], labels[:300], regularise=False)
    assert wild.outcome.nll_after < fitted.outcome.nll_after
    assert unseen(wild.parameters) > plain + 0.1


def test_aux_of_few_images_is_as_good_as_temperature_scaling() -> None:
    """On logits that are twice too large, which is all that is wrong with them."""
    rng = np.random.default_rng(2)
    z = 3 * rng.standard_normal((1, 4000, 20))
    labels, z = drawn(z[0], rng), 2 * z

    def unseen(method: Method) -> float:
        fitted = fit_map(method, z[:, :300], labels[:300])
        arrays = {name: np.array(value) for name, value in fitted.parameters.items()}
        return averaged_nll(apply_map(method, arrays, z[:, 300:]), labels[300:])

    assert unseen(Method.AUX) < unseen(Method.TEMPERATURE) + 0.005


def test_aux_of_a_handful_of_images_is_temperature_scaling() -> None:
    z, labels = noisy(2, 4, 3)
    fitted = fit_map(Method.AUX, z, labels).parameters
    assert fitted["aux.w2"] == np.zeros((3, 3)).tolist()
    assert fitted["temperature"] == fit_map(Method.TEMPERATURE, z, labels).parameters["temperature"]


def test_the_seed_chooses_the_images_that_stop_aux() -> None:
    z, labels = noisy(2, 200, 4)
    first, again, other = (fit_map(Method.AUX, z, labels, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.parameters != other.parameters


def test_an_easy_set_does_not_drive_the_temperature_to_zero() -> None:
    z = np.zeros((5, 100, 3))
    z[..., 1] = 8.0
    fitted = fit_map(Method.TEMPERATURE, z, np.ones(100, np.int64))
    assert 0.2 < fitted.parameters["temperature"][0] < 1


@pytest.mark.parametrize("method", Method)
def test_logits_that_say_nothing_leave_the_map_alone(method: Method) -> None:
    fitted = fit_map(method, np.zeros((2, 30, 3)), np.arange(30) % 3)
    assert fitted.outcome.nll_after == pytest.approx(np.log(3), abs=1e-3)
    if method in (Method.TEMPERATURE, Method.VECTOR):
        (value,) = fitted.parameters.values()
        np.testing.assert_allclose(value, 1, atol=1e-6)


def test_label_flips_are_counted() -> None:
    z, labels = scaled(1, 1.0)
    assert fit_map(Method.TEMPERATURE, z, labels).outcome.label_flips == 0  # one pass: T keeps the argmax
    shifted = z * np.array([1.0, 1.0, 1.0, 1.0, 3.0])
    assert fit_map(Method.VECTOR, shifted, labels).outcome.label_flips > 0


@pytest.mark.parametrize(
    ("logits", "labels", "code"),
    [
        (np.zeros((2, 3, 4)), [0, 4, 1], "argument.labels"),
        (np.zeros((2, 3, 4)), [0, -1, 1], "argument.labels"),
        (np.zeros((2, 3, 4)), [0, 1], "argument.labels"),
        (np.zeros((2, 3, 4)), [0.0, 1.0, 1.5], "argument.labels"),
        (np.zeros((2, 0, 4)), [], "argument.logits"),
        (np.zeros((3, 4)), [0, 1, 2], "argument.logits"),
        (np.full((2, 3, 4), "cat"), [0, 1, 2], "argument.logits"),
        (np.full((1, 2, 3), np.nan), [0, 1], "model.not-finite"),
        (np.full((1, 2, 3), np.inf), [0, 1], "model.not-finite"),
    ],
)
def test_bad_logits_and_labels_are_refused(logits: np.ndarray, labels: list[int], code: str) -> None:
    with raises(code):
        fit_map(Method.TEMPERATURE, logits, labels)


@pytest.mark.parametrize("method", [Method.TEMPERATURE, Method.VECTOR])
def test_a_map_fitted_block_by_block_is_the_map_fitted_at_once(method: Method) -> None:
    logits, labels = noisy(4, 300, 5)
    stored = StoredLogits(logits[:, start : start + 70] for start in range(0, 300, 70))
    whole, blocks = fit_map(method, logits, labels), fit_map(method, stored, labels)
    assert len(stored) == 5
    assert blocks.report == whole.report
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(blocks.parameters[name], value, rtol=1e-6)


def test_aux_takes_one_step_for_each_block() -> None:
    logits, labels = noisy(2, 600, 4)
    stored = StoredLogits(logits[:, start : start + 100] for start in range(0, 600, 100))
    whole, blocks = fit_map(Method.AUX, logits, labels).outcome, fit_map(Method.AUX, stored, labels).outcome
    assert blocks.nll_after < whole.nll_before - 0.1
    assert blocks.nll_after == pytest.approx(whole.nll_after, abs=0.03)


def test_the_published_temperature_is_found() -> None:
    path = Path(os.environ.get("UCE_EDGE_DATA", "")) / "logits" / "densenet40_c10_logits_valtest.npz"
    if not os.environ.get("UCE_EDGE_DATA") or not path.is_file():
        pytest.skip("the published DenseNet-40 logits are not under UCE_EDGE_DATA")
    published = np.load(path, allow_pickle=False)
    fitted = fit_map(Method.TEMPERATURE, published["val_logits"][None], published["val_labels"].ravel())
    assert fitted.parameters["temperature"][0] == pytest.approx(2.88255, abs=0.002)  # published without a prior
    assert fitted.outcome.nll_after == pytest.approx(0.186612, abs=1e-5)


def test_passes_that_are_certain_average_to_more_than_one_by_rounding_and_are_fitted_all_the_same() -> None:
    logits = np.zeros((25, 40, 10))
    logits[..., 0] = 1000
    assert fit_map(Method.NONE, logits, np.zeros(40, np.int64)).confidence_error is not None
