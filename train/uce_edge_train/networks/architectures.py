"""Network architectures; `gaussianize` adds the noise.

Residual networks follow He et al. 2016, dense ones Huang et al. 2017. `stem="cifar"` keeps the resolution with one
3x3 convolution; `stem="imagenet"` is the 7x7 stride-2 stem with max-pooling. Every function is
`name(classes, stem, channels)`, `channels` being those of the image. Networks for 224x224 pixels have modules of their
own, and one stem.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge_train.choices import Architecture, Stem
from uce_edge_train.networks import arch_names
from uce_edge_train.networks.backbones import HF, TIMM
from uce_edge_train.networks.efficientnet_lite import EfficientNetLite
from uce_edge_train.networks.mobilenet_v3 import MobileNetV3
from uce_edge_train.networks.vision_transformer import VisionTransformer


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    A 1x1 convolution adapts the shortcut where the shape changes.
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, and a shortcut.

    The last is four times as wide; the 3x3 one has the stride.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.shortcut = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, stages of residual blocks, global average, one linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        widths: list[int],
        depths: list[int],
        classes: int,
        stem: str = "cifar",
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_stem(stem, channels, widths[0]))
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for index in range(depth):
                blocks.append(block(inputs, width, 2 if stage > 0 and index == 0 else 1))
                inputs = width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        return self.classifier(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))  # type: ignore[no-any-return]


class ConvNet5(nn.Module):
    """Strided convolutions of 48, 96 and 192 channels, linear layers.

    It has weights enough to memorise some thousand small images in a few minutes of a processor.
    """

    def __init__(self, classes: int, stem: str = "cifar", channels: int = 3) -> None:
        super().__init__()
        if stem != Stem.CIFAR:
            raise UsageError(expected("`stem`", f"{Stem.CIFAR} for convnet5", stem, "Leave it out"))
        self.features = nn.Sequential(
            *_strided(channels, 48, 5), *_strided(48, 96, 3), *_strided(96, 192, 3), nn.AdaptiveAvgPool2d(4)
        )
        self.hidden = nn.Sequential(nn.Linear(16 * 192, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU())
        self.classifier = nn.Linear(256, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        return self.classifier(self.hidden(torch.flatten(self.features(x), 1)))  # type: ignore[no-any-return]


class ResNet9(nn.Module):
    """Eight 3x3 convolutions, two shortcuts, one linear layer.

    The shape is that of Page's DAWNBench network of 2018: shallow and wide, it learns in few epochs.
    """

    def __init__(self, widths: list[int], classes: int, stem: str = "cifar", channels: int = 3) -> None:
        super().__init__()
        thin, middle, wide = widths
        self.stem = nn.Sequential(*_stem(stem, channels, thin), _convolution(thin, middle), nn.MaxPool2d(2))
        self.early = nn.Sequential(_convolution(middle, middle), _convolution(middle, middle))
        self.widen = nn.Sequential(_convolution(middle, wide), nn.MaxPool2d(2))
        self.late = nn.Sequential(_convolution(wide, wide), _convolution(wide, wide))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(wide, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        x = self.stem(x)
        x = self.widen(x + self.early(x))
        x = x + self.late(x)
        return self.classifier(torch.flatten(self.pool(x), 1))  # type: ignore[no-any-return]


class DenseLayer(nn.Module):
    """Pre-activation 1x1 and 3x3 convolutions, concatenated to the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The input with `growth` more channels."""
        y = self.conv1(torch.relu(self.bn1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.bn2(y)))], 1)


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions, average, linear layer."""

    def __init__(self, depths: list[int], classes: int, stem: str = "cifar", channels: int = 3) -> None:
        super().__init__()
        growth, width = 32, 64
        layers = _stem(stem, channels, width)
        for stage, depth in enumerate(depths):
            for _ in range(depth):
                layers.append(DenseLayer(width, growth))
                width += growth
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            if stage < len(depths) - 1:
                layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
                width //= 2
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(width, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))  # type: ignore[no-any-return]


def _stem(stem: str, channels: int, width: int) -> list[nn.Module]:
    if stem == Stem.CIFAR:
        return [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    if stem == Stem.IMAGENET:
        first = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
        return [first, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    raise UsageError(expected("`stem`", f"one of {', '.join(Stem)}", stem, f"Small images want {Stem.CIFAR}"))


def _strided(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, 2, padding=kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


def _convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


_THIN, _WIDE = [16, 32, 64], [64, 128, 256, 512]

resnet8 = partial(ResNet, BasicBlock, _THIN, [1, 1, 1])
resnet9 = partial(ResNet9, [24, 48, 96])
resnet20 = partial(ResNet, BasicBlock, _THIN, [3, 3, 3])
resnet18 = partial(ResNet, BasicBlock, _WIDE, [2, 2, 2, 2])
resnet34 = partial(ResNet, BasicBlock, _WIDE, [3, 4, 6, 3])
resnet50 = partial(ResNet, Bottleneck, _WIDE, [3, 4, 6, 3])
resnet101 = partial(ResNet, Bottleneck, _WIDE, [3, 4, 23, 3])
densenet121 = partial(DenseNet, [6, 12, 24, 16])
densenet169 = partial(DenseNet, [6, 12, 32, 32])

ARCHITECTURES: dict[Architecture, Callable[..., nn.Module]] = {
    Architecture.RESNET8: resnet8,
    Architecture.CONVNET5: ConvNet5,
    Architecture.RESNET9: resnet9,
    Architecture.RESNET20: resnet20,
    Architecture.RESNET18: resnet18,
    Architecture.RESNET34: resnet34,
    Architecture.RESNET50: resnet50,
    Architecture.RESNET101: resnet101,
    Architecture.DENSENET121: densenet121,
    Architecture.DENSENET169: densenet169,
    Architecture.EFFICIENTNET_LITE0: partial(EfficientNetLite, 1.0, 1.0),
    Architecture.EFFICIENTNET_LITE1: partial(EfficientNetLite, 1.0, 1.1),
    Architecture.EFFICIENTNET_LITE2: partial(EfficientNetLite, 1.1, 1.2),
    Architecture.MOBILENETV3_SMALL: MobileNetV3,
    Architecture.VIT_TINY: VisionTransformer,
}
"""`Architecture` describes each."""


def build(name: str, classes: int, channels: int, stem: str = "cifar") -> nn.Module:
    """A network with random weights.

    Args:
        name: One of `ARCHITECTURES`, `timm:NAME`, `hf:FOLDER`, or `package.module:function` for the user's own function
            of (classes, channels).
        classes: Number of classes.
        channels: Channels of the image.
        stem: For the networks of this module: one of `Stem`.
    """
    if name.startswith((TIMM, HF)):
        from uce_edge_train.networks import hub_backbones

        return hub_backbones.build(name, classes, channels)
    if ":" in name:
        model = _own(name)(classes=classes, channels=channels)
        if not isinstance(model, nn.Module):
            raise UceEdgeError(
                expected(f"{name}(classes, channels)", "a torch module", type(model).__name__, "Return one"),
                "architecture.not-a-module",
            )
        return model
    check(name)
    return ARCHITECTURES[Architecture(name)](classes=classes, stem=stem, channels=channels)


def check(name: str, folder: Path | None = None) -> bool:
    """Reject a name that means no network.

    Args:
        name: As in `build`.
        folder: Where to look for the user's own module, too, after all installed ones; for a name that the user typed.
            A run that names code must not have it imported from wherever it lies.

    Returns:
        Whether the module was found in the folder alone.
    """
    if ":" in name:
        return _imported(name, folder)
    arch_names.check(name)
    return False


def _imported(name: str, folder: Path | None) -> bool:
    """Import a user's module, if need be from a folder; whether it was needed."""
    known = set(sys.modules)
    place = [] if folder is None else [str(folder)]
    sys.path += place
    try:
        _own(name)
    finally:
        for one in place:
            sys.path.remove(one)
    module = name.partition(":")[0].partition(".")[0]
    found = getattr(sys.modules[module], "__file__", None) or ""
    return folder is not None and module not in known and Path(found).is_relative_to(folder)


def _own(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    try:
        network: Callable[..., object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise arch_names.no_network(name, error) from None
    return network
