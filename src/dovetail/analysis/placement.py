"""Can a result use memory that exists already, and can its node write there?

See `analysis.inplace` for the conditions. A *placement result* is the answer: an obstacle, or the values to copy first.
If only reads of the old contents are in the way, it says which nodes would have to run first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.analysis.buffers import FOREVER, Buffer, Buffers, Clash, Owner, leaves_gaps, lies_in
from dovetail.analysis.destinations import Destinations
from dovetail.analysis.inplace_plan import Kept, Reason, WriteInCopy
from dovetail.analysis.pairs import overlap_of_regions, overlaps_itself
from dovetail.analysis.reads import keepers_of, nodes_by_operator, only_result
from dovetail.analysis.region import Region
from dovetail.analysis.verdict import Verdict
from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ir.sizes import Size, SizeExpr, difference, product, shifted
from dovetail.ops.facts import averages_in_place, ignores_first_contents, is_reinterpretation
from dovetail.ops.views import (
    addresses_storage,
    copies_from_place,
    copies_from_some_place,
    is_strided,
    keeps_offset,
    viewed_meta,
)
from dovetail.torch_compat.dispatch import Overload


class PlacementResult(NamedTuple):
    """Whether a result can live somewhere. readers: nodes that stand in the way, unless they run first.

    held: values in the way, whose contents are read later.
    """

    obstacle: Kept | None = None
    first_copy: tuple[Value, ...] = ()
    readers: tuple[Node, ...] = ()
    held: tuple[Value, ...] = ()


class PlacementRequest(NamedTuple):
    """A result of the node at position `at` that should live at `onto`, a tensor on a storage that has a place.

    writes: the part of that place that the node writes; None: nothing, the contents are there. others: the node's other
    operands, which the write must not disturb. elementwise: the node reads no other element than the one it writes.
    may_copy: operands in the way may be copied first, where they are smaller than what is saved. any_layout: nobody can
    tell how the result is laid out. within: a tensor of which the part is a part, wherever it lies there.
    """

    node: Node
    at: int
    result: Value
    onto: TensorMeta
    writes: TensorMeta | None
    others: Sequence[Value] = ()
    elementwise: bool = False
    may_copy: bool = True
    any_layout: bool = False
    within: TensorMeta | None = None


class PlacementLegality:
    """Answers placement requests. last_check: the last node that can fail, where no input may be written before it."""

    def __init__(self, program: Program, buffers: Buffers, destinations: Destinations, last_check: Node | None) -> None:
        self._buffers = buffers
        self._destinations = destinations
        self._backs = frozenset(destinations.copy_backs)
        self._last_check = last_check
        self._escaping, self._self_overlaps = program.output_storages(), dict[object, bool]()
        by_operator = nodes_by_operator(program)
        self._reread = _storages_of_results(n for op, ns in by_operator if is_reinterpretation(op) for n in ns)
        self._large = _storages_of_results(n for op, ns in by_operator if averages_in_place(op) for n in ns)
        strided = [node for op, nodes in by_operator if is_strided(op) for node in nodes]
        self._addressed = _storages_of_results(filter(_is_addressed, strided))
        self._inputs = [value.tensor for value in program.inputs if value.is_tensor]
        self._strided = frozenset([v.tensor.storage for n in strided for v in n.operands() if v.is_tensor])
        kept = (node.args[0] for op, nodes in by_operator if keeps_offset(op) for node in nodes if node.args)
        self._copied_with_offset = {value.tensor.storage for value in kept if isinstance(value, Value)}
        self._keepers = keepers_of(program)
        matters = any(keeps_offset(op) or copies_from_some_place(op) for op, _ in by_operator)
        self._offset_shows = _storages_whose_offset_shows(program, self._addressed) if matters else frozenset[int]()

    def check(self, request: PlacementRequest) -> PlacementResult:
        """Whether the request can be granted, as things stand."""
        buffer, _ = self._buffers.place_of(request.onto.storage)
        reason = self._misfit(request, buffer)
        if reason is not None:
            return PlacementResult(Kept(reason))
        if request.writes is None:
            return PlacementResult()
        if buffer.owner is not Owner.PROGRAM:
            reason = self._not_ours(request, buffer, request.writes)
            if reason is Reason.COMMIT and self._last_check is not None:
                return PlacementResult(Kept(reason), readers=(self._last_check,))
            if reason is not None:
                return PlacementResult(Kept(reason))
        clashes = self._buffers.clashes(request.writes, request.at)
        if clashes:
            return _clashing(clashes)
        return self._undisturbed(request, buffer, request.writes)

    def put(self, result: Value, onto: TensorMeta) -> None:
        """Place the storage of a result so that it lies at `onto`."""
        buffer, shift = self._moved(result.tensor, onto)
        if result.tensor.storage in self._escaping:
            buffer.external = result.tensor.storage
        self._buffers.put(result.tensor.storage, buffer, shift)
        if result.tensor.stride != onto.stride:
            self._buffers.lies_at(result, self._buffers.region_in_place(onto))

    def is_only_copied(self, result: Value, readers: Mapping[Value, Sequence[Node | None]]) -> bool:
        """Whether nobody can tell how a result is laid out. readers: of each value, None for the caller."""
        if result.tensor.overlaps_itself():
            return False
        return all(self._only_copies(reader, result) for reader in readers.get(result, [None]))

    def _only_copies(self, reader: Node | None, value: Value) -> bool:
        """Whether a reader only copies the value, so that it does not matter how it is laid out."""
        if reader is None:
            return False
        use = self._destinations.parts.get(reader)
        is_source = ignores_first_contents(reader.target) and reader.args[0] is not value
        target = reader.args[0] if reader in self._backs else None
        if isinstance(target, Value):  # onto bytes that are shared, the last element counts: in which order is not said
            return not self.overlaps_itself(target.tensor)
        return is_source or (use is not None and use.source is value and use.base is not value)

    # --- places

    def _moved(self, result: TensorMeta, onto: TensorMeta) -> tuple[Buffer, Size]:
        """The buffer, and by how many bytes the result's storage is shifted in it, if the result lies at `onto`."""
        buffer, shift = self._buffers.place_of(onto.storage)
        elements = difference(onto.offset, result.offset)
        return buffer, shift if elements == 0 else shifted(shift, product((elements, onto.dtype.itemsize)))

    def _misfit(self, request: PlacementRequest, buffer: Buffer) -> Reason | None:
        """Why the result cannot live there, whatever is read later."""
        result, storage = request.result.tensor, request.result.tensor.storage
        is_kept = request.writes is not None and self._buffers.is_kept(buffer, self._keepers, request.at)
        if is_kept or buffer.owner is Owner.UNKNOWN:
            return Reason.KEPT_ELSEWHERE if is_kept else Reason.UNKNOWN_MEMORY
        if storage in self._reread or buffer.number in self._reread or request.onto.storage in self._reread:
            return Reason.READ_OTHERWISE
        if request.writes is not None and (self.overlaps_itself(request.onto) or self.overlaps_itself(request.writes)):
            return Reason.OVERLAPS_ITSELF
        if not result.lies_like(request.onto) and not request.any_layout:
            return Reason.LAYOUT
        if not self._keeps_absolute_places(result, request.onto):
            return Reason.ADDRESSED
        if request.writes is None and storage in self._copied_with_offset and self._is_a_part(request, buffer):
            return Reason.KEEPS_MORE  # a copy of it would be one of all memory
        escapes = storage in self._escaping
        if escapes and buffer.external not in (None, storage):
            return Reason.TWO_TENSORS
        is_all = self._buffers.covers(request.onto, buffer) and not leaves_gaps(result, request.onto)
        if buffer.owner is not Owner.CALLER and (buffer.number in self._large or not is_all):
            last = self._buffers.last_read_of_storage(storage)
            outlives = last > self._buffers.end(buffer) and last > self._put_back_until(request.result, buffer)
            if escapes or (outlives and buffer.external is None):
                return Reason.KEEPS_MORE
        return self._hindered_by_copy_back(request, buffer)

    def _is_a_part(self, request: PlacementRequest, buffer: Buffer) -> bool:
        """Whether a place is not all of its memory, and none that the result is to stay in."""
        if self._destinations.chain.get(request.result.tensor.storage) == buffer.number:
            return False
        return buffer.owner is Owner.CALLER or not self._buffers.covers(request.onto, buffer)

    def _put_back_until(self, result: Value, buffer: Buffer) -> int:
        """How long what the result is put into is read, if that is in this buffer, or may be made there; else -1."""
        use = self._destinations.part_of_source.get(result)
        base = use.base if use is not None else None
        while base is not None and not self._buffers.is_placed(base.tensor.storage):
            base = self._destinations.base_of.get(base)
        whole = use.node.outputs[0] if use is not None else None
        if base is None or whole is None or self._buffers.buffer_of(base) is not buffer:
            return -1
        until = self._buffers.last_read_of_storage(whole.tensor.storage)
        is_kept_for_it = until > self._buffers.end(buffer) and not self._buffers.covers(base.tensor, buffer)
        if is_kept_for_it and until > self._put_back_until(whole, buffer):
            return -1  # it is not made there either
        return until

    def overlaps_itself(self, meta: TensorMeta) -> bool:
        """Whether elements of a tensor share bytes, as far as anyone knows."""
        key = (meta.shape, meta.stride)
        known = self._self_overlaps.get(key)
        if known is None:
            is_static = all(isinstance(number, int) for number in (*meta.shape, *meta.stride))
            known = meta.overlaps_itself() if is_static else overlaps_itself(meta).may_overlap
            self._self_overlaps[key] = known
        return known

    def _keeps_absolute_places(self, result: TensorMeta, onto: TensorMeta) -> bool:
        """Whether views that name places in the result's storage, or read it in other units, can be moved there."""
        values = self._buffers.values_on[result.storage]
        buffer, moved = self._moved(result, onto)
        if result.storage in self._addressed and buffer.owner is not Owner.PROGRAM:
            return False  # where the caller's memory begins is not fixed
        if result.storage in self._offset_shows and (moved != 0 or buffer.owner is not Owner.PROGRAM):
            return False
        if result.storage in self._addressed:
            whole = Region.of_meta(result)
            if not all(lies_in(Region.of_meta(value.tensor), whole) for value in values):
                return False  # it names places around the result, which are not there
        if len(values) == 1 or moved == 0:
            return True
        sizes = {value.tensor.dtype.itemsize for value in values}
        return len(sizes) == 1 or (isinstance(moved, int) and all(moved % size == 0 for size in sizes))

    def in_copy(self, node: Node, why: Kept | None) -> WriteInCopy | None:
        """How a part is replaced in a copy of its base, where the operator would copy more than that; places it."""
        use, result = self._destinations.parts.get(node), only_result(node)
        if use is None or result is None or why is None or not keeps_offset(node.target):
            return None
        is_moved = self._buffers.buffer_of(use.base).number != use.base.tensor.storage
        meta = viewed_meta(use.part.view, use.part.index, use.args, result.tensor, use.source.tensor)
        if not is_moved or meta is None or not result.tensor.lies_like(use.base.tensor):
            return None
        if self.overlaps_itself(result.tensor):
            return None
        if result.tensor.storage in self._addressed or result.tensor.storage in self._offset_shows:
            return None  # places around the base are named
        if is_strided(use.part.view) and not lies_in(Region.of_meta(meta), Region.of_meta(result.tensor)):
            return None  # it is beside the base
        storage = result.tensor.storage
        external = storage if storage in self._escaping else None
        self._buffers.allocate(result.tensor, Owner.PROGRAM, external, difference(0, result.tensor.offset))
        return WriteInCopy(use.part, use.args, meta, why)

    def displacement(self, node: Node) -> Size:
        """By how many elements results begin later in their memory than is said: as the operand that is copied."""
        first = node.args[0] if node.args else None
        if not isinstance(first, Value) or not keeps_offset(node.target) or 0 in first.tensor.stride:
            return 0  # torch lays out again what is expanded
        _, shift = self._buffers.place_of(first.tensor.storage)
        itemsize = first.tensor.dtype.itemsize
        return shift // itemsize if isinstance(shift, int) else SizeExpr("floordiv", (shift, itemsize))

    def _hindered_by_copy_back(self, request: PlacementRequest, buffer: Buffer) -> Reason | None:
        """Whether a copy into an input, in whose memory the result would live, writes what is still to be read there.

        Where the result lies exactly at the place that it is copied to, nothing is written.
        """
        copy_backs = self._destinations.copy_backs_of.get(buffer.number)
        if copy_backs is None:
            return None
        storage = request.result.tensor.storage
        last = max(self._buffers.last_read_of_storage(storage), request.at)
        for node in copy_backs:
            if self._buffers.position[node] > last:
                continue
            target, new = node.args[:2]
            assert isinstance(target, Value) and isinstance(new, Value), "a copy back copies a value"
            place = self._buffers.region(target)
            if request.at > self._buffers.position[node] and self._writes_at(request, place):
                return Reason.READ_LATER  # these are the contents that the input is left with
            if self._is_there(new, target):
                continue
            alike = (new.tensor.shape, new.tensor.dtype) == (target.tensor.shape, target.tensor.dtype)
            if new.tensor.storage == storage and alike and self._would_lie(request, new) == place:
                continue
            for value in self._buffers.values_on[storage]:
                if self._buffers.last_read.get(value, -1) < self._buffers.position[node]:
                    continue
                if overlap_of_regions(self._would_lie(request, value), place).verdict is not Verdict.DISJOINT:
                    return Reason.OPERAND_OVERLAPS if value is new else Reason.READ_LATER
        return None

    def _writes_at(self, request: PlacementRequest, place: Region) -> bool:
        """Whether the node may write there."""
        if request.writes is None:
            return False
        return overlap_of_regions(self._buffers.region_in_place(request.writes), place).verdict is not Verdict.DISJOINT

    def _is_there(self, new: Value, target: Value) -> bool:
        """Whether a copy back changes nothing."""
        return (
            self._buffers.is_placed(new.tensor.storage)
            and self._buffers.buffer_of(new) is self._buffers.buffer_of(target)
            and self._buffers.region(new) == self._buffers.region(target)
        )

    def _would_lie(self, request: PlacementRequest, value: Value) -> Region:
        """Where a value on the storage of the result lies, if the request is granted."""
        if value is request.result and value.tensor.stride != request.onto.stride:
            return self._buffers.region_in_place(request.onto)
        return self._buffers.region_at(value.tensor, *self._moved(request.result.tensor, request.onto))

    # --- writes

    def _not_ours(self, request: PlacementRequest, buffer: Buffer, written: TensorMeta) -> Reason | None:
        """Why memory that was there before the program cannot be written now."""
        if buffer.owner is Owner.CALLER:
            if self._destinations.chain.get(request.result.tensor.storage) != buffer.number:
                return Reason.CALLERS_MEMORY
            covered = self._destinations.covered[buffer.number]
            region = self._buffers.region_in_place(request.within or written)
            if not any(lies_in(region, self._buffers.region_in_place(whole)) for whole in covered):
                return Reason.CALLERS_MEMORY
        elif not self._strided.isdisjoint((request.onto.storage, buffer.number)) and not self._is_donated(
            buffer, written
        ):
            return Reason.CALLERS_MEMORY
        if self._last_check is not None and request.at < self._buffers.position[self._last_check]:
            return Reason.COMMIT
        return None

    def _is_donated(self, buffer: Buffer, written: TensorMeta) -> bool:
        """Whether what is written lies in a donated tensor, not beside it in the same memory."""
        region = self._buffers.region_in_place(written)
        given = (meta for meta in self._inputs if meta.storage == buffer.number)
        return any(lies_in(region, self._buffers.region_in_place(meta)) for meta in given)

    def _undisturbed(self, request: PlacementRequest, buffer: Buffer, writes: TensorMeta) -> PlacementResult:
        """Whether the node's other operands can be read while the place is written."""
        near = [value for value in request.others if self._buffers.buffer_of(value) is buffer]
        if not near:
            return PlacementResult()
        disturbed: list[Value] = []
        written = self._buffers.region_in_place(writes)
        for value in near:
            is_there = self._buffers.region(value) == written  # torch compares tensors, empty ones too
            if value in disturbed or (not is_there and self._buffers.overlap(value, written) is Verdict.DISJOINT):
                continue
            like = (value.tensor.dtype, value.tensor.stride) == (request.onto.dtype, request.onto.stride)
            if request.elementwise and like and is_there:
                continue  # torch takes other strides for another place, also along a dimension of one element
            disturbed.append(value)
        if not disturbed:
            return PlacementResult()
        if request.may_copy and _bytes_of(disturbed) < _bytes_of([request.result]):
            return PlacementResult(first_copy=tuple(disturbed))
        return PlacementResult(Kept(Reason.OPERAND_OVERLAPS, disturbed[0].name))


def _clashing(clashes: Sequence[Clash]) -> PlacementResult:
    first = next((clash for clash in clashes if clash.is_certain), clashes[0]) if len(clashes) > 1 else clashes[0]
    if not first.is_certain:
        kept = Kept(Reason.MAY_OVERLAP, first.value.name)
    elif first.reader is None:
        kept = Kept(Reason.RETURNED, first.value.name)
    else:
        made = first.reader.results()
        reader = made[0].name if made else str(first.reader.target)
        kept = Kept(Reason.READ_LATER, f"{first.value.name} by {reader}")
    readers = tuple(clash.reader for clash in clashes if clash.reader is not None)
    held = tuple(clash.value for clash in clashes)
    return PlacementResult(kept, readers=readers if len(readers) == len(clashes) else (), held=held)


def _bytes_of(values: Sequence[Value]) -> int:
    """Bytes of the elements; a symbolic size counts as more than any number."""
    sizes = [value.tensor.size_bytes() for value in values]
    return sum(size if isinstance(size, int) else FOREVER for size in sizes)


def _storages_of_results(nodes: Iterable[Node]) -> Collection[int]:
    return frozenset([v.tensor.storage for node in nodes for v in tensors_of(node)])


def _storages_whose_offset_shows(program: Program, addressed: Collection[int]) -> Collection[int]:
    """Storages of operands that are copied with their offset, or from a place that is counted from their beginning.

    Of a copy with the same offset, where a view of that names a place.
    """
    found: set[int] = set()
    for node in reversed(program.nodes):
        keeps = keeps_offset(node.target) and any(v.tensor.storage in {*addressed, *found} for v in tensors_of(node))
        if keeps or copies_from_place(node.target, node.args):
            found.update(v.tensor.storage for v in node.args[:1] if isinstance(v, Value))
    return found


def _is_addressed(node: Node) -> bool:
    return isinstance(node.target, Overload) and addresses_storage(node.target, node.args)


def tensors_of(node: Node) -> Iterator[Value]:
    """Results that are tensors."""
    return (value for value in node.results() if value.is_tensor)


def is_small_part(source: Value, result: Value) -> bool:
    """Whether moving the source out of the way and back is no more than copying all of the result."""
    part, whole = source.tensor.size_bytes(), result.tensor.size_bytes()
    return not isinstance(part, int) or not isinstance(whole, int) or 2 * part <= whole
