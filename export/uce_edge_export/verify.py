"""The parity gate: an exported file must do what the PyTorch model does, or it is not written."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uce_edge import contract
from uce_edge.contract import Inference, Metadata
from uce_edge.errors import UceEdgeError
from uce_edge.providers import Device, open_session
from uce_edge_export import noise
from uce_edge_train.fit import normalise
from uce_edge_train.layers import deterministic, noise_from

TOLERANCE = 1e-4  # on logits of unit scale
_Z_LIMIT = 6.0  # two-sided, over some dozens of comparisons: a false alarm in a hundred million exports


@dataclass(frozen=True)
class Parity:
    """What the gate measured."""

    largest_difference: float
    """Largest |logit difference| to PyTorch under the same noise, on logits of unit scale."""
    largest_z: float | None
    """Largest deviation of a mean probability from PyTorch's own random noise, in standard errors."""


class ParityError(UceEdgeError):
    """The file does not do what the model does."""


def check(
    path: str | Path,
    model: nn.Module,
    images: npt.NDArray[np.uint8],
    metadata: Metadata,
    layers: list[tuple[str, int]],
) -> Parity:
    """Run a contract file against its PyTorch model.

    Args:
        path: The file.
        model: The Gaussian-dropout model it was exported from.
        images: At least two images as the file takes them.
        metadata: What the file says of itself.
        layers: The noisy layers in graph order: module name and outputs per image.
    """
    session = open_session(str(path), Device.CPU)
    pixels = normalise(torch.from_numpy(images), metadata.image)

    def run(batch: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32]) -> list[npt.NDArray[Any]]:
        feed: dict[str, npt.NDArray[Any]] = {contract.IMAGE: batch}
        if metadata.inference is not Inference.DETERMINISTIC:
            feed[contract.SEEDS] = seeds
        names = [contract.LOGITS, contract.PROBABILITIES, contract.UNCERTAINTY, contract.STANDARD_ERROR]
        return session.run(names, feed)  # type: ignore[no-any-return]

    def logits(batch: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        return run(batch, seeds)[0]

    model.eval()
    seeds = np.array([0, 1, 4096, contract.SEED_SPACE - 1], np.int32)
    ours = logits(images, seeds)
    if metadata.inference is Inference.DETERMINISTIC:
        with torch.no_grad(), deterministic(model):
            return Parity(_compare(ours, model(pixels).numpy()[None]), None)
    theirs = _with_table_noise(model, pixels, seeds, layers)
    difference = _compare(ours, theirs)
    split = np.concatenate([logits(images, seeds[:1]), logits(images, seeds[1:])])
    _require(np.array_equal(ours, split), "passes split over two calls differ from the same passes in one call")
    _require(np.array_equal(ours, logits(images, seeds)), "one seed gives two different answers")
    _require(
        not np.allclose(ours[0], ours[1], atol=1e-6),
        "two seeds give the same answer: the noise is not in the graph",
    )
    together = run(images, seeds)
    for i in range(len(images)):
        alone = run(images[i : i + 1], seeds)
        same = all(np.array_equal(a[..., 0, :], t[..., i, :]) for a, t in zip(alone[:2], together[:2], strict=True))
        same = same and all(a[0] == t[i] for a, t in zip(alone[2:], together[2:], strict=True))
        _require(same, "an image's answer depends on its neighbours in the batch")
    return Parity(difference, _statistics(model, pixels[:2], lambda s: logits(images[:2], s)))


def _with_table_noise(
    model: nn.Module, pixels: Tensor, seeds: npt.NDArray[np.int32], layers: list[tuple[str, int]]
) -> npt.NDArray[np.float32]:
    """PyTorch's logits under exactly the noise that the file computes for itself."""
    plan = noise.Plan(tuple(size for _, size in layers))
    queues: dict[str, list[npt.NDArray[np.float32]]] = defaultdict(list)
    for (name, _), values in zip(layers, noise.layer_noise(seeds.astype(np.int64), plan), strict=True):
        queues[name].append(values)
    calls: dict[str, int] = defaultdict(int)

    def given(name: str, mu: Tensor) -> Tensor:
        values = torch.from_numpy(queues[name][calls[name]])
        calls[name] += 1
        return values.repeat_interleave(len(pixels), 0).reshape(mu.shape)

    with torch.no_grad(), noise_from(model, given):
        result = model(pixels.repeat(len(seeds), *[1] * (pixels.ndim - 1)))
    return result.reshape(len(seeds), len(pixels), -1).numpy()  # type: ignore[no-any-return]


def _compare(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    scale = max(float(theirs.std()), 1e-6)
    difference = float(np.abs(ours - theirs).max()) / scale
    _require(
        difference <= TOLERANCE,
        f"the logits differ from PyTorch's by {difference:.2g} under the same noise (allowed: {TOLERANCE:g})",
    )
    return difference


def _statistics(
    model: nn.Module, pixels: Tensor, logits: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.float32]]
) -> float:
    """Mean probabilities over many passes against PyTorch with its own generator, in standard errors."""
    passes = 32
    ours = torch.softmax(torch.from_numpy(logits(np.arange(passes, dtype=np.int32))), -1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad(), noise_from(model, generator):
        theirs = torch.softmax(model(pixels.repeat(passes, *[1] * (pixels.ndim - 1))), -1)
    theirs = theirs.reshape(passes, len(pixels), -1)
    spread = ((ours.var(0) + theirs.var(0)) / passes).sqrt()
    # Where no pass moves the probability by 1e-4 there is no statistic, only rounding.
    z = ((ours.mean(0) - theirs.mean(0)).abs() / spread.clamp_min(1e-4)).max().item()
    _require(z <= _Z_LIMIT, f"its mean probabilities are {z:.1f} standard errors from PyTorch's own Monte Carlo")
    return z


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ParityError(f"The exported graph failed its check: {otherwise}. Nothing was written.")
