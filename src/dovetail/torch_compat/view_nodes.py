"""Autograd's nodes of views, which it makes anew after the memory of a view was written."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch_compat.recurrent import above_autograd


def node_made_since(view: torch.Tensor, number: int) -> Any:
    """The node of a view if it is newer than the sequence number says, or is made now; else None.

    None, too, where autograd refuses to make it anew: what does not ask for the node may read such a view.
    """
    try:
        with above_autograd():
            node: Any = view.grad_fn
    except RuntimeError:
        return None
    return None if node is None or node._sequence_nr() < number else node


def nodes_of_view(node: Any, base: torch.Tensor) -> tuple[Any, Any] | None:
    """The first and the last of the nodes that lead from a view to its base; None where eager mode has the same ones.

    It has where a view on the way changes what the elements are: `as_strided` says nothing of that.

    Args:
        node: the view's node, as autograd makes it anew by making the views again.
        base: the tensor that autograd tracks the view as a view of.
    """
    first, target = node, base.grad_fn
    while node.name() not in _OTHER_ELEMENTS and len(node.next_functions) == 1:
        following = node.next_functions[0][0]
        if following is target if target is not None else getattr(following, "variable", None) is base:
            return first, node
        if following is None:
            break
        node = following
    return None


_OTHER_ELEMENTS = frozenset(f"{name}Backward0" for name in ("ViewAsReal", "ViewAsComplex", "Conj", "NegView"))
