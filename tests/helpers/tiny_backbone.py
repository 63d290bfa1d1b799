"""A backbone of random weights, small enough for tests."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from uce_edge.images.resize import parse
from uce_edge.metadata import ImageSpec
from uce_edge_train.networks import architectures
from uce_edge_train.networks.backbones import BACKBONES, Backbone

PACKAGE = "tiny_weights_of_a_test"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Backbone:
    """Register it under a name, with its weights in an installed package."""
    torch.manual_seed(0)
    package = folder / "site" / PACKAGE
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    file = package / "models" / "tiny.safetensors"
    save_file(architectures.build("resnet8", 10, 3).state_dict(), file)
    monkeypatch.syspath_prepend(str(folder / "site"))
    backbone = Backbone(
        arch="resnet8", image=ImageSpec(24, 24, 3, mean=(0.4,), std=(0.3,), resize=parse("crop:26:bicubic")),
        seam="blocks.2", noisy=("classifier",), package=PACKAGE, file="models/tiny.safetensors",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(), licence="CC0-1.0", source="https://example.org/tiny",
        megabytes=0.3, million_macs=1,
    )  # fmt: skip
    monkeypatch.setitem(BACKBONES, name, backbone)
    return backbone
