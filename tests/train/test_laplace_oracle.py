"""Our posterior of a last layer, and that of laplace-torch on the same network."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from uce_edge.calibration import laplace_posterior  # noqa: E402

FEATURES, CLASSES, PRECISION = 6, 4, 0.3


@pytest.mark.filterwarnings("ignore")  # theirs
def test_covariance_and_marginal_likelihood_are_those_of_laplace_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip(
            "laplace", reason="laplace-torch is not installed: pip install laplace-torch", exc_type=ImportError
        )
    torch.manual_seed(0)
    # laplace-torch keeps the bias apart from the weights; as a feature that is always 1 it is one of them.
    body = torch.nn.Sequential(torch.nn.Linear(5, FEATURES), torch.nn.Tanh())

    class WithOne(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, torch.ones(len(x), 1)], dim=1)

    last = torch.nn.Linear(FEATURES + 1, CLASSES, bias=False)
    network = torch.nn.Sequential(body, WithOne(), last)
    x, y = torch.randn(50, 5), torch.randint(CLASSES, (50,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50)
    fitted = theirs.Laplace(
        network, "classification", subset_of_weights="last_layer", hessian_structure="kron", prior_precision=PRECISION
    )
    fitted.fit(loader)
    new = torch.randn(7, 5)
    _, covariance = fitted._glm_predictive_distribution(new)

    with torch.no_grad():
        features, logits, others = body(x).numpy(), network(x).numpy(), body(new).numpy()
    found = laplace_posterior.curvature(features, logits)
    centre = np.eye(CLASSES) - 1 / CLASSES  # a shift of all logits, which the softmax does not see
    expected = centre @ covariance.detach().numpy() @ centre
    np.testing.assert_allclose(
        laplace_posterior.Laplace(found, PRECISION).covariance(others), expected, rtol=1e-3, atol=1e-5
    )

    ours = laplace_posterior.by_marginal_likelihood(found, last.weight.detach().numpy())
    evidence = {
        factor: float(fitted.log_marginal_likelihood(prior_precision=torch.tensor(factor * ours)))
        for factor in (0.9, 1.0, 1.1)
    }
    assert evidence[1.0] == max(evidence.values())
