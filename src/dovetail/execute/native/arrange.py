"""A run as loops: which claims share one, and what of their results is stored.

Claims share a loop where they work on the same memory, element by element. Two pieces of memory of one loop are the
same elements, or do not overlap; where neither is known, the claim gets a loop of its own, later. What only one loop
reads is not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dovetail.execute.native.claims import Claim, Layout
from dovetail.execute.native.loop import Cell, From, Loop, Source, Step
from dovetail.execute.native.probes import ELEMENTS, NUMBER, SINGLE
from dovetail.ir.program import Operand, TensorMeta, Value

_FIRST = 2  # see `OpenLoop.relation`
_MOST = 40  # claims of one loop: more of them need more registers than there are

Place = tuple[int, object, torch.dtype, bool]
"""A piece of memory as a loop sees it: storage, offset, dtype, whether it is a single element."""


@dataclass(slots=True)
class OpenLoop:
    """Claims that one loop runs, and what they touch: by storage, the descriptions and whether they are written."""

    layout: Layout
    element: str
    claims: list[Claim] = field(default_factory=list)
    touched: dict[int, list[tuple[TensorMeta, bool, bool]]] = field(default_factory=dict)

    def add(self, claim: Claim) -> None:
        """Let the loop run a claim as well."""
        self.claims.append(claim)
        for meta, is_single, is_written in accesses(claim):
            self.touched.setdefault(meta.storage, []).append((meta, is_single, is_written))

    def relation(self, claim: Claim) -> int:
        """0: their order does not matter. 1: the loop runs first, or runs the claim as well. 2: the loop runs first."""
        found = 0
        for meta, is_single, is_written in accesses(claim):
            for other, other_single, other_written in self.touched.get(meta.storage, ()):
                if not (is_written or other_written) or _are_apart(meta, other):
                    continue
                is_same = meta.offset == other.offset and meta.dtype == other.dtype and self.layout == claim.layout
                found = max(found, 1 if is_same and not (is_single or other_single) else _FIRST)
        return found

    def may_take(self, claim: Claim) -> bool:
        """Whether the claim works on elements like the loop's, and on memory that the loop touches."""
        fits = self.layout == claim.layout and self.element == element_of(claim) and len(self.claims) < _MOST
        return fits and any(meta.storage in self.touched for meta, is_single, _ in accesses(claim) if not is_single)

    def may_take_all(self, loop: OpenLoop) -> bool:
        """Whether it can run the claims of another loop, which comes later, after its own."""
        fits = self.layout == loop.layout and self.element == loop.element
        fits = fits and len(self.claims) + len(loop.claims) <= _MOST
        return fits and all(self.relation(claim) < _FIRST for claim in loop.claims)


def element_of(claim: Claim) -> str:
    """The type of a claim's elements, as loops name it."""
    return ELEMENTS[claim.question.dtype]


def accesses(claim: Claim) -> list[tuple[TensorMeta, bool, bool]]:
    """What a claim touches: descriptions, whether it is a single element, whether it is written."""
    found = [(claim.written.tensor, False, True)]
    for operand, kind in zip(claim.operands, claim.kinds, strict=True):
        if isinstance(operand, Value) and kind != NUMBER:
            found.append((operand.tensor, kind == SINGLE, False))
    return found


def _are_apart(a: TensorMeta, b: TensorMeta) -> bool:
    """Whether dense tensors of one storage are known not to overlap."""
    numbers = (a.offset, a.numel(), b.offset, b.numel())
    if a.dtype != b.dtype or not all(isinstance(number, int) for number in numbers):
        return False
    start_a, count_a, start_b, count_b = (int(number) for number in numbers)  # type: ignore[arg-type]
    return start_a + count_a <= start_b or start_b + count_b <= start_a


def loops_of(claims: Iterable[Claim]) -> list[OpenLoop]:
    """The loops of a run, in order."""
    loops: list[OpenLoop] = []
    touching: dict[int, list[int]] = {}
    for claim in claims:
        storages = {meta.storage for meta, _, _ in accesses(claim)}
        near = sorted({at for storage in storages for at in touching.get(storage, ())})
        floor = 0
        for at in near:
            relation = loops[at].relation(claim)
            if relation:
                floor = at + relation - 1
        chosen = next((at for at in near if at >= floor and loops[at].may_take(claim)), len(loops))
        if chosen == len(loops):
            loops.append(OpenLoop(claim.layout, element_of(claim)))
        loops[chosen].add(claim)
        for storage in storages:
            if chosen not in touching.setdefault(storage, []):
                touching[storage].append(chosen)
    return _merged(loops)


def _merged(loops: list[OpenLoop]) -> list[OpenLoop]:
    """The loops, with those that work on the same memory as one where the order allows that."""
    kept: list[OpenLoop] = []
    for loop in loops:
        into = next((at for at in range(len(kept) - 1, -1, -1) if kept[at].touched.keys() & loop.touched.keys()), -1)
        if into < 0 or not kept[into].may_take_all(loop):
            kept.append(loop)
            continue
        for claim in loop.claims:
            kept[into].add(claim)
    return kept


@dataclass(frozen=True, slots=True)
class ReadyLoop:
    """A loop and what it is called with. pointers: values that lie where its cells do. numbers: operands, and what they
    must not be.
    """

    loop: Loop
    pointers: tuple[Value, ...]
    numbers: tuple[tuple[Operand, float | None], ...]


def ready_loop(opened: OpenLoop, unread: Collection[int], roots: Mapping[Value, Value]) -> ReadyLoop | None:
    """The loop of claims; None where it would store nothing.

    unread: storages in which what is written is not read later. roots: by value, the one whose variable holds the same
    tensor.
    """
    return _Builder(opened, unread, roots).build()


class _Builder:
    def __init__(self, opened: OpenLoop, unread: Collection[int], roots: Mapping[Value, Value]) -> None:
        self.opened = opened
        self.unread = unread
        self.roots = roots
        self.cells: dict[Place, int] = {}
        self.kinds: list[Cell] = []
        self.pointers: list[Value] = []
        self.numbers: dict[object, int] = {}
        self.operands: list[tuple[Operand, float | None]] = []
        self.current: dict[Place, Source] = {}
        self.steps: list[Step] = []

    def build(self) -> ReadyLoop | None:
        written: dict[Place, Value] = {}
        for claim in self.opened.claims:
            avoided = dict(claim.question.avoided)
            sources = [
                self._source(operand, kind, avoided.get(name))
                for operand, (name, kind) in zip(claim.operands, claim.question.operands, strict=True)
            ]
            formula = claim.formula()
            assert formula is not None, "only claims whose formula is known are arranged"
            place = _place(claim.written, False)
            self.current[place] = Source(From.STEP, len(self.steps))
            self.steps.append(Step(formula, tuple(sources)))
            written[place] = claim.written
        stores = [
            (self._cell(place, value), self.current[place].index)
            for place, value in written.items()
            if value.tensor.storage not in self.unread
        ]
        if not stores:
            return None
        loop = Loop(self.opened.element, tuple(self.kinds), len(self.operands), tuple(self.steps), tuple(stores))
        return ReadyLoop(loop, tuple(self.pointers), tuple(self.operands))

    def _source(self, operand: Operand, kind: str, avoided: float | None) -> Source:
        if kind == NUMBER:
            key = (operand if isinstance(operand, Value) else (type(operand), repr(operand)), avoided)
            if key not in self.numbers:
                self.numbers[key] = len(self.operands)
                self.operands.append((operand, avoided))
            return Source(From.NUMBER, self.numbers[key])
        assert isinstance(operand, Value), "all others are tensors"
        place = _place(operand, kind == SINGLE)
        if place not in self.current:
            self.current[place] = Source(From.CELL, self._cell(place, operand))
        return self.current[place]

    def _cell(self, place: Place, value: Value) -> int:
        if place not in self.cells:
            self.cells[place] = len(self.kinds)
            is_truth = value.tensor.dtype is torch.bool
            self.kinds.append(Cell(is_single=place[3], is_truth=is_truth))
            self.pointers.append(self.roots.get(value, value))
        return self.cells[place]


def _place(value: Value, is_single: bool) -> Place:
    return (value.tensor.storage, value.tensor.offset, value.tensor.dtype, is_single)
