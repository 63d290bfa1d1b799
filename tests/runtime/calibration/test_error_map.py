"""The probability of error: monotone, fitted to what happened, and the same in the graph as in numpy."""

import numpy as np
import onnx
import pytest
from conftest import Digits
from hypothesis import given, settings
from hypothesis import strategies as st

from uce_edge.calibration.error_map import ErrorMap, fit
from uce_edge.errors import UsageError
from uce_edge.model import Model, SamplesWarning


def test_a_known_map_is_found(rng: np.random.Generator) -> None:
    truth = ErrorMap(-0.5, 1.4, 0.3)
    h = rng.beta(0.5, 1.5, 60_000)
    found = fit(h, rng.random(len(h)) < truth(h))
    at = np.array([0.001, 0.01, 0.1, 0.3, 0.6, 0.9])
    np.testing.assert_allclose(found(at), truth(at), rtol=0.15, atol=0.002)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_more_uncertain_is_never_less_wrong(pairs: list[tuple[float, bool]]) -> None:
    found = fit([h for h, _ in pairs], [wrong for _, wrong in pairs])
    assert found.b >= 0
    assert found.c >= 0
    values = found(np.linspace(0, 1, 101))
    assert bool((np.diff(values) >= -1e-12).all())
    assert 0 <= values[0] <= values[-1] <= 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=5, max_size=30))
def test_no_other_map_is_more_likely(pairs: list[tuple[float, bool]]) -> None:
    """Against scipy's bounded optimiser, an independent way to the same minimum."""
    from scipy.optimize import minimize

    h, wrong = np.array([h for h, _ in pairs]), np.array([wrong for _, wrong in pairs], float)

    def loss(point: np.ndarray) -> float:
        inside = np.clip(h, 1e-6, 1 - 1e-6)
        z = point[0] + point[1] * np.log(inside) - point[2] * np.log1p(-inside)
        prior = ((point - [0, 1, 1]) ** 2).sum() / (2 * 1.25**2)
        return float((np.logaddexp(0, z) - wrong * z).sum() + prior)

    best = minimize(loss, [0, 1, 1], bounds=[(None, None), (0, None), (0, None)], method="L-BFGS-B")
    found = fit(h, wrong)
    assert loss(np.array([found.a, found.b, found.c])) <= best.fun + 1e-6 * max(1, abs(best.fun))


def test_without_an_error_it_does_not_promise_none() -> None:
    found = fit(np.full(200, 0.01), np.zeros(200))
    assert 0 < found([0.01])[0] < 0.02
    assert found([0.5])[0] > 0.05, "what was never seen is not called safe"


@pytest.mark.parametrize(("h", "wrong"), [([], []), ([0.1, 0.2], [True]), ([1.5], [False]), ([float("nan")], [False])])
def test_wrong_input_is_refused(h: list[float], wrong: list[bool]) -> None:
    with pytest.raises(UsageError, match="uncertainty"):
        fit(h, wrong)


def test_the_graph_has_the_map(digits: Digits) -> None:
    model = Model(digits.model, "cpu")
    assert model.metadata.calibration.error is not None
    wanted = ErrorMap(*model.metadata.calibration.error)
    images = digits.dataset.splits["test"].images[:40]
    for samples in (25, 100):  # one call, and passes merged from several
        with pytest.warns(SamplesWarning) if samples != 25 else _silent():
            said = model.predict(images, samples)
        np.testing.assert_allclose(said.error_probability, wanted(said.uncertainty), rtol=1e-4, atol=1e-7)
    stored = {value.name: value for value in onnx.load(digits.model).graph.initializer}["calibration.error"]
    np.testing.assert_allclose(onnx.numpy_helper.to_array(stored), model.metadata.calibration.error, rtol=1e-6)


def test_the_probability_of_error_does_not_depend_on_the_batch(digits: Digits) -> None:
    model = Model(digits.model, "cpu")
    images = digits.dataset.splits["test"].images[:33]
    together = model.predict(images).error_probability
    alone = np.concatenate([model.predict(images[i : i + 1]).error_probability for i in range(len(images))])
    assert np.array_equal(together, alone)


def test_it_is_near_the_error_rate_on_other_images(digits: Digits) -> None:
    """On the test digits, the expected number of errors is near the number there is."""
    test = digits.dataset.splits["test"]
    said = Model(digits.model, "cpu").predict(test.images)
    expected = float(said.error_probability.sum())
    found = int((said.class_ids != test.labels).sum())
    assert abs(expected - found) < 4 * np.sqrt(max(expected, 1))


def _silent() -> object:
    from contextlib import nullcontext

    return nullcontext()
