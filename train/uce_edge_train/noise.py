"""Standard normal noise for training and calibration, always from an explicit generator."""

import torch
from torch import Tensor

_LARGEST = 2**25  # numbers in a pool, 128 MB


def standard_normal(mean: Tensor, generator: torch.Generator | None) -> Tensor:
    """Fresh noise in the shape and memory layout of `mean`; layouts that differ would cost a slow addition."""
    noise = torch.empty_like(mean)
    torch.as_strided(noise, (mean.numel(),), (1,)).normal_(generator=generator)
    return noise


class NoisePool:
    """Noise for training on a CPU, where drawing fresh numbers takes a fifth of the step.

    Every layer of every step reads a large pool of fresh numbers at a random place. Successive steps are
    no longer independent, which gradient descent does not notice; calibration and inference use fresh noise.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._pool = torch.empty(0)

    def __call__(self, layer: str, mean: Tensor) -> Tensor:
        """Noise for a layer's mean output."""
        count = mean.numel()
        if 4 * count > _LARGEST:
            return standard_normal(mean, self._generator)
        wanted = min(32 * count, _LARGEST)
        if len(self._pool) < wanted:
            self._pool = torch.randn(wanted, generator=self._generator)
        start = int(torch.randint(len(self._pool) - count, (), generator=self._generator))
        return torch.as_strided(self._pool, mean.shape, mean.stride(), start)
