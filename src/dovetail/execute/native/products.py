"""Products of matrices as rows: the calls of BLAS that torch itself makes, with the same flags.

torch hands `sgemm_` and `dgemm_` what it finds in the strides: the result is taken as a matrix of columns, turned round
where its rows lie one after the other, and an operand is taken as it is or turned; one that BLAS cannot read, such as
an expanded one, is copied before. What is added (`addmm`) is copied into the result first. Whatever else torch would do
is left to `aten`, and for each shape and each order in memory a product is tried beside torch's before it is claimed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

import torch

from dovetail.execute.native.call_memory import around
from dovetail.execute.native.claim_base import ELEMENTS, ClaimBase
from dovetail.execute.native.driver import APART, SERIAL
from dovetail.execute.native.machine import driver
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.product_text import product_function
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import copied, scratch
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.native_symbols import products_are_exact

MOST = 131_072
"""Elements of operands and result at most. For larger ones the cost of a call is nothing, and probing takes time."""

_MATRIX = 2
_FEW = 1 << 17  # multiplications
_STARTS = ((0, 0), (1, 0), (0, 3))  # elements behind an aligned address, by operand
_aten: Any = torch.ops.aten
_TARGETS: frozenset[Overload] = frozenset(
    {_aten.mm.default, _aten.mm.out, _aten.addmm.default, _aten.addmm.out},
)

Matrix = tuple[tuple[int, int], tuple[int, int]]
"""Sizes and strides."""


@dataclass(frozen=True, slots=True)
class Call:
    """What BLAS is told. is_swapped: the second operand comes first. turned, copied: by operand, in the order of the
    call.
    """

    is_swapped: bool
    turned: tuple[bool, bool]
    copied: tuple[bool, bool]
    sizes: tuple[int, int, int]
    leading: tuple[int, int, int]


def blas_call(first: Matrix, second: Matrix, result: Matrix) -> Call | None:
    """The call for a product; None where torch would copy the result before it.

    Source: torch's `addmm_impl_cpu_` and `normalize_last_dims`.
    """
    (rows, columns), (row, column) = result
    if row == 1 and (columns == 1 or column >= rows):
        down, across = 0, 1
    elif column == 1 and (rows == 1 or row >= columns):
        down, across = 1, 0
    else:
        return None
    a, b = (second, first) if down else (first, second)
    m, n, k = result[0][down], result[0][across], a[0][across]
    turned, copied, leading = [], [], []
    for (shape, strides), height, width in ((a, m, k), (b, k, n)):
        is_read = strides[down] == 1 and strides[across] >= height
        is_read_turned = not is_read and strides[across] == 1 and strides[down] >= width
        is_copied = not is_read and not is_read_turned  # to rows that lie one after the other
        turned.append(is_read_turned or (is_copied and not down))
        copied.append(is_copied)
        leading.append(shape[1] if is_copied else strides[down] if is_read_turned else strides[across])
    if m == 1 and turned[0]:
        leading[0] = k
    if k == 1:
        leading = [leading[0] if turned[0] else m, n if turned[1] else leading[1]]
    if n == 1 and not turned[1]:
        leading[1] = k
    last = m if n == 1 else result[1][across]
    return Call(bool(down), (turned[0], turned[1]), (copied[0], copied[1]), (m, n, k), (leading[0], leading[1], last))


@dataclass(frozen=True, slots=True)
class ProductQuestion:
    """A product of a form. start: sizes and strides of what is added, once it is as large as the result."""

    target: Overload
    dtype: torch.dtype
    first: Matrix
    second: Matrix
    result: Matrix
    start: Matrix | None


@dataclass(frozen=True, slots=True)
class ProductClaim(ClaimBase):
    """See `rows.RowClaim`. operands: the two matrices, and what is added, if anything is."""

    node: Node
    question: ProductQuestion
    operands: tuple[Operand, ...]
    into: Value | None
    result: Value
    layout: None = None

    @property
    def has_scratch(self) -> bool:
        """Whether the node's operator copies an operand."""
        return self.room > 0

    def bytes_in_row(self, alone: int) -> int:
        """What copies of operands take."""
        return self.room

    @property
    def room(self) -> int:
        """All of that."""
        return sum(_bytes_of(each, self.question.dtype) for each in _copies(self.question))

    def is_proven(self) -> bool:
        """Whether BLAS, called as here, gives torch's bits."""
        question = self.question
        if not products_are_exact():
            return False
        return answered(question, question.target, lambda: all(_tried(question, starts) for starts in _STARTS))


def product_claim(node: Node) -> ProductClaim | None:
    """The claim on a node, as far as descriptions say."""
    claim = claimed_product(node, MOST)
    if claim is None or blas_call(claim.question.first, claim.question.second, claim.question.result) is None:
        return None
    return claim


def claimed_product(node: Node, most: int | None) -> ProductClaim | None:
    """A claim on a node, whoever multiplies. most: elements of operands and result, if there is a limit."""
    if not isinstance(node.target, Overload) or node.target not in _TARGETS or len(node.results()) != 1:
        return None
    arguments, result = arguments_of(node), node.results()[0]
    names = ("self", "mat2") if "mat2" in arguments and "mat1" not in arguments else ("mat1", "mat2", "self")
    operands, into = tuple(arguments[name] for name in names), arguments.get("out")
    if any(
        type(arguments.get(name, 1)) not in (int, float) or arguments.get(name, 1) != 1 for name in ("alpha", "beta")
    ):
        return None
    given = (result, *operands, *([] if into is None else [into]))
    values = [value for value in given if isinstance(value, Value) and value.is_tensor]
    if len(values) < len(given):
        return None
    metas: list[TensorMeta] = [value.tensor for value in values]
    matrices = _matrices(metas, len(operands), most)
    if matrices is None:
        return None
    start = matrices[3] if len(operands) > _MATRIX else None
    question = ProductQuestion(node.target, metas[0].dtype, matrices[1], matrices[2], matrices[0], start)
    return ProductClaim(node, question, operands, into, result)  # type: ignore[arg-type]


def _matrices(metas: Sequence[TensorMeta], operands: int, most: int | None) -> list[Matrix] | None:
    """Sizes and strides of a result, two operands, and what is added; None where a row cannot work on them."""
    result, first, second = metas[:3]
    if result.dtype not in ELEMENTS or any(m.dtype != result.dtype or m.device.type != "cpu" for m in metas):
        return None
    numbers = [number for meta in metas for number in (*meta.shape, *meta.stride)]
    if not all(isinstance(number, int) for number in numbers) or any(len(m.shape) != _MATRIX for m in metas[:3]):
        return None
    written = metas[-1] if len(metas) > 1 + operands else result
    if written.shape != result.shape or any(meta.storage == written.storage for meta in metas[1 : 1 + operands]):
        return None
    sizes: Any = (*first.shape, second.shape[1])
    m, k, n = sizes
    is_small = most is None or m * k + k * n + m * n <= most
    if m * k * n == 0 or not is_small or written.stride != (n, 1) or result.stride != (n, 1):
        return None
    found: Any = [(meta.shape, meta.stride) for meta in (result, first, second)]
    if found[0][0] != (m, n) or second.shape[0] != k:
        return None
    for meta in metas[3 : 1 + operands]:
        shape, stride = (1, 1, *meta.shape)[-2:], (0, 0, *meta.stride)[-2:]
        if len(meta.shape) > _MATRIX or any(size not in (1, whole) for size, whole in zip(shape, (m, n), strict=True)):
            return None
        found.append(((m, n), tuple(0 if size == 1 else step for size, step in zip(shape, stride, strict=True))))
    return list(found)


def product_row(claims: Sequence[ProductClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim, with those around it that take memory for copies of operands."""
    (claim,) = claims
    function, order, more = _parts(claim.question)
    if function is None:
        return None
    values = [claim.written, *(value for value in claim.operands if isinstance(value, Value))]
    pointers = [addresses.get(values[at], Address(values[at])) for at in order]
    row = ReadyRow(function, 1, tuple(pointers), more=more, condition=products_are_exact, marks=APART)
    sizes = [_bytes_of(each, claim.question.dtype) for each in _copies(claim.question)]
    if not sizes:
        return row
    room, take, let_go = around(f"{claim.result.name}_copies", sum(sizes))
    places = [Address(room, behind) for behind in accumulate(sizes[:-1], initial=0)]
    return replace(row, pointers=(*pointers, *places), before=(take,), after=(let_go,))


class SmallProductClaim(ProductClaim):
    """A claim on a product of so few numbers that sharing them costs more. Where results may differ by rounding, MKL is
    told not to.
    """

    __slots__ = ()


def small_product_claim(node: Node) -> SmallProductClaim | None:
    """The claim on a node, as far as descriptions say."""
    found = product_claim(node)
    if found is None or prod((*found.question.first[0], found.question.second[0][1])) > _FEW:
        return None
    return SmallProductClaim(found.node, found.question, found.operands, found.into, found.result)


def small_product_row(claims: Sequence[SmallProductClaim], storages: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    row = product_row(claims, storages, addresses)
    return None if row is None else replace(row, marks=SERIAL)


def _call(question: ProductQuestion) -> Call:
    call = blas_call(question.first, question.second, question.result)
    assert call is not None, "others are not claimed"
    return call


def _copies(question: ProductQuestion) -> list[Matrix]:
    """The operands that are copied, in the order of the call."""
    call, operands = _call(question), (question.first, question.second)
    in_order = operands[::-1] if call.is_swapped else operands
    return [operand for operand, is_copied in zip(in_order, call.copied, strict=True) if is_copied]


def _bytes_of(matrix: Matrix, dtype: torch.dtype) -> int:
    return prod(matrix[0]) * dtype.itemsize


def _parts(question: ProductQuestion) -> tuple[int | None, tuple[int, ...], bytes]:
    """The function of a row, the order of its pointers (to the result, the operands, what is added), and more slots."""
    call = _call(question)
    order = (0, *((2, 1) if call.is_swapped else (1, 2)), *((3,) if question.start else ()))
    function = product_function(ELEMENTS[question.dtype], question.start is not None, call.copied)
    return function, order, _slots(question, call)


def _slots(question: ProductQuestion, call: Call) -> bytes:
    """What `product_text` reads behind the pointers."""
    one = struct.pack("f4x", 1.0) if question.dtype is torch.float32 else struct.pack("d", 1.0)
    turned = [ord("t" if is_turned else "n") for is_turned in call.turned]
    slots = struct.pack("8q", *turned, *call.sizes, *call.leading) + one + (one if question.start else bytes(8))
    moved = [(question.result[0], question.start[1])] if question.start is not None else []
    return slots + b"".join(struct.pack("4q", *sizes, *strides) for sizes, strides in (*moved, *_copies(question)))


def _tried(question: ProductQuestion, starts: tuple[int, int]) -> bool:
    generator = torch.Generator().manual_seed(starts[0] + 5 * starts[1])

    def drawn(matrix: Matrix, start: int) -> torch.Tensor:
        (rows, columns), (row, column) = matrix
        count = start + 1 + (rows - 1) * row + (columns - 1) * column
        numbers = scratch((count,), question.dtype).normal_(generator=generator)
        return numbers.as_strided(*matrix, start)

    first, second = drawn(question.first, starts[0]), drawn(question.second, starts[1])
    made = scratch(question.result[0], question.dtype).fill_(7.0)
    tensors = [made, first, second]
    if question.start is not None:
        tensors.append(drawn(question.start, 0))
    function, order, more = _parts(question)
    if function is None:
        return False
    try:
        expected = question.target(*tensors[3:], first, second, **({"out": copied(made)} if _has_out(question) else {}))
    except RuntimeError:
        return False
    rooms = [scratch(sizes, question.dtype) for sizes, _ in _copies(question)]
    table = table_row(function, 1, [each.data_ptr() for each in (*(tensors[at] for at in order), *rooms)], (), more)
    if driver()(table, 1, 1, 0):
        raise Refused
    return torch.equal(made, expected)


def _has_out(question: ProductQuestion) -> bool:
    return any(argument.name == "out" for argument in schema_of(question.target).arguments)
