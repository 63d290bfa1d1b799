"""A network like MobileNetV2, for benchmarks: inverted residuals, depthwise layers, ReLU6."""

import torch
from torch import nn

# Of every stage: expansion, outputs, blocks, stride of the first.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Wide by a 1x1 layer, depthwise, narrow again."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.shortcut = stride == 1 and inputs == outputs
        width = inputs * expansion
        wide = [*_layer(inputs, width, 1), nn.ReLU6()] if expansion > 1 else []
        spatial = [*_layer(width, width, 3, stride, groups=width), nn.ReLU6()]
        self.body = nn.Sequential(*wide, *spatial, *_layer(width, outputs, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block."""
        return x + self.body(x) if self.shortcut else self.body(x)


def network(classes: int, channels: int) -> nn.Module:
    """The network, with random weights."""
    layers = [*_layer(channels, 32, 3, 2), nn.ReLU6()]
    width = 32
    for expansion, outputs, blocks, stride in STAGES:
        for number in range(blocks):
            layers.append(InvertedResidual(width, outputs, stride if number == 0 else 1, expansion))
            width = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return nn.Sequential(*layers, *_layer(width, 1280, 1), nn.ReLU6(), *head)


def _layer(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")  # or nothing would be left of the image
    return [convolution, nn.BatchNorm2d(outputs)]
