"""Rows of the driver's table, whatever their kind: what a node that may be part of one says about itself, and what a
row is called with.

A kind of row is a claim (see `RowClaim`) and a function that makes a `ReadyRow` of claims; `execute.native.kinds` lists
them. Order, memory and code of clusters are found from these alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from dovetail.analysis.pairs import may_overlap
from dovetail.execute.native.row_loop import Part, Rows, RowStep
from dovetail.ir.program import Node, Operand, TensorMeta, Value

Layout = tuple[object, ...]
"""Equal for tensors whose elements lie alike: the n-th in memory is the n-th of each."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a claim touches. is_single: one element, by all others. pitch: see `grids.Grid`. part: what a row of a
    matrix touches, where it is looked at in rows.
    """

    meta: TensorMeta
    is_single: bool = False
    is_written: bool = False
    pitch: int | None = None
    part: Part | None = None


class RowClaim(Protocol):
    """A node that may be part of a row."""

    @property
    def node(self) -> Node:
        """The node."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What it reads."""

    @property
    def into(self) -> Value | None:
        """The value whose memory the result is written to; None where the node makes new memory."""

    @property
    def result(self) -> Value:
        """What the node gives, if anything; else what it writes."""

    @property
    def written(self) -> Value:
        """The value that describes the memory that is written."""

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""

    @property
    def checked(self) -> tuple[Value, ...]:
        """What a check reads before all rows run (`ReadyRow.checks`)."""

    @property
    def layout(self) -> Layout | None:
        """How the elements lie that it works on one by one, so that others may share its loop; None: in another way."""

    @property
    def element(self) -> str:
        """The type of its elements, as LLVM names it."""

    @property
    def rows(self) -> Rows | None:
        """The matrix of whose rows it is a function, so that nodes that work on its elements may share its loop."""

    def in_rows(self, rows: Rows) -> tuple[RowStep, ...] | None:
        """What it does in a loop over rows; None where it cannot be part of one. Only asked where it is proven."""

    @property
    def pays_alone(self) -> bool:
        """Whether a cluster is made for it alone."""

    @property
    def has_scratch(self) -> bool:
        """Whether the node's operator may take memory for itself, which is measured."""

    def bytes_in_row(self, alone: int) -> int:
        """What its row takes while it runs. alone: what the node takes by itself."""

    @property
    def room(self) -> int:
        """How much of that rows around its row take: see `call_memory.around`."""

    def accesses(self) -> Sequence[Access]:
        """What it touches."""

    def is_proven(self) -> bool:
        """Whether a probe found that machine code gives its bits. The first time for each kind of node it is tried."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a value begins. value: that has a variable. behind: by how many bytes it lies behind this one."""

    value: Value
    behind: int = 0


Addresses = Mapping[Value, Address]
"""By value, those that have no variable of their own, or share that of another one."""


@dataclass(frozen=True, slots=True)
class Storages:
    """What is known of storages, by their numbers.

    unread: in which what is written is not read later. loose: of several inputs that no node writes; in some calls each
    of these has memory of its own, with other contents.
    """

    unread: Collection[int]
    loose: Collection[int]


@dataclass(frozen=True, slots=True)
class Count:
    """The product of some sizes of a value that has a variable. divides: how often it goes into the number of items."""

    value: Value
    dims: tuple[int, ...]
    divides: bool = False


@dataclass(frozen=True, slots=True)
class ReadyRow:
    """A function and what it is called with. See `execute.native.driver`.

    items: how many, or the value whose elements they are. numbers: operands, and what they must not be. more: slots
    that are the same in each call. condition: whether it may be called, where that has to be asked each time. counts:
    whole numbers that follow the others. checks: rows that run before all rows of a table, and fail where none of
    these may run. may_fail: whether the function may set the number of items to -1. defines: what stands for the
    address that the row writes into others. registers: numbers that it computes, and their slots. ends: what stands for
    the memory that it lets go. before, after: rows that run just before it and behind it; what those before take, those
    behind it let go. marks: see `driver`. A pointer, or a number, is None where another row writes it.
    """

    function: int
    items: int | Value
    pointers: tuple[Address | None, ...] = ()
    numbers: tuple[tuple[Operand, float | None], ...] = ()
    more: bytes = b""
    condition: Callable[[], bool] | None = None
    counts: tuple[int | Count, ...] = ()
    checks: tuple[ReadyRow, ...] = ()
    may_fail: bool = False
    defines: Value | None = None
    registers: tuple[tuple[Value, int], ...] = ()
    ends: Value | None = None
    before: tuple[ReadyRow, ...] = ()
    after: tuple[ReadyRow, ...] = ()
    marks: int = 0

    @property
    def is_strict(self) -> bool:
        """Whether numbers are those that others are computed with: any `float`, and whole numbers that are doubles."""
        return bool(self.registers)

    @property
    def slots(self) -> int:
        """How many slots of eight bytes it takes."""
        return 1 + len(self.pointers) + len(self.numbers) + len(self.counts) + len(self.more) // 8


def table_row(
    function: int,
    items: int,
    pointers: Sequence[int],
    numbers: Sequence[float],
    more: bytes = b"",
    marks: int = 0,
) -> bytes:
    """A row of a table, of known addresses. marks: see `driver`."""
    slots = 1 + len(pointers) + len(numbers) + len(more) // 8
    form = f"{4 + len(pointers)}q{len(numbers)}d"
    return struct.pack(form, function, len(pointers) | marks, slots, items, *pointers, *numbers) + more


@lru_cache(maxsize=4096)
def are_apart(a: TensorMeta, b: TensorMeta) -> bool:
    """Whether tensors of one storage are known not to overlap."""
    ranges = [_range(meta) for meta in (a, b)]
    if a.dtype != b.dtype or None in ranges:
        return False
    (start_a, end_a), (start_b, end_b) = ranges  # type: ignore[misc]
    return bool(end_a <= start_b or end_b <= start_a) or not may_overlap(a, b)


def _range(meta: TensorMeta) -> tuple[int, int] | None:
    """From which element to which a tensor reaches; None where that is not known."""
    if not all(isinstance(number, int) for number in (meta.offset, *meta.shape, *meta.stride)):
        return None
    sizes, strides, start = map(int, meta.shape), map(int, meta.stride), int(meta.offset)  # type: ignore[arg-type]
    if meta.numel() == 0:
        return start, start
    return start, start + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
