"""From stored pixels to what a network takes."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec


def normalise(images: Tensor, spec: ImageSpec) -> Tensor:
    """Pixels [n, h, w, c] -> normalised float32 [n, c, h, w], as the exported graph does it."""
    mean, std = (torch.tensor(values, device=images.device) for values in (spec.mean, spec.std))
    return ((images.float() / spec.scale - mean) / std).permute(0, 3, 1, 2).contiguous()


def moments(images: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels in [0, 1], from histograms: no copy of the images is made."""
    means, deviations = [], []
    values = np.arange(256) / 255
    for channel in range(images.shape[-1]):
        weights = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean = float(weights @ values)
        means.append(round(mean, 4))
        deviations.append(round(float(np.sqrt(weights @ (values - mean) ** 2)), 4))
    if min(deviations) == 0:
        raise UsageError("The training images are all of one colour: there is nothing to learn from. Check --data.")
    return tuple(means), tuple(deviations)
