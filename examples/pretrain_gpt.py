"""Train a GPT on the sources of Python's own library, on one process or several.

    python examples/pretrain_gpt.py
    torchrun --nproc-per-node 2 examples/pretrain_gpt.py
    torchrun --nproc-per-node 2 examples/pretrain_gpt.py --parallel fsdp --memory-limit transient:200MiB
    torchrun --nproc-per-node 2 examples/pretrain_gpt.py --resume --steps 400

The model is a plain module, wrapped by DistributedDataParallel or fully_shard; the step is compiled by dovetail. Rank 0
shows progress, and writes metrics.jsonl and a picture of the loss into the folder of --out, where checkpoints of
torch.distributed.checkpoint are as well. A run that was resumed goes on bit by bit as if it had not been stopped.
With --eager nothing is compiled: the losses are the same. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dovetail

Step = Callable[[torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Attention and a network of two layers, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        """Make one."""
        super().__init__()
        self.heads = heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, time, width)."""
        batch, length, width = x.shape
        parts = self.attention(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        made: torch.Tensor = x + self.dropout(self.narrow(F.gelu(self.wide(self.norm_2(x)))))
        return made


class GPT(nn.Module):
    """A GPT over bytes, with tied weights."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        """Make one with random weights."""
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores of each next byte."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


def read_text(megabytes: float) -> torch.Tensor:
    """Sources of Python's library, as bytes; the same ones on every rank."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= megabytes * 1e6:
            break
    return torch.frombuffer(text, dtype=torch.uint8)


def batch_of(text: torch.Tensor, options: argparse.Namespace, number: int) -> torch.Tensor:
    """The batch of this rank in a step: it depends on nothing but the two, so that a run can be resumed."""
    chosen = torch.Generator().manual_seed(options.seed + 1_000_003 * number + dist.get_rank())
    places = torch.randint(len(text) - options.length - 1, (options.batch,), generator=chosen).tolist()
    return torch.stack([text[at : at + options.length + 1] for at in places]).long()


def make(options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """The model, wrapped, its optimizer, and a step that trains it."""
    torch.manual_seed(options.seed)
    net = GPT(options.layers, options.width, options.length)
    model: nn.Module = DistributedDataParallel(net) if options.parallel == "ddp" else net
    if model is net:
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()

    return model, optimizer, step


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save(folder: Path, number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save what is trained after so many steps, each rank its part."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"step-{number:06d}")


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last checkpoint, of however many ranks; after how many steps it was saved, 0 where there is none."""
    found = sorted(folder.glob("step-*/.metadata"))
    if not found:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=found[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return int(found[-1].parent.name.removeprefix("step-"))


# --- what is shown ----------------------------------------------------------------------------------------------------


@contextmanager
def progress(is_shown: bool, first: int, last: int) -> Iterator[Callable[[int, float], None]]:
    """A bar on rank 0; a function that moves it."""
    columns = TextColumn("loss {task.fields[loss]:.3f}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, disable=not is_shown) as bar:
        task = bar.add_task("", total=last, completed=first, loss=float("nan"))
        yield lambda number, loss: bar.update(task, completed=number, loss=loss)


def draw(metrics: Path, picture: Path) -> None:
    """A picture of the loss over steps, as SVG, of all that metrics hold."""
    found = {line["step"]: line["loss"] for line in map(json.loads, metrics.read_text().splitlines())}
    width, height, low, high = 640, 320, min(found.values()), max(found.values())
    spread, last = max(high - low, 1e-9), max(found)
    points = " ".join(
        f"{50 + (width - 60) * step / last:.1f},{10 + (height - 40) * (high - loss) / spread:.1f}"
        for step, loss in sorted(found.items())
    )
    picture.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<polyline points="{points}" fill="none" stroke="#2a6f97" stroke-width="1.5"/>'
        f'<text x="8" y="20">{high:.2f}</text><text x="8" y="{height - 26}">{low:.2f}</text>'
        f'<text x="{width // 2}" y="{height - 8}">loss over {last} steps</text></svg>\n'
    )


# --- training ---------------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> list[float]:
    """Train, and return the losses of the steps that were made."""
    model, optimizer, plain = make(options)
    step: Any = plain
    if not options.eager:
        step = dovetail.compile_step(plain, memory_limit=options.memory_limit)
    text, is_first = read_text(options.megabytes), dist.get_rank() == 0
    options.out.mkdir(parents=True, exist_ok=True)
    begin = load(options.out, model, optimizer) if options.resume else 0
    losses: list[float] = []
    metrics = options.out / "metrics.jsonl"
    with progress(is_first, begin, options.steps) as show, metrics.open("a" if begin else "w") as lines:
        for number in range(begin, options.steps):
            torch.manual_seed(options.seed + 7919 * number + dist.get_rank())  # of dropout
            started = time.perf_counter()
            losses.append(step(batch_of(text, options, number)).item())
            seconds = time.perf_counter() - started
            show(number + 1, losses[-1])
            if is_first:
                rate = options.batch * options.length * dist.get_world_size() / seconds
                line = {"step": number + 1, "loss": losses[-1], "seconds": seconds, "tokens_per_second": rate}
                lines.write(json.dumps(line) + "\n")
            if (number + 1) % options.save_every == 0 or number + 1 == options.steps:
                lines.flush()
                save(options.out, number + 1, model, optimizer)
    if is_first and losses:
        draw(metrics, options.out / "loss.svg")
        fell = f"{losses[0]:.3f} -> {losses[-1]:.3f}"
        print(f"{dist.get_world_size()} ranks, {options.parallel}; loss {fell}; {options.out}")
        if not options.eager:
            print(step.stats)
    return losses


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp", help="how weights lie on ranks")
    parser.add_argument("--memory-limit", help="of each rank, as compile_step takes it")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("pretrain-gpt"), help="folder for what is written")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--batch", type=int, default=8, help="of each rank")
    for name, default in (("layers", 4), ("width", 128), ("length", 128), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--megabytes", type=float, default=4.0, help="of text")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train as a command line says; the losses."""
    options = options_of(arguments)
    if dist.is_initialized():
        return train(options)
    if "RANK" in os.environ:  # of torchrun
        dist.init_process_group("gloo")
    else:
        store = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        return train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
