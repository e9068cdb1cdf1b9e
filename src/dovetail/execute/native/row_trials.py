"""Functions of rows beside torch's operators: results are near, and where the operator gives infinities or NaN, no
finite number is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.execute.native.formula import Formula
from dovetail.execute.native.loop import From, Source
from dovetail.execute.native.machine import driver, row_kernel_of
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.row_loop import KEPT, Part, RowLoop, Span, cell_of, counts_of, part_of
from dovetail.execute.native.rows import table_row
from dovetail.execute.native.scratch import copied, scratch
from dovetail.ir.program import Operand
from dovetail.torch_compat.dispatch import Overload

_TRIED = ((3, 5), (4, 64), (2, KEPT + 300))  # rows and columns
_NEAR = 2e-5
_NUMBER = 0.375
_OF_DIMS, _LAST = frozenset({"dim", "normalized_shape"}), "last"


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """What an operator computes of rows. operands: names and which part is read. results: formulas, those that nobody
    reads included. others: arguments besides, as they are for a matrix. into: the argument that is written. of, index,
    numbers: see `RowRule`.
    """

    target: Overload
    operands: tuple[tuple[str, Span], ...]
    results: tuple[tuple[Span, Formula], ...]
    others: tuple[tuple[str, object], ...]
    into: str
    of: str
    index: str
    numbers: tuple[str, ...]


def of_matrix(name: str, argument: Operand) -> object:
    """What an argument is for a matrix, whose rows are its last dimension."""
    if name in _OF_DIMS:
        return _LAST if isinstance(argument, list | tuple) else -1
    return tuple(argument) if isinstance(argument, list) else argument


def tried(question: RowQuestion) -> bool:
    """Whether a loop gives nearly what torch gives: for numbers of one size, and for infinite ones."""
    return all(_Trial(question, *sizes, case).is_near() for sizes in _TRIED for case in range(2))


class _Trial:
    """A matrix of some sizes. case: 1: with numbers that are infinite, or none."""

    def __init__(self, question: RowQuestion, rows: int, columns: int, case: int) -> None:
        self.question, self.rows, self.columns = question, rows, columns
        self.generator = torch.Generator().manual_seed(case)
        shapes = {Span.WHOLE: (rows, columns), Span.EACH: (rows, 1), Span.PIECE: (columns,), Span.SINGLE: ()}
        self.given = {name: self._drawn(name, shapes[span], case) for name, span in question.operands}
        self.made = [scratch(shapes[span], torch.float32) for span, _ in question.results]

    def _drawn(self, name: str, shape: tuple[int, ...], case: int) -> torch.Tensor:
        if name == self.question.index:
            return scratch(shape, torch.int64).random_(0, self.columns, generator=self.generator)
        drawn = scratch(shape, torch.float32).normal_(generator=self.generator)
        if case and len(shape) > 1:
            drawn[0, 1], drawn[1, -1], drawn[-1, 0] = torch.inf, -torch.inf, torch.nan
        return drawn

    def is_near(self) -> bool:
        """Whether both give nearly the same."""
        try:
            expected = self._eager()
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        question, tensors = self.question, (*self.given.values(), *self.made)
        spans = [*(span for _, span in question.operands), *(span for span, _ in question.results)]
        parts = [part_of(span, self.columns) for span in spans]
        kernel = row_kernel_of(self._loop(parts))
        if kernel is None:
            return False
        counts = counts_of(self.columns, parts)
        pointers = [tensor.data_ptr() for tensor in tensors]
        numbers = [_NUMBER] * len(self.question.numbers)
        more = struct.pack(f"{len(counts)}q", *counts)
        table = table_row(kernel, self.rows * self.columns, pointers, numbers, more)
        if driver()(table, 1, torch.get_num_threads(), 0):
            raise Refused
        return len(expected) == len(self.made) and all(map(_are_near, self.made, expected))

    def _eager(self) -> tuple[torch.Tensor, ...]:
        """The operator's own results."""
        question = self.question
        others: dict[str, Any] = dict.fromkeys(question.numbers, _NUMBER)
        for name, argument in question.others:
            listed = {"dim": [-1], "normalized_shape": [self.columns]}[name] if argument == _LAST else argument
            others[name] = list(listed) if isinstance(listed, tuple) else listed
        if question.of not in self.given:
            others[question.of] = scratch((self.rows, self.columns), torch.float32)
        if question.into and question.into not in self.given:
            shape = self.made[0].shape
            others[question.into] = scratch(shape if others.get("keepdim", True) else shape[:1], torch.float32)
        operands = {name: copied(each) for name, each in self.given.items()}
        if question.index and others.get("dim") is None:
            operands[question.index] = operands[question.index].view(-1)
        found = question.target(**operands, **others)
        return found if isinstance(found, tuple) else (found,)

    def _loop(self, parts: Sequence[Part]) -> RowLoop:
        """A loop of nothing but the operator."""
        question, tensors = self.question, (*self.given.values(), *self.made)
        pairs = zip(parts, tensors, strict=True)
        cells = [cell_of(part, tensor.dtype, self.columns) for part, tensor in pairs]
        reads = [Source(From.CELL, at) for at in range(len(question.operands))]
        reads += [Source(From.NUMBER, at) for at in range(len(question.numbers))]
        steps = tuple((formula, tuple(reads)) for _, formula in question.results)
        stores = tuple((len(question.operands) + at, at) for at in range(len(steps)))
        return RowLoop(tuple(cells), len(question.numbers), steps, stores, self.columns <= KEPT)


def _are_near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if found.numel() != wanted.numel() or wanted.dtype is not found.dtype:
        return False
    found = found.view(wanted.shape)
    is_close = (found - wanted).abs() <= _NEAR * wanted.abs() + _NEAR
    return bool(torch.where(wanted.isfinite(), is_close, ~found.isfinite()).all())
