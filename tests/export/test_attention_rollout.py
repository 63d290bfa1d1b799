"""Heatmaps of transformers: attention rollout, as PyTorch computes it from the layers of the network."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.errors import raises
from torch import nn

from uce_edge import Model, contract
from uce_edge.contract import Inference
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export.options import Options
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module
from uce_edge_train.networks import vision_transformer

SIDE, WITH_MAP = 32, Options(heatmap=True)
METADATA = Metadata(tuple("abcde"), ImageSpec(SIDE, SIDE, 3), inference=Inference.DETERMINISTIC, samples=1)
IMAGES = np.random.default_rng(1).integers(0, 256, (3, SIDE, SIDE, 3)).astype(np.uint8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vision transformer with three blocks, 16 patches, and attention that is not uniform."""
    for name, value in {"SIDE": SIDE, "_PATCH": 8, "_WIDTH": 24, "_DEPTH": 3, "_HEADS": 3}.items():
        monkeypatch.setattr(vision_transformer, name, value)


def transformer(read: Callable[[torch.Tensor], torch.Tensor] | None = None) -> vision_transformer.VisionTransformer:
    """With random weights; `read` replaces how the class scores are read from the tokens."""
    torch.manual_seed(0)
    network = vision_transformer.VisionTransformer(5)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=2 / module.weight[0].numel() ** 0.5)
    nn.init.normal_(network.token, std=0.5)
    return Read(network, read).eval() if read else network.eval()


class Read(nn.Module):
    def __init__(self, network: vision_transformer.VisionTransformer, read: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.network, self.read = network, read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.network
        tokens = whole.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([whole.token.expand(x.shape[0], -1, -1), tokens], 1) + whole.positions
        return whole.classifier(self.read(whole.norm(whole.blocks(x))))


def rolled(network: nn.Module, images: np.ndarray, start: torch.Tensor) -> np.ndarray:
    """Rollout by hooks: the product of (A + I) / 2 over the blocks."""
    matrices: list[torch.Tensor] = []

    def attend(layer: vision_transformer.Attention, _: object, output: torch.Tensor) -> None:
        batch, tokens, width = output.shape
        query, key, _ = layer.qkv(layer.seen).reshape(batch, tokens, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-2, -1) / (width // layer.heads) ** 0.5, -1).mean(1)
        matrices.append((weights + torch.eye(tokens)) / 2)

    handles = []
    for layer in network.modules():
        if isinstance(layer, vision_transformer.Attention):
            handles.append(layer.register_forward_pre_hook(lambda one, given: setattr(one, "seen", given[0])))
            handles.append(layer.register_forward_hook(attend))
    with torch.no_grad():
        network(torch.tensor(images.transpose(0, 3, 1, 2) / 255, dtype=torch.float32))
    for handle in handles:
        handle.remove()
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    side = SIDE // 8
    return np.asarray((start @ product)[:, -side * side :].reshape(-1, side, side))


FIRST = torch.eye(17)[0]
READ: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor] | None, torch.Tensor]] = {
    "the class token": (None, FIRST),
    "the class token, sliced": (lambda x: x[:, :1].flatten(1), FIRST),
    "all tokens": (lambda x: x.mean(1), torch.full((17,), 1 / 17)),
    "two tokens": (lambda x: (x[:, 0] + x[:, 1]) / 2, (FIRST + torch.eye(17)[1]) / 2),
}


@pytest.mark.parametrize("name", READ)
def test_it_is_the_product_of_the_attention_of_all_blocks(name: str, small: None, tmp_path: Path) -> None:
    read, start = READ[name]
    network = transformer(read)
    export_module(network, METADATA, tmp_path / "m.onnx", options=WITH_MAP)
    file = Model(tmp_path / "m.onnx", "cpu")
    prediction = file.predict(IMAGES)
    assert file.metadata.outputs == (contract.HEATMAP,)
    assert prediction.heatmap is not None
    np.testing.assert_allclose(prediction.heatmap, rolled(network, IMAGES, start), rtol=1e-4, atol=1e-6)
    assert prediction.heatmap.std((1, 2)).min() > 0.05 * prediction.heatmap.mean()


@pytest.mark.parametrize("exclude", [(), ("stem", "blocks.0.attention.*", "blocks.0.mlp.*", "blocks.1.attention.*")])
def test_passes_have_their_mean_and_their_spread(exclude: tuple[str, ...], small: None, tmp_path: Path) -> None:
    network = gaussianize(transformer(), 0.2, exclude=exclude)
    export_module(network, replace(METADATA, inference=Inference.MC, samples=6), tmp_path / "m.onnx", options=WITH_MAP)
    file = Model(tmp_path / "m.onnx", "cpu")
    seeds, names = file.seeds(6), list(contract.MAPS)
    whole = file.outputs(IMAGES, seeds, names)
    each = [file.outputs(IMAGES, seeds[i : i + 1], names)[contract.HEATMAP] for i in range(6)]
    np.testing.assert_allclose(whole[contract.HEATMAP], np.mean(each, 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(whole[contract.HEATMAP_SPREAD], np.std(each, 0), rtol=1e-3, atol=1e-6)
    assert whole[contract.HEATMAP_SPREAD].max() > 1e-3


def test_moments_have_the_map_of_the_means(small: None, tmp_path: Path) -> None:
    network = gaussianize(transformer(), 0.02)
    for inference in (Inference.MC, Inference.MOMENTS):
        export_module(
            network, replace(METADATA, inference=inference, samples=20), tmp_path / f"{inference}.onnx",
            options=WITH_MAP,
        )  # fmt: skip
    moments = Model(tmp_path / "moments.onnx", "cpu").predict(IMAGES)
    exact = Model(tmp_path / "mc.onnx", "cpu").predict(IMAGES)
    assert moments.heatmap is not None
    assert moments.heatmap_spread is None
    np.testing.assert_allclose(moments.heatmap, exact.heatmap, atol=0.02)


class Pooled(nn.Module):
    """Scores read from the tokens by attention of one query."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.query, self.head = nn.Conv2d(3, 8, 8, 8), nn.Parameter(torch.ones(1, 1, 8)), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((torch.softmax(self.query @ places.transpose(1, 2), -1) @ places)[:, 0])


class Mixed(nn.Module):
    """Attention behind which another layer mixes all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.token = nn.Conv2d(3, 8, 8, 8), nn.Parameter(torch.ones(1, 1, 8))
        self.mix, self.head = nn.Linear(17, 17), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), places], 1)
        x = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return self.head(self.mix(x.transpose(1, 2)).transpose(1, 2)[:, 0])


@pytest.mark.parametrize(("network", "reason"), [(Pooled, "1x16 weights"), (Mixed, "mixes its tokens")])
def test_attention_that_cannot_be_followed_is_refused(
    network: Callable[[], nn.Module], reason: str, tmp_path: Path
) -> None:
    with raises("heatmap.attention", UsageError) as caught:
        export_module(network().eval(), METADATA, tmp_path / "m.onnx", options=WITH_MAP)
    assert reason in str(caught.value)
    assert not list(tmp_path.iterdir())
