"""Gaussian dropout does what the paper's equations say, for every kind of weight layer."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers.errors import raises
from uce_edge.errors import UsageError
from uce_edge_train import deterministic, gaussianize, noise_from
from uce_edge_train.dropout.bernoulli_layers import bernoullize
from uce_edge_train.dropout.gaussian_layers import _Sample, gaussian_layers
from uce_edge_train.dropout.layer_choice import NoiseWarning
from uce_edge_train.dropout.noise_draws import NoisePool


class Standardised(nn.Conv2d):
    """Computes its weight, and pads its input itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.weight.shape
        flat = self.weight.reshape(1, shape[0], -1)
        weight = nn.functional.batch_norm(flat, None, None, training=True).reshape(shape)
        return nn.functional.conv2d(nn.functional.pad(x, (0, 1, 0, 1)), weight, self.bias, self.stride)


class Transposed(nn.Module):
    """A Linear layer with its weight transposed, as GPT's."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return y.reshape(*x.shape[:-1], -1)


class Attentive(nn.Linear):
    """Its weight depends on its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight * x.mean())


LAYERS = {
    "standardised": (lambda: Standardised(4, 6, 3, stride=2), (4, 7, 7)),
    "transposed": (lambda: Transposed(6, 5), (3, 6)),
    "unquantised": (lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(6, 5), (6,)),
    "parametrised": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3)), (4, 5, 5)),
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear on tokens": (lambda: nn.Linear(6, 5, bias=False), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (4, 8, 8)),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2), (4, 7, 7)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding="same"), (4, 7, 7)),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2), (4, 9, 9)),
    "reflecting": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
}


def expected_moments(layer: nn.Module, x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of sum_j w_j d_j x_j by its definition: one input element at a time, the layer being linear."""
    units = torch.diag(x.flatten()).reshape(-1, *x.shape[1:])
    with torch.no_grad(), deterministic(layer):
        offset = layer(torch.zeros_like(x))
        columns = layer(units) - offset
    return columns.sum(0) + offset[0], p / (1 - p) * columns.square().sum(0)


@pytest.mark.parametrize("name", [n for n in LAYERS if n != "reflecting"])
def test_a_layer_samples_the_gaussian_of_dropout(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model = gaussianize(nn.Sequential(make()), 0.3, skip_first=False)
    x = torch.randn(1, *shape)
    mean, variance = expected_moments(model[0], x, 0.3)
    draws = 4000
    with torch.no_grad(), noise_from(model, torch.Generator().manual_seed(1)):
        y = model(x.expand(draws, *shape))
    z = (y.mean(0) - mean) / (variance / draws).sqrt()
    assert z.abs().max() < 5
    assert torch.allclose(y.var(0) / variance, torch.ones_like(variance), atol=6 * (2 / draws) ** 0.5)


def test_noise_is_independent_per_output_element() -> None:
    model = gaussianize(nn.Sequential(nn.Linear(4, 3)), skip_first=False)
    with torch.no_grad():
        y = model(torch.ones(20000, 4))
    correlation = torch.corrcoef(y.T) - torch.eye(3)
    assert correlation.abs().max() < 0.035


@pytest.mark.parametrize("name", LAYERS)
def test_the_twin_is_the_plain_layer_with_the_same_state_dict(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    plain = nn.Sequential(make())
    noisy = nn.Sequential(make())
    keys = list(plain.state_dict())
    gaussianize(noisy, skip_first=False)
    noisy.load_state_dict(plain.state_dict())
    assert list(noisy.state_dict()) == keys
    x = torch.randn(2, *shape)
    with deterministic(noisy):
        assert torch.equal(noisy(x), plain(x))
    assert not torch.equal(noisy(x), plain(x))


def test_noise_stays_on_in_eval_mode() -> None:
    model = gaussianize(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))).eval()
    x = torch.ones(1, 4)
    assert not torch.equal(model(x), model(x))


def test_the_first_layer_keeps_the_image() -> None:
    model = gaussianize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)), 0.4)
    assert list(gaussian_layers(model)) == ["2"]
    assert model[2].p == 0.4


def test_the_same_generator_seed_gives_the_same_pass() -> None:
    model = gaussianize(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    x = torch.randn(3, 4)

    def sample(seed: int) -> torch.Tensor:
        with noise_from(model, torch.Generator().manual_seed(seed)):
            return model(x)

    assert torch.equal(sample(7), sample(7))
    assert not torch.equal(sample(7), sample(8))


def test_gradients_flow_through_mean_and_variance_and_stay_finite_on_dead_inputs() -> None:
    model = gaussianize(nn.Sequential(nn.Linear(3, 3)), skip_first=False)
    x = torch.zeros(2, 3, requires_grad=True)
    model(x).square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(model[0].weight.grad).all()

    x = torch.ones(1, 3)
    with noise_from(model, lambda _, mu: torch.ones_like(mu)):
        model.zero_grad()
        model(x).sum().backward()
    weight = model[0].weight
    sigma = (0.25 * weight.square().sum(1, keepdim=True)).sqrt()
    assert torch.allclose(weight.grad, 1 + 0.25 * weight / sigma, atol=1e-5)  # d(mu + sigma)/dw


def test_autocast_keeps_the_variance_in_float32() -> None:
    model = gaussianize(nn.Sequential(nn.Linear(8, 4)), skip_first=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.full((2, 8), 1e4))
    assert y.dtype == torch.bfloat16
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, float("nan")])
def test_a_rate_outside_0_to_1_is_refused(p: float) -> None:
    with raises("argument.p", UsageError):
        gaussianize(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), p)


def test_a_model_without_a_second_weight_layer_is_refused() -> None:
    with raises("argument.model", UsageError):
        gaussianize(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_the_sample_has_the_gradients_of_its_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    mu, variance, eps = (torch.rand(3, 4, generator=generator, dtype=torch.float64) + 0.1 for _ in range(3))
    alpha = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    inputs = (mu.requires_grad_(), variance.requires_grad_(), eps, alpha)
    np.testing.assert_allclose(
        _Sample.apply(*inputs).detach(), (mu + (alpha * variance).sqrt() * eps).detach(), rtol=1e-12
    )
    assert torch.autograd.gradcheck(_Sample.apply, inputs)


def test_pooled_noise_is_normal_and_follows_the_layout() -> None:
    pool = NoisePool(torch.Generator().manual_seed(0))
    mean = torch.zeros(8, 16, 10, 10).to(memory_format=torch.channels_last)
    first, second = pool("layer", mean), pool("layer", mean)
    assert first.shape == mean.shape
    assert first.stride() == mean.stride()
    assert not torch.equal(first, second)
    assert abs(float(first.mean())) < 0.05
    assert abs(float(first.var()) - 1) < 0.05
    again = NoisePool(torch.Generator().manual_seed(0))
    assert torch.equal(again("layer", mean), first)


def test_rates_may_differ_by_layer_and_must_fit_the_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    gaussianize(model, {"1": 0.1, "2": 0.3})
    assert [layer.p for layer in gaussian_layers(model).values()] == [0.1, 0.3]
    with raises("argument.p", UsageError):
        gaussianize(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), {"0": 0.1})


def test_patterns_choose_the_layers_and_their_rates() -> None:
    def rates(*args: object, **kwargs: object) -> dict[str, float]:
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)])
        return {name: layer.p for name, layer in gaussian_layers(gaussianize(model, *args, **kwargs)).items()}

    assert rates({"[12]": 0.1, "2": 0.3}) == {"1": 0.1, "2": 0.3}
    assert rates(0.2, exclude=["[34]"]) == {"1": 0.2, "2": 0.2}
    assert rates({"*": 0.1, "4": 0.3}, layers=["[234]"], exclude=["2"]) == {"3": 0.1, "4": 0.3}
    for name, value in {"p": {"head*": 0.1}, "layers": ["head*"], "exclude": ["head*"]}.items():
        with raises(f"argument.{name}", UsageError):
            rates(**{name: value})


@pytest.mark.parametrize("add", [gaussianize, bernoullize])
def test_a_layer_that_cannot_have_noise_is_named(add: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Attentive(4, 4), nn.ConvTranspose1d(4, 4, 1), nn.Linear(4, 4))
    with pytest.warns(NoiseWarning, match=r"1 weight layers have noise, 2 cannot.*1 \(Attentive.*depends.*2 \(Conv"):
        add(model)
    assert type(model[1]) is Attentive


def test_a_noisy_layer_can_be_pickled() -> None:
    model = gaussianize(nn.Sequential(Transposed(3, 3)), 0.3, skip_first=False)
    again = pickle.loads(pickle.dumps(model))
    x = torch.randn(2, 3)
    with noise_from(model, lambda _, mu: torch.ones_like(mu)), noise_from(again, lambda _, mu: torch.ones_like(mu)):
        assert torch.equal(model(x), again(x))


def test_noise_by_channel_has_the_variance_of_gaussian_dropout_in_a_1x1_layer() -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(6, 4, 1), torch.randn(1, 6, 5, 5)
    network = gaussianize(nn.Sequential(copy.deepcopy(layer)), 0.3, skip_first=False, sigma="channel")
    with torch.no_grad():
        drawn = torch.stack([network(x) for _ in range(4000)])
        exact = 0.3 / 0.7 * nn.functional.conv2d(x.square(), layer.weight.square())
    assert torch.allclose(drawn.mean(0), layer(x), atol=0.1)
    assert torch.allclose(drawn.var(0), exact, rtol=0.15)
    one = drawn[:, 0, :, 2, 2] - drawn[:, 0, :, 2, 2].mean(0)
    assert abs(float((one[:, 0] * one[:, 1]).mean())) > 0.01  # outputs share the noise of their inputs
