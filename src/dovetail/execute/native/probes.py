"""Which formula of an operator gives eager's bits, found by trying: on every kind of number, size and start.

A candidate becomes machine code and runs beside the operator on the same elements. It is chosen if each result has the
same bits, or is not a number in both. The elements are numbers of all magnitudes and pairs of special ones: zeros of
both signs, infinities, what is not a number, the smallest and largest ones. Sizes are those around the width of
vectors, and one that torch gives to several threads where it has them; starts are those of unaligned memory.

What was found is kept for the process, and on disk: see `execute.native.cache`. An operator of which no candidate
agrees is left to `aten`.

Cost:   30 to 140 ms for each operator, dtype and kind of operands that was not met before; 0.2 ms where it is on disk.
"""

from __future__ import annotations

import itertools
import math
import struct
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
import torch

from dovetail.execute.native import cache
from dovetail.execute.native.claim_base import ELEMENTS
from dovetail.execute.native.formula import TRUTHS, Formula
from dovetail.execute.native.loop import COLUMN, ROW, Cell, From, Loop, Source, Step
from dovetail.execute.native.machine import driver, kernel_of
from dovetail.execute.native.rule import TWO_BY_COUNT
from dovetail.execute.native.scratch import Room, have_same_bytes, scratch
from dovetail.execute.operator_runs import by_themselves
from dovetail.torch_compat.dispatch import Overload, has_own_kernels, schema_of

ARRAY, SINGLE, TRUTH, NUMBER = "array", "single", "truths", "number"
"""Kinds of operands: a tensor of all elements, one of a single element, one of truth values, a number of Python."""

TRUTH_ROW, TRUTH_COLUMN = "truths in a row", "truths in a column"
REPEATED = frozenset({ROW, COLUMN, TRUTH_ROW, TRUTH_COLUMN})
"""Kinds of operands of which an element is one of several of the result: see `execute.native.repeats`."""

_TRUTHS = frozenset({TRUTH, TRUTH_ROW, TRUTH_COLUMN})
_SHAPES: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    **dict.fromkeys((ROW, TRUTH_ROW), lambda _, columns: (columns,)),
    **dict.fromkeys((COLUMN, TRUTH_COLUMN), lambda rows, _: (rows, 1)),
}

_SMALL = range(1, 71)
_GRID, _DRAWN = 520, 800  # elements at once: few, so that a first call takes no more memory than it is said to
_PARTS = 16  # of the random elements: each is drawn anew
_KEPT = 4 * _PARTS  # blocks of drawn elements
_THREADED = 33_000  # more than torch gives to one thread
_SPECIAL = 256  # pairs of special elements, which come first
_NEAR = 1e-7  # more than the rounding of float32
_FAR = 1e-6  # more than that
_EVERY = 7  # with two numbers, each so many of their combinations is tried; with three, of those again
_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}
_NUMBERS = (
    0.1,
    -2.0,
    0.5,
    1e-3,
    3,
    0,
    -1,
    0.0,
    -0.0,
    1,
    0.999999,
    0.4999999999999,
    0.7,
    -1e-40,
    1e30,
    1e-46,
    math.inf,
    math.nan,
)
Same = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], bool]
"""Whether a result is what it should be, of an operator that has this gradient as an operand."""

_FOUND: dict[Hashable, Formula | None] = {}
_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator computes in one of its forms.

    operands: name and kind of those that the formulas read. others: the arguments besides, as they are in the program.
    into: the argument that is written, "" if none is. avoided: values that numbers do not have.
    spelled: the others as text, for 2 and 2.0 are equal. is_fill: whether it makes a tensor of nothing but numbers.
    in_rows: whether tensors have rows with gaps between them. most: see `rule.Rule`; larger tensors are not tried.
    """

    target: Overload
    candidates: tuple[Formula, ...]
    dtype: torch.dtype
    operands: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, object], ...]
    into: str
    avoided: tuple[tuple[str, float], ...] = ()
    spelled: str = ""
    is_fill: bool = False
    in_rows: bool = False
    most: int | None = None


def is_near(number: float, other: float) -> bool:
    """Whether two numbers may be the same one once they are rounded."""
    return abs(number - other) <= _NEAR * abs(other)


def distance_from(number: float) -> tuple[float, float]:
    """Two numbers, around a third one: what is not between them is not near it."""
    width = _FAR * abs(number)
    return number - width, number + width


class Refused(Exception):
    """The processor rounds in another way now: nothing is found out."""


def formula_of(question: Question) -> Formula | None:
    """The first candidate that gives the operator's bits. While the processor rounds in another way: None."""
    with _LOCK:
        if question not in _FOUND:
            try:
                at = _kept(question)
            except Refused:
                return None
            _FOUND[question] = question.candidates[at] if at >= 0 else None
        return _FOUND[question]


def _kept(question: Question) -> int:
    """The number of the candidate, -1 if there is none: as a process found it that ran with the same kernels."""
    if not has_own_kernels(question.target):
        return _try_all(question)
    text = repr((question, str(question.target), torch.get_num_threads() > 1))
    answer = cache.recall("probe", text)
    if answer is not None:
        return int(answer)
    found = _try_all(question)
    cache.remember("probe", text, f"{question.target}, {question.dtype}", str(found).encode())
    return found


def _try_all(question: Question) -> int:
    with by_themselves():
        return next((at for at, found in enumerate(question.candidates) if agrees(question, found)), -1)


def agrees(question: Question, formula: Formula, same: Same | None = None) -> bool:
    """Whether a candidate gives what the operator gives. same: None: bit by bit."""
    trial = _Trial(question, formula, same or (lambda found, wanted, _: _same(found, wanted)))
    if trial.kernel is None:
        return False
    return all(trial.agrees(*case) for case in _cases(question))


def _cases(question: Question) -> Iterator[tuple[int, int, int, int, tuple[float, ...]]]:
    """Sizes, starts in memory, parts of the drawn elements, starts among these, and numbers.

    Special elements come at every place: kernels treat the last elements differently from those that fill vectors.
    """
    names = [name for name, kind in question.operands if kind in (NUMBER, SINGLE) and name != TWO_BY_COUNT]
    count = len(names)
    every = _EVERY ** max(count - 1, 0)
    choices = list(itertools.islice(itertools.product(_NUMBERS, repeat=count), 0, None, every))
    avoided = dict(question.avoided)
    choices = [
        c for c in choices if not any(n in avoided and is_near(x, avoided[n]) for n, x in zip(names, c, strict=True))
    ]
    for case, numbers in enumerate(choices):
        for part in (case % _PARTS, (case + 5) % _PARTS) if count else range(_PARTS):
            yield _GRID, 1, part, _SPECIAL, numbers
        yield _GRID, 0, 0, 0, numbers
        for first in range(0, _SPECIAL, 48):
            yield 63, first % 5, 0, first, numbers
    for size in _SMALL:
        yield size, size % 4, 0, size * 29 % _SPECIAL, choices[size % len(choices)]
        yield size, 0, size % _PARTS, _SPECIAL + size, choices[0]
    for case, first in enumerate(range(0, _SPECIAL, 3)):
        yield (33, 40, 45, 7)[case % 4], 0, 0, first, choices[case % len(choices)]
    if torch.get_num_threads() > 1 and question.most is None:
        yield _THREADED, 0, 0, 0, choices[0]


class _Trial:
    """A candidate beside its operator."""

    def __init__(self, question: Question, formula: Formula, same: Same) -> None:
        self.question, self.same = question, same
        self.is_truth = formula.operation in TRUTHS
        arrays = [name for name, kind in question.operands if kind != NUMBER]
        self.into = question.into if question.into in arrays else ""
        self.cells = arrays if self.into else [*arrays, ""]  # the last one is the result
        kinds = dict(question.operands)
        cells = [_cell(kinds.get(name, ARRAY)) for name in self.cells]
        if not self.into:
            cells[-1] = Cell(is_truth=self.is_truth)
        self.numbers = [name for name, kind in question.operands if kind == NUMBER]
        sources = [
            Source(From.NUMBER, self.numbers.index(name)) if kind == NUMBER else Source(From.CELL, arrays.index(name))
            for name, kind in question.operands
        ]
        stored = self.cells.index(self.into)
        step = Step(formula, tuple(sources))
        stores = ((stored, 0),)
        self.loop = Loop(ELEMENTS[question.dtype], tuple(cells), len(self.numbers), (step,), stores, question.in_rows)
        self.kernel = kernel_of(self.loop)
        self.repeats = [self.loop.cells[at].repeats for at in self.loop.repeated]
        self.rooms = {
            name: Room(torch.bool if kind in _TRUTHS else question.dtype)
            for name, kind in question.operands
            if kind not in (NUMBER, SINGLE)
        }
        self.result, self.expected = (Room(torch.bool if self.is_truth else question.dtype) for _ in range(2))
        self.arguments = [argument.name for argument in schema_of(question.target).arguments]

    def agrees(self, size: int, start: int, part: int, first: int, numbers: Sequence[float]) -> bool:
        """Whether both give the same on a case: see `_cases`."""
        question, given, before = self.question, dict[str, Any](), dict[str, torch.Tensor]()
        in_rows = question.in_rows
        rows, columns = _rows_and_columns(size, first, in_rows) if self.repeats or in_rows else (1, size)
        shape = (rows, columns) if self.repeats or in_rows else (size,)
        values = iter(numbers)
        for place, (name, kind) in enumerate(question.operands):
            if name == TWO_BY_COUNT:
                given[name] = 2.0 / size
            elif kind == NUMBER:
                given[name] = next(values)
            elif kind == SINGLE:
                given[name] = torch.tensor(next(values), dtype=question.dtype, device="cpu")
                before[name] = given[name].clone()
            else:
                own = _SHAPES[kind](rows, columns) if kind in REPEATED else shape
                drawn = _drawn(question.dtype, (place, part), first, math.prod(own)).view(own)
                before[name] = drawn > 0 if kind in _TRUTHS else drawn
                gap = 1 + (place + size) % 3 if in_rows else 0
                given[name] = self.rooms[name].tensor(own, start, gap).copy_(before[name])
        made = self.result.tensor(shape, start).zero_()
        try:
            expected = self._eager(given, shape)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        tensors = [made if not name else given[name] for name in self.cells]
        if self.into:
            given[self.into].copy_(before[self.into])
        pointers = [tensor.data_ptr() for tensor in tensors]
        handed = [float(given[name]) for name in self.numbers]
        counts = [
            number for repeats in self.repeats for number in ((1, columns) if repeats == ROW else (columns, rows))
        ]
        if in_rows:
            counts = [columns, *(x.stride(0) if x.dim() else 0 for x in tensors)]
        form = f"{4 + len(pointers)}q{len(handed)}d{len(counts)}q"
        table = struct.pack(form, self.kernel, len(pointers), self.loop.slots, size, *pointers, *handed, *counts)
        if driver()(table, 1, torch.get_num_threads(), 0):
            raise Refused
        result = given[self.into] if self.into else made
        others = [name for name in self.cells if name and name != self.into]
        return self.same(result, expected, before.get("grad_output")) and all(
            _same(given[name], before[name]) for name in others
        )

    def _eager(self, given: dict[str, Any], shape: tuple[int, ...]) -> torch.Tensor:
        """The operator's own result, a copy."""
        question = self.question
        repeated = {name for name, kind in question.operands if kind in REPEATED}
        given = {name: x.expand(shape) if name in repeated else x for name, x in given.items()}  # else too few elements
        operands = {**dict(question.others), **given}
        if question.into and question.into not in given:
            dtype = torch.bool if self.is_truth else question.dtype
            operands[question.into] = scratch(shape, dtype)
        if question.is_fill:
            like = scratch(shape, question.dtype)
            operands = {"self": like, "size": list(shape), "dtype": question.dtype, **operands}
        made = question.target(**{name: operands[name] for name in self.arguments if name in operands})
        # a fill has one element, as `scalar_tensor` makes it
        return self.expected.tensor(shape if question.is_fill else made.shape).copy_(made)


def _cell(kind: str) -> Cell:
    """How a loop reads an operand."""
    repeats = {TRUTH_ROW: ROW, TRUTH_COLUMN: COLUMN}.get(kind, kind)
    return Cell(kind == SINGLE, kind in _TRUTHS, repeats if kind in REPEATED else "")


def _rows_and_columns(size: int, which: int, in_rows: bool) -> tuple[int, int]:
    """Two numbers of this product, others for each case. in_rows: of several columns."""
    found = [columns for columns in _divisors(size) if columns > 1 or size == 1 or not in_rows]
    columns = found[(size + which) % len(found)]
    return size // columns, columns


@lru_cache
def _divisors(size: int) -> list[int]:
    return [number for number in range(1, size + 1) if size % number == 0]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype is torch.bool:
        return torch.equal(a, b)
    if have_same_bytes(a, b):
        return True
    bits_a, bits_b = a.view(_WHOLE[a.dtype]), b.view(_WHOLE[b.dtype])
    return torch.equal(bits_a, bits_b) or bool(((bits_a == bits_b) | (a.isnan() & b.isnan())).all())


@lru_cache(maxsize=_KEPT)
def _all_drawn(dtype: torch.dtype, place: int, part: int) -> torch.Tensor:
    """Elements for the operand at a place: special ones, so that each meets each, and random ones of all magnitudes.

    They are drawn in memory of NumPy's, see `scratch`.
    """
    info = torch.finfo(dtype)
    zero, tiny = torch.tensor([0.0, info.smallest_normal], dtype=dtype, device="cpu")
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), -float("inf"), float("nan"), info.max, -info.max]
    special = torch.tensor([*numbers, info.smallest_normal, -info.smallest_normal, info.tiny / 3, 2.0], dtype=dtype)
    special = torch.cat([special, torch.nextafter(zero, tiny)[None], torch.nextafter(tiny, zero)[None]])
    count = len(special)
    assert count**2 == _SPECIAL, "each meets each"
    pairs = torch.arange(_SPECIAL) * 101 % _SPECIAL
    at = (pairs // count, pairs % count, (pairs * 7 + pairs // count) % count)[place % 3]
    generator = numpy.random.default_rng(97 + place + 10 * part)
    drawn = generator.standard_normal(_DRAWN - _SPECIAL)
    high = 37.0 if dtype is torch.float32 else 300.0
    drawn[::4] *= 10.0 ** generator.uniform(-high, high, len(drawn[::4]))
    made = scratch((_DRAWN,), dtype)
    made[:_SPECIAL] = special[at]
    with numpy.errstate(over="ignore"):
        made.numpy()[_SPECIAL:] = drawn
    return made


def _drawn(dtype: torch.dtype, which: tuple[int, int], first: int, size: int) -> torch.Tensor:
    whole = _all_drawn(dtype, *which)
    if first + size > whole.numel():
        whole = whole.repeat(1 + (first + size) // whole.numel())
    return whole[first : first + size]
