"""Networks like MobileNetV2, for benchmarks: inverted residuals, depthwise layers, ReLU6."""

import torch
from torch import nn

# Of every stage: expansion, outputs, blocks, stride of the first.
SMALL_STAGES = ((1, 16, 1, 1), (4, 24, 1, 2), (4, 32, 1, 2), (4, 64, 1, 1))
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
    """For 224x224 pixels, with random weights."""
    return _network(classes, channels, 2, STAGES, 1280)


def small(classes: int, channels: int) -> nn.Module:
    """For 32x32 pixels."""
    return _network(classes, channels, 1, SMALL_STAGES, 128)


def _network(
    classes: int, channels: int, stride: int, stages: tuple[tuple[int, int, int, int], ...], features: int
) -> nn.Module:
    layers = [*_layer(channels, 32, 3, stride), nn.ReLU6()]
    width = 32
    for expansion, outputs, blocks, first_stride in stages:
        for number in range(blocks):
            layers.append(InvertedResidual(width, outputs, first_stride if number == 0 else 1, expansion))
            width = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)]
    return nn.Sequential(*layers, *_layer(width, features, 1), nn.ReLU6(), *head)


def _layer(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")  # or nothing would be left of the image
    return [convolution, nn.BatchNorm2d(outputs)]
