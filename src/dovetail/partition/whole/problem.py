"""What one program may drop and compute again later, as plain numbers.

A *storage* of the problem is memory that a node of the program makes; views lie in it and are no storages of their own.
It can be dropped between two uses if its maker can run again at any later use: what the maker reads is then still
there, or can be made again in turn. Never dropped: what is returned, what draws or effects made, and what is computed
from an input that the program has overwritten by then.

Where there is a file, the contents of a storage may leave for it and come back, whoever made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dovetail.analysis.liveness import NOTHING, Need, storage_bytes
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number
from dovetail.ops.again import again_form
from dovetail.ops.facts import written_values
from dovetail.partition.policy import Policy, can_run_again, is_view
from dovetail.partition.work import work_of

NEVER = 1 << 60
"""A position behind every program."""


@dataclass(frozen=True, slots=True)
class File:
    """Where contents may leave for. write_rate, read_rate: bytes that are written, and read, in the time of one unit of
    work (`partition.work`: of one byte in memory).
    """

    write_rate: float
    read_rate: float

    def write_cost(self, size_bytes: int) -> int:
        """The work in whose time so many bytes are written."""
        return _WORK_PER_TRANSFER + int(size_bytes / self.write_rate)

    def read_cost(self, size_bytes: int) -> int:
        """The same for reading."""
        return _WORK_PER_TRANSFER + int(size_bytes / self.read_rate)


_WORK_PER_TRANSFER = 400_000  # to hand it to a thread, and to wait for that: some 40 microseconds


@dataclass(frozen=True, slots=True)
class WholeProblem:
    """Nodes and storages are numbered in program order.

    storages: what the program calls each. reads: the storages that each node has values of, those of inputs left out.
    makes: the storages that it makes.
    costs: the work of running each node again, in bytes (`partition.work`). scratch: bytes that it needs while it
    runs, besides operands and results. sizes: bytes of each storage. places: the storage in whose memory each one lies,
    itself mostly; -1 for memory that is there before. makers: the node that makes it. uses: the nodes
    that have values of it, its maker apart. ends: its last use; `NEVER` where it is returned. can_drop: whether it may
    be made again at any of its uses. writes, fetches: the work in whose time each storage is written to a file, and
    read; `NEVER` for those whose contents stay; empty where there is no file.
    """

    storages: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    costs: tuple[int, ...]
    scratch: tuple[int, ...]
    sizes: tuple[int, ...]
    places: tuple[int, ...]
    makers: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    can_drop: tuple[bool, ...]
    writes: tuple[int, ...] = ()
    fetches: tuple[int, ...] = ()

    @property
    def work(self) -> int:
        """The cost of running every node once."""
        return sum(self.costs)


def build_whole_problem(
    program: Program,
    policy: Policy,
    hints: Mapping[str, Number],
    need_of: Callable[[Node], Need] = lambda _: NOTHING,
    places: Mapping[int, int] = MappingProxyType({}),
    until: Mapping[int, int] = MappingProxyType({}),
    file: File | None = None,
) -> WholeProblem:
    """The choice for a functional program, which may end in copies into its inputs.

    hints: a number for each size symbol. need_of: what nodes need besides operands and results. places: in which
    other storage the contents of a storage will lie once the program works in place; an input's, perhaps. until: for
    some storages, the node from which on nothing that runs again may read them. file: where contents may leave for.
    """
    return _Builder(program, policy, hints, until).built(need_of, places, file)


class _Builder:
    def __init__(self, program: Program, policy: Policy, hints: Mapping[str, Number], until: Mapping[int, int]) -> None:
        self.program = program
        self.until = until
        self.policy = policy
        self.hints = hints
        fixed = frozenset(made_symbols(program))
        bytes_ = storage_bytes(program, hints)
        returned, inputs = program.output_storages(), program.input_storages()
        self.number: dict[int, int] = {}
        self.reads: list[tuple[int, ...]] = []
        self.makes: list[tuple[int, ...]] = []
        self.makers: list[int] = []
        self.uses: list[list[int]] = []
        self.can_run: list[bool] = []
        self.viewed: set[int] = set()
        self.once: set[int] = set()  # made by the first run of their maker alone
        self.inputs_read: list[set[int]] = []
        self.written = dict(until)
        for at, node in enumerate(program.nodes):
            self._add(at, node, inputs)
            form = again_form(node)
            again = can_run_again(form, fixed) and policy.allows(node)
            self.can_run.append(again)
            once = node.results() if form is not node else ()
            self.once.update(
                self.number[v.tensor.storage]
                for v in once
                if v not in form.results() and v.tensor.storage in self.number
            )
            if not self.makes[at] and not (again and is_view(node)):  # what it makes of a storage is its own
                own = [value.tensor.storage for value in node.results() if value.is_tensor]
                self.viewed.update(self.number[storage] for storage in own if storage in self.number)
        self.sizes = [bytes_.get(storage, 0) for storage in self.number]
        self.ends = [
            NEVER if storage in returned else max(uses, default=maker)
            for storage, uses, maker in zip(self.number, self.uses, self.makers, strict=True)
        ]

    def _add(self, at: int, node: Node, inputs: frozenset[int]) -> None:
        operands = dict.fromkeys(value.tensor.storage for value in node.operands() if value.is_tensor)
        later = {value.tensor.storage for value in again_form(node).operands() if value.is_tensor}
        read = tuple(self.number[storage] for storage in operands if storage in self.number)
        made: list[int] = []
        used = dict.fromkeys(read)
        for value in node.results():
            if not value.is_tensor or value.tensor.storage in inputs:
                continue
            storage = value.tensor.storage
            if storage not in self.number:
                self.number[storage] = len(self.number)
                self.makers.append(at)
                self.uses.append([])
                made.append(self.number[storage])
            elif self.number[storage] not in made:
                used[self.number[storage]] = None
        for number in used:
            self.uses[number].append(at)
        for value in written_values(node):
            self.written.setdefault(value.tensor.storage, at)
        self.reads.append(tuple(used))
        self.makes.append(tuple(made))
        self.inputs_read.append({storage for storage in later if storage in inputs})

    def _can_drop(self) -> list[bool]:
        """Whether each storage can be made again until its last use, or longer: its *horizon*."""
        found: list[bool] = []
        until: list[int] = []  # a position before which it is there or can be made
        for (number, maker), storage in zip(enumerate(self.makers), self.number, strict=True):
            horizon = -1
            if self.can_run[maker] and number not in self.viewed and number not in self.once:
                sources = [until[read] for read in self.reads[maker] if read != number]
                sources += [self.written.get(storage, NEVER) for storage in self.inputs_read[maker]]
                horizon = min(sources, default=NEVER)
            end = self.ends[number]
            found.append(horizon > end if end != NEVER else False)
            until.append(min(max(horizon, end + 1), self.until.get(storage, NEVER)))
        return found

    def _leaving(self) -> list[bool]:
        """Whether the contents of each storage may leave: one value is all of it, and only views lie in it besides."""
        found: list[bool] = []
        for (number, maker), storage in zip(enumerate(self.makers), self.number, strict=True):
            results = [v.tensor for v in self.program.nodes[maker].results() if v.is_tensor]
            whole = [meta for meta in results if meta.storage == storage]
            plain = len(whole) == 1 and whole[0].device.type == "cpu" and whole[0].offset == 0
            is_known = plain and all(isinstance(n, int) for n in (*whole[0].shape, *whole[0].stride))
            found.append(is_known and number not in self.viewed and self.ends[number] != NEVER)
        return found

    def built(
        self, need_of: Callable[[Node], Need], places: Mapping[int, int], file: File | None = None
    ) -> WholeProblem:
        """The problem."""
        nodes = self.program.nodes
        leaving = zip(self._leaving(), list(self.sizes), strict=True) if file is not None else ()
        written = (
            [(file.write_cost(size), file.read_cost(size)) if may and size else (NEVER, NEVER) for may, size in leaving]
            if file is not None
            else []
        )
        needs = [need_of(node) for node in nodes]
        for at, (node, need) in enumerate(zip(nodes, needs, strict=True)):
            for place, value in enumerate(node.outputs):
                if value is not None and need.kept_by(place) and self.number[value.tensor.storage] in self.makes[at]:
                    self.sizes[self.number[value.tensor.storage]] += need.kept_by(place)
        return WholeProblem(
            storages=tuple(self.number),
            reads=tuple(self.reads),
            makes=tuple(self.makes),
            costs=tuple(self.policy.cost(node, work_of(node, self.hints)) for node in nodes),
            scratch=tuple(need.scratch_bytes for need in needs),
            sizes=tuple(self.sizes),
            places=tuple(self.number.get(places.get(storage, storage), -1) for storage in self.number),
            makers=tuple(self.makers),
            uses=tuple(map(tuple, self.uses)),
            ends=tuple(self.ends),
            can_drop=tuple(self._can_drop()),
            writes=tuple(write for write, _ in written),
            fetches=tuple(fetch for _, fetch in written),
        )
