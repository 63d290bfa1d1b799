"""Moments of norms, attention and whole modern blocks, against Monte Carlo."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

from uce_edge.contract import Inference
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise import inner_sums, moments
from uce_edge_export.noise.uncertain import Uncertain
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module

DRAWS = 20_000
Array = np.ndarray


def run(g: Builder, inputs: list[ir.Value], outputs: list[ir.Value], arrays: list[Array]) -> list[Array]:
    outputs = [g.Identity(value) for value in outputs]
    for value in outputs:
        value.dtype = ir.DataType.FLOAT
    graph = ir.Graph(inputs, outputs, nodes=g.nodes, initializers=g.initializers, opset_imports={"": 18}, name="g")
    proto = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    feed = {value.name: array.astype(np.float32) for value, array in zip(inputs, arrays, strict=True)}
    return onnxruntime.InferenceSession(proto).run(None, feed)


def rule(kind: str, given: list[tuple[Array, Array]], *constants: Array, **attributes: object) -> list[Array]:
    """Mean and variance that a rule gives for Gaussians of given mean and variance."""
    g, inputs, operands, values = Builder(), [], [], []
    for i, (mean, _) in enumerate(given):
        pair = [ir.val(f"{name}{i}", ir.DataType.FLOAT, mean.shape) for name in "mv"]
        inputs += pair
        operands.append(Uncertain(*pair))
        values.append(ir.val(f"x{i}", ir.DataType.FLOAT, mean.shape))
    fixed = [g.constant(array) for array in constants]
    node = ir.node(kind, [*values, *fixed], attributes)
    found = moments.propagate(g, node, [*operands, *fixed])[0]
    return run(g, inputs, [found.mean, found.variance], [array for pair in given for array in pair])


def drawn(function: Callable[..., Array], given: list[tuple[Array, Array]]) -> list[Array]:
    rng = np.random.default_rng(3)
    values = function(*(m + np.sqrt(v) * rng.normal(size=(DRAWS, *m.shape)) for m, v in given))
    return [values.mean(0), values.var(0)]


def standardised(x: Array, axes: tuple[int, ...]) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def shares(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


SCALE, BIAS = np.linspace(0.5, 2, 12, dtype=np.float32), np.linspace(-1, 1, 12, dtype=np.float32)
CHANNEL = np.array([0.5, 1, 2], np.float32)
CASES = {
    "layer norm": (
        ("LayerNormalization", SCALE, BIAS), {}, [(1, 4, 12)],
        lambda x: standardised(x, (-1,)) * SCALE + BIAS,
    ),
    "instance norm": (
        ("InstanceNormalization", CHANNEL, CHANNEL), {}, [(1, 3, 16)],
        lambda x: standardised(x, (-1,)) * CHANNEL[:, None] + CHANNEL[:, None],
    ),
    "softmax": (("Softmax",), {"axis": -1}, [(1, 4, 9)], shares),
    "product": (("MatMul",), {}, [(1, 4, 6), (1, 6, 5)], np.matmul),
    "einsum": (
        ("Einsum",), {"equation": "bik,bjk->bij"}, [(1, 4, 6), (1, 5, 6)],
        lambda a, b: a @ np.swapaxes(b, -1, -2),
    ),
    "hard swish": (("HardSwish",), {}, [(1, 40)], lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_near_monte_carlo(name: str) -> None:
    (kind, *constants), attributes, shapes, function = CASES[name]
    rng = np.random.default_rng(1)
    given = [(rng.normal(size=shape), rng.uniform(0.02, 0.2, shape)) for shape in shapes]
    mean, variance = rule(kind, given, *constants, **attributes)
    wanted, spread = drawn(function, given)
    assert np.abs(mean - wanted).max() < 0.2 * np.sqrt(spread).mean()
    assert variance.mean() == pytest.approx(spread.mean(), rel=0.12)


def test_a_sum_over_positions_does_not_depend_on_the_batch() -> None:
    x, axes = ir.val("x", ir.DataType.FLOAT, ["batch", 49, 192]), ir.val("axes", const_value=ir.tensor(np.array([1])))
    node = ir.node("ReduceMean", [x, axes], {"keepdims": 0})
    node.outputs[0].shape = ir.Shape(["batch", 192])
    values = np.random.default_rng(0).normal(size=(3, 49, 192)).astype(np.float32)

    def found(array: Array) -> Array:
        g, image = Builder(), ir.val("x", ir.DataType.FLOAT, ["batch", 49, 192])
        return run(g, [image], inner_sums.copy(g, node, [image, axes]), [array])[0]

    together = found(values)
    np.testing.assert_array_equal(together[1:2], found(values[1:2]))
    np.testing.assert_allclose(together, values.mean(1), atol=1e-6)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.after, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / 4, -1) @ v)
        return x + self.narrow(nn.functional.gelu(self.wide(self.after(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.norm = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 10), nn.LayerNorm(16)
        self.blocks = nn.Sequential(Attention(), Attention())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x.mean(1)))  # type: ignore[no-any-return]


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale, self.last, self.head = nn.Parameter(torch.full((16,), 0.5)), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.narrow(nn.functional.gelu(self.wide(self.norm(self.depth(x).permute(0, 2, 3, 1))))) * self.scale
        return self.head(self.last((x + y.permute(0, 3, 1, 2)).mean((2, 3))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Transformer, ConvNext])
def test_a_modern_network_is_near_its_passes(kind: type[nn.Module], tmp_path: Path, rng: np.random.Generator) -> None:
    torch.manual_seed(0)
    network = gaussianize(kind(), 0.05).eval()
    images = rng.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)

    def logits(inference: Inference) -> Array:
        metadata = Metadata(tuple("0123456789"), ImageSpec(16, 16, 3), inference=inference, architecture="test")
        return Model(export_module(network, metadata, tmp_path / f"{inference}.onnx").path, "cpu").logits(
            images, 200, 0
        )

    ours, passes = logits(Inference.MOMENTS), logits(Inference.MC)
    assert np.abs(ours.mean(0) - passes.mean(0)).max() < 0.6 * passes.std(0).mean()
    assert 0.6 < ours.std(0).mean() / passes.std(0).mean() < 1.6
