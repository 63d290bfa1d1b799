"""Normalisation of pixels."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec


def normalise(images: Tensor, spec: ImageSpec) -> Tensor:
    """Normalise pixels and move channels first.

    [n, h, w, c] becomes float32 [n, c, h, w], as in the exported graph.
    """
    mean, std = (torch.tensor(values, device=images.device) for values in (spec.mean, spec.std))
    return ((images.float() / spec.scale - mean) / std).permute(0, 3, 1, 2).contiguous()


def channel_statistics(images: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels in [0, 1]."""
    means, deviations = [], []
    values = np.arange(256) / 255
    for channel in range(images.shape[-1]):
        counts = sum(np.bincount(part[..., channel].ravel(), minlength=256) for part in _chunks(images))
        weights = counts / np.sum(counts)
        mean = float(weights @ values)
        means.append(round(mean, 4))
        deviations.append(round(float(np.sqrt(weights @ (values - mean) ** 2)), 4))
    if min(deviations) == 0:
        raise UsageError(
            "A channel of the training images is constant: there is nothing to learn from. Check --data.",
            "dataset.constant-channel",
        )
    return tuple(means), tuple(deviations)


def _chunks(images: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    step = max(1, 2**22 // images[0].size)
    return (images[start : start + step] for start in range(0, len(images), step))
