"""Train a small network on several processes, with and without dovetail, and compare them bit by bit.

    python examples/train_on_ranks.py
    torchrun --nproc-per-node 2 examples/train_on_ranks.py
    torchrun --nproc-per-node 2 examples/train_on_ranks.py --shard

Each process has its own batches and its own dropout; DistributedDataParallel averages the gradients. With --shard each
process holds a part of every weight instead (fully_shard). Nothing is downloaded, and it takes a few seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import dovetail

STEPS = 30


def make() -> tuple[nn.Module, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """A model, and a step that trains it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1))
    model: nn.Module = DistributedDataParallel(net) if "--shard" not in sys.argv else net
    if model is net:
        fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()

    return model, step


def train(step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], rank: int) -> list[float]:
    """Train, and return the losses, averaged over ranks."""
    data = torch.Generator().manual_seed(rank)
    torch.manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(32, 8, generator=data)
        losses.append(step(x, x.sum(1, keepdim=True)).item())
    return losses


def whole_weights(model: nn.Module) -> list[torch.Tensor]:
    """All weights, whole."""
    return [w.full_tensor() if isinstance(w, DTensor) else w for w in model.parameters()]


def main() -> None:
    """Train both ways."""
    if "RANK" in os.environ:  # of torchrun
        dist.init_process_group("gloo")
    else:
        store = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    rank = dist.get_rank()
    model, step = make()
    losses = train(step, rank)
    other_model, other_step = make()
    compiled = dovetail.compile_step(other_step)
    compiled_losses = train(compiled, rank)
    weights, other_weights = (whole_weights(x) for x in (model, other_model))
    same = losses == compiled_losses and all(map(torch.equal, weights, other_weights))
    if rank == 0:
        print(f"ranks: {dist.get_world_size()}; loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"dovetail, compared with eager mode: {'the same, bit by bit' if same else 'different'}")
        print(compiled.stats)
    dist.destroy_process_group()
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
