"""AugMix and PixMix.

Both take and give pixels from 0 to 1 [n, channels, height, width]; every image is mixed in its own way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from uce_edge_train.data.augment_operations import operate

Mix = Callable[[Tensor, torch.Generator], Tensor]

_CHAINS, _DEPTH = 3, 3  # AugMix as published
_ROUNDS, _BETA = 4, 3.0  # PixMix as published


def augmix(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """AugMix (Hendrycks et al. 2020): mix three chains of operations.

    Without the Jensen-Shannon term of the paper, which takes three passes of the network instead of one.
    """
    count = len(pixels)
    chains = pixels.repeat(_CHAINS, 1, 1, 1)
    depth = torch.randint(1, _DEPTH + 1, (len(chains),), generator=generator)
    for step in range(_DEPTH):
        going = (depth > step).nonzero()[:, 0].to(pixels.device)
        chains.index_copy_(0, going, operate(chains.index_select(0, going), generator))
    # Dirichlet(1, ..., 1) over the chains, Beta(1, 1) between them and the image.
    weights = -torch.log1p(-torch.rand(_CHAINS, count, generator=generator))
    weights = weights / weights.sum(0).clamp_(min=1e-6)
    weights *= torch.rand(count, generator=generator)
    weights = weights.to(pixels)[:, :, None, None, None]
    mixed = (weights * chains.reshape(_CHAINS, *pixels.shape)).sum(0) + (1 - weights.sum(0)) * pixels
    return mixed.clamp_(0, 1)


@dataclass(frozen=True, eq=False)
class PixMix:
    """PixMix (Hendrycks et al. 2022), up to four rounds."""

    pictures: Tensor = field(repr=False)
    """uint8 [count, channels, height, width]"""

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Mixed images."""
        count, device = len(pixels), pixels.device
        partner = torch.randint(len(self.pictures), (count,), generator=generator)
        pictures = self.pictures[partner].to(device).float() / 255
        changed = torch.rand(count, generator=generator) < 0.5
        rounds = torch.randint(_ROUNDS + 1, (count,), generator=generator)
        mixed = pixels.clone()
        _put_changed(mixed, pixels, changed, generator)
        for step in range(_ROUNDS):
            going = (rounds > step).nonzero()[:, 0]
            own, product = torch.rand(2, len(going), generator=generator) < 0.5
            weights = _weights(len(going), generator).to(device)[:, :, None, None, None]
            going = going.to(device)
            other = pictures.index_select(0, going)
            _put_changed(other, pixels.index_select(0, going), own, generator)
            for mix, here in ((_sum, ~product), (_product, product)):
                places = here.nonzero()[:, 0].to(device)
                rows = going[places]
                made = mix(mixed.index_select(0, rows), other.index_select(0, places), *weights[:, places])
                mixed.index_copy_(0, rows, made)
        return mixed


def _put_changed(into: Tensor, pixels: Tensor, chosen: Tensor, generator: torch.Generator) -> None:
    """Replace the chosen images by changed copies."""
    places = chosen.nonzero()[:, 0].to(pixels.device)
    into.index_copy_(0, places, operate(pixels.index_select(0, places), generator))


def _sum(image: Tensor, other: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Around gray."""
    return ((a * (2 * image - 1) + b * (2 * other - 1) + 1) / 2).clamp_(0, 1)


def _product(image: Tensor, other: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Geometric, where gray changes nothing."""
    # Black to a negative power has no value: below 1/255 nothing differs in a stored image.
    return ((2 * image).clamp_(min=1 / 255) ** a * (2 * other).clamp_(min=1 / 255) ** b / 2).clamp_(0, 1)


def _weights(count: int, generator: torch.Generator) -> Tensor:
    """Weights of the image and of its partner [2, count].

    Both are positive, or the second is subtracted.
    """
    large, small, side = torch.rand(3, count, generator=generator)
    # Beta(beta, 1) and Beta(1, beta) are powers of uniform numbers.
    mostly, little = large ** (1 / _BETA), 1 - small ** (1 / _BETA)
    added = side < 0.5
    return torch.stack([torch.where(added, mostly, 2 - mostly), torch.where(added, little, -little)])
