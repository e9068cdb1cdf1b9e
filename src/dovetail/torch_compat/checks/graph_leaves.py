"""Self-checks of `torch_compat.graph_leaves`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import graph_leaves
from dovetail.torch_compat.checks.difference import first_difference


def check_leaves_below() -> str | None:
    """The leaves of a graph are found, each once, from tensors and from edges, as the objects that they are."""
    x, y, z = (torch.ones(2, requires_grad=True) for _ in range(3))
    with torch.enable_grad():
        made = (x * y).sum() + x.sum()
        edge = torch.autograd.graph.get_gradient_edge(z * 2)
    found = [*graph_leaves.leaves_below([made, edge]), *graph_leaves.leaves_below([x])]
    return first_difference(("leaves", sorted(map(id, found)), sorted(map(id, [x, y, z, x]))))


def check_nodes_below() -> str | None:
    """The nodes of a graph are found, each once, also where two ways lead to one."""
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True).exp()
        made = x.sin() * x.cos()
    names = sorted(node.name() for node in graph_leaves.nodes_below([made, x, torch.ones(2)]))
    expected = ["CosBackward0", "ExpBackward0", "MulBackward0", "SinBackward0", "torch::autograd::AccumulateGrad"]
    return first_difference(("nodes", names, expected))


CHECKS = (check_leaves_below, check_nodes_below)
