"""Whole families of networks, built from torch layers, equal PyTorch under the same noise."""

import contextlib
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.errors import raises
from torch import nn

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind, PerturbationKind, Sigma
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.noise.sampling import PASSES
from uce_edge_export.options import Expand, Options
from uce_edge_train import gaussianize
from uce_edge_train.dropout.gaussian_layers import gaussian_layers
from uce_edge_train.dropout.layer_choice import NoiseWarning
from uce_edge_train.export import export_module
from uce_edge_train.networks import architectures

CLASSES = tuple("0123456789")


def vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M"):
        if width == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, int(width), 3, padding=1), nn.BatchNorm2d(int(width)), nn.ReLU()]
            channels = int(width)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 4, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 10))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.shortcut else self.body(x)


def mobilenet_v2() -> nn.Module:
    blocks = [InvertedResidual(16, 24, 2, 6), InvertedResidual(24, 24, 1, 6), InvertedResidual(24, 32, 2, 6)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU6(), *blocks, nn.Conv2d(32, 64, 1), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(0, 2, 3, 1, 4).unbind(1)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "attention": Attention(width, 4),
                    "norm2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width)),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = x + block["attention"](block["norm1"](x))
            x = x + block["mlp"](block["norm2"](x))
        return self.head(self.norm(x)[:, 0])


class ChannelNorm(nn.LayerNorm):
    """A layer norm of channels that come first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(nn.functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), ChannelNorm(16), ConvNeXtBlock(16), ChannelNorm(16), nn.Conv2d(16, 24, 2, 2),
        ConvNeXtBlock(24), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.LayerNorm(24), nn.Linear(24, 10),
    )  # fmt: skip


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, width // 4, 1)
        self.expand = nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.expand(nn.functional.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


def efficientnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False),
        nn.BatchNorm2d(16), nn.SiLU(), SqueezeExcite(16), nn.Conv2d(16, 24, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 10),
    )  # fmt: skip


NETWORKS = {
    "resnet20": lambda: architectures.resnet20(10),
    "densenet": lambda: architectures.DenseNet([2, 4, 4, 2], 10),
    "vgg11": vgg11,
    "mobilenet_v2": mobilenet_v2,
    "vit": VisionTransformer,
    "convnext": convnext,
    "efficientnet": efficientnet,
}


def metadata(**changes: object) -> Metadata:
    return Metadata(CLASSES, ImageSpec(32, 32, 3, mean=(0.5,), std=(0.25,)), **changes)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.7, 1.3)
    return gaussianize(model)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_pytorch_under_the_same_noise(name: str, tmp_path: Path) -> None:
    done = export_module(build(name), metadata(), tmp_path / "m.onnx")
    assert done.parity.largest_difference < 1e-4
    assert done.parity.largest_z < 5
    # Every Conv and Linear layer but the first is noisy.
    assert (
        len(done.metadata.layers) == sum(isinstance(m, nn.Conv2d | nn.Linear) for m in NETWORKS[name]().modules()) - 1
    )


class Transformer(nn.Module):
    """A vision transformer whose attention is written in one of the usual ways."""

    def __init__(self, how: str, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        if how.startswith("encoder"):
            first = how == "encoder"
            layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, "gelu", batch_first=first, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        elif how.startswith("multihead"):
            self.attention = nn.MultiheadAttention(width, heads)
        else:
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.norm(x + self.mixed(x))[:, 0])

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        if self.how == "encoder":
            return self.body(x)
        if self.how == "encoder, tokens first":
            return self.body(x.transpose(0, 1)).transpose(0, 1)
        if self.how == "multihead, tokens first":
            y = x.transpose(0, 1)
            return self.attention(y, y, y)[0].transpose(0, 1)
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.how == "einsum":
            scores = torch.einsum("bhlk,bhtk->bhlt", q, k) / math.sqrt(q.shape[-1])
            y = torch.einsum("bhlt,bhtv->bhlv", scores.softmax(-1), v)
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize("how", ["permute", "einsum", "multihead, tokens first", "encoder", "encoder, tokens first"])
def test_attention_in_the_usual_ways_equals_pytorch(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = how in ("permute", "einsum")
    with contextlib.nullcontext() if plain else pytest.warns(NoiseWarning, match="MultiheadAttention"):
        model = gaussianize(Transformer(how))
    kept = {}
    if how == "encoder, tokens first":
        model.body.layers[0].self_attn.dropout = 0.0  # refused by name: it is inside a fused block
        kept = {"dropout": "keep"}
    done = export_module(model, metadata(), tmp_path / "m.onnx", **kept)
    assert done.parity.largest_difference < 1e-5
    # Those that are called: what is inside nn.MultiheadAttention has no noise.
    gaussian = {layer.name for layer in done.metadata.layers if layer.kind is PerturbationKind.GAUSSIAN}
    assert gaussian == {f"{name}.weight" for name in gaussian_layers(model)}
    assert len(done.metadata.layers) - len(gaussian) == (3 if kept else 0)


def test_an_einsum_across_images_is_refused_by_name(tmp_path: Path) -> None:
    class Similar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body, self.head = nn.Conv2d(3, 4, 8, 8), nn.Linear(64, 10), nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.body(self.stem(x).flatten(1))
            return self.head(torch.einsum("ik,jk->ij", y, y) @ y)

    with raises("graph.batch-mixing"):
        export_module(gaussianize(Similar()), metadata(), tmp_path / "m.onnx")


class JoinedRows(nn.Module):
    """Batch-norm over images and places at once, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.wide = nn.Conv2d(3, 12, 8, 8), nn.Linear(12, 20, bias=False)
        self.norm, self.head = nn.BatchNorm1d(20), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wide(self.patches(x).flatten(2).transpose(1, 2))
        x = self.norm(x.flatten(0, 1)).reshape_as(x)
        return self.head(nn.functional.hardswish(x).mean(1))


def test_images_joined_with_places_do_not_pass_for_passes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    done = export_module(gaussianize(JoinedRows()), metadata(), tmp_path / "m.onnx")
    assert done.parity.largest_difference < 1e-5
    graph = onnx.load(tmp_path / "m.onnx").graph
    shapes = {info.name: info.type.tensor_type.shape.dim for info in graph.value_info}
    # ONNX Runtime plans its memory by these names: one of another size costs a warning in every call.
    joined = [node for node in graph.node if node.op_type == "BatchNormalization"]
    for node in joined:
        dims = shapes.get(node.input[0])
        assert dims is None or dims[0].dim_param != PASSES
    assert joined


@pytest.mark.parametrize("noise", [NoiseKind.RANDN, NoiseKind.INPUT])
def test_other_sources_of_noise_pass_the_gate(noise: NoiseKind, tmp_path: Path) -> None:
    done = export_module(build("mobilenet_v2"), metadata(noise=noise), tmp_path / "m.onnx")
    assert done.metadata.noise is noise
    assert done.parity.largest_difference < 1e-4


def test_noise_can_start_deeper_and_then_less_runs_per_pass(tmp_path: Path) -> None:
    def export(*noisy: str) -> Metadata:
        return export_module(build("resnet20"), metadata(), tmp_path / "m.onnx", options=Options(noisy)).metadata

    everywhere, deeper, last = export(), export("blocks.[6-8].*", "classifier"), export("last:1")
    assert [layer.name for layer in last.layers] == ["classifier.weight"]
    assert deeper.layers == everywhere.layers[-len(deeper.layers) :]
    assert deeper.layers[0].name == "blocks.6.conv1.weight"
    assert everywhere.costs.macs_per_pass > deeper.costs.macs_per_pass > last.costs.macs_per_pass
    # mu and sigma of the only noisy layer run once, too: a pass costs no multiplication at all.
    assert last.costs.macs_per_pass == 0


def test_costs_count_multiplications_and_bytes(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, stride=2), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(),
        nn.Linear(4 * 13 * 13, 10),
    )  # fmt: skip
    done = export_module(gaussianize(model), metadata(), tmp_path / "m.onnx")
    first, second = 32 * 32 * 8 * 27, 15 * 15 * 4 * 72
    third, last = 13 * 13 * 4 * 18, 4 * 13 * 13 * 10
    # The most that lives at once is the first layer's output beside the second's, in four copies of four bytes.
    assert done.metadata.costs.to_document() == {
        "macs_once": first + 2 * second,
        "macs_per_pass": 2 * (third + last),
        "bytes_per_pass": 4 * 4 * (8 * 32 * 32 + 4 * 15 * 15),
        "bytes_per_draw": 4 * 4 * 4 * 15 * 15,
    }


def test_expanding_early_gives_the_same_answer(tmp_path: Path) -> None:
    answers = []
    for expand in Expand:
        out = tmp_path / f"{expand}.onnx"
        export_module(build("mobilenet_v2"), metadata(), out, options=Options(expand=expand))
        images = np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        answers.append(Model(out, "cpu").logits(images, 4))
    assert np.allclose(*answers, atol=1e-5)


def test_a_module_used_twice_gets_fresh_noise_each_time(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.body = nn.Conv2d(8, 8, 3, padding=1)
            self.head = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(torch.relu(self.body(self.stem(x)))).mean((2, 3)))

    done = export_module(gaussianize(Twice()), metadata(), tmp_path / "m.onnx")
    assert [layer.name for layer in done.metadata.layers] == ["body.weight", "body.weight", "head.weight"]


def test_a_network_that_mixes_its_batch_is_refused_by_name(tmp_path: Path) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 32)
            self.hidden = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.hidden(self.conv(x).flatten(1))
            return y - y.mean(0, keepdim=True)

    with raises("graph.batch-mixing"):
        export_module(gaussianize(Mixing()), metadata(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with raises("argument.noisy"):
        export_module(build("convnext"), metadata(), tmp_path / "m.onnx", options=Options(("nothing*",)))


def test_a_deterministic_file_has_no_layers(tmp_path: Path) -> None:
    done = export_module(build("vit"), metadata(inference=Inference.DETERMINISTIC, samples=1), tmp_path / "m.onnx")
    assert done.metadata.layers == ()
    assert done.metadata.noise is NoiseKind.NONE


def test_a_mean_over_tokens_does_not_depend_on_the_number_of_images_or_passes(tmp_path: Path) -> None:
    class MeanOverTokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 24, 4, 4)
            self.mix = nn.Linear(24, 24)
            self.head = nn.Linear(24, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.mix(self.patches(x).flatten(2).transpose(1, 2)).mean(1))

    torch.manual_seed(0)
    done = export_module(gaussianize(MeanOverTokens()), metadata(), tmp_path / "m.onnx")
    assert done.parity.largest_difference < 1e-5


class Computed(nn.Conv2d):
    """A convolution that standardises its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class Positions(nn.Module):
    """Adds a layer's output for constant positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.computed = nn.Conv2d(3, 4, 3, stride=4), Computed(4, 4, 3)
        self.places, self.head = nn.Linear(2, 4), nn.Linear(4, 10)
        self.borrowed = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.computed(self.stem(x).relu()).mean((2, 3))
        y = nn.functional.linear(y, self.borrowed.weight)  # as BEiT does
        return self.head(y + self.places(torch.ones(1, 2)))


@pytest.mark.parametrize("sigma", ["exact", "factored"])
def test_computed_weights_have_noise_and_constant_layers_are_named(sigma: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = gaussianize(Positions(), sigma=sigma)
    with pytest.warns(NoiseWarning) as caught:
        done = export_module(model, metadata(), tmp_path / "m.onnx")
    first, second = (str(one.message) for one in caught if one.category is NoiseWarning)
    assert "no noise in places: the image does not reach" in first
    assert "no noise in borrowed: the network never calls" in second
    assert [layer.name for layer in done.metadata.layers] == ["computed.weight", "head.weight"]
    assert done.parity.largest_difference < 1e-5


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("efficientnet-lite0", ["head.0", "classifier"]),
        ("mobilenetv3-small", ["last.0", "hidden", "classifier"]),
        ("vit-tiny", ["blocks.11.mlp.2", "classifier"]),
        ("resnet18", ["blocks.7.conv2", "classifier"]),
    ],
)
def test_a_tail_of_every_kind_of_network(name: str, tail: list[str]) -> None:
    network = gaussianize(architectures.build(name, 10, 3), layers="tail")
    assert list(gaussian_layers(network)) == tail


@pytest.mark.parametrize("sigma", [Sigma.EXACT, Sigma.FACTORED])
def test_a_pass_of_a_tail_runs_no_convolution(sigma: Sigma, tmp_path: Path) -> None:
    network = gaussianize(architectures.build("resnet8", 10, 3), layers="tail", sigma=sigma)
    done = export_module(network, metadata(), tmp_path / "m.onnx")
    assert len(done.metadata.layers) == 2
    drawn, repeated = {contract.SEEDS}, []
    for node in onnx.load(done.path).graph.node:
        if drawn.intersection(node.input):
            drawn.update(node.output)
            repeated.append(node.op_type)
    assert "Gemm" in repeated
    assert "Conv" not in repeated


@pytest.mark.parametrize("inference", [Inference.MC, Inference.MOMENTS])
def test_the_first_noise_comes_once_a_pass_for_all_images(inference: Inference, tmp_path: Path) -> None:
    network = gaussianize(architectures.build("resnet8", 10, 3), layers="tail")
    done = export_module(network, metadata(inference=inference, samples=5), tmp_path / "m.onnx")
    image, gathered = {contract.IMAGE}, []
    for node in onnx.load(done.path).graph.node:
        if image.intersection(node.input):
            image.update(node.output)
        if node.op_type == "Gather" and node.input[0] == "noise.table":
            gathered.append(node.input[1] in image)
    assert gathered == [False, True]  # the convolution's or the drawn features', and the classifier's
    model, pixels = Model(done.path, "cpu"), np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    together = model.predict(pixels).probabilities
    for number in range(3):
        assert np.allclose(model.predict(pixels[[number]]).probabilities[0], together[number], atol=1e-6)


def test_noise_by_channel_is_cheap_and_the_same_in_the_file(tmp_path: Path) -> None:
    network = gaussianize(architectures.build("mobilenetv3-small", 10, 3), 0.01, sigma="channel")
    done = export_module(network, metadata(), tmp_path / "m.onnx")  # compared with PyTorch by the parity gate
    kinds = {layer.kind for layer in done.metadata.layers}
    assert kinds == {PerturbationKind.CHANNEL, PerturbationKind.GAUSSIAN}  # linear layers have no map
    plain = export_module(network, metadata(inference=Inference.DETERMINISTIC, samples=1), tmp_path / "e.onnx")
    assert done.metadata.costs.macs(1) < 1.5 * plain.metadata.costs.macs(1)  # a linear layer is two layers
    tail = export_module(network, metadata(), tmp_path / "t.onnx", options=Options(("tail",))).metadata.costs
    assert tail.macs_per_pass > 0.01 * plain.metadata.costs.macs(1)
    assert not tail.runs_once  # its last convolution is in every pass
    with raises("moments.operator"):
        export_module(network, metadata(inference=Inference.MOMENTS), tmp_path / "n.onnx")
