"""mixup (Zhang et al. 2018)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Blend:
    """Partners and weights of a blended batch."""

    partner: Tensor
    """The place of every image's partner."""
    share: float
    """The weight of the image itself; its partner has the rest."""

    def images(self, images: Tensor) -> Tensor:
        """The blended images."""
        return self.share * images + (1 - self.share) * images[self.partner.to(images.device)]

    def nll(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean NLL under the blended labels."""
        own = nn.functional.cross_entropy(logits, labels)
        other = nn.functional.cross_entropy(logits, labels[self.partner.to(labels.device)])
        return self.share * own + (1 - self.share) * other


def draw(alpha: float, images: int, generator: torch.Generator) -> Blend:
    """Draw a blend; the share comes from Beta(alpha, alpha)."""
    partner = torch.randperm(images, generator=generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    return Blend(partner, float(np.random.default_rng(seed).beta(alpha, alpha)))
