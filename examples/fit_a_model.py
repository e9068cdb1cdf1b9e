"""Find the largest batch for a limit in bytes before anything runs, and train with it under that limit.

python examples/fit_a_model.py --limit 24MiB
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.inspect.memory import measure_peak
from dovetail.pipeline.memory_limit import memory_limit

_VOCABULARY, _TIME, _WIDTH = 512, 32, 64


class Tagger(nn.Module):
    """Two blocks of self-attention that give each word a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(_WIDTH, 4, 256, batch_first=True) for _ in range(2))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        """Map i64[batch, time] to f32[batch, time, vocabulary]."""
        hidden = self.embed(words)
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.head(hidden)
        return scores


def main(argv: Sequence[str] | None = None) -> None:
    """Print the estimate, the largest batch, and the measured peak of training with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", default="24MiB")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args(argv)

    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def train_step(words: Tensor, classes: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words).flatten(0, 1), classes.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    example = torch.empty(8, _TIME, dtype=torch.long, device="meta")  # its shape is all that counts
    step = dovetail.compile_step(train_step, memory_limit=given.limit, keep_grads=False)
    free = dovetail.compile_step(train_step, keep_grads=False)
    estimate = dovetail.estimate(free, example, example)
    print(estimate)
    batch = estimate.max_batch(given.limit)
    print(f"largest batch for {given.limit}: {batch}")
    if not batch:
        return
    words = torch.randint(_VOCABULARY, (batch, _TIME))
    for _ in range(given.steps):
        print(f"loss {step(words, words).item():.4f}")
    report = step.explain()
    peak = report.state_bytes + measure_peak(step, words, words).peak_bytes
    is_within = peak <= memory_limit(given.limit).bytes
    print(f"measured peak {peak:,} bytes with state and arguments, within the limit: {is_within}")


if __name__ == "__main__":
    main()
