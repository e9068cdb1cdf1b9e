"""A program that runs in an arena: which of its results lie there, where, and what its peak is then.

Results of operators that can write into memory they are given (`ops.placed_results`) may lie in the arena. All else is
torch's to allocate, and lies beside it: what the caller gets, what code of the user's may see or keep, what has no
kernel that writes in place, and what operators take for themselves.

The arena is there for the whole run, so its size and the most that lies beside it add up, though they are needed at
different times. Results are moved out of it, or stay, until the sum is no more than the program needs without an arena:
at the peak itself both are needed at once, so no byte is lost there; elsewhere what is in the arena must not be more
than there, nor what is beside it.

Cost:   O(nodes) for each result that is moved out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.analysis.liveness import Need, StorageLife, input_bytes, simulate_peak, storage_lives
from dovetail.ir.draft import free_name
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.signature import Constant, Signature
from dovetail.ir.sizes import Number
from dovetail.memory.check import verify_placement
from dovetail.memory.problem import ALIGNMENT, Buffer, Placement, Problem, kept_bytes, rounded_up
from dovetail.memory.solve import solve
from dovetail.ops.facts import is_reinterpretation
from dovetail.ops.placed_results import lets_go_of_operands, placed_node

_SEARCHED = 1_000_000
"""Decisions of the search that an arena is worth, times buffers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result lies. value: the input of the program in the arena that stands for it. offset: in bytes."""

    value: Value
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Placeable:
    """A node, and as it is where its results have places. storages: of those."""

    node: Node
    placed: Node
    places: tuple[Value, ...]

    @property
    def storages(self) -> tuple[int, ...]:
        """The storages of its results."""
        return tuple(value.tensor.storage for value in self.places)


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """A program in an arena.

    program: node by node the given one, with one more input for each place. problem, placement: of the arena.
    peak_bytes: of the arena and what lies beside it. without_bytes: of the program without an arena. held_bytes: of all
    that is in the arena, each counted once; made_bytes: the same of all that the program makes. reason: why nothing is
    in it, where that is so for all of the program.
    """

    program: Program
    places: tuple[Place, ...]
    problem: Problem
    placement: Placement
    peak_bytes: int
    without_bytes: int
    held_bytes: int
    made_bytes: int
    reason: str = ""

    @property
    def size_bytes(self) -> int:
        """Of the arena."""
        return self.placement.size_bytes

    def __str__(self) -> str:
        if not self.places:
            why = self.reason or "its peak would be higher, or its operators make their results themselves"
            return f"nothing: {why}"
        share = f"{len(self.places)} buffers, {100 * self.held_bytes / max(1, self.made_bytes):.0f} % of what it makes"
        beside = self.peak_bytes - self.size_bytes
        than = f"{self.without_bytes:,} without it"
        return f"{self.size_bytes:,} bytes for {share}; {beside:,} beside it at most: {self.peak_bytes:,}, {than}"


def placeables(program: Program, hints: Mapping[str, Number]) -> list[Placeable]:
    """The nodes whose results may lie in an arena, if their operators write there what they would make."""
    kept = set(program.output_storages() | program.input_storages())
    flagged: set[int] = set()
    for node in program.nodes:
        touched = {v.tensor.storage for v in (*node.operands(), *node.results()) if v.is_tensor}
        if not lets_go_of_operands(node):
            kept |= touched
        if is_reinterpretation(node.target):
            flagged |= touched
    lives = {life.storage: life for life in storage_lives(program, hints)}
    names = {value.name for value in program.values()}
    found = []
    for at, node in enumerate(program.nodes):
        results = node.results()
        made = {v.tensor.storage for v in results if v.is_tensor}
        if not made or len(made) < len(node.outputs) or not made.isdisjoint(kept | flagged):
            continue
        if any(v.tensor.storage in flagged for v in node.operands() if v.is_tensor):
            continue
        if not all(_makes_all_of_it(value, at, lives) for value in results):
            continue
        places = [Value(free_name(f"{v.name}_place", names, first=2), v.meta) for v in results]
        placed = placed_node(node, places)
        if placed is not None:
            names.update(value.name for value in places)
            found.append(Placeable(node, placed, tuple(places)))
    return found


def _makes_all_of_it(value: Value, at: int, lives: Mapping[int, StorageLife]) -> bool:
    """Whether a result is all of a new storage of known size, on the CPU."""
    meta = value.tensor
    life = lives.get(meta.storage)
    if life is None or life.first != at or not life.bytes or not _is_known(value):
        return False
    return meta.offset == 0 and meta.device.type == "cpu" and not meta.overlaps_itself()


def plan_in_arena(
    program: Program,
    hints: Mapping[str, Number],
    need_of: Callable[[Node], Need],
    usable: Sequence[Placeable],
    arrange: Callable[[Problem], Placement] | None = None,
    dying: Collection[int] = (),
) -> ArenaPlan:
    """Put into an arena what can be there without a higher peak.

    need_of: what nodes of both kinds take besides. usable: nodes whose results may lie there. arrange: places the
    buffers of all of them; by default those that suit are chosen, and the solver places them. dying: numbers of inputs
    that nobody else holds.
    """
    run = _Run(program, hints, need_of, dying)
    if arrange is not None:
        return run.planned(usable, arrange)
    refused = _unknown_size(program)
    if refused:
        return replace(run.planned((), _solved), reason=refused)
    while True:
        usable = _Choice(run, usable).chosen()
        plan = run.planned(usable, _solved)
        if plan.peak_bytes <= plan.without_bytes or not usable:
            return plan
        usable = _within_bound(usable, plan)


def _unknown_size(program: Program) -> str:
    """What makes a tensor whose size is not known before it runs, so that no peak is; "" if there is none."""
    for value in program.inputs:
        if value.is_tensor and not _is_known(value):
            return f"sizes of {value.name} are symbols"
    for node in program.nodes:
        if not all(_is_known(value) for value in node.results() if value.is_tensor):
            return f"the size of what {node.target} makes depends on data, {node.origin}"
    return ""


def _is_known(value: Value) -> bool:
    return all(type(number) is int for number in (*value.tensor.shape, *value.tensor.stride, value.tensor.offset))


def _solved(problem: Problem) -> Placement:
    return solve(problem, decisions=_SEARCHED // max(1, len(problem.buffers)))


def _within_bound(usable: Sequence[Placeable], plan: ArenaPlan) -> Sequence[Placeable]:
    """Those of which nothing lies above the bound, which the solver missed; without one where that is all of them."""
    bound = plan.placement.bound_bytes
    above = {p.value for p, b in zip(plan.places, plan.problem.buffers, strict=True) if p.offset + b.size_bytes > bound}
    return [one for one in usable if above.isdisjoint(one.places)] if above else usable[:-1]


@dataclass(frozen=True, slots=True)
class _Run:
    """A program, and what is known of its memory. See `plan_in_arena`."""

    program: Program
    hints: Mapping[str, Number]
    need_of: Callable[[Node], Need]
    dying: Collection[int]

    def peak_bytes(self, program: Program) -> int:
        """Of it, or of it in an arena."""
        return simulate_peak(program, self.hints, self.dying, self.need_of).peak_bytes

    def planned(self, chosen: Sequence[Placeable], arrange: Callable[[Problem], Placement]) -> ArenaPlan:
        """The program with the results of these nodes in an arena."""
        program = self.program
        lives = {life.storage: life for life in storage_lives(program, self.hints)}
        values = [value for one in chosen for value in one.places]
        held = [lives[value.tensor.storage] for value in values]
        problem = Problem(
            tuple(
                Buffer(value.name, life.bytes, life.first, life.last + 1)
                for value, life in zip(values, held, strict=True)
            )
        )
        placement = arrange(problem)
        verify_placement(problem, placement, program.name)
        placed = {one.node: one.placed for one in chosen}
        roles = (*program.signature.inputs, *(Constant(value.name) for value in values))
        inside = replace(
            program,
            inputs=(*program.inputs, *values),
            nodes=tuple(placed.get(node, node) for node in program.nodes),
            signature=Signature(roles, program.signature.outputs),
        )
        return ArenaPlan(
            program=inside,
            places=tuple(map(Place, values, placement.offsets)),
            problem=problem,
            placement=placement,
            peak_bytes=placement.size_bytes + self.peak_bytes(inside),
            without_bytes=self.peak_bytes(program),
            held_bytes=sum(life.bytes for life in held),
            made_bytes=sum(life.bytes for life in lives.values()),
        )

    def curve(self) -> list[int]:
        """The bytes that are needed at each node."""
        program = self.program
        needs = [self.need_of(node) for node in program.nodes]
        kept = kept_bytes(program, needs)
        found = [need.scratch_bytes for need in needs]
        for life in storage_lives(program, self.hints):
            _add(found, life.first, life.last, life.bytes + kept.get(life.storage, 0))
        given = {program.inputs[number].tensor.storage for number in self.dying}
        sizes = input_bytes(program, self.hints) if given else {}
        last = dict.fromkeys(given, -1)
        for at, node in enumerate(program.nodes):
            last.update({v.tensor.storage: at for v in (*node.operands(), *node.results()) if v.is_tensor})
        last.update(dict.fromkeys(program.output_storages(), len(found) - 1))
        for storage in given:
            _add(found, 0, last[storage], sizes[storage])
        return found


@dataclass(slots=True, eq=False)
class _Part:
    """What a node can have in the arena. at: its position. change: of what it takes besides, where it writes there.
    spans: for each result the bytes in the arena and beside it, and the first and the last node.
    """

    one: Placeable
    at: int
    change: int
    spans: list[tuple[int, int, int, int]]

    def bytes_at(self, at: int) -> int:
        """What it has in the arena at a time."""
        return sum(inside for inside, _, first, last in self.spans if first <= at <= last)

    @property
    def is_padded(self) -> bool:
        """Whether it has more bytes in the arena than beside it."""
        return any(inside != beside for inside, beside, _, _ in self.spans)


class _Choice:
    """Moves results out of the arena until its size and the most that lies beside it are no more than the peak."""

    def __init__(self, run: _Run, usable: Sequence[Placeable]) -> None:
        lives = {life.storage: life for life in storage_lives(run.program, run.hints)}
        self.beside = run.curve()
        self.inside = [0] * len(self.beside)
        self.peak = max(self.beside, default=0)
        self.at_peak = self.beside.index(self.peak) if self.beside else 0
        position = {node: at for at, node in enumerate(run.program.nodes)}
        self.parts = []
        for one in usable:
            change = run.need_of(one.placed).scratch_bytes - run.need_of(one.node).scratch_bytes
            part = _Part(one, position[one.node], change, [_span(lives[storage]) for storage in one.storages])
            self.parts.append(part)
            self._move(part, 1)

    def chosen(self) -> list[Placeable]:
        """What stays, in the order of the program."""
        while self.parts:
            size, beside = max(self.inside), max(self.beside)
            if size + beside <= self.peak:
                break
            level = self.inside[self.at_peak]
            if size > level:
                self._move_out(self.inside.index(size), self.at_peak, size - level)
            else:
                self._move_out(self.at_peak, self.beside.index(beside), size + beside - self.peak)
        return [part.one for part in self.parts]

    def _move_out(self, there: int, not_there: int, excess: int) -> None:
        """Move a node out that has bytes there and none at the other time: the fewest that are enough, or the most."""
        sizes = [(size, part) for part in self.parts if (size := part.bytes_at(there))]
        apart = [(size, part) for size, part in sizes if not part.bytes_at(not_there)]
        if not apart:  # the same time: what is rounded up there is lost
            apart = [(size, part) for size, part in sizes if part.is_padded] or sizes or [(0, self.parts[-1])]
        enough = [entry for entry in apart if entry[0] >= excess]
        _, part = min(enough, key=_size) if enough else max(apart, key=_size)
        self.parts.remove(part)
        self._move(part, -1)

    def _move(self, part: _Part, into: int) -> None:
        for inside, outside, first, last in part.spans:
            _add(self.inside, first, last, into * inside)
            _add(self.beside, first, last, -into * outside)
        self.beside[part.at] += into * part.change


def _size(entry: tuple[int, _Part]) -> int:
    return entry[0]


def _span(life: StorageLife) -> tuple[int, int, int, int]:
    return rounded_up(life.bytes, ALIGNMENT), life.bytes, life.first, life.last


def _add(curve: list[int], first: int, last: int, change: int) -> None:
    for at in range(first, last + 1):
        curve[at] += change
