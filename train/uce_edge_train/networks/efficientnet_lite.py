"""EfficientNet-Lite: inverted residual blocks with ReLU6, for edge devices.

It is EfficientNet (Tan and Le 2019) without squeeze-and-excitation, and with ReLU6 instead of SiLU. Strided
convolutions pad as TensorFlow does, where the published weights come from.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPSILON, _MOMENTUM = 1e-3, 0.01  # of batch-norm, as published
# Of every stage: kernel, stride of the first block, expansion, channels, blocks.
_STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4),
           (3, 1, 6, 320, 1))  # fmt: skip
_STEM, _HEAD = 32, 1280


class SamePadding(nn.Module):
    """Zeros around a map, so that a convolution gives ceil(size / stride).

    An odd zero lies at the right and at the bottom.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """The padded map."""
        high, wide = (self._zeros(size) for size in x.shape[2:])
        return functional.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))

    def _zeros(self, size: int) -> int:
        return max((math.ceil(size / self.stride) - 1) * self.stride + self.kernel - size, 0)


class InvertedResidual(nn.Module):
    """Widen by a 1x1 layer, filter every channel, narrow; and a shortcut."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = None if expansion == 1 else _layer(inputs, width, 1)
        self.depthwise = _layer(width, width, kernel, stride, groups=width)
        self.project = _layer(width, outputs, 1, activation=False)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        wide = x if self.expand is None else self.expand(x)
        y: Tensor = self.project(self.depthwise(wide))
        return x + y if self.has_shortcut else y


class EfficientNetLite(nn.Module):
    """Stem, stages of inverted residual blocks, head, one linear layer."""

    def __init__(self, width: float, depth: float, classes: int, stem: str = "", channels: int = 3) -> None:
        """Build the network.

        Args:
            width: Factor of the channels of all stages.
            depth: Factor of the number of blocks, but in the first and the last stage.
            classes: Number of classes.
            stem: Not used: there is one stem.
            channels: Channels of the image.
        """
        super().__init__()
        self.stem = _layer(channels, _STEM, 3, 2)
        blocks: list[nn.Module] = []
        inputs = _STEM
        for index, (kernel, stride, expansion, base, repeats) in enumerate(_STAGES):
            outputs = _rounded(base * width)
            count = repeats if index in (0, len(_STAGES) - 1) else math.ceil(repeats * depth)
            for block in range(count):
                blocks.append(InvertedResidual(inputs, outputs, kernel, stride if block == 0 else 1, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = _layer(inputs, _HEAD, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(_HEAD, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        return self.classifier(torch.flatten(self.pool(self.head(self.blocks(self.stem(x)))), 1))  # type: ignore[no-any-return]


def _layer(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, activation: bool = True
) -> nn.Sequential:
    """Convolution, batch-norm and ReLU6."""
    # With stride 1 both sides get the same, which a convolution does by itself.
    pad: list[nn.Module] = [SamePadding(kernel, stride)] if stride > 1 else []
    inner = 0 if stride > 1 else kernel // 2
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, inner, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight)
    norm = nn.BatchNorm2d(outputs, _EPSILON, _MOMENTUM)
    return nn.Sequential(*pad, convolution, norm, *([nn.ReLU6()] if activation else []))


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, at most a tenth below."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
