"""What each rank of a large training run needs and sends, on paper: Llama-like models on many ranks.

    python -m benchmarks.ranks_on_paper                     # a small table; minutes
    python -m benchmarks.ranks_on_paper --models 7B 70B --meshes 64 64x8
    python -m benchmarks.ranks_on_paper --published         # beside what others have published

Each block is a group of fully_shard, and recomputed in backward (torch.utils.checkpoint); weights, gradients and the
moments of AdamW are float32, and computation is bfloat16. A mesh AxB shards weights over A ranks and splits blocks over
B (tensor parallel). No process is started, and no memory of the size of the model is taken.

Published: weights, gradients and moments of 7.5 billion parameters by Rajbhandari et al., "ZeRO: memory optimizations
toward training trillion parameter models", SC20, table 1, stage 3; and the memory that docs/performance.md of
pytorch/torchtitan lists for Llama 3.1 8B on 8 GPUs, two sequences of 8192 tokens on each, by FSDP, without and with
torch.compile, some operators' results kept and the others recomputed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import dovetail


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama-like model. inner: of the gated network."""

    layers: int
    width: int
    heads: int
    shared_heads: int
    inner: int
    words: int = 32_000


CONFIGS = {
    "7B": Config(32, 4096, 32, 32, 11008),
    "13B": Config(40, 5120, 40, 40, 13824),
    "70B": Config(80, 8192, 64, 8, 28672),
    "7.5B": Config(36, 4096, 32, 32, 10916),
    "Llama 3.1 8B": Config(32, 4096, 32, 8, 14336, 128_256),
    "tiny": Config(2, 64, 4, 2, 96, 128),
}


class Block(nn.Module):
    """Attention with heads that share keys, and a gated network."""

    def __init__(self, config: Config) -> None:
        """Make one."""
        super().__init__()
        size, shared = config.width // config.heads, config.width // config.heads * config.shared_heads
        self.size, self.group = size, config.heads // config.shared_heads
        self.norm, self.norm_2 = nn.RMSNorm(config.width), nn.RMSNorm(config.width)
        self.q, self.out = (
            nn.Linear(config.width, config.width, bias=False),
            nn.Linear(config.width, config.width, bias=False),
        )
        self.k, self.v = nn.Linear(config.width, shared, bias=False), nn.Linear(config.width, shared, bias=False)
        self.gate, self.up = (nn.Linear(config.width, config.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, time, width)."""
        h = self.norm(x)
        q, k, v = (y.unflatten(-1, (-1, self.size)).transpose(1, 2) for y in (self.q(h), self.k(h), self.v(h)))
        k, v = (y.repeat_interleave(self.group, 1) for y in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norm_2(x)
        made: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return made


def keeps_half_of_the_products() -> Any:
    """What selective checkpoints take: results of attention and of every other product are kept."""
    products = [0, 0]

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        aten = torch.ops.aten
        if operator is aten.mm.default:
            products[context.is_recompute] += 1
            is_kept = products[context.is_recompute] % 2 == 1
        else:
            is_kept = "scaled_dot_product" in str(operator)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Llama(nn.Module):
    """The model, without positions, which take no memory to speak of."""

    def __init__(self, config: Config, context: Callable[[], Any] | None = None) -> None:
        """Make one. context: of the checkpoint around each block; without it, all of it is recomputed."""
        super().__init__()
        self.checkpoint = partial(checkpoint, use_reentrant=False, **({"context_fn": context} if context else {}))
        self.tokens = nn.Embedding(config.words, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm, self.head = nn.RMSNorm(config.width), nn.Linear(config.width, config.words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores of each next word."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = self.checkpoint(block, x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


PLAN = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")} | {
    n: RowwiseParallel() for n in ("out", "down")
}


def build(config: Config, batch: int, length: int, context: Callable[[], Any] | None = None) -> Any:
    """What makes the step of one rank, for `dovetail.estimate`."""

    def of_mesh(mesh: Any) -> tuple[Any, ...]:
        is_split = "tensor" in mesh.mesh_dim_names
        model = Llama(config, context)
        data = mesh["data"] if is_split else mesh
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            if is_split:
                parallelize_module(block, mesh["tensor"], PLAN)
            fully_shard(block, mesh=data, mp_policy=policy)
        fully_shard(model, mesh=data, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(tokens: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, torch.zeros(batch, length + 1, dtype=torch.int64)

    return of_mesh


def row_of(name: str, sizes: tuple[int, ...], batch: int, length: int) -> str:
    """One row of the table."""
    config, mesh = CONFIGS[name], dict(zip(("data", "tensor"), sizes, strict=False))
    started = time.perf_counter()
    found = dovetail.estimate(build(config, batch, length), mesh=mesh)
    with torch.device("meta"):
        model = Llama(config)
    split = sum(p.numel() for block in model.blocks for p in block.parameters() if p.dim() > 1)
    share = (split / math.prod(sizes) + (sum(p.numel() for p in model.parameters()) - split) / sizes[0]) * 16
    state = sum(found.breakdown[part] for part in ("parameters", "optimizer state")) * 4 / 3  # and as many gradients
    sent = ", ".join(f"{what} {size / 2**30:.2f}" for (what, _), size in found.bytes_sent.items())
    seconds = time.perf_counter() - started
    cells = [name, "x".join(map(str, sizes)), f"{share / 2**30:.2f}", f"{100 * (state / share - 1):+.2f} %"]
    cells += [f"{found.peak_bytes / 2**30:.2f}", sent, f"{seconds:.0f}"]
    return f"| {' | '.join(cells)} |"


ZERO = {4: 30.0, 16: 7.5, 64: 1.88, 256: 0.47, 1024: 0.12}  # GB of each rank


def print_published() -> None:
    """Print what estimates say beside what was published."""
    config = CONFIGS["7.5B"]
    with torch.device("meta"):
        count = sum(p.numel() for p in Llama(config).parameters())
    print(f"ZeRO, stage 3, {count / 1e9:.3f} billion parameters: weights, gradients and moments of a rank, GB")
    print("| ranks | published | 16 bytes per parameter | estimate | beside that |\n|---|---|---|---|---|")
    for ranks, published in ZERO.items():
        found = dovetail.estimate(build(config, 1, 128), mesh={"data": ranks})
        state = sum(found.breakdown[part] for part in ("parameters", "optimizer state")) * 4 / 3 / 1e9
        share = count * 16 / ranks / 1e9
        cells = [str(ranks), str(published), f"{share:.3f}", f"{state:.3f}", f"{100 * (state / share - 1):+.2f} %"]
        print(f"| {' | '.join(cells)} |", flush=True)
    made = build(CONFIGS["Llama 3.1 8B"], 2, 8192, keeps_half_of_the_products)
    found = dovetail.estimate(made, mesh={"data": 8})
    print(f"\nLlama 3.1 8B on 8 ranks, GiB: published 82.4 and 77.0, estimate {found.peak_bytes / 2**30:.1f}")
    for part, size in found.breakdown.items():
        print(f"    {part:<20} {size / 2**30:8.2f}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(CONFIGS), default=["tiny"])
    parser.add_argument("--meshes", nargs="+", default=["8", "8x2"], help="ranks: DATA, or DATAxTENSOR")
    parser.add_argument("--batch", type=int, default=1, help="sequences of each rank")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--published", action="store_true", help="compare with published figures, and no more")
    options = parser.parse_args()
    if options.published:
        print_published()
        return
    print("| model | ranks | 16 bytes per parameter, GiB | state, beside that | peak, GiB | sent, GiB | seconds |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models:
        for mesh in options.meshes:
            print(row_of(name, tuple(map(int, mesh.split("x"))), options.batch, options.length), flush=True)


if __name__ == "__main__":
    main()
