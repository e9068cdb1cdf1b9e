"""Small models to train in one step: what they are made of is what a step has to get right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models.zoo import ZOO, Batch, Entry

ROWS = 6
CLASSES = 5


@dataclass(frozen=True)
class Model:
    """A model of the matrix.

    twice: it can be differentiated twice. nested: its backward calls backward. pair: it is two models that play against
    each other, and has no loss of its own.
    """

    entry: Entry
    twice: bool = True
    nested: bool = False
    pair: bool = False

    @property
    def name(self) -> str:
        """What the matrix calls it."""
        return self.entry.name

    def __str__(self) -> str:
        return self.name


class _Classifier(nn.Module):
    """A body, and a cross-entropy loss of its logits."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of f32[batch, ...] rows against i64[batch] labels."""
        logits = self.body(rows)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def _norms() -> nn.Module:
    """Linear layers with batch norm; one counts its batches into a cumulative average."""
    return _Classifier(
        nn.Sequential(
            nn.Linear(8, 12),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.Linear(12, 12),
            nn.BatchNorm1d(12, momentum=0.3),
            nn.GELU(),
            nn.Linear(12, CLASSES),
        )
    )


def _convolutions() -> nn.Module:
    return _Classifier(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(2, 6),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, CLASSES),
        )
    )


def _dropout() -> nn.Module:
    return _Classifier(
        nn.Sequential(
            nn.Linear(8, 12),
            nn.Dropout(0.3),
            nn.Tanh(),
            nn.Linear(12, 12),
            nn.AlphaDropout(0.2),
            nn.RReLU(),
            nn.Linear(12, CLASSES),
        )
    )


class _Tied(nn.Module):
    """One weight is an embedding and a head; one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """The loss of telling each of i64[batch, time] tokens from the one before it."""
        x = self.embedding(tokens[:, :-1])
        for _ in range(2):
            x = x + torch.tanh(self.layer(self.norm(x)))
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), "logits": logits}


class _Leaky(torch.autograd.Function):
    """A leaky rectifier whose backward is written by hand, and whose gradient is not the true one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        """The larger of x and slope * x."""
        ctx.save_for_backward(x)
        ctx.slope = slope
        return torch.where(x > 0, x, x * slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Twice the gradient where x was positive."""
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, 2 * grads[0], grads[0] * ctx.slope), None


class _Custom(nn.Module):
    """Linear layers around a function of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.second = nn.Linear(12, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """f32[batch, 8] to f32[batch, classes]."""
        return self.second(_Leaky.apply(self.first(rows), 0.1))


class _Checkpointed(nn.Module):
    """Blocks that are computed again in backward."""

    def __init__(self, *, reentrant: bool, dropout: float) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(8, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 12), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(12)) for _ in range(2)
        )
        self.head = nn.Linear(12, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """f32[batch, 8] to f32[batch, classes]."""
        x = self.stem(rows)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class _Players(nn.Module):
    """A generator and a discriminator of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 8))
        self.discriminator = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(8, 10)), nn.LeakyReLU(0.2), nn.Linear(10, 1)
        )


def _rows() -> Batch:
    return {"rows": torch.randn(ROWS, 8), "labels": torch.randint(CLASSES, (ROWS,))}


def _images() -> Batch:
    return {"rows": torch.randn(ROWS, 2, 8, 8), "labels": torch.randint(CLASSES, (ROWS,))}


_FROM_ZOO = {entry.name: entry for entry in ZOO}

MODELS = (
    Model(Entry("norms", _norms, _rows)),
    Model(Entry("convolutions", _convolutions, _images)),
    Model(Entry("dropout", _dropout, _rows, drops=True)),
    Model(Entry("tied", _Tied, lambda: {"tokens": torch.randint(11, (3, 7))})),
    Model(Entry("custom function", lambda: _Classifier(_Custom()), _rows)),
    Model(Entry("players", _Players, lambda: {"real": torch.randn(ROWS, 8)}), pair=True),
    Model(Entry("checkpoint", lambda: _Classifier(_Checkpointed(reentrant=False, dropout=0.0)), _rows)),
    Model(
        Entry("reentrant checkpoint", lambda: _Classifier(_Checkpointed(reentrant=True, dropout=0.0)), _rows),
        twice=False,
        nested=True,
    ),
    Model(Entry("checkpoint, dropout", lambda: _Classifier(_Checkpointed(reentrant=False, dropout=0.3)), _rows)),
    Model(
        Entry("reentrant checkpoint, dropout", lambda: _Classifier(_Checkpointed(reentrant=True, dropout=0.3)), _rows),
        twice=False,
        nested=True,
    ),
    Model(_FROM_ZOO["gpt2"], twice=False),  # the fused attention kernel has no second derivative
    Model(_FROM_ZOO["bert"], twice=False),
    Model(_FROM_ZOO["llama"], twice=False),
)
