"""Factored sigma: the variance of a layer from the marginals of its squared weights."""

import pytest
import torch
from test_layers import LAYERS
from torch import nn

from tests.helpers.errors import raises
from uce_edge.contract import Sigma
from uce_edge.errors import UsageError
from uce_edge_train import deterministic, gaussianize, noise_from
from uce_edge_train.dropout.factored_sigma import FactoredSample, WeightedSquares, factors


def product_of_marginals(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """u_o q_c g_k / T^2 by its definition, group by group."""
    parts = []
    for part in weight.double().square().chunk(groups):
        flat = part.flatten(2) if part.ndim > 2 else part[..., None]
        total = flat.sum()
        product = torch.einsum("o,c,k->ock", flat.sum((1, 2)), flat.sum((0, 2)), flat.sum((0, 1))) / total**2
        parts.append(product.reshape(part.shape))
    return torch.cat(parts)


# The others compute their weights, which the test sets.
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("standardised", "parametrised")])
def test_the_variance_is_that_of_the_product_of_marginals(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make().double()
    noisy = gaussianize(nn.Sequential(layer), 0.3, skip_first=False, sigma="factored")
    x = torch.randn(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        with noise_from(noisy, lambda _, mu: torch.ones_like(mu)):
            deviation = noisy(x)
        with deterministic(noisy):
            deviation = deviation - noisy(x)
            product = product_of_marginals(layer.weight, getattr(layer, "groups", 1))
            layer.weight.copy_(product)
            if layer.bias is not None:
                layer.bias.zero_()
            variance = 0.3 / 0.7 * noisy(x.square())
    assert torch.allclose(deviation, variance.sqrt(), atol=1e-6)


def test_a_depthwise_layer_keeps_its_exact_variance() -> None:
    torch.manual_seed(0)
    exact = gaussianize(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4)), skip_first=False)
    weights = exact.state_dict()
    other = gaussianize(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4)), skip_first=False, sigma=Sigma.FACTORED)
    other.load_state_dict(weights)
    x = torch.randn(2, 4, 7, 7)
    with torch.no_grad(), noise_from(exact, lambda _, mu: torch.ones_like(mu)):
        one = exact(x)
    with torch.no_grad(), noise_from(other, lambda _, mu: torch.ones_like(mu)):
        assert torch.equal(one, other(x))


@pytest.mark.parametrize("name", LAYERS)
def test_every_output_keeps_the_sum_of_its_squared_weights(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name][0]()
    parts = factors(layer.weight, getattr(layer, "groups", 1))
    assert torch.allclose(parts.outputs, layer.weight.square().flatten(1).sum(1))
    for shares in (parts.inputs, parts.taps):
        assert torch.allclose(shares.flatten(1).sum(1), torch.ones(len(shares)))


def test_weights_of_zero_have_no_noise_and_a_finite_gradient() -> None:
    model = gaussianize(nn.Sequential(nn.Conv2d(2, 3, 3)), skip_first=False, sigma="factored")
    nn.init.zeros_(model[0].weight)
    y = model(torch.randn(1, 2, 5, 5))
    y.sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()
    assert torch.allclose(y, model[0].bias.reshape(1, 3, 1, 1).expand_as(y), atol=1e-6)


def test_the_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    x, q = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(WeightedSquares.apply, (x.requires_grad_(), q.requires_grad_()))
    mu, eps = torch.randn(2, 5, 4, 4, dtype=torch.float64), torch.randn(2, 5, 4, 4, dtype=torch.float64)
    s, scale = torch.rand(2, 1, 4, 4, dtype=torch.float64) + 0.1, torch.rand(5, dtype=torch.float64)
    inputs = (mu.requires_grad_(), s.requires_grad_(), eps, scale.requires_grad_())
    assert torch.autograd.gradcheck(FactoredSample.apply, inputs)


def test_an_unknown_form_is_refused_with_the_choices() -> None:
    with raises("argument.sigma", UsageError):
        gaussianize(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), sigma="rank-2")
