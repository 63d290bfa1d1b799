"""Standard normal noise for training and calibration."""

import numpy as np
import torch
from torch import Tensor

_LARGEST = 2**25  # numbers in a pool, 128 MB


def standard_normal(mean: Tensor, source: torch.Generator | None) -> Tensor:
    """Draw noise in the shape and memory layout of `mean`.

    Adding tensors of different layouts is slow.
    """
    noise = torch.empty_like(mean)
    torch.as_strided(noise, (mean.numel(),), (1,)).normal_(generator=source)
    return noise


def generator(device: str | torch.device, *numbers: int) -> torch.Generator:
    """A generator seeded by all the numbers."""
    state = np.random.SeedSequence(numbers).generate_state(2)
    return torch.Generator(device).manual_seed(int(state[0]) << 31 ^ int(state[1]))


class PassNoise:
    """The noise of one pass, shared by all images.

    An image's logits then depend on the image and the pass alone, not on its batch, and a pass needs few numbers.
    """

    def __init__(self, device: torch.device, seed: int, index: int) -> None:
        self._generator = generator(device, seed, index)
        self._drawn: dict[str, list[Tensor]] = {}
        self._calls: dict[str, int] = {}

    def rewind(self) -> "PassNoise":
        """Start the same pass again, for other images."""
        self._calls.clear()
        return self

    def __call__(self, layer: str, mean: Tensor) -> Tensor:
        """Noise for a layer's mean output; drawn once."""
        drawn, call = self._drawn.setdefault(layer, []), self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        if call == len(drawn):
            drawn.append(standard_normal(mean[:1], self._generator))
        return drawn[call].expand_as(mean)


class NoisePool:
    """A pool of noise for training on a CPU.

    Drawing fresh numbers would take a fifth of the step.

    Every layer of every step reads a large pool, redrawn for every epoch, at a random place. Steps, and now and then
    two layers of a step, share numbers at other places, which gradient descent does not notice. Calibration and
    inference use noise of their own.
    """

    def __init__(self, source: torch.Generator) -> None:
        self._generator = source
        self._pool = torch.empty(0)

    def __call__(self, layer: str, mean: Tensor) -> Tensor:
        """Noise for a layer's mean output."""
        count = mean.numel()
        if 4 * count > _LARGEST:
            return standard_normal(mean, self._generator)
        size = min(32 * count, _LARGEST)
        if len(self._pool) < size:
            self._pool = torch.randn(size, generator=self._generator)
        start = int(torch.randint(len(self._pool) - count, (), generator=self._generator))
        return torch.as_strided(self._pool, mean.shape, mean.stride(), start)
