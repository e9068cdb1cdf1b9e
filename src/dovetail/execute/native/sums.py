"""Sums and means as rows: over all elements, over the first dimensions, or over the last ones; and squared errors.

torch adds in an order that depends on shape and strides: see `sum_text`, which follows it. Sums of 32,768 elements and
more, which torch shares among threads, are left to it, and so are operands with gaps. For each shape a sum is tried
beside torch's before it is claimed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.execute.native.claim_base import ELEMENTS, ClaimBase
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.machine import driver
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import copied, scratch
from dovetail.execute.native.sum_text import sum_function
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload

_aten: Any = torch.ops.aten
_SUMS: frozenset[Overload] = frozenset({_aten.sum.default, _aten.sum.dim_IntList})
_MEANS: frozenset[Overload] = frozenset({_aten.mean.default, _aten.mean.dim})
_ERROR: Overload = _aten.mse_loss.default
_MEAN, _SUM = 1, 2


@dataclass(frozen=True, slots=True)
class SumQuestion:
    """A sum or a mean of a form. dims: None for all of them. is_outer: whether the first ones are added up.

    rows, columns: of the operand as a matrix of rows, of which the elements of each, or the rows, are added. reduction:
    of a squared error, whether its mean is taken or its sum.
    """

    target: Overload
    dtype: torch.dtype
    shape: tuple[int, ...]
    dims: tuple[int, ...] | None
    is_outer: bool
    rows: int
    columns: int
    reduction: int = _MEAN

    @property
    def divisor(self) -> float:
        """What the sums are divided by."""
        if self.target in _SUMS or self.reduction == _SUM:
            return 1.0
        return float(self.rows if self.is_outer else self.columns)

    @property
    def function(self) -> int | None:
        """The row's function."""
        return sum_function(ELEMENTS[self.dtype], self.is_outer, self.target is _ERROR)

    @property
    def more(self) -> bytes:
        """What `sum_text` reads behind the pointers."""
        form = "f4x" if self.dtype is torch.float32 else "d"
        return struct.pack(f"2q{form}", self.rows, self.columns, self.divisor)


@dataclass(frozen=True, slots=True)
class SumClaim(ClaimBase):
    """See `rows.RowClaim`."""

    node: Node
    question: SumQuestion
    operands: tuple[Operand, ...]
    result: Value
    into: None = None
    layout: None = None

    def is_proven(self) -> bool:
        """Whether a row gives torch's bits."""
        question = self.question
        return answered(question, question.target, lambda: all(_tried(question, case) for case in range(3)))


def sum_claim(node: Node) -> SumClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target is _ERROR:
        return _error_claim(node)
    if not isinstance(node.target, Overload) or node.target not in _SUMS | _MEANS or len(node.results()) != 1:
        return None
    arguments, result = arguments_of(node), node.results()[0]
    operand, dims = arguments.get("self"), arguments.get("dim")
    if not isinstance(operand, Value) or not operand.is_tensor or not result.is_tensor:
        return None
    meta, made = operand.tensor, result.tensor
    is_plain = meta.dtype in ELEMENTS and made.dtype is meta.dtype and arguments.get("dtype") in (None, meta.dtype)
    if not is_plain or not _is_known(meta) or not _is_known(made) or meta.device.type != "cpu":
        return None
    question = _question(node.target, meta, dims)
    if question is None or made.numel() != (question.columns if question.is_outer else question.rows):
        return None
    return SumClaim(node, question, (operand,), result)


def _error_claim(node: Node) -> SumClaim | None:
    """The claim on the mean or the sum of squared differences."""
    arguments, (result,) = arguments_of(node), node.results()
    operands, reduction = (arguments["self"], arguments["target"]), arguments.get("reduction", _MEAN)
    metas = [value.tensor for value in operands if isinstance(value, Value) and value.is_tensor]
    if len(metas) < len(operands) or reduction not in (_MEAN, _SUM) or not result.is_tensor:
        return None
    first = metas[0]
    alike = all(m.dtype is first.dtype and m.shape == first.shape and m.device.type == "cpu" for m in metas)
    if first.dtype not in ELEMENTS or result.tensor.dtype is not first.dtype or not alike:
        return None
    question = _question(_ERROR, first, None) if all(map(_is_known, metas)) else None
    if question is None:
        return None
    return SumClaim(node, replace(question, reduction=int(reduction)), operands, result)


def _is_known(meta: TensorMeta) -> bool:
    """Whether all sizes are known, and elements lie in order."""
    return all(isinstance(number, int) for number in (*meta.shape, *meta.stride)) and meta.is_contiguous()


def _question(target: Overload, meta: TensorMeta, dims: Operand) -> SumQuestion | None:
    shape = tuple(size for size in meta.shape if isinstance(size, int))
    found = as_matrix(shape, dims) if 0 < math.prod(shape) < THREADED else None
    return None if found is None else SumQuestion(target, meta.dtype, shape, _numbers(dims), *found)


def as_matrix(shape: Sequence[int], dims: Operand) -> tuple[bool, int, int] | None:
    """Whether a sum over some dimensions is over the first ones, not the last ones, and the rows and columns of its
    operand as a matrix; None where it is over others. dims: None for all.
    """
    count, known = len(shape), _numbers(dims)
    if known is None and dims is not None:
        return None
    summed = sorted({dim % count for dim in known}) if known and count else list(range(count))
    first = summed == list(range(len(summed))) and len(summed) < count
    if not first and summed != list(range(count - len(summed), count)):
        return None
    split = len(summed) if first else count - len(summed)
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    return (False, 1, rows) if first and columns == 1 else (first, rows, columns)


def _numbers(dims: Operand) -> tuple[int, ...] | None:
    """The dimensions that a list names; None where they are not known."""
    if not isinstance(dims, list | tuple):
        return None
    known = tuple(dim for dim in dims if isinstance(dim, int))
    return known if len(known) == len(dims) else None


def sum_row(claims: Sequence[SumClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    function = claim.question.function
    if function is None:
        return None
    values = (claim.result, *(value for value in claim.operands if isinstance(value, Value)))
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    return ReadyRow(function, 1, pointers, more=claim.question.more)


def _tried(question: SumQuestion, case: int) -> bool:
    """Whether a row gives what torch gives: for numbers of one size, of all sizes, and for infinite ones."""
    generator = torch.Generator().manual_seed(case)
    count = math.prod(question.shape)
    flat = scratch((count + case,), question.dtype).normal_(generator=generator)
    if case:
        flat *= 10.0 ** scratch(flat.shape, torch.int64).random_(-6, 7, generator=generator)
        flat[:: 7 + case] = -0.0
    if case > 1:
        flat[::97] = math.inf
    operands = [flat[case:].view(question.shape)]
    more: tuple[object, ...] = () if question.dims is None else (list(question.dims),)
    if question.target is _ERROR:
        operands.append(copied(operands[0].flip(list(range(len(question.shape))))).mul_(0.7))
        more = (question.reduction,)
    expected = question.target(*operands, *more).reshape(-1)
    made = torch.full_like(expected, 7.0)
    function = question.function
    if function is None:
        return False
    pointers = [tensor.data_ptr() for tensor in (made, *operands)]
    if driver()(table_row(function, 1, pointers, (), question.more), 1, 1, 0):
        raise Refused
    return same_bits(made, expected)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, whatever bits say that an element is no number."""
    return _bits(a) == _bits(b)


def _bits(tensor: torch.Tensor) -> bytes:
    """The bits of elements, with one pattern for all that are not numbers."""
    return torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).numpy().tobytes()
