"""Products of matrices in machine code of dovetail's own, where results may differ by rounding.

A library copies operands block by block before it multiplies them, and writes zeros, or what is added, into the result
first. For few rows that takes two fifths of its time. Here the copies fit the first caches, tiles of the
result are stored once for each block, and no call leaves the cluster. It is done where the library's kernels are none
of the processor's maker: there they were measured.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from dovetail.execute.native.block_shapes import AVX2, BLOCK, FEWEST, Form, items_of_share, shares_of
from dovetail.execute.native.blocked_text import blocked_text
from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.driver import LOOSE
from dovetail.execute.native.machine import driver, function_of, has_vectors, processor
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.products import Matrix, claimed_product
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import scratch
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, Value
from dovetail.torch_compat.dispatch import Overload

_MANY = 1024  # rows, or products to a sum, for which they were measured
_MAKER = "znver"
_NAME = "blocked"
_SIZES = ((8, 16, 16), (13, 40, 17), (9, 2 * BLOCK + 5, 48), (150, 9, 70))  # rows, products to a sum, columns
_NEAR = 1e-5


@dataclass(frozen=True, slots=True)
class BlockedQuestion:
    """A kind of product."""

    target: Overload
    form: Form


@dataclass(frozen=True, slots=True)
class BlockedClaim(PlacedBase):
    """See `rows.RowClaim`. operands: as in `products.ProductClaim`. sizes: rows, products to a sum, and columns.
    pitches: how far rows of the operands lie apart in memory, or columns of turned ones. apart: those of what is added.
    """

    node: Node
    question: BlockedQuestion
    operands: tuple[Operand, ...]
    into: Value | None
    result: Value
    sizes: tuple[int, int, int]
    pitches: tuple[int, int]
    apart: int | None = None
    layout: None = None
    element: str = "float"

    @property
    def pays_alone(self) -> bool:
        """The library takes longer."""
        return True

    def is_proven(self) -> bool:
        """Whether results are near those of torch."""
        question = self.question
        return answered(question, question.target, lambda: all(_tried(question.form, sizes) for sizes in _SIZES))


def is_wanted() -> bool:
    """Whether products of matrices are ours on this processor."""
    return processor().startswith(_MAKER) and has_vectors(AVX2.lanes) and not has_vectors(2 * AVX2.lanes)


def blocked_claim(node: Node) -> BlockedClaim | None:
    """The claim on a node, as far as descriptions say."""
    claim = claimed_product(node, None) if is_wanted() else None
    if claim is None or claim.question.dtype is not torch.float32:
        return None
    pitches = [_pitch(claim.question.first), _pitch(claim.question.second)]
    if None in pitches:
        return None
    (first, down), (second, across) = pitches  # type: ignore[misc]
    rows, inner, columns = sizes = (*claim.question.first[0], claim.question.second[0][1])
    if rows < FEWEST or columns < 2 * AVX2.lanes or (inner if first else rows) > _MANY:
        return None
    start = claim.question.start
    if start is not None and start[1][1] != 1:
        return None
    question = BlockedQuestion(claim.question.target, Form((first, second)))
    apart = None if start is None else start[1][0]
    return BlockedClaim(node, question, claim.operands, claim.into, claim.result, sizes, (down, across), apart)


def _pitch(matrix: Matrix) -> tuple[bool, int] | None:
    """Whether an operand is turned, and how far rows lie apart, or columns of a turned one; None for another layout."""
    (rows, columns), (down, across) = matrix
    if across == 1 and down >= columns:
        return False, down
    return (True, across) if down == 1 and across >= rows else None


def blocked_row(claims: Sequence[BlockedClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    form = claim.question.form
    values = [claim.written, *(value for value in claim.operands if isinstance(value, Value))]
    pointers = [addresses.get(value, Address(value)) for value in values]
    pointers += [pointers[0]] * (claim.apart is None)
    more = _slots(form, claim.sizes, claim.pitches, claim.apart)
    return ReadyRow(_function(form), _items(form, claim.sizes), tuple(pointers), more=more, marks=LOOSE)


@cache
def _function(form: Form) -> int:
    """The address of the function of a form."""
    found = function_of(blocked_text(form, AVX2, _NAME), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def _items(form: Form, sizes: tuple[int, int, int]) -> int:
    rows, _, columns = sizes
    return shares_of(form, AVX2, rows, columns) * items_of_share(form, AVX2, *sizes)


def _slots(form: Form, sizes: tuple[int, int, int], pitches: Sequence[int], apart: int | None) -> bytes:
    """What `blocked_text` reads behind the pointers."""
    return struct.pack("8q", *sizes, *pitches, items_of_share(form, AVX2, *sizes), apart or 0, apart is not None)


def _tried(form: Form, sizes: tuple[int, int, int]) -> bool:
    """Whether sums are near those of twice the digits."""
    rows, inner, columns = sizes
    generator = torch.Generator().manual_seed(inner)

    def drawn(height: int, width: int, *, is_turned: bool = False) -> torch.Tensor:
        shape = (width, height + 3) if is_turned else (height, width + 3)
        numbers = scratch(shape, torch.float32).normal_(generator=generator)
        return numbers[:, :height].t() if is_turned else numbers[:, :width]

    given = (rows, inner), (inner, columns)
    first, second = (drawn(*size, is_turned=turned) for size, turned in zip(given, form.turned, strict=True))
    pitches = [each.stride(int(turned)) for each, turned in zip((first, second), form.turned, strict=True)]
    made, start = scratch((rows, columns), torch.float32).fill_(7.0), drawn(rows, columns)
    pointers = [each.data_ptr() for each in (made, first, second, start)]
    table = table_row(_function(form), _items(form, sizes), pointers, (), _slots(form, sizes, pitches, start.stride(0)))
    if driver()(table, 1, torch.get_num_threads(), 0):
        raise Refused
    expected = first.double() @ second.double() + start
    return bool(((made - expected).abs() <= _NEAR * (inner**0.5 + expected.abs())).all())
