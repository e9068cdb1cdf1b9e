"""The position of each storage of a program in a drawing: a row for each input and node, a lane for each live storage.

Rows are in execution order. A storage has a lane from the row that creates it to its last reader, so storages side by
side are alive at the same time, and nodes that work in place stay in their lanes. An input is right above the first
node that reads it. Cost: O((nodes + operands) log lanes).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.inspect.collapse import Part
from dovetail.ir.program import Node, Phase, Program, Value, values_in
from dovetail.ops.facts import written_values


@dataclass(frozen=True, slots=True)
class Row:
    """One input, node, or the caller that takes the results (then both are None).

    reads, writes, makes: lanes. A lane in `makes` begins here; one in `ends` ends here. shows: lanes in which a result
    lies that was there before: views, and what is written in place. storages: of the lanes, for their colours.
    """

    node: Node | None
    input: Value | None
    module: str
    makes: tuple[int, ...] = ()
    shows: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        """What the row defines."""
        if self.input is not None:
            return (self.input,)
        return self.node.results() if self.node is not None else ()

    @property
    def is_backward(self) -> bool:
        """Whether the row runs during backward."""
        return self.node is not None and self.node.phase is Phase.BACKWARD


@dataclass(frozen=True, slots=True)
class Life:
    """A storage in its lane. first, last: rows. is_input: it was there before. is_returned: it is there afterwards."""

    storage: int
    lane: int
    first: int
    last: int
    is_input: bool
    is_returned: bool


@dataclass(frozen=True, slots=True)
class Lanes:
    """The layout of a drawing. width: how many lanes there are."""

    rows: tuple[Row, ...]
    lives: tuple[Life, ...]
    width: int


def lay_out(program: Program) -> Lanes:
    """Rows and lanes of a program."""
    return _Layout(program).run()


class _Layout:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps: list[Node | Value | None] = _steps(program)
        self.last = self._last_rows()
        self.returned = program.output_storages()
        self.inputs = program.input_storages()
        self.lane: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.free: list[int] = []
        self.width = 0
        self.lives: list[Life] = []

    def _last_rows(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for at, step in enumerate(self.steps):
            for value in _touched(step, self.program):
                if value.is_tensor:
                    last[value.tensor.storage] = at
        return last

    def run(self) -> Lanes:
        """Walk over the rows."""
        rows: list[Row] = []
        module = ""
        for at, step in enumerate(self.steps):
            row = self._row(step, at)
            module = row.module or ("" if row.node is not None else module)
            rows.append(row)
        return Lanes(tuple(rows), tuple(self.lives), self.width)

    def _row(self, step: Node | Value | None, at: int) -> Row:
        node = step if isinstance(step, Node) else None
        made = [step] if isinstance(step, Value) else list(node.results()) if node is not None else []
        operands = node.operands() if node is not None else () if step is not None else _results_of(self.program)
        reads = self._lanes_of(operands)
        writes = self._lanes_of(_written(node) if node is not None else ())
        shows = [value for value in made if value.is_tensor and value.tensor.storage in self.lane]
        shown = self._lanes_of(shows)
        makes = tuple(self._begin(value.tensor.storage, at) for value in made if value.is_tensor and value not in shows)
        ends = self._end(_touched(step, self.program), at)
        origin = node.origin.module if node is not None else ""
        return Row(node, step if isinstance(step, Value) else None, origin, _once(makes), shown, reads, writes, ends)

    def _lanes_of(self, values: Sequence[Value]) -> tuple[int, ...]:
        return _once([self.lane[v.tensor.storage] for v in values if v.is_tensor and v.tensor.storage in self.lane])

    def _begin(self, storage: int, at: int) -> int:
        if storage not in self.lane:
            if not self.free:
                heapq.heappush(self.free, self.width)
                self.width += 1
            self.lane[storage] = heapq.heappop(self.free)
            self.first[storage] = at
        return self.lane[storage]

    def _end(self, values: Sequence[Value], at: int) -> tuple[int, ...]:
        ended: list[int] = []
        for value in values:
            storage = value.tensor.storage if value.is_tensor else -1
            if storage not in self.lane or self.last[storage] != at:
                continue
            lane = self.lane.pop(storage)
            ended.append(lane)
            is_input, is_returned = storage in self.inputs, storage in self.returned
            self.lives.append(Life(storage, lane, self.first[storage], at, is_input, is_returned))
        for lane in ended:
            heapq.heappush(self.free, lane)
        return tuple(ended)


def _steps(program: Program) -> list[Node | Value | None]:
    """Inputs, each before the first node that reads it, nodes, and the caller."""
    waiting = dict.fromkeys(program.inputs)
    steps: list[Node | Value | None] = []
    for node in program.nodes:
        for value in node.operands():
            if value in waiting:
                waiting.pop(value)
                steps.append(value)
        steps.append(node)
    for value in _results_of(program):
        if value in waiting:
            waiting.pop(value)
            steps.append(value)
    return [*waiting, *steps, None]


def _results_of(program: Program) -> tuple[Value, ...]:
    return tuple(values_in(program.outputs))


def _touched(step: Node | Value | None, program: Program) -> tuple[Value, ...]:
    if isinstance(step, Node):
        return (*step.operands(), *step.results())
    return (step,) if step is not None else _results_of(program)


def _written(node: Node) -> Sequence[Value]:
    return node.target.written if isinstance(node.target, Part) else tuple(written_values(node))


def _once(lanes: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(lanes))
