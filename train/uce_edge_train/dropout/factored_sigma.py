"""Factored sigma: the variance from one map.

The squared weights are replaced by the product of their marginals, W^2[o, c, k] ~ u_o q_c g_k / T^2, the rank-one
tensor that keeps the sum of every output and is nearest in Kullback-Leibler divergence. Then

    variance_o = alpha * u_o * s,    s = conv_k(conv_1x1(x^2, q / T), g / T)

and s has one channel for each group of the layer. A network that is trained with it has another, coarser Gaussian
posterior: nothing is approximated when it is exported.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

_SMALLEST_ROOT = 1e-6  # in gradients: that of the square root is infinite at 0
_TINY = 1e-30  # all weights of a group may be 0


class Factors(NamedTuple):
    """Marginals of the squared weights, per group."""

    outputs: Tensor
    """u: [outputs], the sum of the squared weights of every output."""
    inputs: Tensor
    """q / T: [groups, inputs of a group, 1...], which sums to 1."""
    taps: Tensor
    """g / T: [groups, 1, taps...], which sums to 1."""


def factors(weight: Tensor, groups: int) -> Factors:
    """Factor the squares of a weight, with gradients."""
    squares = weight.to(torch.promote_types(weight.dtype, torch.float32)).square()
    by_group = squares.reshape(groups, -1, *squares.shape[1:])
    taps = list(range(3, by_group.ndim))
    total = by_group.sum(dim=list(range(1, by_group.ndim)), keepdim=True).clamp_min(_TINY)
    inputs = (by_group.sum(dim=[1, *taps], keepdim=True) / total).squeeze(1)
    places = (by_group.sum(dim=[1, 2], keepdim=True) / total).squeeze(1)
    return Factors(squares.flatten(1).sum(1), inputs, places)


def is_factored(weight: Tensor, groups: int) -> bool:
    """Whether the layer is depthwise: its squares are a product."""
    return weight.ndim > 2 and weight.shape[0] == groups and weight.shape[1] == 1


def _one_channel(summed: Tensor) -> Tensor:
    """Add a channel dimension with channels-last strides.

    The memory is the same with one channel, but oneDNN computes the gradient of a convolution many times faster.
    """
    return summed.unsqueeze(-1).movedim(-1, 1)


class WeightedSquares(torch.autograd.Function):
    """sum_c weight_c x_c^2 over channels, with few memory passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """[batch, 1, ...]."""
        ctx.save_for_backward(x, weight)
        return _one_channel(torch.tensordot(x.square(), weight, dims=([1], [0])))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of x and of the weight."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        shape = (1, -1, *[1] * (x.ndim - 2))
        to_x = (x * (2 * weight).reshape(shape)).mul_(gradient) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return to_x, None
        others = [0, *range(2, x.ndim)]
        return to_x, torch.tensordot(x.square(), gradient.squeeze(1), dims=(others, list(range(gradient.ndim - 1))))


class FactoredSample(torch.autograd.Function):
    """Sample with factored sigma, with few memory passes.

    y = mu + scale_o * sqrt(s) * eps for a map s of one channel.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, s: Tensor, eps: Tensor, scale: Tensor) -> Tensor:
        """The sample."""
        # Some convolution algorithms return a little less than 0 where the variance is 0.
        root = s.clamp_min(0).sqrt_()
        ctx.save_for_backward(root, eps, scale)
        shape = (1, -1, *[1] * (mu.ndim - 2))
        return torch.addcmul(mu, eps * root, scale.reshape(shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of mu, s and the scale."""
        (gradient,) = gradients
        root, eps, scale = ctx.saved_tensors
        product = gradient * eps
        to_root = _one_channel(torch.tensordot(product, scale, dims=([1], [0])))
        others = [0, *range(2, product.ndim)]
        to_scale = torch.tensordot(product, root.squeeze(1), dims=(others, list(range(root.ndim - 1))))
        return gradient, to_root.div_(root.clamp_min(_SMALLEST_ROOT)).mul_(0.5), None, to_scale


def sample(mu: Tensor, s: Tensor, eps: Tensor, outputs: Tensor, alpha: Tensor) -> Tensor:
    """Sample with sigma^2 = alpha * u_o * s.

    s has one channel, or one per group.
    """
    scale = (alpha * outputs + _TINY).sqrt()
    if s.shape[1] == 1:
        drawn: Tensor = FactoredSample.apply(mu, s, eps, scale)  # type: ignore[no-untyped-call]
        return drawn
    root = (s.clamp_min(_SMALLEST_ROOT**2).sqrt() * (s > 0)).repeat_interleave(len(outputs) // s.shape[1], 1)
    return mu + eps * root * scale.reshape(1, -1, *[1] * (mu.ndim - 2))


def input_map(x: Tensor, inputs: Tensor) -> Tensor:
    """conv_1x1(x^2, q / T): [batch, groups, ...]."""
    if len(inputs) == 1:
        summed: Tensor = WeightedSquares.apply(x, inputs.flatten())  # type: ignore[no-untyped-call]
        return summed
    by_group = x.reshape(len(x), len(inputs), -1, *x.shape[2:])
    weighted: Tensor = by_group.square() * inputs.unsqueeze(0)
    return weighted.sum(2)
