"""Training steps of two ranks over a link of some bandwidth: do collectives run beside computation?

    python -m benchmarks.slow_link                          # minutes; needs a C++ compiler
    python -m benchmarks.slow_link --kinds ddp --rounds 3 --width 64

A process group (`slow_link.cpp`) makes collectives take as long as a link of some bandwidth and latency would. Its
bandwidth is chosen so that communication takes a part of the time of computation. A step cannot be faster than the
longer of the two: the table says how far it is from that, in eager mode and as a program. Computation is what a step
takes while the link takes no time, communication how long the link is busy.

Times are on paper: the clock is the processor time of the thread that computes, put forward where it waits. With
--real-time the group sleeps on a thread of its own instead; then nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dovetail

KINDS = ("ddp", "fsdp", "fsdp kept")
_LATENCY = 0.0005
_RANKS = 2


@dataclass(frozen=True)
class Sizes:
    """Of the model, the batch and the measurement. parts: of the time of computation that communication takes."""

    kinds: tuple[str, ...] = KINDS
    layers: int = 6
    width: int = 256
    batch: int = 4
    length: int = 128
    bucket_mb: float = 2.0
    rounds: int = 7
    parts: tuple[float, ...] = (0.5, 1.0, 2.0)
    real_time: bool = False
    memory_limit: str | None = None


@dataclass(frozen=True)
class Row:
    """Seconds: of computation, of communication, and of a step over the link."""

    kind: str
    part: float
    who: str
    compute: float
    link: float
    step: float

    @property
    def over(self) -> float:
        """By how much a step is longer than the longer of the two, as a part of it."""
        return self.step / max(self.compute, self.link) - 1


class Block(nn.Module):
    """Attention and a network, as GPT-2 has them."""

    def __init__(self, width: int, heads: int) -> None:
        """Make one."""
        super().__init__()
        self.heads = heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run."""
        count, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        made: torch.Tensor = x + self.narrow(F.gelu(self.wide(self.norm_2(x))))
        return made


class Net(nn.Module):
    """A small GPT-2."""

    def __init__(self, layers: int, width: int) -> None:
        """Make one."""
        super().__init__()
        self.words, self.head = nn.Embedding(256, width), nn.Linear(width, 256, bias=False)
        self.blocks = nn.ModuleList(Block(width, width // 32) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run."""
        hidden = self.words(x)
        for block in self.blocks:
            hidden = block(hidden)
        made: torch.Tensor = self.head(self.norm(hidden))
        return made


def step_of(
    kind: str, sizes: Sizes, settle: Callable[[], None] | None = None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step. settle: called after backward, in which a reducer waits unseen."""
    torch.manual_seed(1)
    net = Net(sizes.layers, sizes.width)
    model: nn.Module = net
    if kind == "ddp":
        model = DistributedDataParallel(net, bucket_cap_mb=sizes.bucket_mb)
    else:
        for block in net.blocks:
            fully_shard(block, reshard_after_forward=kind == "fsdp")
        fully_shard(net, reshard_after_forward=kind == "fsdp")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        if settle is not None:
            settle()
        optimizer.step()
        return loss.detach()

    return step


def build_link() -> Any:
    """The module of `slow_link.cpp`, built where it is not there yet."""
    from torch.utils.cpp_extension import load  # noqa: PLC0415 (it looks for a compiler)

    return load("dovetail_slow_link", [str(Path(__file__).with_suffix(".cpp"))], extra_cflags=["-O1"])


def join(rank: int, store: str, *, real_time: bool) -> Any:
    """Make the default process group, over a link that takes no time yet. Gives the link."""
    module, links = build_link(), []

    def create(options: Any, _: object) -> Any:
        inner = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timedelta(seconds=60))
        links.append(module.SlowLink(inner, not real_time))
        return links[-1]

    dist.Backend.register_backend("slow", create, extended_api=True, devices=["cpu"])
    dist.init_process_group("slow", init_method=f"file://{store}", rank=rank, world_size=_RANKS)
    return links[0]


def _serve(rank: int, store: str, sizes: Sizes, queue: Any) -> None:
    torch.set_num_threads(1)
    link = join(rank, store, real_time=sizes.real_time)
    batch = torch.randint(256, (sizes.batch, sizes.length + 1), generator=torch.Generator().manual_seed(rank))
    for kind in sizes.kinds:
        compiled = dovetail.compile_step(step_of(kind, sizes), memory_limit=sizes.memory_limit)
        steps = {"eager mode": step_of(kind, sizes, link.settle if kind == "ddp" else None), "program": compiled}
        losses = [[float(step(batch)) for _ in range(4)] for step in steps.values()]
        assert losses[0] == losses[1], losses
        link.set(0.0, 0.0)
        link.used()
        steps["program"](batch)
        _, sent, count = link.used()
        computed = _timed(steps, batch, link, sizes.rounds)
        for part in sizes.parts:
            seconds = part * computed["program"]
            link.set(sent / max(seconds - count * _LATENCY, 0.01), _LATENCY)
            taken = _timed(steps, batch, link, sizes.rounds)
            for name, step in steps.items():
                link.used()
                step(batch)
                busy = link.used()[0]
                queue.put((rank, Row(kind, part, name, computed[name], busy, taken[name])))
    dist.barrier()
    dist.destroy_process_group()


def _timed(
    steps: Mapping[str, Callable[[torch.Tensor], Any]], batch: torch.Tensor, link: Any, rounds: int
) -> dict[str, float]:
    """The least of some rounds, in each of which the slower rank counts."""
    found = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            dist.barrier()
            begin = link.now()
            step(batch)
            spent = torch.tensor(link.now() - begin)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            found[name] = min(found[name], float(spent))
    return found


def measure(sizes: Sizes) -> list[Row]:
    """Run both ranks."""
    build_link()
    context = multiprocessing.get_context("spawn")
    queue, store = context.Queue(), str(Path(tempfile.mkdtemp()) / "store")
    ranks = [context.Process(target=_serve, args=(rank, store, sizes, queue), daemon=True) for rank in range(_RANKS)]
    for process in ranks:
        process.start()
    count = _RANKS * len(sizes.kinds) * len(sizes.parts) * 2
    found = [queue.get(timeout=600) for _ in range(count)]
    for process in ranks:
        process.join()
    return [row for rank, row in found if rank == 0]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Sizes()
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=default.kinds)
    parser.add_argument("--parts", nargs="+", type=float, default=default.parts)
    for name in ("layers", "width", "batch", "length", "rounds"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument("--memory-limit", help="of the program, as compile_step takes it")
    parser.add_argument("--bucket-mb", type=float, default=default.bucket_mb)
    given = vars(parser.parse_args())
    print("| | | computation, ms | link, ms | step, ms | over the longer |")
    print("|---|---|---|---|---|---|")
    for row in measure(Sizes(**{**given, "kinds": tuple(given["kinds"]), "parts": tuple(given["parts"])})):
        times = " | ".join(f"{1000 * seconds:.0f}" for seconds in (row.compute, row.link, row.step))
        print(f"| {row.kind} | {row.who} | {times} | {100 * row.over:+.0f} % |")


if __name__ == "__main__":
    main()
