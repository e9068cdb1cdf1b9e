"""Tiny models in plain torch, beyond the ones in `zoo`: of each kind the parts that make it what it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = dict[str, Tensor]
BATCH = 3
CLASSES = 5


class ResidualBlock(nn.Module):
    """Group norm, SiLU and a convolution, twice, moved by an embedding of the time, around a shortcut."""

    def __init__(self, channels_in: int, channels: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(2, channels_in), nn.SiLU(), nn.Conv2d(channels_in, channels, 3, padding=1)
        )
        self.time = nn.Linear(time, channels)
        self.second = nn.Sequential(
            nn.GroupNorm(2, channels), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(channels_in, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """f32[batch, channels_in, h, w] and f32[batch, time] to f32[batch, channels, h, w]."""
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.second(y) + self.shortcut(x)


class SpatialAttention(nn.Module):
    """Self-attention over the pixels of an image."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(2, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """f32[batch, channels, h, w] to the same."""
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(batch, channels, height, width))


class UNet(nn.Module):
    """Down, attention in the middle, and up again with what was kept on the way down."""

    def __init__(self, channels: int = 8, time: int = 12) -> None:
        super().__init__()
        self.time = time
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down = ResidualBlock(channels, channels, time)
        self.halve = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.middle = ResidualBlock(2 * channels, 2 * channels, time)
        self.attention = SpatialAttention(2 * channels, 2)
        self.up = ResidualBlock(3 * channels, channels, time)
        self.head = nn.Sequential(nn.GroupNorm(2, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """f32[batch, 3, h, w] images and i64[batch] times to f32[batch, 3, h, w]."""
        angles = time[:, None] * torch.exp(torch.arange(0, self.time, 2) * -0.5)
        embedding = torch.cat([angles.sin(), angles.cos()], 1)
        kept = self.down(self.stem(x), embedding)
        y = self.attention(self.middle(self.halve(kept), embedding))
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.head(self.up(torch.cat([y, kept], 1), embedding))


class Segmentation(nn.Module):
    """A U-Net that says something about every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet()

    def forward(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The loss of f32[batch, 3, h, w] images against i64[batch, h, w] targets of three classes."""
        logits = self.net(images, torch.zeros(len(images), dtype=torch.long))
        return {"loss": F.cross_entropy(logits, targets), "logits": logits}


def segmentation_batch() -> Batch:
    """Images and a class per pixel."""
    return {"images": torch.randn(BATCH, 3, 8, 8), "targets": torch.randint(3, (BATCH, 8, 8))}


class Diffusion(nn.Module):
    """One step of training a denoiser: draw times and noise, blend, and tell the noise."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet()
        self.register_buffer("steps", torch.cumprod(1 - torch.linspace(1e-3, 0.2, 20), 0))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """The loss for f32[batch, 3, h, w] images."""
        time = torch.randint(len(self.steps), (len(images),))
        noise = torch.randn_like(images)
        kept = self.steps[time][:, None, None, None]
        told = self.net(kept.sqrt() * images + (1 - kept).sqrt() * noise, time)
        return {"loss": F.mse_loss(told, noise), "told": told, "time": time}


class VariationalAutoencoder(nn.Module):
    """Encode to a distribution, draw from it, decode, and pay for both."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 8))
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 20))

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        """The loss of f32[batch, 20] rows between 0 and 1."""
        mean, log_variance = self.encode(rows).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        logits = self.decode(drawn)
        reconstruction = F.binary_cross_entropy_with_logits(logits, rows, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return {"loss": (reconstruction + divergence) / len(rows), "logits": logits, "drawn": drawn}


class SequenceClassifier(nn.Module):
    """A recurrent network over embedded tokens; the mean of its states says the class."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.recurrent = kind(8, 12, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of i64[batch, time] tokens against i64[batch] labels."""
        out, _ = self.recurrent(self.embedding(tokens))
        logits = self.head(out.mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def sequence_batch() -> Batch:
    """Sequences of tokens and their labels."""
    return {"tokens": torch.randint(30, (BATCH, 7)), "labels": torch.randint(CLASSES, (BATCH,))}


class Recommender(nn.Module):
    """Bags of embeddings and numbers, met in pairs, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(40, 6, mode=mode) for mode in ("sum", "mean", "sum"))
        self.bottom = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(6 + 6, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, numbers: Tensor, items: Tensor, offsets: Tensor, clicks: Tensor) -> dict[str, Tensor]:
        """f32[batch, 5] numbers; i64[3, n] items in bags that begin at i64[3, batch] offsets; f32[batch] clicks."""
        dense = self.bottom(numbers)
        features = [dense, *(bag(items[k], offsets[k]) for k, bag in enumerate(self.bags))]
        stacked = torch.stack(features, 1)
        row, column = torch.tril_indices(4, 4, offset=-1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, row, column]
        logits = self.top(torch.cat([dense, pairs], 1)).squeeze(1)
        return {"loss": F.binary_cross_entropy_with_logits(logits, clicks), "logits": logits}


def recommender_batch() -> Batch:
    """Numbers, bags of items of different lengths, and clicks."""
    return {
        "numbers": torch.randn(4, 5),
        "items": torch.randint(40, (3, 11)),
        "offsets": torch.tensor([[0, 2, 5, 9], [0, 4, 4, 8], [0, 1, 2, 10]]),
        "clicks": torch.randint(2, (4,)).float(),
    }


class GraphNetwork(nn.Module):
    """Messages along edges, added up, averaged or maximised at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(2 * 6, 6) for _ in range(3))
        self.updates = nn.ModuleList(nn.GRUCell(6, 6) for _ in range(3))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """f32[n, 6] nodes, i64[2, m] edges, i64[n] the graph of each node, i64[graphs] labels."""
        source, target = edges
        for layer, (message, update) in enumerate(zip(self.messages, self.updates, strict=True)):
            sent = torch.relu(message(torch.cat([nodes[source], nodes[target]], 1)))
            places = target[:, None].expand_as(sent)
            if layer == 0:
                arrived = torch.zeros_like(nodes).index_add(0, target, sent)
            elif layer == 1:
                arrived = torch.zeros_like(nodes).scatter_reduce(0, places, sent, "mean", include_self=False)
            else:
                arrived = torch.zeros_like(nodes).scatter_reduce(0, places, sent, "amax")
            nodes = update(arrived, nodes)
        pooled = torch.zeros(len(labels), nodes.shape[1]).scatter_add(0, graph[:, None].expand_as(nodes), nodes)
        logits = self.head(pooled)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def graph_batch() -> Batch:
    """Three graphs of eight nodes together, random edges, and a label for each."""
    return {
        "nodes": torch.randn(8, 6),
        "edges": torch.randint(8, (2, 15)),
        "graph": torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]),
        "labels": torch.randint(CLASSES, (3,)),
    }
