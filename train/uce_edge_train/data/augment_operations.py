"""Operations of AugMix and PixMix on pixels in [0, 1].

Those of Hendrycks et al. (2020), with their strengths: none of them is a damage that `uce_edge.images.corruptions`
evaluates.
"""

import math

import torch
from torch import Tensor, nn

SEVERITY = 3.0
"""Of 10; the published setting for CIFAR-10."""
_ROTATE, _SHEAR, _TRANSLATE = math.radians(30), 0.3, 1 / 3  # the largest, at level 10
_GEOMETRIC = 5  # rotate, shear and translate along x and y
OPERATIONS = ("rotate", "shear x", "shear y", "move x", "move y", "posterise", "solarise", "autocontrast", "equalise")
"""Names of the operations, as in `Recipe.seen`."""


def operate(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """One random operation of random strength on every image."""
    count = len(pixels)
    kind = torch.randint(len(OPERATIONS), (count,), generator=generator)
    strength, side = torch.rand(2, count, generator=generator)
    level = (0.1 + (SEVERITY - 0.1) * strength) / 10
    signed = torch.where(side < 0.5, -level, level)
    result = torch.empty_like(pixels)
    geometric = (kind < _GEOMETRIC).nonzero()[:, 0]
    if len(geometric):
        chosen = geometric.to(pixels.device)
        result.index_copy_(0, chosen, _geometric(pixels.index_select(0, chosen), kind[geometric], signed[geometric]))
    for index, change in enumerate((_posterised, solarised, autocontrast, equalised)):
        chosen = (kind == _GEOMETRIC + index).nonzero()[:, 0]
        if len(chosen):
            here = level[chosen].to(pixels)[:, None, None, None]
            chosen = chosen.to(pixels.device)
            result.index_copy_(0, chosen, change(pixels.index_select(0, chosen), here))
    return result


def _geometric(pixels: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Rotate, shear or translate each image."""
    turn = torch.where(kind == 0, level * _ROTATE, 0)
    shear_x, shear_y = (torch.where(kind == index, level * _SHEAR, 0) for index in (1, 2))
    move_x, move_y = (torch.where(kind == index, level * _TRANSLATE * 2, 0) for index in (3, 4))
    return moved(pixels, turn, shear_x, shear_y, move_x, move_y)


def moved(pixels: Tensor, turn: Tensor, shear_x: Tensor, shear_y: Tensor, move_x: Tensor, move_y: Tensor) -> Tensor:
    """Rotate, shear and translate each image; the border reflects.

    Args:
        pixels: The images.
        turn: Radians.
        shear_x: The shift in x per step in y.
        shear_y: The shift in y per step in x.
        move_x: Halves of the width, as torch's grids count.
        move_y: Halves of the height.
    """
    height, width = pixels.shape[2:]
    aspect = height / width
    across = (turn.cos(), (shear_x - turn.sin()) * aspect, move_x)
    down = ((shear_y + turn.sin()) / aspect, turn.cos(), move_y)
    y, x = (((2 * torch.arange(length) + 1) / length - 1).to(pixels) for length in (height, width))
    axes = []
    for factors in (across, down):  # what torch's affine_grid computes, in a quarter of its time
        of_x, of_y, constant = (values.to(pixels)[:, None, None] for values in factors)
        axes.append(of_x * x + (of_y * y[:, None] + constant))
    grid = torch.stack(axes, -1)
    return nn.functional.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)


def _posterised(pixels: Tensor, level: Tensor) -> Tensor:
    """Keep 3 or 4 bits."""
    return posterised(pixels, 2 ** (4 - (4 * level).floor()))


def posterised(pixels: Tensor, values: Tensor) -> Tensor:
    """Keep this many values."""
    return (pixels * values).floor().clamp_(max=values - 1) / values


def solarised(pixels: Tensor, level: Tensor) -> Tensor:
    """Invert values above a threshold."""
    return torch.where(pixels < 1 - level, pixels, 1 - pixels)


def autocontrast(pixels: Tensor, level: Tensor) -> Tensor:
    """Stretch every channel to the full range."""
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp_(min=1e-6), pixels)


def equalised(pixels: Tensor, level: Tensor) -> Tensor:
    """Equalise the histogram of every channel."""
    count = pixels[0, 0].numel()
    binned = (pixels * 255).round().long().flatten(2)
    histogram = torch.zeros(*binned.shape[:2], 256, device=pixels.device)
    histogram.scatter_add_(2, binned, torch.ones_like(binned, dtype=histogram.dtype))
    below = histogram.cumsum(2)
    first = below.gather(2, binned.amin(2, keepdim=True))  # the darkest value becomes 0
    equal = (below.gather(2, binned) - first) / (count - first).clamp_(min=1)
    return torch.where(first < count, equal, pixels.flatten(2)).reshape(pixels.shape)
