"""Gaussian dropout in weight layers.

The output is a sample from N(mu, alpha * layer(x^2, W^2)).

A noisy layer is a subclass of the layer's own class with the same parameters, so a state_dict moves freely between a
plain model and its Gaussian form. Noise is independent per output element: it has the marginals of Bernoulli
dropout on the layer's input, not its correlations.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from uce_edge.contract import Sigma
from uce_edge.errors import UsageError, expected
from uce_edge_train.dropout import factored_sigma
from uce_edge_train.dropout.layer_choice import noisy_class, rates_of
from uce_edge_train.dropout.noise_draws import standard_normal
from uce_edge_train.dropout.weight_products import CONVOLUTIONS, Product, ReplacedProduct, product_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from uce_edge_export.noise.perturbations import Perturbation

Noise = Callable[[str, Tensor], Tensor]
"""Given a layer's name and its mean output, standard normal noise of the same shape."""

# sqrt has an infinite gradient at 0, and sparse ReLU maps reach it. A file has no such floor, so values have none here.
_SMALLEST_SIGMA = 1e-6  # in gradients


class _Sample(torch.autograd.Function):
    """Eq. 9 of the paper, with few memory passes.

    y = mu + sigma * eps with sigma^2 = alpha * variance.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, variance: Tensor, eps: Tensor, alpha: Tensor) -> Tensor:
        """The sample."""
        # Some convolution algorithms return a little less than 0 where the variance is 0.
        sigma = (variance * alpha).clamp_min_(0).sqrt_()
        ctx.save_for_backward(eps, sigma, alpha)
        return torch.addcmul(mu, sigma, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of mu, variance and alpha."""
        (gradient,) = gradients
        eps, sigma, alpha = ctx.saved_tensors
        to_sigma = gradient * eps
        to_alpha = (to_sigma * sigma).sum() / (2 * alpha) if ctx.needs_input_grad[3] else None
        return gradient, to_sigma.div_(sigma.clamp_min(_SMALLEST_SIGMA)).mul_(alpha / 2), None, to_alpha


class _Gaussian(nn.Module):
    """Gaussian dropout in the product of a weight layer.

    `noisy_class` puts it in front of the layer's own class, whose forward pass runs unchanged but for the product.
    """

    plain: type[nn.Module]
    """The layer's own class."""
    layer_name: str
    inputs: int
    """Inputs of a group."""
    p: float
    log_alpha: Tensor | None
    """While the rate is being learned, the logarithm of alpha = p / (1 - p); it is not part of the state_dict."""
    sigma: Sigma
    """How the variance is computed."""
    noise: Noise | None
    sampling: bool
    baked_weight: Tensor | None
    """While a graph is traced, the weight that the layer computes; None if that is its parameter."""

    def _init_gaussian(self, name: str, p: float, sigma: Sigma) -> None:
        self.layer_name = name
        self.p = p
        self.sigma = sigma
        self.log_alpha = None
        self.noise = None
        self.sampling = True
        self.baked_weight = None
        self.inputs = self.effective_weight.shape[1]

    @property
    def effective_weight(self) -> Tensor:
        """What multiplies the input: [outputs, inputs of a group, taps...]."""
        return product_of(self, self.plain.forward).rows.detach()

    @property
    def factors_its_sigma(self) -> bool:
        """Whether the variance comes from factored squared weights."""
        weight: Any = self.weight
        return self.sigma is Sigma.FACTORED and not factored_sigma.is_factored(weight, self._groups)

    @property
    def draws_by_channel(self) -> bool:
        """Whether every channel of the input is multiplied by one number."""
        return self.sigma is Sigma.CHANNEL and isinstance(self, CONVOLUTIONS)

    @property
    def _groups(self) -> int:
        return int(getattr(self, "groups", 1))

    def perturbation(self, node: "ir.Node") -> "Perturbation":
        """The noise in an exported graph, unless its sigma is factored."""
        from uce_edge_export.noise.perturbations import ChannelDropout, GaussianDropout

        return ChannelDropout(self.p, node) if self.draws_by_channel else GaussianDropout(self.p)

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A sample of the layer's output; its mean when noise is off."""
        if self.sampling:
            by_channel = self.draws_by_channel
            mode = ReplacedProduct(lambda x: self._channel_sample(x) if by_channel else self._sample(x, input))
        elif self.baked_weight is not None:
            mode = ReplacedProduct(self._with_baked_weight)
        else:
            return super().forward(input, *args, **kwargs)  # type: ignore[no-any-return]
        with mode:
            return super().forward(input, *args, **kwargs)  # type: ignore[no-any-return]

    def _with_baked_weight(self, product: Product) -> Tensor:
        assert self.baked_weight is not None
        return product.multiply(product.input, self.baked_weight, product.bias)

    def _sample(self, product: Product, input: Tensor) -> Tensor:
        """Sample the product."""
        mu = product.output
        # Where the layer flattens what stands before its features, noise still has the layout of its input.
        flattened = not product.outputs_first and mu.shape[:-1] != input.shape[:-1]
        like = mu.reshape(*input.shape[:-1], mu.shape[-1]) if flattened else mu
        eps = standard_normal(like, None) if self.noise is None else self.noise(self.layer_name, like)
        # float32 whatever autocast chose: squares of half-precision activations overflow.
        with torch.autocast(mu.device.type, enabled=False):
            wide = product.input.to(torch.promote_types(product.input.dtype, torch.float32))
            if self.log_alpha is None:
                alpha = torch.tensor(self.p / (1 - self.p), dtype=wide.dtype, device=wide.device)
            else:
                alpha = self.log_alpha.exp()
            mean, noise = mu.to(wide.dtype), eps.reshape(mu.shape).to(wide.dtype)
            if self.factors_its_sigma:
                sample = self._factored_sample(product, mean, wide, noise, alpha)
            else:
                sample = _Sample.apply(mean, self._variance(product, wide.square()), noise, alpha)  # type: ignore[no-untyped-call]
            return sample.to(mu.dtype)

    def _channel_sample(self, product: Product) -> Tensor:
        """The product of the input times one number for every channel."""
        x = product.input
        like = x[(slice(None), slice(None), *[slice(1)] * (x.ndim - 2))].contiguous()
        eps = standard_normal(like, None) if self.noise is None else self.noise(self.layer_name, like)
        alpha = self.p / (1 - self.p) if self.log_alpha is None else self.log_alpha.exp()
        return product.multiply(x * (1 + alpha**0.5 * eps).to(x.dtype), product.weight, product.bias)

    def _variance(self, product: Product, squares: Tensor) -> Tensor:
        """layer(x^2, W^2), without a bias."""
        return product.multiply(squares, _squared(product.weight), None)

    def _factored_sample(self, product: Product, mu: Tensor, input: Tensor, eps: Tensor, alpha: Tensor) -> Tensor:
        """The sample with the variance of the factors."""
        parts = factored_sigma.factors(product.rows, self._groups)
        if product.weight.ndim > 2:
            s = product.multiply(factored_sigma.input_map(input, parts.inputs), parts.taps, None)
            return factored_sigma.sample(mu, s, eps, parts.outputs, alpha)
        # The features are the channels: [rows, features], whatever stands before them.
        rows = factored_sigma.input_map(input.reshape(-1, input.shape[-1]), parts.inputs)
        return factored_sigma.sample(
            mu.reshape(-1, mu.shape[-1]), rows, eps.reshape(-1, mu.shape[-1]), parts.outputs, alpha
        ).reshape(mu.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p}, sigma={self.sigma}"


def _squared(value: Tensor) -> Tensor:
    """The square, in float32 at least."""
    return value.to(torch.promote_types(value.dtype, torch.float32)).square()


def gaussianize(
    model: nn.Module,
    p: float | Mapping[str, float] = 0.2,
    *,
    skip_first: bool = True,
    sigma: Sigma | str = Sigma.EXACT,
    layers: str | Collection[str] | None = None,
    exclude: Collection[str] = (),
) -> nn.Module:
    """Add Gaussian dropout to weight layers, in place.

    These are Conv and Linear layers, their subclasses, and other layers that multiply their input by one weight.
    Layers keep their parameters, names and hooks; only their class changes. The first weight layer stays
    as it is by default: the input image is never dropped. Layers that cannot have noise are named in a warning.

    Args:
        model: Any torch module.
        p: The dropout rate, 0 < p < 1, or rates by layer name or pattern, as in {"blocks.*": 0.1, "head": 0.2}. The
            last match counts, and layers without a match have no noise.
        skip_first: Leave the first weight layer (in registration order) without noise.
        sigma: "exact", "factored" for a variance that costs little more than the layer itself, or "channel" for one
            number for every channel of a convolution's input.
        layers: The only layers with noise: "tail" (the last convolution and what is behind it), "last:6",
            "no-depthwise", names or patterns, or several of these; None for all. A module may name its own tail in an
            attribute `noisy_tail`.
        exclude: Names or patterns of layers without noise.

    Returns:
        The same model.
    """
    return add_noise(model, _Gaussian, p, skip_first, sigma, layers, exclude)


def add_noise(
    model: nn.Module,
    noise: type[_Gaussian],
    p: float | Mapping[str, float],
    skip_first: bool = True,
    sigma: Sigma | str = Sigma.EXACT,
    layers: str | Collection[str] | None = None,
    exclude: Collection[str] = (),
) -> nn.Module:
    """Give weight layers a noisy class; arguments as in `gaussianize`."""
    if sigma not in list(Sigma):
        raise UsageError(expected("`sigma`", f"one of {', '.join(Sigma)}", sigma, "The paper's form is exact"))
    for name, rate in rates_of(model, p, skip_first, layers, exclude).items():
        module = model.get_submodule(name)
        module.__class__ = noisy_class(noise, type(module))
        assert isinstance(module, _Gaussian)
        module._init_gaussian(name, rate, Sigma(sigma))
    return model


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
def noise_only_in(model: nn.Module, weights: Collection[str]) -> Iterator[None]:
    """Keep the noise of layers, by weight name, inside the block."""
    layers = gaussian_layers(model)
    silent = [layer for name, layer in layers.items() if f"{name}.weight" not in weights and layer.sampling]
    for layer in silent:
        layer.sampling = False
    try:
        yield
    finally:
        for layer in silent:
            layer.sampling = True


def silent_layers(model: nn.Module) -> list[str]:
    """Gaussian layers whose noise is switched off."""
    return [name for name, layer in gaussian_layers(model).items() if not layer.sampling]


@contextmanager
def baked_weights(model: nn.Module) -> Iterator[None]:
    """Let layers use the weights that they compute as constants.

    A traced graph then holds `LAYER.baked_weight` instead of its computation.
    """
    computing = {
        layer: product.weight.detach()
        for layer in gaussian_layers(model).values()
        if (product := product_of(layer, layer.plain.forward)).weight is not layer._parameters.get("weight")
    }
    for layer, weight in computing.items():
        del layer.baked_weight
        layer.register_buffer("baked_weight", weight, persistent=False)
    try:
        yield
    finally:
        for layer in computing:
            del layer.baked_weight
            layer.baked_weight = None


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
