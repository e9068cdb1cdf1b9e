"""What the tests of explanations explain: a model whose lines are known, and programs of every kind of decision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.explanation import Explanation


class Net(nn.Module):
    """Two layers with dropout and a normalization that writes its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of what the layers make."""
        hidden = torch.nn.functional.gelu(self.norm(self.first(x)))
        hidden = torch.nn.functional.dropout(hidden, 0.5)
        out: Tensor = self.second(hidden).square().mean()
        return out


def explained_net() -> Explanation:
    """A training step."""
    return dovetail.explain(Net(), torch.ones(32, 8))


def many_cheap(x: Tensor) -> Tensor:
    """Pointwise operators whose results are cheap to compute again."""
    for _ in range(6):
        x = (x.sin() * 2).tanh() + 1
    return x.sum()


def explained_cut() -> Explanation:
    """A training step that computes values again."""
    compiled = dovetail.compile(many_cheap, partition="min_cut")
    return dovetail.explain(compiled, torch.ones(64, 64, requires_grad=True))


def smooth(x: Tensor, w: Tensor) -> Tensor:
    """Writes an argument, without gradients."""
    y = torch.relu(x @ w)
    new = torch.lerp(x, y, 0.1)
    x.copy_(new)
    return y.sum()


def explained_write() -> Explanation:
    """Inference that works in the memory of its argument."""
    return dovetail.explain(smooth, torch.ones(4, 4), torch.ones(4, 4))


def explained_copy() -> Explanation:
    """A copy that is needed: the caller gets the old and the new contents."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = torch.index_fill(y, 0, torch.tensor([0]), 1.0)
        return y, z

    return dovetail.explain(both, torch.ones(5, 7))
