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


def takes_gradient_like(node: Any, view: torch.Tensor) -> bool:
    """Whether the node of a view is for gradients of its shape. It is not where a changed base was viewed again."""
    return tuple(node._input_metadata[view.output_nr].shape) == tuple(view.shape)


_BASE_OF: Any = getattr(torch.Tensor._base, "__get__")  # noqa: B009
_VIEW_OR_NOT: Any = (_BASE_OF, torch.Tensor._is_view, torch.Tensor.detach_, torch.detach_)
_SWITCHES: Any = (torch.Tensor.requires_grad_, getattr(torch.Tensor.requires_grad, "__set__"))  # noqa: B009


def switches_gradient(function: object) -> bool:
    """Whether a function that a function mode is told of may let a tensor require gradients that required none."""
    return function in _SWITCHES


def asks_whether_view(function: object) -> bool:
    """Whether a function that a function mode is told of tells, or fails, where autograd sees a view."""
    return function in _VIEW_OR_NOT


def asks_for_base(function: object) -> bool:
    """Whether a function that a function mode is told of asks for the tensor that another one is a view of."""
    return bool(function == _BASE_OF)
