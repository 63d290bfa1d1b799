"""The vision transformer (Dosovitskiy et al. 2021), tiny as in DeiT."""

import torch
from torch import Tensor, nn

from uce_edge.errors import UceEdgeError, expected

SIDE = 224
"""The images that the position embedding is made for."""
_PATCH, _WIDTH, _DEPTH, _HEADS = 16, 192, 12, 3


class Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens that have seen each other."""
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        weights = torch.softmax(query * self.scale @ key.transpose(-2, -1), -1)
        return self.project((weights @ value).transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a small network per token, each with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, 1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, 1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's tokens."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Patches, blocks of attention, one linear layer on the class token."""

    def __init__(self, classes: int, stem: str = "", channels: int = 3) -> None:
        """Build the network.

        Args:
            classes: Number of classes.
            stem: Not used: there is one stem.
            channels: Channels of the image.
        """
        super().__init__()
        self.stem = nn.Conv2d(channels, _WIDTH, _PATCH, _PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.empty(1, (SIDE // _PATCH) ** 2 + 1, _WIDTH).normal_(std=0.02))
        self.blocks = nn.Sequential(*(Block(_WIDTH, _HEADS) for _ in range(_DEPTH)))
        self.norm = nn.LayerNorm(_WIDTH, 1e-6)
        self.classifier = nn.Linear(_WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of normalised images [batch, channels, 224, 224]."""
        if tuple(x.shape[2:]) != (SIDE, SIDE):
            size = f"{x.shape[2]}x{x.shape[3]}"
            raise UceEdgeError(
                expected("the image size", f"{SIDE}x{SIDE} for vit-tiny", size, f"Use: --size {SIDE}x{SIDE}"),
                "architecture.image-size",
            )
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.positions
        return self.classifier(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]
