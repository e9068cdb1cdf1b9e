"""Small models for the tests of freezing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Classifier(nn.Module):
    """Convolution, batch norm, pooling, linear."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, 5)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))

    def embed(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


class Counter(nn.Module):
    """Writes a buffer of its own in each call, through a view as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        self.seen[0].add_(x.sum(0))
        return x * self.weight + self.calls, self.seen.sum()


class Cache(nn.Module):
    """A key cache that is written at a position."""

    def __init__(self, length: int = 16, width: int = 4) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(length, width), persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(0, position, self.project(x))
        return self.keys @ x.t()


class Tied(nn.Module):
    """An embedding whose weight is that of the output layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embedding(ids))


class Nested(nn.Module):
    """Containers in and out, defaults, a flag, an input handed back, a view of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(
        self, batch: dict[str, Tensor], bias: Tensor | None = None, *, factor: float = 2.0, wide: bool = False
    ) -> dict[str, object]:
        x = batch["x"] * self.scale * factor
        if bias is not None:
            x = x + bias
        if wide:
            x = torch.cat([x, x], 1)
        return {"x": x, "pair": (batch["mask"], batch["x"][:, :2]), "factor": factor}
