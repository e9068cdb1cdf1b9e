"""Sparse matrices that exist before a call: it is recorded with their parts, and multiplies by them.

    y = torch.spmm(adjacency, x)   ->   sparse_product([indices, values], [100, 100], "coo", False, x)

Whoever holds such a matrix holds a sparse fake meanwhile; one that nobody declared is met like other constants, and so
are its parts. What backward needs of it is its transposed. All else that is done to one is refused by name.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol

import torch

from dovetail.ops.sparse import PRODUCT_BY_SPARSE, SPARSE_ADDMM, SPARSE_PRODUCT
from dovetail.torch_compat.fakes import FakeMode, is_fake, sparse_fake
from dovetail.torch_compat.modes import autocast_is_active_above
from dovetail.torch_compat.sparse import Form, cast_matrix, form_of, parts_of, same_matrix, turned
from dovetail.torch_compat.swapping import exchange_back, exchange_tensors

aten = torch.ops.aten
_PRODUCTS = frozenset({aten.mm.default, aten.mv.default})
_SUMS = frozenset({aten.addmm.default, aten._sparse_addmm.default})
_DIMS = {aten.sparse_dim.default: 2, aten.dense_dim.default: 0}
_SAME = frozenset({aten.detach.default, aten.alias.default})


@dataclass(frozen=True, slots=True)
class KnownMatrix:
    """A sparse matrix that was there before. parts: strided tensors, with which the call is recorded."""

    label: str
    matrix: torch.Tensor
    form: Form
    parts: tuple[torch.Tensor, ...]
    is_turned: bool = False

    @property
    def operands(self) -> tuple[Any, ...]:
        """As operators of `ops.sparse` take it."""
        return list(self.parts), list(self.form.size), self.form.layout, self.is_turned


class Dispatcher(Protocol):
    """The recorder, as this module sees it. meets: real matrices may be constants."""

    meets: bool

    def recorded(self, make: Callable[[], Any]) -> Any:
        """What is made by operators that are recorded."""

    def refuse_matrix(self, label: str, what: str) -> NoReturn:
        """Raise the door's error."""


class SparseOperands:
    """See the module docstring."""

    def __init__(self, recorder: Dispatcher) -> None:
        self._recorder: Dispatcher = weakref.proxy(recorder)  # which holds this
        self._known: dict[int, KnownMatrix] = {}
        self._alive: list[torch.Tensor] = []

    @contextlib.contextmanager
    def exchanged(self, mode: FakeMode, matrices: Sequence[KnownMatrix]) -> Iterator[None]:
        """While active, the matrices are fakes, as their parts are already.

        Raises: DovetailError where one requires a gradient in the end.
        """
        fakes = [sparse_fake(mode, item.matrix) for item in matrices]
        done: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            for item, fake in zip(matrices, fakes, strict=True):
                exchange_tensors(item.matrix, fake)
                done.append((item.matrix, fake))
                self._known[id(item.matrix)] = item
            yield
            for item in matrices:
                if item.matrix.requires_grad:
                    self._refuse(item, "requires_grad_")
        finally:
            for matrix, fake in reversed(done):
                self._known.pop(id(matrix), None)
                exchange_back(matrix, fake)

    def add(self, fake: torch.Tensor, item: KnownMatrix) -> None:
        """Declare a matrix, which `fake` stands for."""
        self._stands_for(fake, item)

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether an operator is given such a matrix."""
        for argument in args if self._recorder.meets else ():
            if isinstance(argument, torch.Tensor) and argument.layout is not torch.strided:
                self._meet(argument)
        return bool(self._known) and any(id(argument) in self._known for argument in args)

    def _meet(self, matrix: torch.Tensor) -> None:
        form = None if is_fake(matrix) or id(matrix) in self._known else form_of(matrix)
        if form is not None:
            parts = tuple(parts_of(matrix).values())
            self._stands_for(matrix, KnownMatrix("a matrix that it closes over", matrix, form, parts))

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record it. Raises: DovetailError for one that has no counterpart."""
        place = next(place for place, argument in enumerate(args) if id(argument) in self._known)
        item = self._known[id(args[place])]
        if func is aten._sparse_addmm.default and autocast_is_active_above():  # its kernel calls what autocast casts
            self._refuse(item, "torch.sparse.mm under autocast: write matrix @ dense, or switch autocast off for it")
        if sum(id(argument) in self._known for argument in args) == 1:
            made = self._product(func, place, item, args, kwargs)
            made = self._other_form(func, item, args, kwargs) if made is None else made
            if made is not None:
                return made
        if func is aten.is_coalesced.default and item.form.layout in ("coo", "coalesced") and not item.is_turned:
            return item.form.layout == "coalesced"
        if func is aten._nnz.default:
            return item.parts[-1].shape[0]
        if func in _DIMS:
            return _DIMS[func]
        self._refuse(item, str(func))

    def _product(
        self, func: Any, place: int, item: KnownMatrix, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        make: Callable[[], torch.Tensor] | None = None
        if func in _PRODUCTS and place == 0 and not kwargs:
            make = partial(SPARSE_PRODUCT, *item.operands, args[1])
        if func is aten.mm.default and place == 1 and not kwargs:
            make = partial(PRODUCT_BY_SPARSE, *item.operands, args[0])
        if func in _SUMS and place == 1 and kwargs.keys() <= {"beta", "alpha"}:
            make = partial(SPARSE_ADDMM, args[0], *item.operands, args[2], **kwargs)
        return None if make is None else self._recorder.recorded(make)

    def _other_form(
        self, func: Any, item: KnownMatrix, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        if func in (aten.t.default, aten.transpose.int) and (len(args) == 1 or {x % 2 for x in args[1:]} == {0, 1}):
            return self._stands_for(turned(args[0]), replace(item, is_turned=not item.is_turned))
        if func is aten._to_copy.default and kwargs.keys() == {"dtype"}:
            return self._cast(args[0], item, kwargs["dtype"])
        return self._stands_for(same_matrix(args[0]), item) if func in _SAME else None

    def _cast(self, matrix: torch.Tensor, item: KnownMatrix, dtype: torch.dtype) -> torch.Tensor:
        values = self._recorder.recorded(lambda: aten._to_copy.default(item.parts[-1], dtype=dtype))
        return self._stands_for(cast_matrix(matrix, dtype), replace(item, parts=(*item.parts[:-1], values)))

    def _stands_for(self, fake: torch.Tensor, item: KnownMatrix) -> torch.Tensor:
        self._known[id(fake)] = item
        self._alive.append(fake)
        return fake

    def refuse(self, tensor: torch.Tensor) -> None:
        """Raises: DovetailError where a tensor that is to be a value is such a matrix."""
        if id(tensor) in self._known:
            self._refuse(self._known[id(tensor)], "as a whole")

    def _refuse(self, item: KnownMatrix, what: str) -> NoReturn:
        self._recorder.refuse_matrix(item.label, what)
