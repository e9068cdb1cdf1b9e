"""Train models on several ranks, in eager mode and as programs: DDP, FSDP2, tensor parallel, and both.

    python -m tests.ranks_sweep                             # all of them, 20 steps each; minutes
    python -m tests.ranks_sweep --models gpt llama --kinds ddp fsdp --steps 5
    python -m tests.ranks_sweep --wide --kinds fsdp         # wider models, in which weights count

Losses, weights, gradients, the optimizer's state and random numbers are compared bit by bit after each step; dropout
is on. The peak of a step above what was there before, as the allocator sees it, and the bytes that collectives are
given must not be more than in eager mode. The exit status is 1 where something differs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dovetail
from dovetail.inspect.memory import measure_peak
from dovetail.torch_compat.dispatch import PlainMode
from tests.distributed.ranks import Ranks, of_ranks
from tests.distributed.steps import Trained, same, state_of

_WORDS, _HEADS = 64, 4


@dataclass(frozen=True)
class Sizes:
    """Of a model and its batches: of `rows` texts, `length` words each."""

    width: int = 64
    blocks: int = 3
    rows: int = 16
    length: int = 32


SMALL, WIDE = Sizes(), Sizes(width=256, blocks=4, rows=4, length=64)
"""Where activations are most of the peak, and where weights count."""


class _Attention(nn.Module):
    def __init__(
        self, width: int, shared: int = _HEADS, *, causal: bool = True, turns: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.size, self.causal, self.turns = width // _HEADS, causal, turns
        self.q, self.out = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.k, self.v = (nn.Linear(width, shared * self.size, bias=bias) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [each(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.q, self.k, self.v)]
        if self.turns:
            parts[:2] = map(_turned, parts[:2])
        grouped = parts[0].shape[1] != parts[1].shape[1]
        dropped = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(*parts, dropout_p=dropped, is_causal=self.causal, enable_gqa=grouped)
        made: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return made


def _turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class _Network(nn.Module):
    def __init__(self, width: int, *, gated: bool = False) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, 4 * width) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.gelu(self.wide(x)) if self.gate is None else F.silu(self.gate(x)) * self.wide(x)
        made: torch.Tensor = self.narrow(wide)
        return made


class _Exchanged(torch.autograd.Function):
    """Parts of rows go to the ranks that they are for, and gradients go back."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        dist.all_to_all_single(made, x.contiguous())
        return made

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(gradient)
        dist.all_to_all_single(made, gradient.contiguous())
        return made


class _Experts(nn.Module):
    """Each rank has one expert, which gets as many tokens from each rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(width, dist.get_world_size()), _Network(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        sent = _Exchanged.apply(rows[order])
        back = _Exchanged.apply(self.expert(sent))
        made = torch.zeros_like(rows).index_copy(0, order, back) * weights[:, None]
        return made.view_as(x)


class _Block(nn.Module):
    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.is_late = kind == "bert"
        norm = nn.RMSNorm if kind == "llama" else nn.LayerNorm
        self.norm, self.norm_2, self.dropout = norm(width), norm(width), nn.Dropout(0.1)
        shared = 2 if kind == "llama" else _HEADS
        self.attention = (
            _Attention(width, shared, causal=kind != "bert", turns=kind == "llama", bias=kind != "llama")
            if kind != "mlp"
            else nn.Linear(width, width)
        )
        self.network = _Experts(width) if kind == "moe" else _Network(width, gated=kind == "llama")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in ((self.norm, self.attention), (self.norm_2, self.network)):
            x = norm(x + self.dropout(part(x))) if self.is_late else x + self.dropout(part(norm(x)))
        return x


class _Net(nn.Module):
    def __init__(self, kind: str, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.words, self.head = nn.Embedding(_WORDS, width), nn.Linear(width, _WORDS, bias=False)
        self.places = nn.Embedding(sizes.length, width) if kind in ("gpt", "bert", "moe") else None
        self.blocks = nn.ModuleList(_Block(kind, width) for _ in range(sizes.blocks))
        if kind in ("gpt", "bert", "mlp"):
            self.head.weight = self.words.weight
        if kind == "mlp":
            self.blocks[-1].network.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x)
        if self.places is not None:
            hidden = hidden + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        made: torch.Tensor = self.head(hidden)
        return made


MODELS = ("gpt", "llama", "bert", "moe", "mlp")
KINDS = {"ddp": 2, "fsdp": 2, "fsdp kept": 2, "tp": 2, "fsdp x tp": 4}
"""With the number of ranks."""
CASES = tuple((model, kind) for model in MODELS for kind in KINDS if model != "moe" or "tp" not in kind)


def _parallel(net: _Net, kind: str) -> nn.Module:
    experts = {p for name, p in net.named_parameters() if ".expert." in name}
    if kind == "ddp":
        names = [name for name, p in net.named_parameters() if p in experts]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, names)
        return DistributedDataParallel(net, bucket_cap_mb=0.1)
    sizes, names = (
        ((2, 2), ("data", "tensor"))
        if "x" in kind
        else ((dist.get_world_size(),), ("tensor" if kind == "tp" else "data",))
    )
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    if "tp" in kind:
        for block in net.blocks:
            plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {"attention.out": RowwiseParallel()}
            plan |= {
                "network.wide": ColwiseParallel(),
                "network.gate": ColwiseParallel(),
                "network.narrow": RowwiseParallel(),
            }
            parallelize_module(block, mesh["tensor"], {k: v for k, v in plan.items() if _has(block, k)})
    if "fsdp" in kind:
        for module in (*net.blocks, net):
            fully_shard(module, mesh=mesh["data"], reshard_after_forward="kept" not in kind, ignored_params=experts)
    return net


def _has(block: nn.Module, name: str) -> bool:
    return dict(block.named_modules()).get(name) is not None


def _made(model: str, kind: str, sizes: Sizes) -> Trained:
    torch.manual_seed(7)
    net = _parallel(_Net(model, sizes), kind)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, 1), x.roll(-1, 1).flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Trained(step, net, optimizer)


class _Counting(PlainMode):
    """Counts the bytes that collectives of eager mode are given."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        space, name = getattr(func, "namespace", ""), func.overloadpacket.__name__
        if space == "c10d":
            self.bytes += sum(t.nbytes for t in _tensors_in(args[0 if name in ("allreduce_", "broadcast_") else 1]))
        elif space == "_c10d_functional" and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            self.bytes += args[0].nbytes
        return func(*args, **(kwargs or {}))


def _tensors_in(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _tensors_in(part)


@dataclass(frozen=True)
class Outcome:
    """Of a case on a rank. difference: "" where there is none. peak, sent: as parts of eager mode's. eager_calls: made
    by the compiled step.
    """

    difference: str
    peak: float
    sent: float
    eager_calls: int


def outcome_of(
    rank: int, model: str, kind: str, steps: int, sizes: Sizes = SMALL, *, keep_grads: bool = True
) -> Outcome:
    """Train both ways. keep_grads: whether the program leaves gradients behind, as eager mode does."""
    warnings.simplefilter("ignore")
    eager, other = _made(model, kind, sizes), _made(model, kind, sizes)
    compiled = dovetail.compile_step(other.step, keep_grads=keep_grads)
    # Ranks that hold parts of one model get the same rows.
    group = rank // 2 if "x" in kind else 0 if kind == "tp" else rank
    generator = torch.Generator().manual_seed(group)
    batches = [torch.randint(_WORDS, (sizes.rows, sizes.length), generator=generator) for _ in range(steps)]
    found: list[list[Any]] = []
    for step, trained in ((eager.step, eager), (compiled, other)):
        torch.manual_seed(group)
        found.append([])
        for batch in batches:
            result = step(batch)
            if not keep_grads:
                trained.optimizer.zero_grad()
            found[-1].append((result, state_of(trained), torch.get_rng_state()))
    difference = ""
    for number, pair in enumerate(zip(*found, strict=True)):
        for what, a, b in zip(("losses", "state", "the generator"), *pair, strict=True):
            if not difference and not same(a, b):
                difference = f"{what} differ in step {number}"
    # A thread of gloo may let go of what it has sent a little late.
    peaks = [min(measure_peak(step, batches[0]).peak_bytes for _ in range(3)) for step in (eager.step, compiled)]
    with _Counting() as counting:
        eager.step(batches[0])
    sent = compiled.explain().bytes_sent / max(1, counting.bytes)
    return Outcome(difference, peaks[1] / peaks[0], sent, compiled.stats.eager_calls)


def failure_of(outcomes: Sequence[Outcome]) -> str:
    """What is wrong with a case, "" if nothing is."""
    for rank, outcome in enumerate(outcomes):
        if outcome.difference:
            return f"rank {rank}: {outcome.difference}"
        if outcome.peak > 1 or outcome.sent > 1:
            return f"rank {rank}: peak {outcome.peak:.3f}, sent {outcome.sent:.3f} of eager mode's"
    return ""


def main(argv: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="tests.ranks_sweep", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300, help="that a case may take")
    parser.add_argument("--drop-grads", action="store_true", help="programs leave no gradients (keep_grads=False)")
    parser.add_argument("--wide", action="store_true", help="wider models, in which weights count")
    options = parser.parse_args(argv)
    failures = 0
    print("| case | ranks | peak, of eager mode's | bytes, of eager mode's | calls in eager mode | |")
    print("|---|---|---|---|---|---|")
    for count in sorted(set(KINDS.values())):
        with of_ranks(count) as ranks:
            for model, kind in CASES:
                if model in options.models and kind in options.kinds and KINDS[kind] == count:
                    failures += _show(ranks, model, kind, options)
    return 1 if failures else 0


def _show(ranks: Ranks, model: str, kind: str, options: Any) -> bool:
    run, sizes = partial(outcome_of, keep_grads=not options.drop_grads), WIDE if options.wide else SMALL
    try:
        outcomes: list[Outcome] = ranks(run, model, kind, options.steps, sizes, seconds=options.seconds)
    except AssertionError as error:
        print(f"| {model}, {kind} | {ranks.count} | | | | {str(error).strip().splitlines()[-1]} |", flush=True)
        return True
    failure = failure_of(outcomes)
    peak, sent = max(x.peak for x in outcomes), max(x.sent for x in outcomes)
    row = f"{peak:.2f} | {sent:.2f} | {outcomes[0].eager_calls} of {options.steps}"
    print(f"| {model}, {kind} | {ranks.count} | {row} | {failure or 'equal'} |", flush=True)
    return bool(failure)


if __name__ == "__main__":
    sys.exit(main())
