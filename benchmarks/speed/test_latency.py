"""What does one more Monte Carlo pass cost? One image with N passes; beside it, the deterministic file on N images."""

import numpy as np
import pytest

from uce_edge.runtime.model import Model

SAMPLES = [1, 5, 10, 25, 50, 100]


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("form", ["exact", "factored"])
def test_monte_carlo(benchmark, models: dict[str, Model], images: np.ndarray, form: str, samples: int) -> None:
    model = models[form]
    prediction = benchmark(model.predict, images[:1], samples)
    assert np.allclose(prediction.probabilities.sum(-1), 1, atol=1e-5)
    assert prediction.samples == samples
    assert np.array_equal(prediction.probabilities, model.predict(images[:1], samples).probabilities)


@pytest.mark.parametrize("count", SAMPLES)
def test_deterministic(benchmark, models: dict[str, Model], images: np.ndarray, count: int) -> None:
    prediction = benchmark(models["deterministic"].predict, images[:count])
    assert len(prediction) == count
    assert np.allclose(prediction.probabilities.sum(-1), 1, atol=1e-5)
