"""Gaussian dropout in weight layers.

The output is a sample from N(mu, alpha * layer(x^2, W^2)).

The layers are subclasses of torch's own with the same parameters, so a state_dict moves freely between a
plain model and its Gaussian form. Noise is independent per output element: it has the marginals of Bernoulli
dropout on the layer's input, not its correlations.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from uce_edge.contract import Sigma
from uce_edge.errors import UsageError, expected
from uce_edge_train.dropout import factored_sigma
from uce_edge_train.dropout.noise_draws import standard_normal

if TYPE_CHECKING:
    from uce_edge_export.noise.perturbations import Perturbation

Noise = Callable[[str, Tensor], Tensor]
"""Given a layer's name and its mean output, standard normal noise of the same shape."""

# sqrt has an infinite gradient at 0, and sparse ReLU maps reach it; this floor is far below float32 noise.
_VARIANCE_FLOOR = 1e-12


class _Sample(torch.autograd.Function):
    """Eq. 9 of the paper, with few memory passes.

    y = mu + sigma * eps with sigma^2 = alpha * variance.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, variance: Tensor, eps: Tensor, alpha: Tensor) -> Tensor:
        """The sample."""
        # Some convolution algorithms return a little less than 0 where the variance is 0.
        sigma = (variance * alpha).clamp_min_(0).add_(_VARIANCE_FLOOR).sqrt_()
        ctx.save_for_backward(eps, sigma, alpha)
        return torch.addcmul(mu, sigma, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of mu, variance and alpha."""
        (gradient,) = gradients
        eps, sigma, alpha = ctx.saved_tensors
        to_sigma = gradient * eps
        to_alpha = (to_sigma * sigma).sum() / (2 * alpha) if ctx.needs_input_grad[3] else None
        return gradient, to_sigma.div_(sigma).mul_(alpha / 2), None, to_alpha


class _Gaussian(nn.Module):
    """Base of Gaussian layers: rate, noise source, reparameterised output."""

    weight: Tensor
    layer_name: str
    p: float
    log_alpha: Tensor | None
    """While the rate is being learned, the logarithm of alpha = p / (1 - p); it is not part of the state_dict."""
    sigma: Sigma
    """How the variance is computed."""
    noise: Noise | None
    sampling: bool

    def _init_gaussian(self, name: str, p: float, sigma: Sigma) -> None:
        self.layer_name = name
        self.p = p
        self.sigma = sigma
        self.log_alpha = None
        self.noise = None
        self.sampling = True

    @property
    def factors_its_sigma(self) -> bool:
        """Whether the variance comes from factored squared weights."""
        return self.sigma is Sigma.FACTORED and not factored_sigma.is_factored(self.weight, getattr(self, "groups", 1))

    def perturbation(self) -> "Perturbation":
        """The noise in an exported graph, with exact sigma."""
        from uce_edge_export.noise.perturbations import GaussianDropout

        return GaussianDropout(self.p)

    def _sample(self, mu: Tensor, input: Tensor) -> Tensor:
        """Sample the output; skip the variance when noise is off."""
        if not self.sampling:
            return mu
        eps = standard_normal(mu, None) if self.noise is None else self.noise(self.layer_name, mu)
        # float32 whatever autocast chose: squares of half-precision activations overflow.
        with torch.autocast(mu.device.type, enabled=False):
            wide = input.to(torch.promote_types(input.dtype, torch.float32))
            if self.log_alpha is None:
                alpha = torch.tensor(self.p / (1 - self.p), dtype=wide.dtype, device=wide.device)
            else:
                alpha = self.log_alpha.exp()
            mean, noise = mu.to(wide.dtype), eps.to(wide.dtype)
            if self.factors_its_sigma:
                sample = self._factored_sample(mean, wide, noise, alpha)
            else:
                sample = _Sample.apply(mean, self._variance(wide.square()), noise, alpha)  # type: ignore[no-untyped-call]
            return sample.to(mu.dtype)

    def _variance(self, squares: Tensor) -> Tensor:
        """layer(x^2, W^2), without a bias."""
        raise NotImplementedError

    def _factored_sample(self, mu: Tensor, input: Tensor, eps: Tensor, alpha: Tensor) -> Tensor:
        """The sample with the variance of the factors."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p}, sigma={self.sigma}"


def _squared(value: Tensor) -> Tensor:
    """The square, in float32 at least."""
    return value.to(torch.promote_types(value.dtype, torch.float32)).square()


class GaussianLinear(_Gaussian, nn.Linear):
    """`nn.Linear` with Gaussian dropout."""

    def forward(self, input: Tensor) -> Tensor:
        """A sample of the layer's output."""
        return self._sample(nn.functional.linear(input, self.weight, self.bias), input)

    def _variance(self, squares: Tensor) -> Tensor:
        return nn.functional.linear(squares, _squared(self.weight))

    def _factored_sample(self, mu: Tensor, input: Tensor, eps: Tensor, alpha: Tensor) -> Tensor:
        parts = factored_sigma.factors(self.weight, groups=1)
        # The features are the channels: [rows, features], whatever stands before them.
        rows = factored_sigma.input_map(input.reshape(-1, input.shape[-1]), parts.inputs)
        return factored_sigma.sample(
            mu.reshape(-1, mu.shape[-1]), rows, eps.reshape(-1, mu.shape[-1]), parts.outputs, alpha
        ).reshape(mu.shape)


class _GaussianConv(_Gaussian):
    """Convolutions of any rank.

    The variance runs through torch's own `_conv_forward`, so padding modes, strides, dilations and groups mean the
    same in both branches.
    """

    bias: Tensor | None
    groups: int
    _conv_forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        """A sample of the layer's output."""
        return self._sample(self._conv_forward(input, self.weight, self.bias), input)

    def _variance(self, squares: Tensor) -> Tensor:
        return self._conv_forward(squares, _squared(self.weight), None)

    def _factored_sample(self, mu: Tensor, input: Tensor, eps: Tensor, alpha: Tensor) -> Tensor:
        parts = factored_sigma.factors(self.weight, self.groups)
        s = self._conv_forward(factored_sigma.input_map(input, parts.inputs), parts.taps, None)
        return factored_sigma.sample(mu, s, eps, parts.outputs, alpha)


class GaussianConv1d(_GaussianConv, nn.Conv1d):
    """`nn.Conv1d` with Gaussian dropout."""


class GaussianConv2d(_GaussianConv, nn.Conv2d):
    """`nn.Conv2d` with Gaussian dropout."""


class GaussianConv3d(_GaussianConv, nn.Conv3d):
    """`nn.Conv3d` with Gaussian dropout."""


Forms = Mapping[type[nn.Module], type[_Gaussian]]
"""The noisy class of every kind of weight layer."""
_GAUSSIAN_FORMS: Forms = {
    nn.Linear: GaussianLinear,
    nn.Conv1d: GaussianConv1d,
    nn.Conv2d: GaussianConv2d,
    nn.Conv3d: GaussianConv3d,
}


def gaussianize(
    model: nn.Module,
    p: float | Mapping[str, float] = 0.2,
    *,
    skip_first: bool = True,
    sigma: Sigma | str = Sigma.EXACT,
) -> nn.Module:
    """Add Gaussian dropout to Conv and Linear layers, in place.

    Layers keep their parameters, names and hooks; only their class changes. The first weight layer stays
    as it is by default: the input image is never dropped.

    Args:
        model: Any torch module.
        p: The dropout rate, 0 < p < 1, or the rate of each layer by name.
        skip_first: Leave the first weight layer (in registration order) without noise.
        sigma: "exact", or "factored" for a variance that costs little more than the layer itself.

    Returns:
        The same model.
    """
    return add_noise(model, _GAUSSIAN_FORMS, p, skip_first, sigma)


def add_noise(
    model: nn.Module,
    forms: Forms,
    p: float | Mapping[str, float],
    skip_first: bool = True,
    sigma: Sigma | str = Sigma.EXACT,
) -> nn.Module:
    """Give weight layers a noisy class; arguments as in `gaussianize`."""
    noisy = noisy_layers(model, skip_first)
    if sigma not in list(Sigma):
        raise UsageError(expected("`sigma`", f"one of {', '.join(Sigma)}", sigma, "The paper's form is exact"))
    rates = p if isinstance(p, Mapping) else dict.fromkeys(noisy, p)
    if set(rates) != set(noisy):
        odd = sorted(set(rates) ^ set(noisy))
        raise UsageError(expected("`p`", "one rate for every Gaussian layer", ", ".join(odd[:3]), "Check the names"))
    for rate in rates.values():
        if not 0.0 < rate < 1.0:
            raise UsageError(expected("`p`", "between 0 and 1, both excluded", rate, "The paper's value is 0.2"))
    for name, module in noisy.items():
        module.__class__ = forms[type(module)]
        assert isinstance(module, _Gaussian)
        module._init_gaussian(name, rates[name], Sigma(sigma))
    return model


def noisy_layers(model: nn.Module, skip_first: bool) -> dict[str, nn.Module]:
    """Conv and Linear layers by name, in registration order.

    Raises:
        UsageError: There is none.
    """
    layers = [(name, module) for name, module in model.named_modules() if type(module) in _GAUSSIAN_FORMS]
    noisy = dict(layers[1:] if skip_first else layers)
    if not noisy:
        raise UsageError(
            expected(
                "`model`",
                "a module with at least two Conv or Linear layers",
                type(model).__name__,
                "Dropout needs a weight layer after the first one",
            )
        )
    return noisy


def gaussian_layers(model: nn.Module) -> dict[str, _Gaussian]:
    """Gaussian layers by name, in registration order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _Gaussian)}


@contextmanager
def noise_from(model: nn.Module, noise: Noise | torch.Generator) -> Iterator[None]:
    """Take the model's noise from a generator or function."""
    if isinstance(noise, torch.Generator):
        generator = noise

        def noise(_: str, mu: Tensor) -> Tensor:
            return standard_normal(mu, generator)

    with _every_layer(model, "noise", lambda _: noise):
        yield


@contextmanager
def deterministic(model: nn.Module) -> Iterator[None]:
    """Switch the model's noise off inside the block."""
    with _every_layer(model, "sampling", lambda _: False):
        yield


@contextmanager
def computing_sigma(model: nn.Module, sigma: Sigma | None, scale: float = 1.0) -> Iterator[None]:
    """Compute sigma in another way inside the block.

    Args:
        model: A model with Gaussian layers.
        sigma: The way; None for its own.
        scale: What alpha = p / (1 - p) of every layer is multiplied by.
    """

    def scaled(p: float) -> float:
        return p if scale == 1 else scale * p / (1 - p + scale * p)

    with _every_layer(model, "sigma", lambda own: sigma or own), _every_layer(model, "p", scaled):
        yield


@contextmanager
def _every_layer(model: nn.Module, attribute: str, value: Callable[[Any], object]) -> Iterator[None]:
    """Replace an attribute of every Gaussian layer inside the block."""
    before = {layer: getattr(layer, attribute) for layer in gaussian_layers(model).values()}
    for layer, own in before.items():
        setattr(layer, attribute, value(own))
    try:
        yield
    finally:
        for layer, old in before.items():
            setattr(layer, attribute, old)
