"""What a step of training is fed with: pixels, or stored features."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from uce_edge_train.data.selection import Parts, Rows
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.recipe import Recipe

_log = logging.getLogger(__name__)
_VIEWS = 0  # the seed of all stored views, so that trainings with other seeds share them


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
    pixels: Rows
    augment: Augmentation

    def take(self, batch: Tensor, source: torch.Generator, device: torch.device) -> Tensor:
        """Augmented images."""
        pixels = torch.from_numpy(self.pixels[batch.numpy()])
        return self.augment(normalise(pixels.to(device), self.image), source)


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
    parts: Parts,
    folder: Path,
    hashes: Mapping[str, str],
) -> Feed:
    """What a network is trained on; computes the features of a frozen trunk.

    Args:
        model: The network, with its weights, on its device.
        dataset: The images.
        image: The images that the network takes.
        augment: How training images are changed.
        recipe: How it is trained.
        parts: The images that are fitted, and those that are watched.
        folder: Where features are stored.
        hashes: SHA-256 of the splits.
    """
    train = dataset.splits["train"]
    fitted, held_out = Rows(train.images, parts.fitted), parts.held_out(dataset)
    labels = torch.from_numpy(train.labels[parts.fitted])
    frozen = recipe.unfreeze in (Unfreeze.NONE, Unfreeze.TAIL)
    features = open_features(model, image, folder, recipe.seam) if frozen and recipe.seam else None
    if features is None:
        if frozen:
            why = "it is not a sequence of layers, or has noise in the frozen ones"
            _log.info("%s cannot be split: %s. Its frozen layers run in every step.", recipe.arch, why)
        return Pixels(model, image, held_out, labels, fitted, augment)
    views = features.views(len(train), recipe.views)
    if views < recipe.views:
        _log.info("%d views instead of %d: a run stores %d GB of features.", views, recipe.views, LARGEST >> 30)
    changes = Changes(augment, _VIEWS)
    with deterministic(model):
        # Of all training images: a posterior, the gate and the last training take these features, too.
        plain = features.view(train, 0, known=hashes["train"])
        others = [features.view(train, number, changes, hashes["train"]) for number in range(1, views)]
        if parts.watched is None:
            held_out = features.of(held_out, hashes["calibration"])
        else:
            held_out = replace(held_out, images=plain[parts.watched], originals=None)
    fitted_views = [Rows(view, parts.fitted) for view in (plain, *others)]
    return Stored(features.tail, features.spec, held_out, labels, Views(fitted_views))
