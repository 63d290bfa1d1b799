"""The fits in numpy against PyTorch's optimisers and automatic derivatives."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.made_logits import noisy

from uce_edge.calibration.maps import apply_map, fit_map, initial
from uce_edge.contract import Method

torch = pytest.importorskip("torch", reason="PyTorch, the oracle, is not installed")
from helpers import torch_maps  # noqa: E402 (it imports torch)

FITTED = [Method.TEMPERATURE, Method.VECTOR, Method.AUX]


def densenet() -> tuple[np.ndarray, np.ndarray]:
    path = Path(os.environ.get("UCE_EDGE_DATA", "")) / "logits" / "densenet40_c10_logits_valtest.npz"
    if not os.environ.get("UCE_EDGE_DATA") or not path.is_file():
        pytest.skip("the published DenseNet-40 logits are not under UCE_EDGE_DATA")
    published = np.load(path, allow_pickle=False)
    return published["val_logits"][None], published["val_labels"].ravel().astype(np.int64)


LOGITS = {
    "many passes": lambda: noisy(25, 1000, 10),
    "many classes": lambda: noisy(4, 600, 40, seed=1),
    "few images": lambda: noisy(1, 60, 3, seed=2),
    "DenseNet-40": densenet,
}


@pytest.mark.parametrize("method", FITTED)
@pytest.mark.parametrize("case", LOGITS)
def test_numpy_fits_what_torch_fits(method: Method, case: str) -> None:
    logits, labels = LOGITS[case]()
    fitted = fit_map(method, logits, labels, seed=0)
    held = np.zeros(len(labels), np.bool_)
    held[np.random.default_rng(0).permutation(len(labels))[: len(labels) // 5]] = True
    parameters, nll = torch_maps.fit(method, logits, labels, held)
    assert fitted.outcome.nll_after == pytest.approx(nll, abs=2e-6)
    assert set(fitted.parameters) == set(parameters)
    for name, value in parameters.items():
        np.testing.assert_allclose(fitted.parameters[name], value, atol=1e-4)


@pytest.mark.parametrize("case", ["many passes", "DenseNet-40"])
def test_another_fifth_of_the_images_hardly_changes_aux(case: str) -> None:
    logits, labels = LOGITS[case]()
    _, nll = torch_maps.fit(Method.AUX, logits, labels)  # PyTorch draws its own
    assert fit_map(Method.AUX, logits, labels).outcome.nll_after == pytest.approx(nll, abs=0.03)


@pytest.mark.parametrize("method", FITTED)
def test_one_formula_serves_numpy_and_torch(method: Method, rng: np.random.Generator) -> None:
    z = rng.standard_normal((3, 7, 5))
    parameters = {name: value + rng.normal(0, 0.1, value.shape) for name, value in initial(method, 5).items()}
    tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in parameters.items()}
    mapped = apply_map(method, tensors, torch.from_numpy(z))
    np.testing.assert_allclose(mapped.detach().numpy(), apply_map(method, parameters, z), rtol=1e-12)
    mapped.square().sum().backward()
    for name, tensor in tensors.items():
        assert tensor.grad.abs().max() > 0, name
