"""Augmentation of a batch of images."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uce_edge_train.data.augment_colour import jittered
from uce_edge_train.data.augment_damage import blurred, noisy
from uce_edge_train.data.augment_mix import Mix
from uce_edge_train.data.augment_operations import moved


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images."""

    shift: int = 0
    """It moves by up to this many pixels, reflecting at the border."""
    flip: bool = False
    """It is mirrored with probability 1/2."""
    erase: float = 0.0
    """The probability that a random rectangle, 2 to 33 % of the area, becomes the mean colour."""
    mix: Mix | None = None
    """It is mixed with changed copies of itself, or with pictures."""
    blur: float = 0.0
    """The probability of a Gaussian blur of random strength."""
    noise: float = 0.0
    """The probability of Gaussian noise of random strength."""
    mean: tuple[float, ...] = (0.0,)
    """Of the normalisation, per channel: colour, mixing, blur and noise work on pixels from 0 to 1."""
    std: tuple[float, ...] = (1.0,)
    rotate: float = 0.0
    """It is turned by up to this many degrees to either side, reflecting at the border."""
    colour: float = 0.0
    """The strength of a random change of brightness, contrast, saturation and hue."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment every image of a normalised batch."""
        if self.flip:
            mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
            images = torch.where(mirrored.to(images.device), images.flip(3), images)
        if self.shift:
            images = _shifted(images, self.shift, generator)
        if self.rotate:
            images = _turned(images, self.rotate, generator)
        if self.colour or self.mix or self.blur or self.noise:
            images = self._on_pixels(images, generator)
        if self.erase:
            images = _erased(images, self.erase, generator)
        return images

    def _on_pixels(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Operations on pixels from 0 to 1: denormalise, apply, normalise."""
        mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.std))
        pixels = (images * std + mean).clamp_(0, 1)
        if self.colour:
            pixels = jittered(pixels, self.colour, generator)
        if self.mix:
            pixels = self.mix(pixels, generator)
        if self.blur:
            pixels = blurred(pixels, self.blur, generator)
        if self.noise:
            pixels = noisy(pixels, self.noise, generator)
        return (pixels - mean) / std


def _shifted(images: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    batch, _, height, width = images.shape
    device = images.device
    padded = nn.functional.pad(images, [pixels] * 4, mode="reflect")
    top, left = torch.randint(0, 2 * pixels + 1, (2, batch), generator=generator).to(device)
    rows = (top[:, None] + torch.arange(height, device=device))[:, :, None]
    columns = (left[:, None] + torch.arange(width, device=device))[:, None, :]
    index = torch.arange(batch, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows, columns].permute(0, 3, 1, 2)


def _turned(images: Tensor, degrees: float, generator: torch.Generator) -> Tensor:
    turn = (2 * torch.rand(len(images), generator=generator) - 1) * math.radians(degrees)
    nothing = torch.zeros_like(turn)
    return moved(images, turn, nothing, nothing, nothing, nothing)


def _erased(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Random erasing (Zhong et al. 2020)."""
    batch, _, height, width = images.shape
    chosen, size, shape, top, left = torch.rand(5, batch, generator=generator)
    area = height * width * (0.02 + 0.31 * size)
    ratio = 3 ** (2 * shape - 1)
    tall, wide = (area * ratio).sqrt().clamp(1, height), (area / ratio).sqrt().clamp(1, width)
    tall = torch.where(chosen < probability, tall, 0)
    first_row, first_column = top * (height - tall), left * (width - wide)

    def inside(length: int, first: Tensor, extent: Tensor) -> Tensor:
        place = torch.arange(length) + 0.5
        return (place >= first[:, None]) & (place < (first + extent)[:, None])

    rectangle = inside(height, first_row, tall)[:, :, None] & inside(width, first_column, wide)[:, None, :]
    return images.masked_fill(rectangle[:, None].to(images.device), 0)
