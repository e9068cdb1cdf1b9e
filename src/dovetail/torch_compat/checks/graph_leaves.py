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


CHECKS = (check_leaves_below,)
