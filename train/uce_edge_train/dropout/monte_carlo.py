"""Logits of Monte Carlo passes, in blocks."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uce_edge._util.progress import progress
from uce_edge.calibration.logits import StoredLogits, images_per_block
from uce_edge.contract import pass_seeds
from uce_edge.datasets.splits import Split
from uce_edge.metadata import ImageSpec
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout import torch_dropout
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.noise_draws import PassNoise

_BATCH = 64  # images in one pass of the network: larger ones leave the processor's caches


def classes_of(model: nn.Module, image: ImageSpec) -> int:
    """The number of a network's logits."""
    with torch.no_grad(), deterministic(model):
        black = torch.zeros(1, image.channels, image.height, image.width, device=next(model.parameters()).device)
        return int(model(black).shape[-1])


def mc_blocks(
    model: nn.Module, data: Split, image: ImageSpec, samples: int, seed: int, *, keep_dropout: bool = False
) -> Iterator[npt.NDArray[np.float32]]:
    """Logits of stochastic passes in blocks.

    Args:
        model: A Gaussian-dropout network, on the device where it runs.
        data: The images.
        image: How they are normalised.
        samples: Passes per image.
        seed: Of the noise. An image's logits depend on the image, the seed and the pass alone.
        keep_dropout: Whether `nn.Dropout` and the like stay random, with one mask for all images of a pass.
    """
    pass_seeds(samples, 0)  # rejects an invalid number of passes
    device = next(model.parameters()).device
    model.eval()
    block = images_per_block(len(data), samples, classes_of(model, image))
    with progress("Monte Carlo passes", len(data)) as advance:
        for start in range(0, len(data), block):
            parts = []
            for first in range(start, min(start + block, len(data)), _BATCH):
                pixels = data.images[first : min(first + _BATCH, start + block)]
                batch = normalise(torch.from_numpy(pixels).to(device), image)
                noises = (PassNoise(device, seed, index) for index in range(samples))
                passes = [_one_pass(model, batch, noise, keep_dropout) for noise in noises]
                parts.append(torch.stack(passes).float().cpu())
                advance(len(batch))
            yield torch.cat(parts, dim=1).numpy()


def _one_pass(model: nn.Module, batch: Tensor, noise: PassNoise, keep_dropout: bool) -> Tensor:
    masks = (
        torch_dropout.masks_from(lambda call, mask: noise(f"{call}", mask)) if keep_dropout else torch_dropout.removed()
    )
    with torch.no_grad(), noise_from(model, noise), masks:
        logits: Tensor = model(batch)
    return logits


def mc_logits(
    model: nn.Module, data: Split, image: ImageSpec, samples: int, seed: int, *, keep_dropout: bool = False
) -> StoredLogits:
    """The logits of all blocks, in a temporary file."""
    return StoredLogits(mc_blocks(model, data, image, samples, seed, keep_dropout=keep_dropout))
