"""Sparse gradients while a call is recorded: the parts that they consist of, and operators on those.

A sparse fake passes through autograd and the optimizer; what it stands for is kept here: pairs of indices and values,
which are values of the program. The operators of `ops.sparse` take them; other operators on a sparse tensor are refused
by name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from dovetail.capture.item_log import Results, Seen
from dovetail.capture.sparse_operands import SparseOperands
from dovetail.ops.sparse import MASKED_VALUES, SORTED_PARTS, SPARSE_ADD
from dovetail.torch_compat.dispatch import decompose, is_question
from dovetail.torch_compat.sparse import PairsForm
from dovetail.torch_compat.symbols import hint_of

aten = torch.ops.aten
_MAKE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_OF_BAGS = aten._embedding_bag_backward.default
_SAME = frozenset({aten.clone.default, aten.detach.default, aten.alias.default})


@dataclass(frozen=True, slots=True)
class Matrix:
    """pairs: indices, values, indices, ...; fakes. is_sorted: one of 0, 1, 2 for each pair, see `ops.sparse`."""

    pairs: tuple[torch.Tensor, ...]
    size: tuple[int, ...]
    is_sorted: tuple[int, ...]

    @property
    def operands(self) -> tuple[Any, ...]:
        """As operators of `ops.sparse` take it."""
        return list(self.pairs), list(self.size), list(self.is_sorted)


class Dispatcher(Protocol):
    """The recorder, as this module sees it. meets: see `SparseOperands`."""

    meets: bool

    def refuse_sparse(self, func: Any) -> NoReturn:
        """Raise the door's error."""

    def recorded(self, make: Callable[[], Any]) -> Any:
        """What is made by operators that are recorded."""

    def refuse_matrix(self, label: str, what: str) -> NoReturn:
        """Raise the door's error."""


def guessed_results(func: Any, args: Sequence[Any]) -> Results:
    """Where eager mode has not sorted a matrix: indices that differ. () for another operator."""
    if func is not SORTED_PARTS:
        return ()
    indices, values = args[0][:2]
    count = sum(size if isinstance(size, int) else hint_of(size) or 0 for size in (x.shape[0] for x in args[0][1::2]))
    return tuple(
        Seen(tuple(shape), True, tensor.dtype, tensor.device)
        for tensor, shape in ((indices, (indices.shape[0], count)), (values, (count, *values.shape[1:])))
    )


def _bag_of_each(indices: torch.Tensor, offsets: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """In which bag each index is. Kernels for sums do not say so; then this is what torch's backward does."""
    count = indices.shape[0]
    if known.shape[0] != 0 or count == 0:
        return known
    begun = offsets.new_zeros((count + 1,))
    begun.index_add_(0, offsets, torch.ones_like(offsets, memory_format=torch.contiguous_format))
    begun[:1].sub_(1)
    return begun.cumsum(0, dtype=offsets.dtype)[:count]


class SparseGradients:
    """See the module docstring. Attributes: operands, matrices that are there before the call."""

    def __init__(self, recorder: Dispatcher) -> None:
        self._recorder: Dispatcher = weakref.proxy(recorder)  # which holds this
        self._known: dict[int, Matrix] = {}
        self._alive: list[torch.Tensor] = []
        self.operands = SparseOperands(recorder)

    def _handlers(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten._indices.default: lambda matrix: self._part(matrix, 0),
            aten._values.default: lambda matrix: self._part(matrix, 1),
            aten._coalesce.default: self._sorted,
            aten.is_coalesced.default: lambda matrix: self._known[id(matrix)].is_sorted == (1,),
            aten.add.Tensor: self._sum,
            aten.add_.Tensor: self._add,
            aten.sparse_mask.default: self._masked,
            **dict.fromkeys(_SAME, lambda matrix, **_: self._stands_for(self._known[id(matrix)])),
        }

    def takes(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether an operator makes a sparse tensor, or is given one."""
        if func is _MAKE or (func is _OF_BAGS and args[9]):
            return True
        if is_question(func):
            return False
        return self.operands.takes(args) or (
            bool(self._known) and any(id(argument) in self._known for argument in args)
        )

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record it. Raises: DovetailError for one that has no counterpart."""
        if self.operands.takes(args):
            return self.operands.run(func, args, kwargs)
        if func is _OF_BAGS:
            grad, indices, offsets, places, sizes, _, rows, scales, mode, _, weights, *padding = args
            rest = (sizes, rows, scales, mode, weights, *padding)

            def of_bags() -> Any:
                given = (grad, indices, offsets, _bag_of_each(indices, offsets, places), *rest)
                return decompose(aten._embedding_bag_sparse_backward.default, given, {})

            return self._recorder.recorded(of_bags)
        if func is _MAKE:
            _, _, size, indices, values = args
            flag = {None: 0, True: 1, False: 2}[kwargs.get("is_coalesced")]
            return self._stands_for(Matrix((indices, values), tuple(size), (flag,)))
        handler = self._handlers().get(func)
        if handler is None:
            self._recorder.refuse_sparse(func)
        return handler(*args, **kwargs)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether it is a sparse tensor that was made while recording."""
        return id(tensor) in self._known

    def taken_apart(self, tensor: torch.Tensor) -> tuple[PairsForm, tuple[torch.Tensor, ...]]:
        """The pairs that such a tensor stands for, and how they make it."""
        known = self._known[id(tensor)]
        return PairsForm(known.size, known.is_sorted), known.pairs

    def _stands_for(self, matrix: Matrix) -> torch.Tensor:
        """A sparse fake for a matrix. How many elements it seems to have means nothing."""
        values = matrix.pairs[1]
        sparse_dims = len(matrix.size) - values.dim() + 1
        indices = torch.empty((sparse_dims, 2), dtype=torch.int64, device=values.device)
        seeming = torch.empty((2, *matrix.size[sparse_dims:]), dtype=values.dtype, device=values.device)
        made = torch.sparse_coo_tensor(indices, seeming, matrix.size, check_invariants=False)
        self._known[id(made)] = matrix
        self._alive.append(made)
        return made

    def _part(self, matrix: torch.Tensor, which: int) -> torch.Tensor:
        known = self._known[id(matrix)]
        if len(known.pairs) > 2:
            known = self._known[id(self._sorted(matrix))]
        return known.pairs[which]

    def _sorted(self, matrix: torch.Tensor) -> torch.Tensor:
        known = self._known[id(matrix)]
        pair = self._recorder.recorded(lambda: SORTED_PARTS(*known.operands))
        return self._stands_for(Matrix(tuple(pair), known.size, (1,)))

    def _sum(self, first: Any, second: Any, alpha: Any = 1) -> torch.Tensor:
        one, other = self._known.get(id(first)), self._known.get(id(second))
        if one is None or other is None or alpha != 1 or one.size != other.size or len(other.pairs) > 2:
            self._recorder.refuse_sparse(aten.add.Tensor)
        return self._stands_for(Matrix((*one.pairs, *other.pairs), one.size, (*one.is_sorted, *other.is_sorted)))

    def _add(self, dense: torch.Tensor, matrix: torch.Tensor, alpha: Any = 1) -> torch.Tensor:
        if id(dense) in self._known or id(matrix) not in self._known:
            self._recorder.refuse_sparse(aten.add_.Tensor)
        known = self._known[id(matrix)]
        self._recorder.recorded(lambda: SPARSE_ADD(dense, *known.operands, alpha))
        return dense

    def _masked(self, dense: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        known = self._known.get(id(matrix))
        if known is None or len(known.pairs) > 2:
            self._recorder.refuse_sparse(aten.sparse_mask.default)
        values = self._recorder.recorded(lambda: MASKED_VALUES(dense, *known.operands))
        return self._stands_for(Matrix((known.pairs[0], values), known.size, known.is_sorted))
