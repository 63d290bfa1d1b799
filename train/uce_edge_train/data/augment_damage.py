"""Random noise and blur of pixels from 0 to 1."""

import torch
from torch import Tensor

NOISE = (0.01, 0.2)
"""The range of the noise's standard deviation, of the full range."""
BLUR = (0.3, 1.5)
"""The range of the blur's standard deviation, in 1/32 of the shorter side, at least in pixels."""


def noisy(pixels: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to randomly chosen images."""
    chosen, strength = _chosen(len(pixels), probability, NOISE, generator)
    noise = torch.randn(len(chosen), *pixels.shape[1:], generator=generator) * strength[:, None, None, None]
    chosen = chosen.to(pixels.device)
    return pixels.index_add(0, chosen, noise.to(pixels)).clamp_(0, 1)


def blurred(pixels: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Blur randomly chosen images; no padding at the border."""
    height, width = pixels.shape[2:]
    chosen, strength = _chosen(len(pixels), probability, BLUR, generator)
    deviation = (strength * max(1, min(height, width) / 32)).to(pixels.device)
    chosen = chosen.to(pixels.device)
    # Two products with small matrices are quicker than a convolution with a kernel of its own for every image.
    soft = _weights(height, deviation) @ pixels.index_select(0, chosen) @ _weights(width, deviation).transpose(-1, -2)
    return pixels.index_copy(0, chosen, soft.clamp_(0, 1))


def _chosen(
    images: int, probability: float, strengths: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Indices and strengths of the chosen images."""
    draw, strength = torch.rand(2, images, generator=generator)
    chosen = (draw < probability).nonzero()[:, 0]
    low, high = strengths
    return chosen, low + (high - low) * strength[chosen]


def _weights(length: int, deviation: Tensor) -> Tensor:
    """Blur matrices [n, 1, length, length]; rows sum to 1."""
    place = torch.arange(length, device=deviation.device)
    distance = (place[:, None] - place[None]) / deviation[:, None, None]
    weights = torch.exp(-(distance**2) / 2)
    return (weights / weights.sum(-1, keepdim=True))[:, None]
