"""Which values are where while a functional program becomes an in-place one, and which are still read.

A *buffer* is memory that exists when the program runs: an input's memory, or an operator's allocation. Every storage
of the functional program is placed in one buffer, once, at the node that makes it; the storages of inputs are placed
before. The one invariant: from the node that makes a value to its last read, the bytes of its place hold its contents.
So a node may write a region of a buffer exactly when no value there that overlaps the region is read later;
`Buffers.clashes` answers this. Regions are compared, not storages: two halves of one buffer are independent.

A read may have *holes*: `slice_scatter(base, source)` reads only the part of base that the source does not replace.

Cost: one comparison for each value of the buffer that is read later.
"""

from __future__ import annotations

import enum
import sys
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dovetail.analysis.footprint import Footprint, footprint_of, is_within, meet, without_shared_symbols
from dovetail.analysis.pairs import overlap_of_regions
from dovetail.analysis.region import Region, extent_bytes
from dovetail.analysis.verdict import Verdict, overlap_from
from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ir.sizes import Size, product, shifted

# Position of a read by the caller, after the program.
FOREVER = sys.maxsize

# From how many values on a buffer is searched by place, and which part of it a value occupies at most then.
_MANY = 32
_SMALL_PART = 16


class Owner(enum.Enum):
    """Whose memory a buffer is. UNKNOWN: an operator of another library made it, what it aliases is not known."""

    PROGRAM = "program"
    CALLER = "caller"
    DONATED = "donated"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Buffer:
    """One piece of memory.

    number: the storage that it was made for. root: the description of what was allocated. external: the storage under
    which the caller knows it, if he can see it. values: those that may still be read, dead ones among them at times; of
    many, those that lie in a small part of the buffer are in `narrow`. end: see `Buffers.end`, and for which order.
    """

    number: int
    root: TensorMeta
    owner: Owner
    external: int | None
    values: list[Value] = field(default_factory=list)
    narrow: Narrow | None = None
    end: tuple[int, int] = (-1, -1)


@dataclass(slots=True)
class Narrow:
    """Values by where they begin. longest: how far one reaches at most, in bytes."""

    starts: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    longest: int = 0

    def add(self, value: Value, start: int, end: int) -> None:
        """Take in a value that occupies [start, end)."""
        place = bisect_left(self.starts, start)
        self.starts.insert(place, start)
        self.values.insert(place, value)
        self.longest = max(self.longest, end - start)

    def near(self, start: int, end: int) -> list[Value]:
        """Values that may reach into [start, end)."""
        first = bisect_left(self.starts, start - self.longest)
        return self.values[first : bisect_left(self.starts, end)]


class Read(NamedTuple):
    """One read of a value. node: None for the caller. holes: the parts of the value that are not read."""

    node: Node | None
    holes: tuple[TensorMeta, ...] = ()


class Clash(NamedTuple):
    """A value that is read later and lies where something is to be written. is_certain: the overlap is proved."""

    value: Value
    reader: Node | None
    is_certain: bool


class Buffers:
    """The state: positions of nodes, reads of values, places of storages. Positions may change for later nodes only."""

    def __init__(self, program: Program) -> None:
        self.order: list[Node] = list(program.nodes)
        self.position: dict[Node, int] = {node: i for i, node in enumerate(self.order)}
        self.reads: dict[Value, list[Read]] = {}
        self.last_read: dict[Value, int] = {}
        self.values_on: dict[int, list[Value]] = {}
        self._places: dict[int, tuple[Buffer, Size]] = {}
        self._regions: dict[Value, Region] = {}
        self._footprints: dict[Value, Footprint | None] = {}
        self._at_places: dict[TensorMeta, tuple[Region, Footprint | None]] = {}  # of descriptions that have a place
        self._order_number = 0
        for value in program.values():
            if value.is_tensor:
                self.values_on.setdefault(value.tensor.storage, []).append(value)

    # --- reads

    def add_read(self, value: Value, read: Read) -> None:
        """Note that a value is read."""
        if value.is_tensor:
            self.reads.setdefault(value, []).append(read)
            at = self._when(read)
            if at > self.last_read.get(value, -1):
                self.last_read[value] = at

    def is_kept(self, buffer: Buffer, keepers: Mapping[int, Sequence[Node]], at: int) -> bool:
        """Whether a node before `at` may have kept a tensor in memory of the program's own. keepers: by storage."""
        if buffer.owner is not Owner.PROGRAM:
            return False
        if not keepers:
            return False
        kept = (nodes for storage, nodes in keepers.items() if self._is_on(storage, buffer))
        return any(self.position[node] < at for nodes in kept for node in nodes)

    def _is_on(self, storage: int, buffer: Buffer) -> bool:
        return storage in self._places and self._places[storage][0] is buffer

    def reorder(self, start: int, nodes: Sequence[Node]) -> None:
        """Run `nodes` from position `start` on; they are the ones that stood there."""
        self.order[start : start + len(nodes)] = nodes
        self._order_number += 1
        for offset, node in enumerate(nodes):
            self.position[node] = start + offset
        for value in {value for node in nodes for value in node.operands() if value in self.reads}:
            self.last_read[value] = max(map(self._when, self.reads[value]))

    def _when(self, read: Read) -> int:
        return FOREVER if read.node is None else self.position[read.node]

    def last_read_of_storage(self, storage: int) -> int:
        """When any value on a storage is read for the last time; -1 if never."""
        values = self.values_on[storage]
        if len(values) == 1:
            return self.last_read.get(values[0], -1)
        return max([self.last_read.get(value, -1) for value in values], default=-1)

    def end(self, buffer: Buffer) -> int:
        """When any value in the buffer, as far as placed by now, is read for the last time."""
        if buffer.end[0] != self._order_number:
            values = [*buffer.values, *(buffer.narrow.values if buffer.narrow is not None else ())]
            buffer.end = (self._order_number, max((self.last_read.get(value, -1) for value in values), default=-1))
        return buffer.end[1]

    # --- places

    def allocate(self, meta: TensorMeta, owner: Owner, external: int | None = None, displacement: Size = 0) -> Buffer:
        """Place a storage in a buffer of its own. displacement: elements by which `meta` begins later than it says."""
        root = meta if displacement == 0 else replace(meta, offset=shifted(meta.offset, displacement))
        buffer = Buffer(meta.storage, root, owner, external)
        self.put(meta.storage, buffer, product((displacement, meta.dtype.itemsize)))
        return buffer

    def place_inputs(self, program: Program, donated: Collection[int]) -> None:
        """Place the storages of inputs. donated: numbers of inputs that the caller gives away."""
        kept = {v.tensor.storage for i, v in enumerate(program.inputs) if v.is_tensor and i not in donated}
        returned = program.output_storages()
        for value in program.inputs:
            if value.is_tensor and not self.is_placed(value.tensor.storage):
                storage = value.tensor.storage
                if storage in kept:
                    self.allocate(value.tensor, Owner.CALLER, storage)
                else:
                    self.allocate(value.tensor, Owner.DONATED, storage if storage in returned else None)

    def put(self, storage: int, buffer: Buffer, shift_bytes: Size) -> None:
        """Place a storage in a buffer, so that its first byte is byte `shift_bytes` of the buffer."""
        assert storage not in self._places, "a storage is placed once"
        self._places[storage] = (buffer, shift_bytes)
        values = self.values_on.get(storage, [])
        if buffer.end[0] == self._order_number:
            last = max([self.last_read.get(value, -1) for value in values], default=-1)
            buffer.end = (self._order_number, max(buffer.end[1], last))
        if buffer.narrow is None and len(values) + len(buffer.values) <= _MANY:
            buffer.values += values
            return
        buffer.narrow = buffer.narrow or Narrow()
        values, buffer.values = [*buffer.values, *values], []
        for value in values:
            self._sort_in(buffer, buffer.narrow, value)

    def _sort_in(self, buffer: Buffer, narrow: Narrow, value: Value) -> None:
        footprint, root = self._footprint(value), footprint_of(Region.of_meta(buffer.root))
        if footprint is None or root is None or (footprint.end - footprint.start) * _SMALL_PART > root.end - root.start:
            buffer.values.append(value)
        else:
            narrow.add(value, footprint.start, footprint.end)

    def lies_at(self, value: Value, region: Region) -> None:
        """A value that nobody views has a different layout than its description says."""
        self._regions[value] = region
        self._footprints.pop(value, None)

    def is_placed(self, storage: int) -> bool:
        """Whether the storage has a place yet."""
        return storage in self._places

    def buffer_of(self, value: Value) -> Buffer:
        """The buffer that a value lies in."""
        return self._places[value.tensor.storage][0]

    def place_of(self, storage: int) -> tuple[Buffer, Size]:
        """Buffer and shift in bytes of a storage."""
        return self._places[storage]

    def region(self, value: Value) -> Region:
        """Where a value lies in its buffer."""
        known = self._regions.get(value)
        if known is None:
            known = self._regions[value] = self.region_in_place(value.tensor)
        return known

    def region_in_place(self, meta: TensorMeta) -> Region:
        """Where a tensor of this description lies, in the buffer of its storage."""
        return self._at_place(meta)[0]

    def _at_place(self, meta: TensorMeta) -> tuple[Region, Footprint | None]:
        known = self._at_places.get(meta)
        if known is None:
            region = self.region_at(meta, *self._places[meta.storage])
            known = self._at_places[meta] = (region, footprint_of(region))
        return known

    def region_at(self, meta: TensorMeta, buffer: Buffer, shift_bytes: Size) -> Region:
        """Where a tensor of this description lies, if its storage is placed there."""
        region = Region.of_meta(meta)
        storage = ("program", buffer.number)
        if shift_bytes == 0 and region.storage == storage:
            return region
        start = shifted(region.start_bytes, shift_bytes)
        return Region(storage, start, region.sizes, region.strides_bytes, region.itemsize)

    def covers(self, meta: TensorMeta, buffer: Buffer) -> bool:
        """Whether a tensor lies on all that was allocated for its buffer."""
        root_meta = buffer.root
        is_moved = self._places[meta.storage][1] != 0 or meta.offset != root_meta.offset
        if not is_moved and meta.lies_like(root_meta):
            return True
        region, root = self.region_in_place(meta), Region.of_meta(buffer.root)
        footprint = footprint_of(region)
        return region == root or (footprint is not None and footprint == footprint_of(root))

    # --- questions

    def clashes(self, meta: TensorMeta, after: int) -> list[Clash]:
        """Values whose contents would be lost for a later read if the place of `meta` were written at `after`.

        after: the position of the node to be settled. Values that are read neither there nor later are forgotten; what
        is read there may be read later yet, if the node is sunk.
        """
        buffer = self._places[meta.storage][0]
        buffer.values = [value for value in buffer.values if self.last_read.get(value, -1) >= after]
        alive = [value for value in buffer.values if self.last_read[value] > after]
        if not alive and buffer.narrow is None:
            return []
        region, footprint = self._at_place(meta)
        found: list[Clash] = []
        for value in (*alive, *self._narrow_ones(buffer, footprint, after)):
            verdict = self._overlap(value, region, footprint)
            if verdict is Verdict.DISJOINT:
                continue
            for read in self.reads[value]:
                if self._when(read) > after and not self._is_in_hole(region, read):
                    found.append(Clash(value, read.node, verdict is Verdict.OVERLAPPING))
        return found

    def is_needed_whole(self, value: Value, after: int) -> bool:
        """Whether all of a value is surely read later, so that its place cannot be written."""
        if self.last_read.get(value, -1) <= after:
            return False
        if not all(type(n) is int and n > 0 for n in value.tensor.shape):
            return False
        return any(not read.holes and self._when(read) > after for read in self.reads[value])

    def _narrow_ones(self, buffer: Buffer, footprint: Footprint | None, after: int) -> list[Value]:
        narrow = buffer.narrow
        if narrow is None:
            return []
        near = narrow.values if footprint is None else narrow.near(footprint.start, footprint.end)
        return [value for value in near if self.last_read.get(value, -1) > after]

    def _is_in_hole(self, region: Region, read: Read) -> bool:
        return any(lies_in(region, self.region_in_place(hole)) for hole in read.holes)

    def overlap(self, value: Value, region: Region) -> Verdict:
        """Whether the place of a value shares bytes with a region of the same buffer."""
        return self._overlap(value, region, footprint_of(region))

    def _footprint(self, value: Value) -> Footprint | None:
        if value not in self._footprints:
            is_as_said = value not in self._regions
            found = self._at_place(value.tensor)[1] if is_as_said else footprint_of(self._regions[value])
            self._footprints[value] = found
        return self._footprints[value]

    def _overlap(self, value: Value, region: Region, footprint: Footprint | None) -> Verdict:
        mine = self._footprint(value)
        if mine is None or footprint is None:
            return overlap_of_regions(self.region(value), region).verdict
        if mine is footprint and mine.run:
            return Verdict.OVERLAPPING
        if mine.end <= footprint.start or footprint.end <= mine.start:
            return Verdict.DISJOINT
        return overlap_from(meet(mine, footprint)).verdict


def lies_in(region: Region, hole: Region) -> bool:
    """Whether a region is surely within another one of the same buffer."""
    if region == hole:
        return True
    region, hole = without_shared_symbols(region, hole)
    inner, outer = footprint_of(region), footprint_of(hole)
    if inner is None or outer is None:
        return False
    return inner == outer or is_within(inner, outer)


def leaves_gaps(result: TensorMeta, onto: TensorMeta) -> bool:
    """Whether a result takes more memory at a place than it needs, because it is laid out differently there."""
    if result.stride == onto.stride:
        return False
    if result.shape == onto.shape and onto.dtype.itemsize <= result.dtype.itemsize:  # whatever the sizes are
        steps = list(zip(onto.stride, result.stride, strict=True))
        if all(a == b or (isinstance(a, int) and isinstance(b, int) and 0 <= a <= b) for a, b in steps):
            return False
    needed, taken = extent_bytes(result), extent_bytes(onto)
    return needed is None or taken is None or taken[1] - taken[0] > needed[1] - needed[0]
