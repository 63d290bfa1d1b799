"""Variances of large maps on a grid: compared with those at all positions, and with exact passes."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from uce_edge.contract import Inference, Sigma
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.noise import grid_moments
from uce_edge_export.options import Options
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module

SIDE = 64
BLOCK = 4  # the step of the grid at 64x64 positions


def file_of(network: nn.Module, folder: Path, inference: Inference, sigma: Sigma | None = None) -> Path:
    metadata = Metadata(tuple("0123"), ImageSpec(SIDE, SIDE, 3), inference=inference, samples=25, architecture="test")
    return export_module(network, metadata, folder / f"{inference}.onnx", options=Options(sigma=sigma)).path


def logits(path: Path, images: np.ndarray, samples: int) -> np.ndarray:
    return Model(path, "cpu").logits(images, samples, 0)


@pytest.mark.parametrize("sigma", [Sigma.EXACT, Sigma.FACTORED])
def test_maps_of_constant_blocks_have_the_moments_of_all_positions(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, sigma: Sigma
) -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 6, 1), nn.ReLU6(), nn.Conv2d(6, 8, 1), nn.Hardswish(), nn.Conv2d(8, 8, 1, groups=2), nn.ReLU()]
    network = gaussianize(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), 0.2)
    blocks = rng.integers(0, 256, (2, SIDE // BLOCK, SIDE // BLOCK, 3), dtype=np.uint8)
    images = blocks.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)
    assert grid_moments.step_for((SIDE, SIDE)) == BLOCK
    ours = logits(file_of(network, tmp_path, Inference.MOMENTS, sigma), images, 20)
    monkeypatch.setattr(grid_moments, "LARGE", SIDE)
    whole = logits(file_of(network, tmp_path, Inference.MOMENTS, sigma), images, 20)
    assert whole.std(0).min() > 1e-4
    np.testing.assert_allclose(ours, whole, atol=2e-5)


class Block(nn.Module):
    """Widen, filter, squeeze and excite, narrow, as MobileNet does; padded as TensorFlow does."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 3 * inputs
        self.expand, self.pad = nn.Conv2d(inputs, wide, 1), nn.ZeroPad2d((0, 1, 0, 1) if stride == 2 else 1)
        self.filter = nn.Conv2d(wide, wide, 3, stride, groups=wide)
        self.squeeze, self.excite, self.narrow = (
            nn.Conv2d(wide, 4, 1),
            nn.Conv2d(4, wide, 1),
            nn.Conv2d(wide, outputs, 1),
        )
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu6(self.filter(self.pad(nn.functional.hardswish(self.expand(x)))))
        gate = self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
        y = self.narrow(y * nn.functional.hardsigmoid(gate))
        return x + y if self.same else y


class Whole(nn.Module):
    """What needs all positions of a map: a maximum, a concatenation, a resized map, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 8, 3, 2, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        small = nn.functional.max_pool2d(y, 2)
        return self.second(self.norm(torch.cat([y, nn.functional.interpolate(small, scale_factor=2)], 1)))


NETWORKS = {
    "mobile": lambda: [Block(8, 8, 1), Block(8, 12, 2), Block(12, 12, 1), Block(12, 8, 2)],
    "whole": lambda: [Block(8, 8, 1), Whole()],
    "plain": lambda: [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 5, 2, 2), nn.SiLU()],
}


@pytest.mark.parametrize("sigma", [Sigma.EXACT, Sigma.FACTORED])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_large_maps_agree_with_exact_passes(
    tmp_path: Path, rng: np.random.Generator, name: str, sigma: Sigma
) -> None:
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    body = NETWORKS[name]()
    network = gaussianize(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), *body, *head), 0.1).eval()
    coarse = torch.tensor(rng.uniform(0, 255, (3, 3, 8, 8)), dtype=torch.float32)
    smooth = nn.functional.interpolate(coarse, (SIDE, SIDE), mode="bicubic").clamp(0, 255)
    images = smooth.permute(0, 2, 3, 1).numpy().astype(np.uint8)
    ours = logits(file_of(network, tmp_path, Inference.MOMENTS, sigma), images, 200)
    passes = logits(file_of(network, tmp_path, Inference.MC, sigma), images, 60)
    error = passes.std(0).mean() / math.sqrt(60)
    assert np.abs(ours.mean(0) - passes.mean(0)).max() < 0.5 * passes.std(0).mean() + 4 * error
    # Positions share noise, which moments do not know: the last layer's own noise is what both have.
    assert 0.4 < ours.std(0).mean() / passes.std(0).mean() < 1.4


def test_a_large_map_is_computed_as_without_noise(tmp_path: Path) -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6(), Block(8, 8, 1), Block(8, 8, 1)]
    network = gaussianize(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), 0.1)

    def nodes_of_whole_maps(inference: Inference) -> int:
        model = onnx.shape_inference.infer_shapes(onnx.load(file_of(network, tmp_path, inference)))
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
        return sum(shapes.get(node.output[0], [])[2:] == [SIDE, SIDE] for node in model.graph.node)

    assert nodes_of_whole_maps(Inference.MOMENTS) <= nodes_of_whole_maps(Inference.DETERMINISTIC)
