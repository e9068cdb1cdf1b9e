"""Inputs of which a program shows whether they are views of other tensors.

    t = x[0]; x.requires_grad_(); t.requires_grad      True, unless x is a view: then t is one of what x is a view of

It does where it switches gradients on for an input that it has made views of, where its code asks, and where it
detaches an input in place. From then on each call is asked; for a view, what the function sees is a view of a tensor
that nobody else has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail.errors import DataDependentControlFlow, UnsupportedInputMutation
from dovetail.ir.program import Origin
from dovetail.torch_compat.autograd import viewed_tensor


class AskedViews:
    """Those of one recording."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._asked: dict[int, torch.Tensor] = {}
        self._hidden: dict[int, torch.Tensor] = {}

    def view_of_hidden(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of this fake, of which code may not know."""
        with torch.enable_grad():
            view: torch.Tensor = torch.ops.aten.alias.default(tensor)
        self._hidden[id(tensor)] = tensor
        return view

    def ask(self, tensor: torch.Tensor, origin: Origin, *, for_base: bool) -> None:
        """Code asks whether this is a view, or for what it is a view of. Raises: DataDependentControlFlow."""
        base = viewed_tensor(tensor)
        self._asked.update({id(base): base, id(tensor): tensor})
        if for_base and id(base) in self._hidden:
            raise DataDependentControlFlow(operator="the tensor that an input is a view of", origin=origin)

    def switch(self, tensor: torch.Tensor, has_views: Callable[[torch.Tensor], bool]) -> None:
        """Gradients are about to be switched on for a tensor. has_views: whether there are views of its base."""
        if not tensor.requires_grad and has_views(tensor):
            self._asked[id(tensor)] = tensor

    def is_asked(self, seen: torch.Tensor) -> bool:
        """Whether code has asked this of an input."""
        return id(seen) in self._asked

    def refuse_older(self, result: torch.Tensor, seen: torch.Tensor, name: str) -> None:
        """Refuse a view that was made before gradients were switched on for the view that it was made of.

        Raises: UnsupportedInputMutation, as it would be made after that.
        """
        is_view = viewed_tensor(seen) is not seen and viewed_tensor(result) is viewed_tensor(seen)
        if is_view and seen.requires_grad and seen.is_leaf and not result.requires_grad:
            raise UnsupportedInputMutation(what="requires_grad, after another view of its base was made,", name=name)
