"""What `dovetail.aot_function` takes to hand a deep network to its compilers: capture, minimum cut, both compilers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, fx, nn

import dovetail


class _Deep(nn.Module):
    """Eight operators a layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers one after the other."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x) * 0.5 + 1).sin() * 2
        return x


def measure_capture(nodes: int) -> tuple[list[int], float]:
    """How many nodes each compiler got, and processor seconds of one call and its backward."""
    counts: list[int] = []

    def compiler(gm: fx.GraphModule, _: Any) -> Any:
        counts.append(sum(node.op == "call_function" for node in gm.graph.nodes))
        return gm

    run = dovetail.aot_function(_Deep(max(1, nodes // 8)), compiler, partition="min_cut")
    x = torch.randn(4, 8)
    start = time.process_time()
    run(x).sum().backward()
    return counts, time.process_time() - start


def aot_capture(nodes: str = "500,2000", rounds: int = 3) -> None:
    """Print a table: nodes of forward and backward, and the least processor time of capture and both compilers."""
    torch.set_num_threads(1)
    print("| forward nodes | backward nodes | seconds |\n|---:|---:|---:|")
    for count in map(int, nodes.split(",")):
        found = [measure_capture(count) for _ in range(rounds)]
        (forward, backward), seconds = found[0][0], min(taken for _, taken in found)
        print(f"| {forward:,} | {backward:,} | {seconds:.2f} |")
