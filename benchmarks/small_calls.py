"""Small models, frozen, against eager: what a call costs apart from the operators. Rounds are interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dovetail


class _SelfAttention(nn.Module):
    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> Any:
        """Attention of a sequence to itself, and its weights."""
        return self.attention(x, x, x)


_MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "Linear(64, 10), 1 row": lambda: (nn.Linear(64, 10), torch.randn(1, 64)),
    "Linear(64, 10), 32 rows": lambda: (nn.Linear(64, 10), torch.randn(32, 64)),
    "MLP of 3 layers": lambda: (
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        torch.randn(4, 64),
    ),
    "LayerNorm, Linear, GELU": lambda: (
        nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()),
        torch.randn(4, 64),
    ),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(100, 16), torch.randint(0, 100, (4, 6))),
    "GELU": lambda: (nn.GELU(), torch.randn(4, 64)),
    "Attention over one sequence": lambda: (
        _SelfAttention(nn.MultiheadAttention(32, 4, batch_first=True)),
        torch.randn(2, 6, 32),
    ),
    "GRUCell(16, 16)": lambda: (nn.GRUCell(16, 16), torch.randn(4, 16)),
    "LSTMCell(16, 16)": lambda: (nn.LSTMCell(16, 16), torch.randn(4, 16)),
    "GRU(16, 16), 20 steps": lambda: (nn.GRU(16, 16), torch.randn(20, 2, 16)),
    "LSTM(16, 16), 20 steps": lambda: (nn.LSTM(16, 16), torch.randn(20, 2, 16)),
}


def _microseconds(call: Callable[[], Any], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls * 1e6


def small_calls(rounds: int = 20, calls: int = 200) -> None:
    """Print a table: microseconds of processor time a call (minimum, median), their ratios, and bytes of constants."""
    print("| model | eager: min | median | frozen: min | median | ratio: min | median | constants / weights |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, make in _MODELS.items():
        torch.manual_seed(0)
        model, x = make()
        model.eval()
        frozen = dovetail.freeze(model, (x,))
        eager_us, frozen_us = [], []
        with torch.no_grad():
            for _ in range(rounds):
                eager_us.append(_microseconds(lambda: model(x), calls))  # noqa: B023
                frozen_us.append(_microseconds(lambda: frozen(x), calls))  # noqa: B023
        least = min(eager_us), min(frozen_us)
        middle = statistics.median(eager_us), statistics.median(frozen_us)
        size = frozen.constant_bytes() / (sum(parameter.nbytes for parameter in model.parameters()) or 1)
        times = f"{least[0]:.0f} | {middle[0]:.0f} | {least[1]:.0f} | {middle[1]:.0f}"
        print(f"| {name} | {times} | {least[1] / least[0]:.2f} | {middle[1] / middle[0]:.2f} | {size:.2f} |")
