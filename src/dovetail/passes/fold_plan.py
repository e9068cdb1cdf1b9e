"""Decide which constant values are computed once and stored, such that the constants never grow.

A value is computed once ("folded") where it and what it is computed from are expressions of `fold_graph`. Which of them
are stored is a minimum cut (`fold_cut`): the fewest bytes of storages held; of equal choices the one that folds most.
So a view is always folded, a transposed copy, too, but not what widens low-bit weights or repeats a row.

    w: i8[512, 512], s: f32[512, 1]:   d = mul(w, s)   stays;    t = t(w); c = clone(t)   ->   c is stored instead of w

What counts is the extent of the values that are stored, in each storage; a constant that is stored itself counts with
all of its storage. Nodes without operands (`full`, `arange`) cost nothing where they run at each call.

Source: constant folding; the cut is that of rematerialization, see `partition.solve`.
Cost:   O(nodes + operands) and a small flow; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dovetail.analysis.union_find import UnionFind
from dovetail.ir.program import Program, TensorMeta
from dovetail.ops.views import copies_from_place, is_strided, keeps_offset
from dovetail.passes.collection import collection_paused
from dovetail.passes.fold_cut import CONSTANT, OUTSIDE, Choice, Piece, choose_cut
from dovetail.passes.fold_graph import REASONS, Pool, names_for, pool_of

# Copies of a part of a storage begin where a multiple of this begins, so that they are aligned as the part was.
ALIGNMENT_BYTES = 64


Asked: TypeAlias = "str | tuple[str, str]"


@dataclass(frozen=True, slots=True)
class FoldDecision:
    """What becomes of one value. program: the first that has it. is_folded: whether it is computed once and stored.

    reason: FOLDED, ASKED, GROWS, MADE-AT-CALL, NOT-CONSTANT (of what was asked for), or a key of
    `fold_graph.REASONS`. bytes_before: of the storages of the constants that it is computed from. bytes_after: those
    that it takes by itself where it is stored. Both are 0 for what is not an expression.
    """

    program: str
    value: str
    is_folded: bool
    reason: str
    text: str
    bytes_before: int = 0
    bytes_after: int = 0

    def __str__(self) -> str:
        verb = "folded" if self.is_folded else "kept"
        where = f" of {self.program}" if self.program else ""
        return f"{verb} {self.value}{where}: {self.reason}: {self.text}"


@dataclass(frozen=True, slots=True)
class FoldingPlan:
    """What `fold_constants` does. Bytes are those of the storages of all constants.

    pool, runs, names, whole are for `fold_constants`: by expression, whether it runs at each call; numbers and names of
    stored values; storages of which no part is to be copied by itself.
    stored: names of the constants that it makes, in the order in which it makes them. kept: those of the constants
    that it leaves. dropped: those of the constants that no program needs any more.
    """

    decisions: tuple[FoldDecision, ...]
    stored: tuple[str, ...]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    pool: Pool = field(repr=False, compare=False)
    runs: tuple[bool, ...] = field(repr=False, compare=False)
    names: tuple[tuple[int, str], ...] = field(repr=False, compare=False)
    whole: frozenset[int] = field(repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.stored and not self.dropped

    def __str__(self) -> str:
        before, after = f"{self.bytes_before / 1e6:.3f}", f"{self.bytes_after / 1e6:.3f}"
        head = f"{len(self.stored)} values are computed once; constants take {after} MB instead of {before} MB"
        return "\n".join([head, *(f"  {decision}" for decision in self.decisions)])


@collection_paused()
def plan_folding(
    programs: Sequence[Program],
    constants: Collection[str],
    asked: Collection[Asked] = (),
    *,
    everything: bool = False,
    taken: Collection[str] = (),
    opaque: bool = True,
) -> FoldingPlan:
    """Which values of the programs are computed once.

    Args:
        programs: functional programs, or lifted ones, over one pool of constants.
        constants: names of the inputs that nobody writes while the programs are in use; equal names are one constant.
        asked: values that are to be computed once, whatever they cost: names, or pairs (program, name).
        everything: the same for all values.
        taken: names that new constants must not have, besides those of the programs' values.
        opaque: packed weights (`ops.packed`) may be computed once as well.

    What cannot be computed once stays, with the reason; so does what is asked for. Sizes may be symbols there.
    """
    pool = pool_of(programs, constants, opaque=opaque)
    planner = _Planner(pool)
    forced = planner.forced(asked, everything)
    choice = choose_cut(planner.group_count, planner.pieces(), forced)
    return planner.plan(choice, frozenset(asked), everything, taken)


class _Planner:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.groups = UnionFind(len(pool.expressions))
        self.owners: dict[int, int] = {}  # by storage, an expression of the group that makes it, or CONSTANT
        self.fixed = self.groups.new()  # the group of what only views constants
        self.extents: dict[int, int] = {}
        self.spans = [_span(facts.meta) for facts in pool.values]
        self._group()
        roots = sorted({self.groups.find(e) for e in range(len(pool.expressions))} - {self.groups.find(self.fixed)})
        self.numbers = {root: number for number, root in enumerate(roots)}
        self.group_count = len(roots)
        self.readers, self.whole = self._readers()

    def _group(self) -> None:
        """Views are in the group of what makes their storage."""
        pool = self.pool
        for value, facts in enumerate(pool.values):
            storage = pool.storage_of(value)
            if facts.maker < 0:
                self.owners[storage] = self.fixed
            elif not pool.expressions[facts.maker].is_lazy:
                owner = self.owners.setdefault(storage, facts.maker)
                self.groups.join(owner, facts.maker)
            self.extents[storage] = max(self.extents.get(storage, 0), self.spans[value][1])

    def group(self, expression: int) -> int:
        """The number of its group, or CONSTANT."""
        return self.numbers.get(self.groups.find(expression), CONSTANT)

    def forced(self, asked: Collection[Asked], everything: bool) -> set[int]:
        """The groups to compute once in any case."""
        expressions: Iterable[int] = range(len(self.pool.expressions)) if everything else self._asked(asked)
        lazy = {self.group(e) for e, found in enumerate(self.pool.expressions) if found.is_lazy}
        return {self.group(e) for e in expressions} - lazy - {CONSTANT}

    def _asked(self, asked: Collection[Asked]) -> list[int]:
        found = [
            number
            for program, known in zip(self.pool.programs, self.pool.of, strict=True)
            for value, number in known.items()
            if value.name in asked or (program.name, value.name) in asked
        ]
        return [self.pool.values[number].maker for number in found if self.pool.values[number].maker >= 0]

    def _readers(self) -> tuple[list[set[int]], list[bool]]:
        """Who reads each value, but for views in its group; and whether all of its storage must be there for that."""
        pool = self.pool
        readers: list[set[int]] = [set() for _ in pool.values]
        whole = [facts.maker < 0 for facts in pool.values]
        for number, expression in enumerate(pool.expressions):
            group = self.group(number)
            made = {pool.storage_of(o) for o in expression.outputs if o is not None}
            is_near = _looks_beside(expression.node.target, expression.node.args)
            for operand in expression.operands:
                if group not in (CONSTANT, self._owner(operand)):
                    readers[operand].add(group)
                    whole[operand] = whole[operand] or is_near or pool.storage_of(operand) in made
        for program, known, called in zip(pool.programs, pool.of, pool.called, strict=True):
            for node in program.nodes:
                if node in called or node in pool.settled:
                    continue
                made_here = {value.tensor.storage for value in node.results() if value.is_tensor}
                is_near = _looks_beside(node.target, node.args)
                for value in node.operands():
                    operand = known.get(value, -1)
                    if operand >= 0:
                        readers[operand].add(OUTSIDE)
                        whole[operand] = whole[operand] or is_near or value.tensor.storage in made_here
        return readers, whole

    def _owner(self, value: int) -> int:
        maker = self.pool.values[value].maker
        return CONSTANT if maker < 0 else self.group(maker)

    def pieces(self) -> list[Piece]:
        """The memory that may be stored, in pieces that are read alike."""
        spans: dict[int, dict[tuple[int, int], set[int]]] = {}
        found: list[Piece] = []
        for value, readers in enumerate(self.readers):
            if not readers:
                continue
            maker = self.pool.values[value].maker
            if maker >= 0 and self.pool.expressions[maker].is_lazy:
                found.append(Piece(self.group(maker), None, frozenset(readers)))
                continue
            storage = self.pool.storage_of(value)
            span = (0, self.extents[storage]) if self.whole[value] else self.spans[value]
            spans.setdefault(storage, {}).setdefault(span, set()).update(readers)
        for storage, read in spans.items():
            owner = self.groups.find(self.owners[storage])
            found += _cut_up(self.numbers.get(owner, CONSTANT), read, self.extents[storage])
        return found

    # --- the plan ---------------------------------------------------------------------------------------------------

    def plan(self, choice: Choice, asked: frozenset[Asked], everything: bool, taken: Collection[str]) -> FoldingPlan:
        """The choice as a plan."""
        pool = self.pool
        runs = [group != CONSTANT and choice.runs[group] for group in map(self.group, range(len(pool.expressions)))]
        stored: list[int] = []
        needed: set[str] = set()
        for value, readers in enumerate(self.readers):
            maker = pool.values[value].maker
            if not any(group == OUTSIDE or (group != CONSTANT and choice.runs[group]) for group in readers):
                continue
            if maker < 0:
                needed.add(pool.values[value].name)
            elif not runs[maker]:
                stored.append(value)
        barred = {bar.name for bar in pool.barred} & pool.constants
        inputs = {value.name for program in pool.programs for value in program.inputs if value.is_tensor}
        live = [name for name in sorted(pool.constants & inputs) if name in needed or name in barred]
        dropped = tuple(sorted((pool.constants & inputs) - set(live)))
        names = names_for(pool, stored, taken)
        leaves = {
            pool.storage_of(v) for v, facts in enumerate(pool.values) if facts.maker < 0 and facts.name not in barred
        }
        before = sum(self.extents[storage] for storage in leaves)
        decisions = _Decisions(self, runs, stored, asked, everything).all()
        return FoldingPlan(
            tuple(decisions),
            tuple(name for _, name in names),
            tuple(live),
            dropped,
            before,
            choice.stored_bytes,
            pool,
            tuple(runs),
            names,
            frozenset(pool.storage_of(value) for value in stored if self.whole[value]),
        )


def _looks_beside(target: object, args: tuple[object, ...]) -> bool:
    """Whether what the operator gives depends on where in its storage the operand lies."""
    assert callable(target), "targets are called"
    return is_strided(target) or copies_from_place(target, args) or keeps_offset(target)


def _span(meta: TensorMeta) -> tuple[int, int]:
    """The first and the last byte of a tensor; nothing for unknown sizes."""
    numbers = [number for number in (*meta.shape, *meta.stride, meta.offset) if isinstance(number, int)]
    rank = len(meta.shape)
    if len(numbers) <= 2 * rank:
        return (0, 0)
    return span_bytes(numbers[:rank], numbers[rank:-1], numbers[-1], meta.dtype.itemsize)


def span_bytes(shape: Sequence[int], stride: Sequence[int], offset: int, itemsize: int) -> tuple[int, int]:
    """The first and the last byte of a tensor in its storage, the first one rounded down as copies are."""
    if 0 in shape:
        return (0, 0)
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    first, last = offset * itemsize, (offset + reach + 1) * itemsize
    return (first - first % ALIGNMENT_BYTES, last)


def _cut_up(owner: int, spans: dict[tuple[int, int], set[int]], extent: int) -> list[Piece]:
    """Disjoint pieces of one storage, each with all who read it; the whole storage where that are too many."""
    everyone = frozenset(reader for readers in spans.values() for reader in readers)
    if len(spans) == 1:
        ((first, last),) = spans
        return [Piece(owner, last - first, everyone)]
    places = sorted({place for span in spans for place in span})
    index = {place: number for number, place in enumerate(places)}
    if sum(index[last] - index[first] for first, last in spans) > 8 * len(spans) + 256:
        return [Piece(owner, extent, everyone)]
    readers: list[set[int]] = [set() for _ in places]
    for (first, last), mine in spans.items():
        for number in range(index[first], index[last]):
            readers[number] |= mine
    ends = zip(places, places[1:], readers, strict=False)
    return [Piece(owner, end - begin, frozenset(mine)) for begin, end, mine in ends if mine]


# --- reasons ----------------------------------------------------------------------------------------------------------


class _Decisions:
    """The reasons, value by value."""

    def __init__(
        self, planner: _Planner, runs: Sequence[bool], stored: Sequence[int], asked: frozenset[Asked], everything: bool
    ) -> None:
        self.planner = planner
        self.runs = runs
        self.stored = set(stored)
        self.asked = asked
        self.everything = everything
        self.asked_groups = planner.forced(asked, everything=False)
        # Looking for the constants below each of many values may take long; then operands are counted.
        self.steps_left = 10_000 + 10 * len(planner.pool.values)

    def all(self) -> list[FoldDecision]:
        """Each value that is stored, then each that is read outside and runs at each call, then what is barred."""
        pool = self.planner.pool
        shown: set[int] = set()
        folded: list[FoldDecision] = []
        kept: list[FoldDecision] = []
        for program, known in zip(pool.programs, pool.of, strict=True):
            for value, number in known.items():
                maker = pool.values[number].maker
                if maker < 0 or number in shown:
                    continue
                if number in self.stored:
                    shown.add(number)
                    folded.append(self._folded(program.name, value.name, number))
                elif self.runs[maker] and OUTSIDE in self.planner.readers[number]:
                    shown.add(number)
                    kept.append(self._kept(program.name, value.name, number))
        barred = [
            FoldDecision(pool.programs[bar.program].name, bar.name, False, bar.reason, REASONS[bar.reason])
            for bar in pool.barred
        ]
        return folded + kept + barred + self._not_constant()

    def _not_constant(self) -> list[FoldDecision]:
        """What is asked for, and is no expression of constants."""
        pool = self.planner.pool
        known = [(pool.programs[bar.program].name, bar.name) for bar in pool.barred]
        for program, values in zip(pool.programs, pool.of, strict=True):
            known += [(program.name, value.name) for value in values]
        unknown = self.asked - {*known, *(name for _, name in known)}
        pairs = sorted(pair if isinstance(pair, tuple) else ("", pair) for pair in unknown)
        text = "it differs from call to call, or is not a value"
        return [FoldDecision(program, name, False, "NOT-CONSTANT", text) for program, name in pairs]

    def _folded(self, program: str, name: str, value: int) -> FoldDecision:
        before, after = self._below(value), self._bytes(value)
        is_asked = self.everything or name in self.asked
        is_asked = is_asked or self.planner.group(self.planner.pool.values[value].maker) in self.asked_groups
        text = f"{after} bytes, computed from {before}"
        return FoldDecision(program, name, True, "ASKED" if is_asked else "FOLDED", text, before, after)

    def _kept(self, program: str, name: str, value: int) -> FoldDecision:
        facts = self.planner.pool.values[value]
        before, after = self._below(value), self._bytes(value)
        reason = "GROWS" if before else "MADE-AT-CALL"
        text = (
            f"{after / before:.3g}x the bytes of its operands"
            if before
            else f"{after} bytes, not computed from a constant"
        )
        if before >= after:
            text = f"{after} bytes more, because other values need its sources"
        if self.planner.pool.expressions[facts.maker].is_lazy:
            reason, text = "LAZY-BITS", REASONS["LAZY-BITS"]
        return FoldDecision(program, name, False, reason, text, before, after)

    def _bytes(self, value: int) -> int:
        """What storing a value takes by itself."""
        if self.planner.whole[value]:
            return self.planner.extents[self.planner.pool.storage_of(value)]
        first, last = self.planner.spans[value]
        return last - first

    def _below(self, value: int) -> int:
        """Bytes of the storages of the constants that a value is computed from."""
        pool = self.planner.pool
        seen = {value}
        stack, leaves = [value], set()
        while stack:
            number = stack.pop()
            maker = pool.values[number].maker
            self.steps_left -= 1
            if maker < 0 or (self.steps_left < 0 and number != value):
                leaves.add(pool.storage_of(number))
                continue
            fresh = [operand for operand in pool.expressions[maker].operands if operand not in seen]
            seen.update(fresh)
            stack += fresh
        return sum(self.planner.extents[storage] for storage in leaves)
