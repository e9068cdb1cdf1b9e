"""Networks of plain torch that are measured; each returns its loss."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SwigluBlock(nn.Module):
    """RMSNorm, causal attention, RMSNorm and a SwiGLU, each pair with a residual around it."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[batch, time, width] to its like."""
        shape = x.shape
        q, k, v = (
            part.view(*shape[:2], self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class SwigluTransformer(nn.Module):
    """A language model of `SwigluBlock`s that returns its cross-entropy loss."""

    def __init__(self, layers: int, *, width: int, heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(SwigluBlock(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of i64[batch, time] tokens against targets like them."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class ImageTransformer(nn.Module):
    """A ViT: patches, encoder layers with dropout, a class token; it returns its cross-entropy loss."""

    def __init__(self, layers: int, *, width: int, heads: int, patch: int, side: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 1 + (side // patch) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of f32[batch, 3, side, side] images against i64[batch] labels."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return F.cross_entropy(self.head(self.encoder(x)[:, 0]), labels)


class RecurrentModel(nn.Module):
    """A language model of LSTM layers with dropout that returns its cross-entropy loss."""

    def __init__(self, layers: int, *, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of i64[batch, time] tokens against targets like them."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class DoubleConvolution(nn.Sequential):
    """Two 3x3 convolutions, each with batch norm and ReLU."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        for before in (channels_in, channels):
            self.extend([nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()])


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) that labels pixels, and returns its cross-entropy loss."""

    def __init__(self, levels: int, *, channels: int, classes: int) -> None:
        super().__init__()
        sizes = [channels << level for level in range(levels)]
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        pairs = list(itertools.pairwise(sizes))[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(DoubleConvolution(2 * a, a) for a, _ in pairs)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of f32[batch, 3, h, w] images against i64[batch, h, w] labels."""
        kept: list[Tensor] = []
        x = images
        for block in self.down:
            if kept:
                x = F.max_pool2d(x, 2)
            x = block(x)
            kept.append(x)
        kept.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        return F.cross_entropy(self.head(x), labels)
