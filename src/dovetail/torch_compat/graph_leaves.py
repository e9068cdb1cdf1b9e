"""The nodes and leaves of autograd's graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


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


@contextlib.contextmanager
def engine_asked_about(leaves: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """While active, the engine is asked about nodes of leaves that stand in for others, where code asks about the
    others' nodes: `register_multi_grad_hook` does, to know how many gradients it is to wait for.

    leaves: what the objects of users are for now stands in for what the second objects are.
    """
    own = torch._C._will_engine_execute_node

    def will_execute(node: Any) -> bool:
        variable = getattr(node, "variable", None)
        stand_in = None if variable is None else next((x for x, other in leaves if other is variable), None)
        return own(node if stand_in is None else _accumulating_node(stand_in))

    torch._C._will_engine_execute_node = will_execute
    try:
        yield
    finally:
        torch._C._will_engine_execute_node = own


def _accumulating_node(leaf: torch.Tensor) -> Any:
    """The node that adds to the `.grad` of a leaf."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.enable_grad():
        node: Any = leaf.view_as(leaf).grad_fn
        return node.next_functions[0][0]
