"""A program drawn module by module: what runs one after the other in one module becomes one node.

A module is known by the first `level` parts of its path, counted behind what all modules have in common, and repeated
layers that follow each other are one (`h.*`). Code outside modules is known by its line. What a module makes and
drops itself is not drawn. Storages that are made by the same row and read by the same rows are one lane; so are inputs
that the same row reads first. Cost: O(nodes + operands).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.analysis.liveness import input_bytes, storage_bytes
from dovetail.inspect.holders import short_operator
from dovetail.inspect.layers import Layers, is_folded
from dovetail.inspect.memory_map import operator_name
from dovetail.inspect.source_paths import line_text
from dovetail.ir.program import Node, Program, Value, values_in
from dovetail.ir.signature import Signature
from dovetail.ir.sizes import Number
from dovetail.ops.facts import written_values


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Stands for several nodes. label: the module, folded, or the line. nodes: how many. inside_bytes: made in it."""

    label: str
    nodes: int
    written: tuple[Value, ...]
    inside_bytes: int

    def __call__(self, *args: object) -> object:
        raise TypeError("a part of a drawing does not run")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A program as it is drawn. sizes: bytes of each lane's storages. counts: how many storages a lane stands for."""

    program: Program
    sizes: Mapping[int, int]
    counts: Mapping[int, int] = field(default_factory=dict)


def whole(program: Program, hints: Mapping[str, Number] | None = None) -> Drawn:
    """Every node by itself."""
    return Drawn(program, {**storage_bytes(program, hints or {}), **input_bytes(program, hints or {})})


def collapse(program: Program, level: int, hints: Mapping[str, Number] | None = None) -> Drawn:
    """Modules as nodes. level: how many parts of a module's path tell it from others; at least 1."""
    drawn = whole(program, hints)
    groups = [list(members) for _, members in itertools.groupby(program.nodes, _Keys(program, level))]
    home = {value: at for at, nodes in enumerate(groups) for node in nodes for value in node.results()}
    lanes = _lanes(program, groups, home)
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    for storage, lane in lanes.items():
        sizes[lane] = sizes.get(lane, 0) + drawn.sizes.get(storage, 0)
        counts[lane] = counts.get(lane, 0) + 1
    return Drawn(_Builder(program, groups, home, lanes, drawn.sizes, _Keys(program, level)).build(), sizes, counts)


class _Keys:
    """The module or line that a node counts as, and its phase."""

    def __init__(self, program: Program, level: int) -> None:
        marks: dict[str, set[str]] = {}
        for node in program.nodes:
            operator = short_operator(operator_name(node)).rstrip("_")
            marks.setdefault(node.origin.module, set()).add(operator)
        self._layers = Layers(marks)
        paths = [path.split(".") for path in marks if path]
        common = 0
        while paths and all(len(path) > common and path[common] == paths[0][common] for path in paths):
            common += 1
        self._depth = common + level
        self._known: dict[tuple[str, str], str] = {}

    def __call__(self, node: Node) -> tuple[str, str]:
        origin = node.origin
        line = "" if origin.module else line_text(origin)
        known = self._known.get((origin.module, line))
        if known is None:
            parts = self._layers.fold(origin.module).split(".")
            depth = self._depth
            while depth < len(parts) and is_folded(parts[depth]):
                depth += 1  # `h.*` is one name
            known = self._known[origin.module, line] = ".".join(parts[:depth]) or line
        return known, node.phase.value


def _lanes(program: Program, groups: Sequence[Sequence[Node]], home: Mapping[Value, int]) -> dict[int, int]:
    """For each storage that is seen outside the group that makes it, the storage that its lane is drawn for."""
    makers: dict[int, int] = {}
    readers: dict[int, dict[int, None]] = {}
    for value in program.inputs:
        if value.is_tensor:
            makers.setdefault(value.tensor.storage, -1)
    for value, at in home.items():
        if value.is_tensor:
            makers.setdefault(value.tensor.storage, at)
    for at, nodes in enumerate(groups):
        for node in nodes:
            for value in (*node.operands(), *node.results()):
                if value.is_tensor:
                    readers.setdefault(value.tensor.storage, {})[at] = None
    for value in values_in(program.outputs):
        if value.is_tensor:
            readers.setdefault(value.tensor.storage, {})[len(groups)] = None
    first: dict[tuple[int, tuple[int, ...]], int] = {}
    lanes: dict[int, int] = {}
    for storage, maker in makers.items():
        reading = tuple(readers.get(storage, {}))
        if maker < 0:  # what is there anyway goes by who reads it first
            lanes[storage] = first.setdefault((maker, reading[:1]), storage)
        elif any(at != maker for at in reading):
            lanes[storage] = first.setdefault((maker, reading), storage)
    return lanes


class _Builder:
    """Builds the program that is drawn; each lane has one value."""

    def __init__(
        self,
        program: Program,
        groups: Sequence[Sequence[Node]],
        home: Mapping[Value, int],
        lanes: Mapping[int, int],
        sizes: Mapping[int, int],
        keys: _Keys,
    ) -> None:
        self._program, self._groups, self._home = program, groups, home
        self._lanes, self._sizes, self._keys = lanes, sizes, keys
        self._values: dict[int, Value] = {}

    def build(self) -> Program:
        """Inputs, then a node for each group."""
        inputs = [value for value in (self._lane_of(v) for v in self._program.inputs) if value is not None]
        taken = {id(value) for value in inputs}
        nodes = [self._node(group, at, taken) for at, group in enumerate(self._groups)]
        outputs = [value for value in (self._lane_of(v) for v in values_in(self._program.outputs)) if value is not None]
        kept = tuple(dict.fromkeys(inputs)), tuple(nodes), tuple(dict.fromkeys(outputs))
        return Program(self._program.name, self._program.stage, *kept, Signature())

    def _lane_of(self, value: Value) -> Value | None:
        """The value that stands for the lane of a value; None where it has none."""
        lane = self._lanes.get(value.tensor.storage) if value.is_tensor else None
        if lane is None:
            return None
        if lane not in self._values:
            self._values[lane] = Value(value.name, replace(value.tensor, storage=lane))
        return self._values[lane]

    def _node(self, group: Sequence[Node], at: int, taken: set[int]) -> Node:
        read = [self._lane_of(value) for node in group for value in node.operands()]
        made = [self._lane_of(value) for node in group for value in node.results()]
        written = [self._lane_of(value) for node in group for value in written_values(node)]
        known = [value for value in dict.fromkeys(read) if value is not None and id(value) in taken]
        fresh = tuple(value for value in dict.fromkeys(made) if value is not None and id(value) not in taken)
        over = tuple(value for value in dict.fromkeys(written) if value is not None and id(value) in taken)
        taken.update(map(id, fresh))
        storages = {value.tensor.storage for node in group for value in node.results() if value.is_tensor}
        inside = sum(self._sizes.get(storage, 0) for storage in storages if storage not in self._lanes)
        label = self._keys(group[0])[0] or short_operator(operator_name(group[0]))
        part = Part(label, len(group), over, inside)
        return Node(part, tuple(known), outputs=fresh, phase=group[0].phase, origin=group[0].origin)
