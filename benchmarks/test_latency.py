"""What does one more Monte Carlo pass cost? One image with N passes; beside it, the deterministic file on N images."""

import numpy as np
import pytest

from uce_edge.contract import Inference
from uce_edge.model import Model

SAMPLES = [1, 5, 10, 25, 50, 100]


@pytest.mark.parametrize("samples", SAMPLES)
def test_monte_carlo(benchmark, models: dict[Inference, Model], images: np.ndarray, samples: int) -> None:
    model = models[Inference.MC]
    prediction = benchmark(model.predict, images[:1], samples)
    assert np.allclose(prediction.probabilities.sum(-1), 1, atol=1e-5)
    assert prediction.samples == samples
    assert np.array_equal(prediction.probabilities, model.predict(images[:1], samples).probabilities)


@pytest.mark.parametrize("count", SAMPLES)
def test_deterministic_twin(benchmark, models: dict[Inference, Model], images: np.ndarray, count: int) -> None:
    prediction = benchmark(models[Inference.DETERMINISTIC].predict, images[:count])
    assert len(prediction) == count
    assert np.allclose(prediction.probabilities.sum(-1), 1, atol=1e-5)
