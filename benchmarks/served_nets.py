"""Networks of plain torch as they are served: inference only, each gives one tensor."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DecodeStep(nn.Module):
    """A token of a GPT-2 after others, whose keys and values are arguments."""

    def __init__(self, layers: int, *, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_DecodeBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Map i64[batch, 1] and two f32[layers, batch, heads, length, width / heads] to f32[batch, 1, vocabulary]."""
        x = self.tokens(token) + self.places.weight[keys.shape[3]]
        for number, block in enumerate(self.blocks):
            x = block(x, keys[number], values[number])
        return F.linear(self.norm(x), self.tokens.weight)


class _DecodeBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        batch, _, width = x.shape
        shape = batch, 1, self.heads, width // self.heads
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        attended = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        inner: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + inner


class UNet(nn.Module):
    """Segments images: convolutions with batch norms, down and up again, with the finer images beside the coarser."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(
            _twice(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True)
        )
        pairs = [*zip(widths[:0:-1], widths[-2::-1], strict=True)]
        self.wider = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, 2) for coarse, fine in pairs)
        self.up = nn.ModuleList(_twice(2 * fine, fine) for _, fine in pairs)
        self.classes = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map f32[batch, 3, h, w] to f32[batch, classes, h, w]; sizes are multiples of 2 ** (levels - 1)."""
        kept: list[Tensor] = []
        x = images
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for wider, block, finer in zip(self.wider, self.up, kept[-2::-1], strict=True):
            x = block(torch.cat((finer, wider(x)), 1))
        classes: Tensor = self.classes(x)
        return classes


def _twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(*_normed(before, after, 3), *_normed(after, after, 3))


def _normed(before: int, after: int, size: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU6()]


class DepthwiseNet(nn.Module):
    """A MobileNet: each channel is convolved by itself, then channels are mixed by 1x1."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        layers = _normed(3, widths[0], 3, stride=2)
        for before, after in itertools.pairwise(widths):
            stride = 2 if after > before else 1
            layers += _normed(before, before, 3, stride=stride, groups=before)
            layers += _normed(before, after, 1)
        self.body, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map f32[batch, 3, h, w] to f32[batch, classes]."""
        logits: Tensor = self.head(self.body(images).mean((2, 3)))
        return logits


class Tagger(nn.Module):
    """Tags of tokens: two layers of LSTM in both directions."""

    def __init__(self, vocabulary: int, width: int, tags: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * width, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map i64[batch, length] to f32[batch, length, tags]."""
        tags: Tensor = self.tags(self.layers(self.tokens(tokens))[0])
        return tags
