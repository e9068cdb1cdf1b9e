"""The leaves of autograd's graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def leaves_below(roots: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves to whose gradients a backward from these tensors (or edges of graphs) adds, each once."""
    waiting = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    leaves = [root for root in roots if isinstance(root, torch.Tensor) and root.is_leaf and root.requires_grad]
    met = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if node is None:
            continue
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        new = [below for below, _ in node.next_functions if below not in met]
        met.update(new)
        waiting += dict.fromkeys(new)
    return leaves
