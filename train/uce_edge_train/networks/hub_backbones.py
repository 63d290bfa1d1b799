"""Pretrained networks of timm and transformers, from this machine.

Nothing is downloaded: timm reads its cache, or a folder, and transformers a folder.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import ImageSpec, Pretrained
from uce_edge_export import layer_choice
from uce_edge_export.source import image_settings
from uce_edge_train.networks import seam as seams
from uce_edge_train.networks.backbones import HF, RECIPE, TIMM
from uce_edge_train.networks.class_logits import logits_of
from uce_edge_train.networks.initial_weights import Start

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class ReturningLogits(nn.Module):
    """A network that returns its logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        return logits_of(self.network(x))


@dataclass(frozen=True, eq=False)
class HubBackbone:
    """A network of a hub with its weights."""

    name: str
    """With the prefix of the hub."""
    image: ImageSpec
    tensors: Mapping[str, Tensor]
    """The weights, by the names of `build`."""
    licence: str
    source: str

    def recipe(self) -> dict[str, Any]:
        """What it changes in the plain recipe, with its weights."""
        sha256 = digest(self.tensors)
        start = Start(self.name, sha256, published=Pretrained(self.name, self.licence, self.source, sha256))
        image, factor = self.image, self.image.scale / 255  # a recipe has pixels from 0 to 1
        mean, std = (tuple(factor * value for value in values) for values in (image.mean, image.std))
        network = build(self.name, 2, image.channels)
        seam = seams.find(network, torch.zeros(2, image.channels, image.height, image.width))
        return RECIPE | {
            "arch": self.name, "init": start, "seam": seam, "noisy": (layer_choice.TAIL,), "mean": mean, "std": std
        }  # fmt: skip


def build(name: str, classes: int, channels: int) -> nn.Module:
    """A network of a hub with random weights."""
    if name.startswith(TIMM):
        made: nn.Module = _hub("timm").create_model(
            name.removeprefix(TIMM), pretrained=False, num_classes=classes, in_chans=channels
        )
        return made
    transformers = _hub("transformers")
    config = transformers.AutoConfig.from_pretrained(
        name.removeprefix(HF), num_labels=classes, num_channels=channels, local_files_only=True
    )
    return ReturningLogits(transformers.AutoModelForImageClassification.from_config(config))


def load(name: str) -> HubBackbone:
    """A network of a hub with its weights.

    Raises:
        UsageError: They are not on this machine.
    """
    model = name.partition(":")[2]
    try:
        if name.startswith(TIMM):
            network = _hub("timm").create_model(model, pretrained=True)
            config = network.pretrained_cfg
            image = image_settings.of_timm(config).image
            source = str(config.get("hf_hub_id") or config.get("url") or model)
            return HubBackbone(name, image, network.state_dict(), str(config.get("license") or "unknown"), source)
        if not Path(model).is_dir():
            raise OSError("there is no such folder")
        auto = _hub("transformers").AutoModelForImageClassification
        wrapped = ReturningLogits(auto.from_pretrained(model, local_files_only=True))
        return HubBackbone(name, image_settings.of_folder(model).image, wrapped.state_dict(), "unknown", model)
    except UceEdgeError:
        raise
    except Exception as error:  # hubs raise whatever their loading ran into
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(
            expected(
                "`backbone`",
                "a network whose weights are on this machine",
                name,
                f"{reason}. Fetch them once: {_fetch(name)}",
            ),
            "backbone.missing",
        ) from None


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of weights, in name order."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _fetch(name: str) -> str:
    model = name.partition(":")[2]
    if name.startswith(TIMM):
        return f"python -c \"import timm; timm.create_model('{model}', pretrained=True)\""
    return f"hf download OWNER/NAME --local-dir {model}"


def _hub(package: str) -> Any:
    for variable in _OFFLINE:
        os.environ.setdefault(variable, "1")
    try:
        return import_module(package)
    except ImportError as error:
        lacking = error.name or package  # timm itself needs torchvision
        raise UceEdgeError(
            f"--backbone needs {lacking}, which is not installed. Run: pip install {lacking}", "part.missing"
        ) from None
