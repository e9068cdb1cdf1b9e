"""Rows that call the functions of torch's library that its operators are: softmax, norms, attention, losses, gathers.

A function gets handles of tensors on the memory of a cluster, and computes what it does for eager: with as many
threads, and in the same order. So nothing has to be known of how. Each form is tried beside its operator all the same,
for a function may expect other operands, or more, than it gets here.

Whole numbers that say where to read are checked before any row runs: where one is out of bounds, the nodes run instead,
and the operator raises its own error. What a function throws then is a lack of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from dovetail.execute.native.bounds import check_row
from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.driver import APART, SERIAL, THREADED
from dovetail.execute.native.kernel_forms import DTYPES, FORMS, Arguments, Form, Layout, is_in_order, known_layout
from dovetail.execute.native.kernel_text import kernel_function
from dovetail.execute.native.machine import driver
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import copied, scratch
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.arguments import arguments_of
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.native_kernels import DTYPE_CODES

MOST = 131_072
"""Elements of all tensors at most. For larger ones the cost of a call is nothing, and trials take time."""

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True, slots=True)
class Unread:
    """A tensor that an operator gets and its function does not."""

    dtype: torch.dtype
    layout: Layout


@dataclass(frozen=True, slots=True)
class KernelQuestion:
    """A call of a form. results, operands: dtypes and layouts. others: arguments that the function does not get as
    tensors. into: the argument that is written, if there is one; shared: the operand that has the same memory, or -1.
    """

    target: Overload
    form: Form
    results: tuple[tuple[torch.dtype, Layout], ...]
    operands: tuple[tuple[torch.dtype, Layout], ...]
    others: tuple[tuple[str, object], ...]
    into: str
    shared: int

    @property
    def function(self) -> int | None:
        """The row's function."""
        tensors = [(len(shape), DTYPE_CODES[dtype]) for dtype, (shape, _) in self.seen()]
        return kernel_function(self.form.name, tensors, self.form.taken)

    @property
    def more(self) -> bytes:
        """What `kernel_text` reads behind the pointers."""
        numbers = [number for _, (shape, stride) in self.seen() for number in (*shape, *stride)]
        return struct.pack(f"{len(numbers)}q", *numbers) + self.form.numbers

    @property
    def is_small(self) -> bool:
        """Whether one thread is enough, and gives the same bits. Torch shares even a few rows of a layer norm."""
        return self.form.is_by_rows and sum(prod(shape) for _, (shape, _) in self.results) < THREADED

    def seen(self) -> list[tuple[torch.dtype, Layout]]:
        """Tensors as the function sees them."""
        seen = dict(self.form.seen)
        return [(dtype, seen.get(at, layout)) for at, (dtype, layout) in enumerate((*self.results, *self.operands))]


@dataclass(frozen=True, slots=True)
class KernelClaim(PlacedBase):
    """See `rows.RowClaim`. results: all of the node's, of which `result` is the first."""

    node: Node
    question: KernelQuestion
    operands: tuple[Operand, ...]
    into: Value | None
    result: Value
    results: tuple[Value, ...]
    checked: tuple[Value, ...]
    layout: None = None
    element: str = "i8"

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""
        return () if self.into is not None else self.results

    @property
    def has_scratch(self) -> bool:
        """Whether the node's operator may take memory for itself, which is measured."""
        return True

    def bytes_in_row(self, alone: int) -> int:
        """That, and results that a function makes by itself, before they are copied. alone: what the node takes."""
        if all(each.kind != "new" for each in self.question.form.taken):
            return alone
        return alone + _count(self.result) * self.result.tensor.dtype.itemsize

    def is_proven(self) -> bool:
        """Whether a row gives torch's bits."""
        question = self.question
        return answered(question, question.target, lambda: all(_tried(question, case) for case in range(3)))


def kernel_claim(node: Node) -> KernelClaim | None:
    """The claim on a node, as far as descriptions say."""
    find = _form_of(node)
    results = tuple(value for value in node.outputs if value is not None)
    if find is None or not results or len(results) < len(node.outputs) or not isinstance(node.target, Overload):
        return None
    arguments, writes = arguments_of(node), facts_of(node.target).writes
    given = {name: each for name, each in arguments.items() if isinstance(each, Value)}
    values = (*results, *given.values())
    if len(writes) > 1 or not all(value.is_tensor and _is_plain(value.tensor) for value in values):
        return None
    if sum(_count(value) for value in values) > MOST:
        return None
    into_name = schema_of(node.target).arguments[writes[0]].name if writes else ""
    into = given.get(into_name)
    layouts = [known_layout(value.tensor) for value in ((into,) if into is not None else results)]
    form = find(arguments, [layout for layout in layouts if layout is not None])
    if form is None or not all(name in given for name in form.operands):
        return None
    operands = tuple(given[name] for name in form.operands)
    shared = _shared(operands, into)
    checked = (given[form.bounds.operand],) if form.bounds is not None else ()
    if shared is None or not all(_is_checkable(value) for value in checked):
        return None
    others = tuple((n, _plain(x)) for n, x in arguments.items() if n not in form.operands and n != into_name)
    metas = [value.tensor for value in ((into,) if into is not None else results)]
    question = KernelQuestion(
        node.target,
        form,
        tuple(_described(meta) for meta in metas),
        tuple(_described(value.tensor) for value in operands),
        others,
        into_name,
        shared,
    )
    return KernelClaim(node, question, operands, into, results[0], results, checked)


def _form_of(node: Node) -> Callable[[Arguments, Sequence[Layout]], Form | None] | None:
    if not isinstance(node.target, Overload) or schema_of(node.target).namespace != "aten":
        return None
    return FORMS.get(schema_of(node.target).name)


def _plain(operand: Operand) -> object:
    if isinstance(operand, Value):
        return Unread(*_described(operand.tensor))
    return tuple(operand) if isinstance(operand, list) else operand


def _described(meta: TensorMeta) -> tuple[torch.dtype, Layout]:
    layout = known_layout(meta)
    assert layout is not None, "others are not claimed"
    return meta.dtype, layout


def _is_plain(meta: TensorMeta) -> bool:
    """Whether a function can get a tensor: of known sizes, none of which is zero, on the CPU."""
    layout = known_layout(meta)
    return meta.device.type == "cpu" and meta.dtype in DTYPES and layout is not None and 0 not in layout[0]


def _count(value: Value) -> int:
    return prod(_described(value.tensor)[1][0])


def _is_checkable(value: Value) -> bool:
    layout = known_layout(value.tensor)
    return value.tensor.dtype is torch.int64 and layout is not None and is_in_order(layout)


def _shared(operands: Sequence[Value], into: Value | None) -> int | None:
    """Which operand has the memory that is written: -1 if none has; None where one has other elements of it."""
    found = -1
    for at, value in enumerate(operands):
        if into is None or value.tensor.storage != into.tensor.storage:
            continue
        meta, written = value.tensor, into.tensor
        if (meta.offset, *meta.layout()) != (written.offset, *written.layout()) or found >= 0:
            return None
        found = at
    return found


def kernel_row(claims: Sequence[KernelClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    question = claim.question
    function = question.function
    if function is None:
        return None
    values = [*(claim.made or (claim.written,)), *(value for value in claim.operands if isinstance(value, Value))]
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    checks: tuple[ReadyRow, ...] = ()
    if question.form.bounds is not None:
        (value,) = claim.checked
        checks = (check_row(question.form.bounds, addresses.get(value, Address(value)), _count(value)),)
    marks = SERIAL if question.is_small else APART
    return ReadyRow(function, 1, pointers, more=question.more, checks=checks, may_fail=True, marks=marks)


def _tried(question: KernelQuestion, case: int) -> bool:
    """Whether a row gives what torch gives: for numbers of one size, of all sizes, and for infinite ones."""
    generator = torch.Generator().manual_seed(case)
    names = question.form.operands
    operands = [
        _drawn(dtype, layout, case, generator, question.form.bounds.high if question.form.bounds else 1)
        for dtype, layout in question.operands
    ]
    given: dict[str, Any] = {name: list(each) if isinstance(each, tuple) else each for name, each in question.others}
    unread = {name: each for name, each in question.others if isinstance(each, Unread)}
    given.update({name: _drawn(each.dtype, each.layout, 0, generator, 1) for name, each in unread.items()})
    given.update(zip(names, operands, strict=True))
    (dtype, layout), *_ = question.results
    if question.into:
        given[question.into] = _drawn(dtype, layout, 0, generator, 1)
    if question.shared >= 0:
        given[names[question.shared]] = given[question.into]
    made = [_drawn(dtype, layout, 0, generator, 1).fill_(7) for dtype, layout in question.results]
    tensors = [given[name] for name in names]
    if question.into:
        made[0].copy_(given[question.into])
    if question.shared >= 0:
        tensors[question.shared] = made[0]
    expected = question.target(**{name: each for name, each in given.items() if _is_argument(question.target, name)})
    function = question.function
    if function is None:
        return False
    pointers = [tensor.data_ptr() for tensor in (*made, *tensors)]
    refused = driver()(table_row(function, 1, pointers, (), question.more), 1, torch.get_num_threads(), 0)
    if refused == 1:
        raise Refused
    wanted = expected if isinstance(expected, tuple) else (expected,)
    return not refused and len(wanted) == len(made) and all(map(_is_same, made, wanted))


def _is_argument(target: Overload, name: str) -> bool:
    return any(argument.name == name for argument in schema_of(target).arguments)


def _drawn(dtype: torch.dtype, layout: Layout, case: int, generator: torch.Generator, high: int) -> torch.Tensor:
    """Numbers in memory that begins some elements behind an aligned address."""
    shape, stride = layout
    count = case + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    flat = scratch((count,), dtype)
    if dtype is torch.int64:
        return flat.random_(0, high, generator=generator).as_strided(shape, stride, case)
    flat.normal_(generator=generator)
    if case:
        flat *= 10.0 ** scratch(flat.shape, torch.int64).random_(-2, 3, generator=generator)
        flat[:: 7 + case] = -0.0
    if case > 1:
        flat[::97] = -float("inf")
    return flat.as_strided(shape, stride, case)


def _is_same(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    if made.dtype != wanted.dtype or made.shape != wanted.shape:
        return False
    a, b = copied(made), copied(wanted)
    if made.dtype is torch.int64:
        return torch.equal(a, b)
    is_equal = (a.view(_BITS[a.dtype]) == b.view(_BITS[b.dtype])) | (a.isnan() & b.isnan())
    return bool(is_equal.all()) and (made.numel() < 2 or made.stride() == wanted.stride())
