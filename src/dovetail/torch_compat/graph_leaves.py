"""The nodes and leaves of autograd's graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


def nodes_below(roots: Iterable[Any]) -> Iterator[Any]:
    """The nodes that lead to these tensors (or edges of graphs), each once."""
    waiting = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    met = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if node is None:
            continue
        yield node
        new = [below for below, _ in node.next_functions if below not in met]
        met.update(new)
        waiting += dict.fromkeys(new)


def leaves_below(roots: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves to whose gradients a backward from these tensors (or edges of graphs) adds, each once."""
    leaves = [root for root in roots if isinstance(root, torch.Tensor) and root.is_leaf and root.requires_grad]
    return leaves + [node.variable for node in nodes_below(roots) if getattr(node, "variable", None) is not None]
