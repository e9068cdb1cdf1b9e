"""What a first call of a step costs with more layers, no two of one width: with native code, and without.

    python -m benchmarks.distinct_layers 2 4 8 16 32 64

Each first call is one of a process of its own; a second process finds on disk what the first one left there. Prints a
row for each number of layers: nodes of the program, and processor seconds.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time

import torch
from torch import nn

import dovetail
from benchmarks.native import WAYS
from benchmarks.processes import last_line_of
from benchmarks.small_steps import Step, trained

_CACHE = "DOVETAIL_CACHE_DIR"


def distinct_layers(count: int) -> Step:
    """Linear layers with tanh between, 16 to 16 + count wide, and AdamW."""
    widths = [16 + at for at in range(count + 1)]
    linears = [nn.Linear(before, after) for before, after in itertools.pairwise(widths)]
    model = nn.Sequential(*[layer for linear in linears for layer in (linear, nn.Tanh())])
    x = torch.randn(8, widths[0])
    return trained(model, lambda: model(x).square().mean())


def first_call(count: int, way: str) -> tuple[int, float]:
    """Nodes of the program, and processor seconds of the first call."""
    torch.set_num_threads(1)
    dovetail.compile_step(lambda: torch.ones(2) + 1)()  # what is imported once
    step = dovetail.compile_step(distinct_layers(count), **WAYS[way])
    start = time.process_time()
    step()
    return len(step.program.nodes), time.process_time() - start


def main() -> None:
    """See the module docstring."""
    print("| layers | nodes | aten, s | native, s | native, second process, s |\n|---:|---:|---:|---:|---:|")
    for count in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
            os.environ[_CACHE] = folder
            told = [last_line_of("distinct_layers", f"{way}={count}") for way in ("aten", "native", "native")]
        nodes, *_ = told[0].split()
        print(f"| {count} | {nodes} | {' | '.join(line.split()[1] for line in told)} |", flush=True)


if __name__ == "__main__":
    if "=" in sys.argv[1]:
        way, number = sys.argv[1].split("=")
        print("{} {:.2f}".format(*first_call(int(number), way)))
    else:
        main()
