"""Untrained networks: speed does not depend on the weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from uce_edge.contract import Inference
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.options import Options
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module
from uce_edge_train.networks import architectures


@pytest.fixture(scope="session", params=["resnet8", "resnet20"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """A network as passes with exact and with factored sigma, and its deterministic file; 32x32 RGB, 2 threads."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    network = gaussianize(architectures.build(request.param, 10, 3))
    opened = {}
    for form in ("exact", "factored", "deterministic"):
        plain = form == "deterministic"
        metadata = Metadata(
            tuple("0123456789"), ImageSpec(32, 32, 3), inference=Inference.DETERMINISTIC if plain else Inference.MC,
            samples=1 if plain else 25, architecture=request.param,
        )  # fmt: skip
        options = Options() if plain else Options(sigma=form)
        path = export_module(network, metadata, folder / f"{form}.onnx", options=options).path
        opened[form] = Model(path, "cpu", threads=2)
    return opened


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
