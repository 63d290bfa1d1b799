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

_BATCH, _PIXELS = 64, 2**18  # of one call, at most: larger ones are not faster, and the values of a pixel take 2 kB


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
    step = max(1, min(_BATCH, _PIXELS // (image.height * image.width)))
    with progress("Monte Carlo passes", samples * len(data), unit="images") as advance:
        for start in range(0, len(data), block):
            pixels = data.images[start : start + block]
            passes = []
            for index in range(samples):  # outside, so that a pass draws its noise once
                noise, parts = PassNoise(device, seed, index), []
                for first in range(0, len(pixels), step):
                    batch = normalise(torch.from_numpy(pixels[first : first + step]).to(device), image)
                    parts.append(_one_pass(model, batch, noise.rewind(), keep_dropout).float().cpu())
                    advance(len(batch))
                passes.append(torch.cat(parts))
            yield torch.stack(passes).numpy()


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
