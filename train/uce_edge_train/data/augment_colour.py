"""Colour augmentation of pixels from 0 to 1.

Tensors are [n, channels, height, width]: brightness, contrast, saturation, hue and sharpness.

A factor of 1 changes nothing. Factors are [n, 1, 1, 1], one for every image. With other than three channels there is
neither saturation nor hue.
"""

import torch
from torch import Tensor, nn

_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, as in ITU-R 601
_HUE = 0.25  # turns of the colour circle at strength 1, beside factors from 0 to 2
_SMOOTH = ((1, 1, 1), (1, 5, 1), (1, 1, 1))  # Pillow's kernel
FLAT = 0.5
"""Above this strength, an image can become nearly a single colour: dark and without contrast."""


def jittered(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Random brightness, contrast, saturation and hue.

    Factors are 1 - strength to 1 + strength; the hue turns by up to strength/4.
    """
    draws = (2 * torch.rand(4, len(pixels), generator=generator) - 1) * strength
    brightness, contrast, saturation, turn = draws.to(pixels)[:, :, None, None, None]
    pixels = contrasted(brightened(pixels, 1 + brightness), 1 + contrast)
    return hue_turned(saturated(pixels, 1 + saturation), _HUE * turn)


def brightened(pixels: Tensor, factor: Tensor) -> Tensor:
    """Every value times a factor."""
    return (pixels * factor).clamp_(0, 1)


def contrasted(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the image's mean gray."""
    return _blended(pixels, _gray(pixels).mean((2, 3), keepdim=True), factor)


def saturated(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the gray image."""
    return _blended(pixels, _gray(pixels), factor) if pixels.shape[1] == 3 else pixels


def hue_turned(pixels: Tensor, turn: Tensor) -> Tensor:
    """Rotate every hue by a share of the circle."""
    if pixels.shape[1] != 3:
        return pixels
    red, green, blue = pixels.unbind(1)
    value, low = pixels.amax(1), pixels.amin(1)
    chroma = value - low
    safe = chroma.clamp(min=1e-8)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + 6 * turn[:, 0]
    channels = []
    for place in (5, 3, 1):  # red, green and blue: where each falls from the value to the lowest
        k = (hue + place).remainder(6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def sharpened(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to a smoothed copy; below 1 blurs.

    The border does not change.
    """
    channels = pixels.shape[1]
    kernel = torch.tensor(_SMOOTH, dtype=pixels.dtype, device=pixels.device)
    kernel = (kernel / kernel.sum()).expand(channels, 1, 3, 3)
    smooth = pixels.clone()
    if min(pixels.shape[2:]) > 2:
        smooth[:, :, 1:-1, 1:-1] = nn.functional.conv2d(pixels, kernel, groups=channels)
    return _blended(pixels, smooth, factor)


def _gray(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    weights = torch.tensor(_LUMA, dtype=pixels.dtype, device=pixels.device)[:, None, None]
    return (pixels * weights).sum(1, keepdim=True)


def _blended(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (factor * pixels + (1 - factor) * other).clamp_(0, 1)
