"""Learned dropout rates (the paper's Outlook)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from uce_edge_train.choices import Rates
from uce_edge_train.dropout.gaussian_layers import gaussian_layers

_LOWEST, _HIGHEST = 0.001, 0.5  # alpha = 1 at p = 0.5: beyond it a layer is more noise than signal


def learn(model: nn.Module, rates: Rates) -> list[Tensor]:
    """Make the rates learnable; returns the tensors to optimise."""
    layers = list(gaussian_layers(model).values())
    if rates in (Rates.FIXED, Rates.FITTED):
        return []
    device = next(model.parameters()).device
    if rates is Rates.MODEL:
        mean = sum(layer.p for layer in layers) / len(layers)
        shared = _log_alpha(mean, device)
        for layer in layers:
            layer.log_alpha = shared
        return [shared]
    for layer in layers:
        layer.log_alpha = _log_alpha(layer.p, device)
    return [layer.log_alpha for layer in layers if layer.log_alpha is not None]


def keep_in_bounds(learned: Sequence[Tensor]) -> None:
    """Clamp learned rates to 0.001 <= p <= 0.5."""
    with torch.no_grad():
        for value in learned:
            value.clamp_(_logit(_LOWEST), _logit(_HIGHEST))


def current(model: nn.Module) -> dict[str, float]:
    """The rate of every Gaussian layer, learned or not."""
    return {
        name: layer.p if layer.log_alpha is None else layer.log_alpha.sigmoid().item()
        for name, layer in gaussian_layers(model).items()
    }


def settle(model: nn.Module) -> dict[str, float]:
    """Fix the rates at their learned values."""
    tuned = current(model)
    for name, layer in gaussian_layers(model).items():
        layer.p, layer.log_alpha = tuned[name], None
    return tuned


def prior(model: nn.Module, images: int) -> Tensor | float:
    """Regulariser that keeps learned rates above 0.

    Minus the entropy of p, once per input of a layer.

    This is the regulariser of Concrete Dropout (Gal et al. 2017), per training image.
    """
    total: Tensor | float = 0.0
    for layer in gaussian_layers(model).values():
        if layer.log_alpha is not None:
            p = layer.log_alpha.sigmoid()
            total = total + layer.inputs * (p * p.log() + (1 - p) * (1 - p).log())
    return total / images


def _log_alpha(p: float, device: torch.device) -> Tensor:
    return torch.tensor(_logit(p), device=device, requires_grad=True)


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
