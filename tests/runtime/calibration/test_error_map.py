"""The probability of error: never rising with the confidence, fitted to what happened, the same in graph and numpy."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from conftest import GOLDEN, Digits
from helpers.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from uce_edge.calibration.error_map import EntropyErrorMap, ErrorMap, fit
from uce_edge.contract import Method
from uce_edge.runtime.model import Model, SamplesWarning

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def test_a_known_map_is_found(rng: np.random.Generator) -> None:
    truth = ErrorMap(0.6, 0.7)
    confidence = 1 - rng.beta(0.5, 1.5, 60_000)
    found = fit(confidence, rng.random(len(confidence)) < truth(confidence))
    at = np.array([0.999, 0.99, 0.9, 0.7, 0.4, 0.1])
    np.testing.assert_allclose(found(at), truth(at), rtol=0.1, atol=0.002)


@settings(deadline=None)
@given(PAIRS)
def test_more_confident_is_never_more_often_wrong(pairs: list[tuple[float, bool]]) -> None:
    found = fit([confidence for confidence, _ in pairs], [wrong for _, wrong in pairs])
    assert found.b >= 0
    values = found(np.linspace(0, 1, 101))
    assert bool((np.diff(values) <= 1e-12).all())
    assert 0 <= values[-1] <= values[0] <= 1


@settings(deadline=None)
@given(PAIRS)
def test_no_other_map_is_more_likely(pairs: list[tuple[float, bool]]) -> None:
    """Against scipy's bounded optimiser, an independent way to the same minimum."""
    from scipy.optimize import minimize
    from scipy.special import logit

    wrong = np.array([wrong for _, wrong in pairs], float)
    rest = 1 - np.array([confidence for confidence, _ in pairs], np.float32)

    def loss(point: np.ndarray) -> float:
        z = point[0] + point[1] * logit(np.clip(rest.astype(np.float64), 1e-6, 1 - 1e-6))
        prior = ((point - [0, 1]) ** 2).sum() / (2 * 0.25**2)
        return float((np.logaddexp(0, z) - wrong * z).sum() + prior)

    best = minimize(loss, [0, 1], bounds=[(None, None), (0, None)], method="L-BFGS-B")
    found = fit([confidence for confidence, _ in pairs], wrong)
    assert loss(np.array([found.a, found.b])) <= best.fun + 1e-6 * max(1, abs(best.fun))


def test_few_images_leave_calibrated_probabilities_nearly_as_they_are(rng: np.random.Generator) -> None:
    """A hundred images that happen to be right more often than they should do not make an error rare."""
    confidence = rng.uniform(0.3, 1, 100)
    for wrong in (np.zeros(100), rng.random(100) > confidence):
        found = fit(confidence, wrong)
        at = np.array([0.37, 0.6, 0.98])
        assert (np.abs(found(at) - (1 - at)) < [0.3, 0.25, 0.03]).all()
    assert fit(confidence, np.zeros(100))([0.37])[0] > 0.3


@pytest.mark.parametrize(
    ("confidence", "wrong"), [([], []), ([0.1, 0.2], [True]), ([1.5], [False]), ([float("nan")], [False])]
)
def test_wrong_input_is_refused(confidence: list[float], wrong: list[bool]) -> None:
    with raises("argument.confidence"):
        fit(confidence, wrong)


def initializers(file: Path) -> dict[str, np.ndarray]:
    return {value.name: onnx.numpy_helper.to_array(value) for value in onnx.load(file).graph.initializer}


def test_the_graph_has_the_map(digits: Digits) -> None:
    model = Model(digits.model, "cpu")
    stored = model.metadata.calibration.confidence_error
    assert stored is not None
    assert model.metadata.calibration.error is None
    images = digits.dataset.splits["test"].images[:40]
    for samples in (25, 100):  # one call, and passes merged from several
        with pytest.warns(SamplesWarning) if samples != 25 else nullcontext():
            said = model.predict(images, samples)
        wanted = ErrorMap(*stored)(said.probabilities.max(-1))
        np.testing.assert_allclose(said.error_probability, wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(initializers(digits.model)["calibration.confidence_error"], stored, rtol=1e-6)


def test_the_map_of_an_older_file_is_kept_until_it_is_calibrated_again(digits: Digits, tmp_path: Path) -> None:
    from uce_edge_export.publish.draft import publish
    from uce_edge_export.recalibration import recalibrate, replace_head

    old = GOLDEN / "digits-mc.onnx"
    before = Model(old, "cpu")
    stored = before.metadata.calibration.error
    assert stored is not None
    images = digits.dataset.splits["test"].images[:40]
    said = before.predict(images)
    np.testing.assert_allclose(said.error_probability, EntropyErrorMap(*stored)(said.uncertainty), rtol=1e-4, atol=1e-7)
    again, anew = tmp_path / "again.onnx", tmp_path / "anew.onnx"
    with publish(replace_head(ir.load(old), before.metadata), replace(before.metadata, probe=()), again):
        pass
    assert np.array_equal(Model(again, "cpu").predict(images).error_probability, said.error_probability)
    recalibrate(old, anew, digits.dataset.splits["calibration"], Method.TEMPERATURE)
    assert "calibration.error" in initializers(again)
    assert {name for name in initializers(anew) if "error" in name} == {"calibration.confidence_error"}
    fitted = Model(anew, "cpu").metadata.calibration
    assert (fitted.error, fitted.confidence_error is None) == (None, False)


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
