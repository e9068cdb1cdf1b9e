"""Sparse matrices that exist before a step: the step is recorded with their parts, and multiplies by them.

    y = torch.spmm(adjacency, x)   ->   sparse_product([indices, values], [100, 100], "coo", False, x)

Whoever holds such a matrix holds a sparse fake meanwhile. What backward needs of it is its transposed. All else that a
step may do to one is refused by name.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import torch

from dovetail.errors import UnsupportedStep
from dovetail.ir.program import Origin
from dovetail.ops.sparse import SPARSE_ADDMM, SPARSE_PRODUCT, Form
from dovetail.torch_compat.fakes import FakeMode, sparse_fake
from dovetail.torch_compat.swapping import exchange_back, exchange_tensors

aten = torch.ops.aten
_PRODUCTS = frozenset({aten.mm.default, aten.mv.default})
_SUMS = frozenset({aten.addmm.default, aten._sparse_addmm.default})
_DIMS = {aten.sparse_dim.default: 2, aten.dense_dim.default: 0}
_SAME = frozenset({aten.detach.default, aten.alias.default})


@dataclass(frozen=True, slots=True)
class StepMatrix:
    """A sparse matrix that the step can reach. parts: strided tensors, with which the step is recorded."""

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
    """The recorder, as this module sees it."""

    def recorded(self, make: Callable[[], Any]) -> Any:
        """What is made by operators that are recorded."""

    def here(self) -> Origin:
        """The user's line that runs."""


class SparseOperands:
    """See the module docstring."""

    def __init__(self, recorder: Dispatcher) -> None:
        self._recorder: Dispatcher = weakref.proxy(recorder)  # which holds this
        self._known: dict[int, StepMatrix] = {}
        self._alive: list[torch.Tensor] = []

    @contextlib.contextmanager
    def exchanged(self, mode: FakeMode, matrices: Sequence[StepMatrix]) -> Iterator[None]:
        """While active, the matrices are fakes, as their parts are already.

        Raises: UnsupportedStep where one requires a gradient in the end.
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

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether an operator is given such a matrix."""
        return bool(self._known) and any(id(argument) in self._known for argument in args)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record it. Raises: UnsupportedStep for one that has no counterpart."""
        place = next(place for place, argument in enumerate(args) if id(argument) in self._known)
        item = self._known[id(args[place])]
        if sum(id(argument) in self._known for argument in args) == 1:
            if func in _PRODUCTS and place == 0 and not kwargs:
                return self._recorder.recorded(lambda: SPARSE_PRODUCT(*item.operands, args[1]))
            if func in _SUMS and place == 1 and kwargs.keys() <= {"beta", "alpha"}:
                return self._recorder.recorded(lambda: SPARSE_ADDMM(args[0], *item.operands, args[2], **kwargs))
            if func in (aten.t.default, aten.transpose.int) and (len(args) == 1 or {x % 2 for x in args[1:]} == {0, 1}):
                return self._stands_for(args[0].t(), replace(item, is_turned=not item.is_turned))
            if func in _SAME:
                return self._stands_for(args[0].detach(), item)
        if func is aten.is_coalesced.default and item.form.layout != "csr" and not item.is_turned:
            return item.form.layout == "coalesced"
        if func is aten._nnz.default:
            return item.parts[-1].shape[0]
        if func in _DIMS:
            return _DIMS[func]
        self._refuse(item, str(func))

    def _stands_for(self, fake: torch.Tensor, item: StepMatrix) -> torch.Tensor:
        self._known[id(fake)] = item
        self._alive.append(fake)
        return fake

    def refuse(self, tensor: torch.Tensor) -> None:
        """Raises: UnsupportedStep where a tensor that is to be a value is such a matrix."""
        if id(tensor) in self._known:
            self._refuse(self._known[id(tensor)], "as a whole")

    def _refuse(self, item: StepMatrix, what: str) -> NoReturn:
        raise UnsupportedStep(
            what=f"uses {item.label}, a sparse matrix, for more than products with dense matrices ({what})",
            why="a program knows such a matrix by its indices and values",
            hint="compute it before the step, or convert it with .to_dense()",
            origin=self._recorder.here(),
        )
