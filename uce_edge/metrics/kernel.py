"""The kernel calibration error of the whole vector of probabilities."""

import math

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Floats, whole
from uce_edge.metrics.probabilities import inputs

CHUNK_ELEMENTS = 2**16  # half a MiB per temporary: several of them are in use at once


def skce(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    bandwidth: float = 0.5,
    block: int = 32,
    seed: int = 0,
) -> float:
    """Squared kernel calibration error (Widmann et al. 2019 and 2021).

    The unbiased block estimator: the mean of k(p, q) (e_y - p).(e_z - q) over the pairs of images inside blocks, where
    e is one-hot and k(p, q) = exp(-|p - q|^2 / (2 bandwidth^2)). It is 0 on average at perfect calibration, so it can
    be negative. Images that do not fill a block are left out. The time grows with images * block.

    Args:
        probabilities: One row per image, one column per class.
        labels: The true class of each image.
        bandwidth: The kernel's scale; two certain and different predictions are sqrt(2) apart.
        block: Images per block; 2 is the linear estimator, and a larger block has a smaller variance.
        seed: Deals the images to blocks, because neighbours in a folder are often of one class.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(skce(probabilities, labels, block=4), 3)
        -0.01
    """
    return float(block_errors(probabilities, labels, bandwidth=bandwidth, block=block, seed=seed).mean())


def block_errors(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bandwidth: float = 0.5, block: int = 32, seed: int = 0
) -> Floats:
    """The independent estimates of all blocks; `skce` is their mean."""
    whole("block", block, 2, "32 is the usual choice.")
    whole("seed", seed, 0, "The same seed gives the same blocks.")
    if not (isinstance(bandwidth, int | float) and 0 < bandwidth < math.inf):
        raise UsageError(expected("bandwidth", "a finite number above 0", bandwidth, "0.5 is the usual choice."))
    table, truth = inputs(probabilities, labels)
    if len(table) < 2:
        raise UsageError(
            expected("the number of images", "at least 2", len(table), "The estimator needs pairs."),
            "metric.too-few-images",
        )
    size = min(block, len(table))
    used = len(table) // size * size
    order = np.random.default_rng(seed).permutation(len(table))[:used]
    at_once = max(1, CHUNK_ELEMENTS // (size * max(size, table.classes)))
    errors = []
    for rows, chunk in table.take(order).blocks(size * at_once):
        residual = chunk.copy()
        residual[np.arange(len(chunk)), truth[order[rows]]] -= 1
        p, r = (values.reshape(-1, size, table.classes) for values in (chunk, residual))
        inner = p @ p.swapaxes(1, 2)
        square = np.einsum("bii->bi", inner)
        distance = square[:, :, None] + square[:, None, :] - 2 * inner
        values = np.exp(np.maximum(distance, 0.0) / (-2 * bandwidth**2)) * (r @ r.swapaxes(1, 2))
        # Pairs of an image with itself would bias the mean.
        errors.append(values.sum(axis=(1, 2)) - np.einsum("bii->b", values))
    return np.concatenate(errors) / (size * (size - 1))
