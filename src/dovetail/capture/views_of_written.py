"""Gradients of views whose memory was written after they were made.

Where the base of a differentiable view was written, or another view of it, autograd makes the view's node anew when the
view is read next. In eager mode the new node is an `as_strided` of the base: the base's gradient gets the base's
strides, and overlapping elements are summed as `as_strided` sums them. On fakes autograd makes the views again, one by
one, and the gradient gets the strides of their backward. Equal values, but later sums round in the order of strides.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dovetail.torch_compat.autograd import next_sequence_number, viewed_tensor
from dovetail.torch_compat.view_nodes import node_made_since, nodes_of_view

Make = Callable[[], torch.Tensor]


class ViewsOfWritten:
    """Lets the nodes that autograd made anew give the gradients that eager's nodes give."""

    def __init__(self, unrecorded: Callable[[Make], torch.Tensor]) -> None:
        """unrecorded: runs what it is given without a trace of it in the program."""
        self._unrecorded = weakref.WeakMethod(unrecorded)  # of what holds this
        self._known: dict[int, int] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """Every node of this tensor that was made up to now is its first, or was treated."""
        self._known[id(tensor)] = next_sequence_number()

    def lay_out(self, arguments: Iterable[object]) -> None:
        """Treat the tensors among the arguments of an operator, or of backward, whose nodes are new."""
        for argument in arguments:
            if isinstance(argument, list | tuple):
                self.lay_out(argument)
            elif (
                isinstance(argument, torch.Tensor)
                and argument.requires_grad
                and viewed_tensor(argument) is not argument
            ):
                self._treat(argument)

    def _treat(self, view: torch.Tensor) -> None:
        known = self._known.get(id(view))
        if known is None or not torch.is_grad_enabled():
            return
        node = node_made_since(view, known)
        if node is None:
            return
        self.note(view)
        base = viewed_tensor(view)
        nodes = nodes_of_view(node, base)
        if nodes is not None:
            self._replace(nodes[0], nodes[1], base, (view.shape, view.stride(), view.storage_offset()))

    def _replace(self, first: Any, last: Any, base: torch.Tensor, layout: tuple[Any, ...]) -> None:
        """Let `last`, which ends the chain from `first`, hand on what eager's node makes of what arrives there."""
        arrived: list[tuple[torch.Tensor | None, ...]] = []
        if first is not last:
            first.register_prehook(arrived.append)

        def hand_on(found: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
            (gradient,) = gradients if first is last else arrived.pop()
            if gradient is None:
                return None
            with torch.enable_grad():
                own = base.detach().requires_grad_()
                unrecorded = self._unrecorded()
                assert unrecorded is not None, "gradients are made while it records"
                whole = unrecorded(lambda: own.as_strided(*layout))
            (made,) = torch.autograd.grad(whole, own, gradient, create_graph=torch.is_grad_enabled())
            return made, *found[1:]

        last.register_hook(hand_on)
