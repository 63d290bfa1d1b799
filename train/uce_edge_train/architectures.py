"""Residual networks written from torch layers (He et al. 2016), plain: `gaussianize` adds the noise.

`stem="cifar"` keeps the resolution with one 3x3 convolution; `stem="imagenet"` is the 7x7 stride-2 stem with
max-pooling. Every function is `name(classes, stem, channels)`, `channels` being those of the image.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from uce_edge.errors import UsageError, expected


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, stages of residual blocks, global average, one linear layer."""

    def __init__(self, widths: list[int], depths: list[int], classes: int, stem: str, channels: int) -> None:
        super().__init__()
        if stem == "cifar":
            layers = [nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)]
        elif stem == "imagenet":
            layers = [nn.Conv2d(channels, widths[0], 7, 2, padding=3, bias=False)]
        else:
            raise UsageError(expected("`stem`", "'cifar' or 'imagenet'", stem, "Small images want 'cifar'"))
        self.stem = nn.Sequential(*layers, nn.BatchNorm2d(widths[0]), nn.ReLU())
        if stem == "imagenet":
            self.stem.append(nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for index in range(depth):
                blocks.append(BasicBlock(inputs, width, 2 if stage > 0 and index == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        return self.classifier(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))  # type: ignore[no-any-return]


def resnet8(classes: int, stem: str = "cifar", channels: int = 3) -> nn.Module:
    """The thin CIFAR network of three blocks, as in MLPerf Tiny: about 78,000 weights."""
    return ResNet([16, 32, 64], [1, 1, 1], classes, stem, channels)


def resnet20(classes: int, stem: str = "cifar", channels: int = 3) -> nn.Module:
    """The thin CIFAR network of nine blocks: about 272,000 weights."""
    return ResNet([16, 32, 64], [3, 3, 3], classes, stem, channels)


def resnet34(classes: int, stem: str = "cifar", channels: int = 3) -> nn.Module:
    """The 34-layer network of the paper's experiments: 21.8 million weights in ImageNet form."""
    return ResNet([64, 128, 256, 512], [3, 4, 6, 3], classes, stem, channels)


ARCHITECTURES: dict[str, Callable[[int, str, int], nn.Module]] = {
    function.__name__: function for function in (resnet8, resnet20, resnet34)
}


def build(name: str, classes: int, channels: int, stem: str = "cifar") -> nn.Module:
    """The named architecture, randomly initialised."""
    if name not in ARCHITECTURES:
        raise UsageError(expected("`arch`", f"one of {', '.join(ARCHITECTURES)}", name, "For example: --arch resnet8"))
    return ARCHITECTURES[name](classes, stem, channels)
