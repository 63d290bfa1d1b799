"""TrivialAugment, wide (Müller & Hutter 2021).

Operations and ranges are the published ones. Where an image moves, it is reflected at the border instead of filled.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from uce_edge_train.data.augment_colour import brightened, contrasted, saturated, sharpened
from uce_edge_train.data.augment_operations import autocontrast, equalised, moved, posterised, solarised

STEPS = 31
"""Strengths, from nothing to the largest."""
SHEAR, MOVE, ROTATE, FACTOR = 0.99, 32, math.radians(135), 0.99
"""The largest: a slope, pixels (at most the side), radians, and the distance of a factor from 1."""

Operation = Callable[[Tensor, Tensor], Tensor]
_WAYS = {"rotate": "turn", "shear x": "shear_x", "shear y": "shear_y", "move x": "move_x", "move y": "move_y"}
_BY_FACTOR: dict[str, Operation] = {
    "brightness": brightened,
    "saturation": saturated,
    "contrast": contrasted,
    "sharpness": sharpened,
}
_BY_LEVEL: dict[str, Operation] = {
    "posterise": lambda pixels, level: posterised(pixels, 2 ** (8 - (6 * level).round())),
    "solarise": solarised,
    "autocontrast": autocontrast,
    "equalise": equalised,
}
KINDS = (*_WAYS, *_BY_FACTOR, *_BY_LEVEL)
"""Every image gets one of them, or nothing, all with the same probability."""
SEEN = (*KINDS, "blur", "single colours")
"""Names for `Recipe.seen`: the least sharpness is a blur, the least contrast nearly a single colour."""


def trivial(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Apply one random operation to every image."""
    count = len(pixels)
    kind = torch.randint(len(KINDS) + 1, (count,), generator=generator)
    level = torch.randint(STEPS, (count,), generator=generator) / (STEPS - 1)
    signed = torch.where(torch.rand(count, generator=generator) < 0.5, -level, level)
    result = pixels.clone()
    for index, name in enumerate(KINDS):
        chosen = (kind == index).nonzero()[:, 0]
        if len(chosen):
            here = chosen.to(pixels.device)
            changed = operated(name, pixels.index_select(0, here), level[chosen], signed[chosen])
            result.index_copy_(0, here, changed)
    return result


def operated(name: str, pixels: Tensor, level: Tensor, signed: Tensor) -> Tensor:
    """Apply one operation of `KINDS`.

    Args:
        name: Which.
        pixels: The images.
        level: From 0 to 1, for operations with one side.
        signed: From -1 to 1, for those with two.
    """
    if name in _WAYS:
        return _moved(_WAYS[name], pixels, signed)
    if name in _BY_FACTOR:
        return _BY_FACTOR[name](pixels, (1 + FACTOR * signed).to(pixels)[:, None, None, None])
    return _BY_LEVEL[name](pixels, level.to(pixels)[:, None, None, None])


def _moved(way: str, pixels: Tensor, signed: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    largest = {
        "turn": ROTATE,
        "shear_x": SHEAR,
        "shear_y": SHEAR,
        "move_x": 2 * min(1, MOVE / width),
        "move_y": 2 * min(1, MOVE / height),
    }
    return moved(pixels, **{name: signed * (most if name == way else 0) for name, most in largest.items()})
