"""When each storage is alive, and the peak of live bytes that follows.

A storage is alive from the node that makes it to the last node that reads any value on it; inputs are alive before the
program starts and are not counted, outputs stay alive to the end. The simulated peak is the largest sum of live bytes
over the nodes, operands and results of the running node included; what operators take besides is only counted if it is
given (`execute.needs` measures it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dovetail.analysis.region import extent_bytes
from dovetail.ir.program import Node, Program, TensorMeta, Value, values_in
from dovetail.ir.sizes import Number, OrOne, evaluate


@dataclass(frozen=True, slots=True)
class PeakReport:
    """peak_bytes: largest sum of live bytes. node: index of the node where it occurs (-1 for an empty program)."""

    peak_bytes: int
    node: int


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that an operator takes from the allocator besides those of operands and results.

    scratch_bytes: while it runs. kept_bytes: for each of its outputs, that stay as long as this does, whose memory is
    larger than its description says; none of them where it is empty.
    """

    scratch_bytes: int = 0
    kept_bytes: tuple[int, ...] = ()

    def kept_by(self, place: int) -> int:
        """Of the output at a place."""
        return self.kept_bytes[place] if self.kept_bytes else 0


NOTHING = Need()


def last_uses(program: Program) -> dict[int, tuple[Value, ...]]:
    """For each node index, the values that nobody reads after that node.

    Values that are returned never die; a result that nobody reads dies at its own node.
    """
    last: dict[Value, int] = dict.fromkeys(program.inputs, -1)
    for index, node in enumerate(program.nodes):
        for value in (*node.results(), *node.operands()):
            last[value] = index
    for value in values_in(program.outputs):
        last.pop(value, None)
    dying: dict[int, list[Value]] = {}
    for value, index in last.items():
        dying.setdefault(index, []).append(value)
    return {index: tuple(values) for index, values in dying.items()}


def simulate_peak(
    program: Program,
    hints: Mapping[str, Number] | None = None,
    dying: Collection[int] = (),
    need_of: Callable[[Node], Need] | None = None,
    end: int | None = None,
) -> PeakReport:
    """The peak of live bytes of a run in program order.

    hints: a number for each size symbol (default 1 each). dying: numbers of inputs that nobody else holds; they count,
    and die at their last use. need_of: what operators take besides; nothing by default. end: the first node that does
    not count any more.
    """
    sizes = {**storage_bytes(program, hints or {}), **(input_bytes(program, hints or {}) if dying else {})}
    given = {program.inputs[number].tensor.storage for number in dying}
    outside = program.input_storages() - given
    ending = _ending_storages(program, outside)
    live = peak = sum(sizes[storage] for storage in given)
    at = -1
    started = set(given)
    for index, node in enumerate(program.nodes[:end]):
        need = NOTHING if need_of is None else need_of(node)
        for place, value in enumerate(node.outputs):
            meta = value.meta if value is not None else None
            if isinstance(meta, TensorMeta) and meta.storage not in started and meta.storage not in outside:
                started.add(meta.storage)
                sizes[meta.storage] += need.kept_by(place)
                live += sizes[meta.storage]
        if live + need.scratch_bytes > peak:
            peak, at = live + need.scratch_bytes, index
        for storage in ending.get(index, ()):
            live -= sizes[storage]
    return PeakReport(peak, at)


@dataclass(frozen=True, slots=True)
class StorageLife:
    """A storage that the program makes. first, last: indices of nodes, both included. is_returned: it stays after."""

    storage: int
    first: int
    last: int
    bytes: int
    is_returned: bool


def storage_lives(program: Program, hints: Mapping[str, Number] | None = None) -> tuple[StorageLife, ...]:
    """When each storage that the program makes is alive, in the order in which they are made.

    The bytes of those alive at a node add up to what `simulate_peak` counts there.
    """
    sizes = storage_bytes(program, hints or {})
    outside, returned = program.input_storages(), program.output_storages()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for value in node.results():
            if value.is_tensor and value.tensor.storage not in outside:
                first.setdefault(value.tensor.storage, index)
        for value in (*node.results(), *node.operands()):
            if value.is_tensor:
                last[value.tensor.storage] = index
    end = len(program.nodes) - 1
    return tuple(
        StorageLife(storage, at, end if storage in returned else last[storage], sizes[storage], storage in returned)
        for storage, at in first.items()
    )


def _ending_storages(program: Program, outside: Collection[int]) -> dict[int, list[int]]:
    """For each node index, the storages that end after that node. outside: those that do not count."""
    ends: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for value in (*node.results(), *node.operands()):
            meta = value.meta
            if isinstance(meta, TensorMeta):
                ends[meta.storage] = index
    read = {value for node in program.nodes for value in node.operands()} if len(outside) < len(program.inputs) else ()
    stay = {value.tensor.storage for value in program.inputs if value.is_tensor and value not in read}
    stay |= {*outside, *program.output_storages()}
    ending: dict[int, list[int]] = {}
    for storage, index in ends.items():
        if storage not in stay:
            ending.setdefault(index, []).append(storage)
    return ending


def storage_bytes(program: Program, hints: Mapping[str, Number]) -> dict[int, int]:
    """Bytes of each storage, from the value that made it (the first one on it)."""
    sizes: dict[int, int] = {}
    known: dict[tuple[object, ...], int] = {}
    for node in program.nodes:
        for value in node.results():
            meta = value.meta
            if not isinstance(meta, TensorMeta) or meta.storage in sizes:
                continue
            key = (meta.shape, meta.stride, meta.offset, meta.dtype)
            size = known.get(key)
            if size is None:
                size = known[key] = bytes_of(meta, hints)
            sizes[meta.storage] = size
    return sizes


def bytes_of(meta: TensorMeta, hints: Mapping[str, Number]) -> int:
    """Bytes of the storage of a tensor that made it; a size symbol without a hint counts as 1."""
    extent = extent_bytes(meta)
    return extent[1] if extent is not None else int(evaluate(meta.size_bytes(), OrOne(hints)))


def input_bytes(program: Program, hints: Mapping[str, Number]) -> dict[int, int]:
    """Bytes that the inputs of a program reach in each storage that it is given."""
    known: dict[int, tuple[int, int]] = {}
    open_: dict[int, int] = {}
    for value in program.inputs:
        if not value.is_tensor:
            continue
        storage, extent = value.tensor.storage, extent_bytes(value.tensor)
        if extent is None:
            open_[storage] = max(open_.get(storage, 0), int(evaluate(value.tensor.size_bytes(), OrOne(hints))))
            continue
        first, end = known.get(storage, extent)
        known[storage] = min(first, extent[0]), max(end, extent[1])
    reached = {storage: end - first for storage, (first, end) in known.items()}
    return {storage: max(reached.get(storage, 0), open_.get(storage, 0)) for storage in {**reached, **open_}}
