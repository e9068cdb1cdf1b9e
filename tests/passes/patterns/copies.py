"""How many bytes does a call copy, although nothing new is computed? Asked of torch while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dovetail.ops.facts import facts_of, is_copy, overwrites
from dovetail.ops.writing_forms import replaces_a_part, view_of_copy
from dovetail.torch_compat.dispatch import DispatchMode, HigherOrder


class CountCopies(DispatchMode):
    """copied_bytes: of copies, and of what operators leave alone when they replace a part of a copy of their operand.

    largest_write: bytes of the largest memory that was written; largest: that was made.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.copied_bytes = 0
        self.largest_write = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrder):
            return func(*(self._counted(a) if callable(a) else a for a in args), **kwargs)
        results = func(*args, **kwargs)
        before = {_address(t) for t in _tensors((args, kwargs))}
        new = [t for t in _tensors(results) if _address(t) not in before]
        for tensor in new:
            self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        for position in facts_of(func).writes:
            for tensor in _tensors(args[position] if position < len(args) else ()):
                self.largest_write = max(self.largest_write, tensor.untyped_storage().nbytes())
        if _moves(func):
            self.copied_bytes += sum(tensor.nbytes for tensor in _tensors(args[1]))
        elif _gives_a_copy(func) and args[0].dtype == new[0].dtype:
            self.copied_bytes += sum(tensor.nbytes for tensor in new)
        return results

    def _counted(self, body: Any) -> Any:
        def run(*args: Any) -> Any:
            with self:
                return body(*args)

        return run


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _moves(func: Any) -> bool:
    return overwrites(func) or func is torch.ops.aten._foreach_copy_.default


def _gives_a_copy(func: Any) -> bool:
    names_a_copy = is_copy(func) or view_of_copy(func) is not None or replaces_a_part(func)
    return names_a_copy or func is torch.ops.aten.copy.default
