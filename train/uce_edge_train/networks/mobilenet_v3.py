"""MobileNetV3 (Howard et al. 2019), small: hard swish, squeeze-and-excitation."""

import torch
from torch import Tensor, nn

_EPSILON, _MOMENTUM = 1e-3, 0.01  # of batch-norm, as published
# Of every block: kernel, width inside, outputs, squeeze-and-excitation, hard swish, stride.
_BLOCKS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip
_STEM, _LAST, _HIDDEN = 16, 576, 1024


class SqueezeExcitation(nn.Module):
    """Weigh the channels by a small network of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _rounded(channels // 4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """The weighted channels."""
        return x * self.gate(self.excite(torch.relu(self.squeeze(self.pool(x)))))  # type: ignore[no-any-return]


class Block(nn.Module):
    """An inverted residual block."""

    def __init__(
        self, inputs: int, kernel: int, width: int, outputs: int, excite: bool, hard: bool, stride: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [] if width == inputs else [_layer(inputs, width, 1, hard=hard)]
        layers.append(_layer(width, width, kernel, stride, width, hard=hard))
        layers += [SqueezeExcitation(width)] if excite else []
        layers.append(_layer(width, outputs, 1, hard=None))
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y: Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


class MobileNetV3(nn.Module):
    """Stem, inverted residual blocks, average, two linear layers."""

    def __init__(self, classes: int, stem: str = "", channels: int = 3) -> None:
        """Build the network.

        Args:
            classes: Number of classes.
            stem: Not used: there is one stem.
            channels: Channels of the image.
        """
        super().__init__()
        self.stem = _layer(channels, _STEM, 3, 2, hard=True)
        inputs = (_STEM, *(block[2] for block in _BLOCKS))
        self.blocks = nn.Sequential(*(Block(before, *block) for before, block in zip(inputs, _BLOCKS, strict=False)))
        self.last = _layer(inputs[-1], _LAST, 1, hard=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.hidden = nn.Linear(_LAST, _HIDDEN)
        self.activation = nn.Hardswish()
        self.classifier = nn.Linear(_HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, height, width]."""
        x = torch.flatten(self.pool(self.last(self.blocks(self.stem(x)))), 1)
        return self.classifier(self.activation(self.hidden(x)))  # type: ignore[no-any-return]


def _layer(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, hard: bool | None
) -> nn.Sequential:
    """Convolution, batch-norm, and hard swish, ReLU or nothing."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight)
    activation: list[nn.Module] = [] if hard is None else [nn.Hardswish() if hard else nn.ReLU()]
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, _EPSILON, _MOMENTUM), *activation)


def _rounded(channels: int) -> int:
    """The nearest multiple of 8, at least 8."""
    return max(8, (channels + 4) // 8 * 8)
