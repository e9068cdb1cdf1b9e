"""Norms as rows: the roots of sums of squares, over all elements or over the last dimensions.

torch's kernel adds squares in an order of its own, which `norm_text` follows. Which of the last ones are rounded before
they are added is up to the compiler that built torch, so each way is tried beside torch's operator. Differences are
rare: the way is found with many sums of few squares. For each shape, a norm is tried in that way before it is claimed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dovetail.execute.native.claim_base import ELEMENTS, ClaimBase
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.machine import driver
from dovetail.execute.native.norm_text import norm_function
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import scratch
from dovetail.execute.native.sums import as_matrix, same_bits
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, Value
from dovetail.ir.sizes import is_dense
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload

_aten: Any = torch.ops.aten
_TARGETS: frozenset[Overload] = frozenset({_aten.linalg_vector_norm.default, _aten.linalg_vector_norm.out})
_TARGET: Overload = _aten.linalg_vector_norm.default
_GROUPS = (4, 0, 2, 1)  # the likely one first
_MOST_LEFT, _TURNS = 7, 128  # elements behind the vectors; trials of each number of them
_EUCLIDEAN = 2


@dataclass(frozen=True, slots=True)
class NormWay:
    """A way to add squares. group: see `norm_text`."""

    dtype: torch.dtype
    group: int


@dataclass(frozen=True, slots=True)
class NormQuestion:
    """A norm of a form. dims: None for all of them. rows, columns: of the operand as a matrix, of whose rows the norms
    are.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dims: tuple[int, ...] | None
    rows: int
    columns: int

    @property
    def more(self) -> bytes:
        """What `norm_text` reads behind the pointers."""
        return struct.pack("2q", self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class NormClaim(ClaimBase):
    """See `rows.RowClaim`."""

    node: Node
    question: NormQuestion
    operands: tuple[Operand, ...]
    into: Value | None
    result: Value
    layout: None = None

    def is_proven(self) -> bool:
        """Whether a row gives torch's bits."""
        question, way = self.question, _way_of(self.question.dtype)
        return way is not None and answered(
            question, _TARGET, lambda: all(_tried(question, way, case) for case in range(8))
        )


def norm_claim(node: Node) -> NormClaim | None:
    """The claim on a node, as far as descriptions say."""
    if not isinstance(node.target, Overload) or node.target not in _TARGETS or len(node.results()) != 1:
        return None
    arguments, result = arguments_of(node), node.results()[0]
    operand, dims, into = arguments["self"], arguments["dim"], arguments.get("out")
    if not isinstance(operand, Value) or not operand.is_tensor or not (into is None or isinstance(into, Value)):
        return None
    meta, made = operand.tensor, (result if into is None else into).tensor
    order, dtypes = arguments["ord"], {meta.dtype, made.dtype, arguments["dtype"] or meta.dtype}
    if order != _EUCLIDEAN or meta.dtype not in ELEMENTS or len(dtypes) > 1 or meta.device.type != "cpu":
        return None
    shape, stride = (tuple(x for x in part if isinstance(x, int)) for part in (meta.shape, meta.stride))
    if len(shape) < len(meta.shape) or len(stride) < len(shape) or not 0 < math.prod(shape) < THREADED:
        return None
    found = as_matrix(shape, dims)
    if found is None or found[0] or not made.is_contiguous() or made.numel() != found[1]:
        return None
    if not (is_dense(shape, stride) if found[1] == 1 else meta.is_contiguous()):
        return None
    own = tuple(dims) if isinstance(dims, list | tuple) else None
    return NormClaim(node, NormQuestion(meta.dtype, shape, stride, own, *found[1:]), (operand,), into, result)


def norm_row(claims: Sequence[NormClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    way = _way_of(claim.question.dtype)
    function = None if way is None else norm_function(ELEMENTS[way.dtype], way.group)
    if function is None:
        return None
    values = (claim.written, *(value for value in claim.operands if isinstance(value, Value)))
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    return ReadyRow(function, 1, pointers, more=claim.question.more)


def _way_of(dtype: torch.dtype) -> NormWay | None:
    """The way in which torch adds squares of a dtype; None where it is none of these."""
    ways = (NormWay(dtype, group) for group in _GROUPS)
    return next((way for way in ways if answered(way, _TARGET, partial(_is_so, way))), None)


def _is_so(way: NormWay) -> bool:
    return all(
        _tried(NormQuestion(way.dtype, (count,), (1,), None, 1, count), way, case)
        for count in range(1, _MOST_LEFT + 1)
        for case in range(_TURNS if count > 1 else 1)
    )


def _tried(question: NormQuestion, way: NormWay, case: int) -> bool:
    """Whether a row gives what torch gives: for numbers of one size, of all sizes, and for infinite ones."""
    generator = torch.Generator().manual_seed(case)
    count, start = math.prod(question.shape), case % 8
    flat = scratch((count + start,), question.dtype).normal_(generator=generator)
    if start > 5:
        flat *= 10.0 ** scratch(flat.shape, torch.int64).random_(-6, 7, generator=generator)
    if start > 6:
        flat[::97] = math.inf
    operand = flat.as_strided(question.shape, question.stride, start)
    expected = _TARGET(operand, 2.0, None if question.dims is None else list(question.dims)).reshape(-1)
    made, function = torch.full_like(expected, 7.0), norm_function(ELEMENTS[way.dtype], way.group)
    if function is None:
        return False
    if driver()(table_row(function, 1, [made.data_ptr(), operand.data_ptr()], (), question.more), 1, 1, 0):
        raise Refused
    return same_bits(made, expected)
