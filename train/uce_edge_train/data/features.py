"""Stored outputs of a trunk, which stand in for images.

An array of features is a `Split` whose images are maps [n, height, width, channels] of numbers instead of pixels. What
takes images and their spec, such as Monte Carlo passes, takes features and the tail of the network alike.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uce_edge._util.atomic_files import replacing
from uce_edge._util.progress import progress
from uce_edge.datasets.splits import Split
from uce_edge.metadata import ImageSpec
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.data.selection import Rows
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.dropout.noise_draws import generator
from uce_edge_train.networks import seam as seams
from uce_edge_train.networks.seam import Seam

FOLDER = "features"
LARGEST = 4 * 2**30
"""The most bytes of features that a run stores."""
_BATCH = 32
_HALF = 1000.0  # float16 has eleven bits, and ends at 65504


@dataclass(frozen=True)
class Changes:
    """Augmented views of a split."""

    augment: Augmentation
    seed: int

    def key(self, number: int) -> list[object]:
        """Names a view, alike in every process."""
        mix = self.augment.mix
        # The text of a function has its address.
        return [repr(replace(self.augment, mix=None)), getattr(mix, "__name__", repr(mix)), self.seed, number]


@dataclass(frozen=True, eq=False)
class Features:
    """The trunk of a network, and what it computed."""

    seam: Seam
    image: ImageSpec
    """Of the network."""
    folder: Path | None
    """The run; None to store nothing."""
    key: str
    """SHA-256 of everything that determines the output of the trunk."""
    shape: tuple[int, int, int]
    """Height, width and channels of its output."""

    @property
    def tail(self) -> nn.Module:
        """The network behind the seam."""
        return self.seam.tail

    @property
    def spec(self) -> ImageSpec:
        """How the tail takes features."""
        return ImageSpec(*self.shape, dtype="float32", scale=1.0)

    def views(self, images: int, wanted: int) -> int:
        """How many views of so many images fit on the disk, of those wanted."""
        one = 4 * images * int(np.prod(self.shape))
        return max(1, min(wanted, LARGEST // one - 1))  # the held-out images need room, too

    def of(self, data: Split, known: str | None = None) -> Split:
        """The features of a split, stored or computed.

        Args:
            data: The images.
            known: Their SHA-256, if known.
        """
        return replace(data, images=self.view(data, 0, known=known), originals=None)

    def as_images(self, data: Split) -> Split:
        """The features of a split as float32, which a file takes, in memory."""
        features = self.of(data)
        return replace(features, images=features.images.astype(np.float32))

    def view(
        self, data: Split, number: int, changes: Changes | None = None, known: str | None = None
    ) -> npt.NDArray[Any]:
        """The features of all images in one view.

        Args:
            data: The images.
            number: 0 for the images as they are, others for changed ones.
            changes: How the others are changed.
            known: The SHA-256 of the split, if known.
        """
        if number == 0:
            changes = None
        if self.folder is None:
            return np.concatenate(list(self._computed(data, number, changes)))
        changed = None if changes is None else changes.key(number)
        name = _digest([self.key, known or data.sha256(), changed])
        path = self.folder / FOLDER / f"{name[:32]}.npy"
        stored = _opened(path, (len(data), *self.shape))
        if stored is not None:
            return stored
        if not self._fits(len(data)):
            return np.concatenate(list(self._computed(data, number, changes)))
        self._store(path, data, number, changes)
        stored = _opened(path, (len(data), *self.shape))
        assert stored is not None
        return stored

    def _fits(self, images: int) -> bool:
        """Whether the run has room for the features of so many images."""
        assert self.folder is not None
        stored = sum(path.stat().st_size for path in (self.folder / FOLDER).glob("*.npy"))
        return stored + 4 * images * int(np.prod(self.shape)) <= LARGEST

    def _store(self, path: Path, data: Split, number: int, changes: Changes | None) -> None:
        parts = self._computed(data, number, changes)
        first = next(parts)
        kind = np.float16 if float(np.abs(first).max()) < _HALF else np.float32
        header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (len(data), *self.shape)}
        limit = np.finfo(kind).max
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for part in itertools.chain((first,), parts):
                file.write(np.clip(part, -limit, limit).astype(kind).tobytes())

    def _computed(self, data: Split, number: int, changes: Changes | None) -> Iterator[npt.NDArray[np.float32]]:
        source = None if changes is None else generator("cpu", changes.seed, number, 2**31)
        device = next(self.tail.parameters()).device
        with progress("features", len(data)) as advance:
            for start in range(0, len(data), _BATCH):
                pixels = torch.from_numpy(np.ascontiguousarray(data.images[start : start + _BATCH])).to(device)
                images = normalise(pixels, self.image)
                if changes is not None and source is not None:
                    images = changes.augment(images, source)
                images = images.contiguous(memory_format=torch.channels_last)
                output = _maps(self.seam.trunk(images)).permute(0, 2, 3, 1).float().cpu()
                advance(len(images))
                yield np.ascontiguousarray(output.numpy())


class Views:
    """Training features, of which every step takes random views."""

    def __init__(self, views: Sequence[npt.NDArray[Any] | Rows]) -> None:
        self._views = views

    def take(self, batch: Tensor, source: torch.Generator) -> Tensor:
        """The features of some images, each in a random view."""
        chosen = torch.randint(len(self._views), (len(batch),), generator=source).tolist()
        rows = [self._views[view][index] for view, index in zip(chosen, batch.tolist(), strict=True)]
        return torch.from_numpy(np.stack(rows)).float().permute(0, 3, 1, 2)


def open_features(
    model: nn.Module, image: ImageSpec, folder: str | Path | None = None, seam: str | None = None
) -> Features | None:
    """The features of a network; None if it cannot be split.

    Args:
        model: The network, on its device.
        image: The images that it takes.
        folder: The run that stores them; None to store nothing.
        seam: The first layer of its tail; None for the first layer with noise, if what is before it fits into an image.
    """
    device = next(model.parameters()).device
    source = torch.Generator().manual_seed(0)
    example = torch.randn(2, image.channels, image.height, image.width, generator=source).to(device)
    found = seams.before_noise(model, example) if seam is None else seams.split(model, seam, example)
    if found is None:
        return None
    output = _maps(found.trunk(example))
    if output.ndim != 4 or not _takes(found, output, example):
        return None
    channels, height, width = output.shape[1:]
    shape = height, width, channels
    if seam is None and output[0].numel() > example[0].numel():
        return None
    return Features(found, image, None if folder is None else Path(folder), _key(model, found, image), shape)


def before_noise(
    model: nn.Module, image: ImageSpec, data: Split, folder: str | Path | None = None
) -> tuple[nn.Module, ImageSpec, Split]:
    """What Monte Carlo passes need: layers without noise run once.

    Returns the noisy tail, how it takes its inputs, and the inputs; or what was given, if the network cannot be split.
    """
    features = open_features(model, image, folder)
    return (model, image, data) if features is None else (features.tail, features.spec, features.of(data))


def _maps(output: Tensor) -> Tensor:
    """Pooled features as maps of one pixel."""
    return output[:, :, None, None] if output.ndim == 2 else output


def _takes(seam: Seam, maps: Tensor, example: Tensor) -> bool:
    """Whether the tail takes pooled features as maps."""
    plain = seam.trunk(example)
    if plain.ndim == maps.ndim:
        return True
    with torch.no_grad(), deterministic(seam.tail):
        try:
            return torch.equal(seam.tail(maps), seam.tail(plain))
        except Exception:  # it has no layer that flattens them
            return False


def _key(model: nn.Module, seam: Seam, image: ImageSpec) -> str:
    tail = set(seam.tail.state_dict())
    digest = hashlib.sha256(_digest([seam.name, asdict(image), torch.__version__]).encode())
    for name, value in model.state_dict().items():
        if name not in tail:
            digest.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()


def _opened(path: Path, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Stored features; None if they are missing or incomplete."""
    try:
        stored: npt.NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return stored if stored.shape == shape and stored.dtype in (np.float16, np.float32) else None


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
