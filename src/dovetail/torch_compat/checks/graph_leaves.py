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


def _two_leaves() -> list[torch.Tensor]:
    return [torch.ones(2, requires_grad=True) for _ in range(2)]


def check_engine_asked_about() -> str | None:
    """A hook for several leaves that is given gradients of others hears how many of these there will be."""
    leaves, others, calls = _two_leaves(), _two_leaves(), list[int]()
    handle = torch.autograd.graph.register_multi_grad_hook(others, lambda found: calls.append(len(found)))
    for leaf, other in zip(leaves, others, strict=True):
        leaf._backward_hooks = other._backward_hooks
    with graph_leaves.engine_asked_about(list(zip(leaves, others, strict=True))), torch.enable_grad():
        (leaves[0] * leaves[1]).sum().backward()
    handle.remove()
    return first_difference(("calls of the hook", calls, [2]))


CHECKS = (check_leaves_below, check_nodes_below, check_engine_asked_about)
