"""`train --backbone` with networks of timm and transformers, from folders."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Call
from PIL import Image

from uce_edge_train.data.features import FOLDER
from uce_edge_train.runs import Run

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "timm", "transformers")),
    reason="torch, timm or transformers not installed: make test-zoo",
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(30):
            pixels = np.clip(rng.normal(level, 30, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """timm, with or without torchvision."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "zoo"))
    from torchvision_stub import import_timm

    return import_timm()


def _trained(call: Call, photos: Path, backbone: str, out: Path) -> Run:
    options = ("--size", "64x64", "--resize", "stretch", "--epochs", 1, "--views", 1, "--batch-size", 8)
    said = call("train", "--data", photos, "--backbone", backbone, *options, "--out", out)
    assert said.code == 0, said.err
    return Run.load(out)


def test_a_network_of_timm(photos: Path, tmp_path: Path, call: Call, timm: Any) -> None:
    network = timm.create_model("resnet10t")
    timm.models.save_for_hf(network, tmp_path / "saved", safe_serialization=True)
    run = _trained(call, photos, f"timm:local-dir:{tmp_path / 'saved'}", tmp_path / "run")
    assert run.image.mean == (0.485, 0.456, 0.406)
    assert run.recipe.seam is not None
    assert run.recipe.seam.startswith("layer4")
    assert list((tmp_path / "run" / FOLDER).glob("*.npy"))
    assert call("export", tmp_path / "run", "--out", tmp_path / "timm.onnx").code == 0


def test_a_network_of_transformers(photos: Path, tmp_path: Path, call: Call) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=5)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "saved")
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 64, "width": 64}, "do_resize": True,
                "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}  # fmt: skip
    (tmp_path / "saved" / "preprocessor_config.json").write_text(json.dumps(settings))
    run = _trained(call, photos, f"hf:{tmp_path / 'saved'}", tmp_path / "run")
    assert run.image.mean == (0.5, 0.5, 0.5)
    assert run.recipe.init is not None
    assert run.recipe.init.published is not None


def test_what_is_not_on_the_machine_is_refused(photos: Path, tmp_path: Path, call: Call, timm: Any) -> None:
    for name in ("timm:no_such_network", f"hf:{tmp_path / 'nowhere'}"):
        said = call("train", "--data", photos, "--backbone", name, "--out", tmp_path / "run")
        assert said.error == "backbone.missing"
