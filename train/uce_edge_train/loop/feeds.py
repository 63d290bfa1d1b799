"""What a step of training is fed with: pixels, or stored features."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from uce_edge.datasets.splits import Dataset, Split
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Unfreeze
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.data.features import LARGEST, Changes, Views, open_features
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.recipe import Recipe

_log = logging.getLogger(__name__)


class Feed(Protocol):
    """The inputs of a training, and the network that takes them."""

    @property
    def network(self) -> nn.Module:
        """The network, or its tail."""

    @property
    def image(self) -> ImageSpec:
        """How it takes the held-out images."""

    @property
    def held_out(self) -> Split:
        """The images that are watched."""

    @property
    def labels(self) -> Tensor:
        """Of the training images."""

    def take(self, batch: Tensor, source: torch.Generator, device: torch.device) -> Tensor:
        """The inputs of some training images, changed at random."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images, augmented in every step."""

    network: nn.Module
    image: ImageSpec
    held_out: Split
    labels: Tensor
    pixels: Tensor
    augment: Augmentation

    def take(self, batch: Tensor, source: torch.Generator, device: torch.device) -> Tensor:
        """Augmented images."""
        return self.augment(normalise(self.pixels[batch].to(device), self.image), source)


@dataclass(frozen=True, eq=False)
class Stored:
    """The stored output of a frozen trunk, in a few augmented views."""

    network: nn.Module
    image: ImageSpec
    held_out: Split
    labels: Tensor
    views: Views

    def take(self, batch: Tensor, source: torch.Generator, device: torch.device) -> Tensor:
        """Features, each of a random view."""
        return self.views.take(batch, source).to(device)


def of(
    model: nn.Module,
    dataset: Dataset,
    image: ImageSpec,
    augment: Augmentation,
    recipe: Recipe,
    out: Path,
    hashes: Mapping[str, str],
) -> Feed:
    """What a network is trained on; computes the features of a frozen trunk.

    Args:
        model: The network, with its weights, on its device.
        dataset: The images.
        image: The images that the network takes.
        augment: How training images are changed.
        recipe: How it is trained.
        out: The run, which stores features.
        hashes: SHA-256 of the splits.
    """
    train, held_out = dataset.splits["train"], dataset.splits["calibration"]
    labels = torch.from_numpy(train.labels)
    frozen = recipe.unfreeze in (Unfreeze.NONE, Unfreeze.TAIL)
    features = open_features(model, image, out, recipe.seam) if frozen and recipe.seam else None
    if features is None:
        if frozen:
            _log.info("%s is not a sequence of layers: its frozen layers run in every step.", recipe.arch)
        return Pixels(model, image, held_out, labels, torch.from_numpy(train.images), augment)
    views = features.views(len(train), recipe.views)
    if views < recipe.views:
        _log.info("%d views instead of %d: a run stores %d GB of features.", views, recipe.views, LARGEST >> 30)
    changes = Changes(augment, recipe.seed)
    with deterministic(model):
        stored = [features.view(train, number, changes, hashes["train"]) for number in range(views)]
        held_out = features.of(held_out, hashes["calibration"])
    return Stored(features.tail, features.spec, held_out, labels, Views(stored))
