"""The lines of docs/transfer.md: from a network of timm or transformers to an answer."""

import importlib.util
import json
from pathlib import Path

import pytest
from PIL import Image

from uce_edge import Model
from uce_edge.contract import ResizeFilter, ResizeMode
from uce_edge.images.resize import Resize

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "timm", "transformers")),
    reason="torch, timm or transformers not installed: make test-zoo",
)


def _photo(folder: Path) -> Path:
    path = folder / "photo.png"
    Image.linear_gradient("L").convert("RGB").resize((300, 260)).save(path)
    return path


def test_a_vision_transformer_of_timm(tmp_path: Path) -> None:
    import timm

    from uce_edge_train import export_module, gaussianize

    network = timm.create_model("vit_tiny_patch16_224").eval()
    gaussianize(network, layers="tail", p=0.02)
    export_module(network, None, tmp_path / "vit.onnx")
    model = Model(tmp_path / "vit.onnx")
    assert model.metadata.image.resize == Resize(ResizeMode.CROP, 248, ResizeFilter.BICUBIC)
    assert model.metadata.image.mean == (0.5, 0.5, 0.5)
    assert 0 <= model.predict(_photo(tmp_path)).uncertainty <= 1


def test_a_convnext_of_transformers(tmp_path: Path) -> None:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    from uce_edge_train import describe, export_module, gaussianize

    names = {0: "cat", 1: "dog", 2: "owl"}
    config = ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], id2label=names)
    network = ConvNextForImageClassification(config).eval()
    settings = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    gaussianize(network, layers="tail", p=0.02)
    export_module(network, describe(network, tmp_path), tmp_path / "convnext.onnx")
    model = Model(tmp_path / "convnext.onnx")
    assert model.classes == ("cat", "dog", "owl")
    assert model.metadata.image.resize == Resize(ResizeMode.CROP, 256, ResizeFilter.BICUBIC)
    assert model.predict(_photo(tmp_path)).label in model.classes
