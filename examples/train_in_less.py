"""Train under a limit of the operating system that eager mode cannot keep, with the losses of an unlimited run.

python examples/train_in_less.py

Three processes train the same network: eager mode without a limit, then eager mode and dovetail with an address space
(`ulimit -v`) of 1.5 times the network's state: its weights and the moments of AdamW. For Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail

_PARTS_OF_STATE = 3
"""A weight has two moments."""
_OWN_SHARE = 0.15
"""How much of the state's size is left to whatever is no tensor: the compiler, and Python."""


class Regressor(nn.Module):
    """Layers of one width, each with a GELU and a residual around it."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of f32[batch, width] against a target like it."""
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.mse_loss(x, target)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the losses of each way, or why it has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--times", type=float, default=1.5, help="the limit, in sizes of the state")
    parser.add_argument("--way", choices=["eager", "dovetail"], help="train in this process")
    parser.add_argument("--limited", action="store_true", help="with --way: under the limit")
    given = parser.parse_args(argv)
    if given.way is not None:
        _train(given)
        return
    sizes = [f"--{name}={getattr(given, name)}" for name in ("layers", "width", "batch", "steps", "times")]
    free = _losses("eager mode, no limit", ["--way=eager", *sizes])
    _losses("eager mode under the limit", ["--way=eager", "--limited", *sizes])
    limited = _losses("dovetail under the limit", ["--way=dovetail", "--limited", *sizes])
    print(f"the losses of dovetail are eager's, bit by bit: {'yes' if limited == free else 'no'}")


def _losses(title: str, arguments: Sequence[str]) -> list[str]:
    """The losses that a process of its own prints, as exact numbers."""
    # Otherwise freed blocks stay with the C library, in pieces that nothing large fits into.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parent.parent
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH")]))
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    losses = re.findall(r"^loss (\S+)$", done.stdout, re.MULTILINE)
    shown = ", ".join(f"{float.fromhex(loss):.6f}" for loss in losses)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    print(f"{title}: {shown or 'no loss'}" + (f"; {last}" if done.returncode else ""))
    return losses


def _train(given: argparse.Namespace) -> None:
    x, target = torch.randn(2, given.batch, given.width).unbind()
    torch.manual_seed(0)
    model = Regressor(given.layers, given.width)
    x.normal_(), target.normal_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    weights = sum(weight.nbytes for weight in model.parameters())
    budget = int(given.times * _PARTS_OF_STATE * weights)

    def train_step(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x, target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = train_step
    if given.way == "dovetail":
        own = int(_OWN_SHARE * _PARTS_OF_STATE * weights)
        step = dovetail.compile_step(train_step, memory_limit=budget - own, keep_grads=False)
    if given.limited:
        _warm_up()
        held = weights + x.untyped_storage().nbytes()
        space = _address_space() - held + budget
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
    for _ in range(given.steps):
        print("loss", float(step(x, target)).hex(), flush=True)


def _warm_up() -> None:
    """Load the libraries that training and compiling need: they are not what is measured."""
    net = Regressor(1, 8)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = net(x, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(torch.zeros(2, 8))
    dovetail.compile_step(step, memory_limit="1MiB")(torch.zeros(2, 8))


def _address_space() -> int:
    """The bytes of address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
