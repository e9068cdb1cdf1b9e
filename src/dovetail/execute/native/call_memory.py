"""Memory that a call of a cluster takes while it runs: each piece before the first row that needs it.

What is read behind the cluster is a piece that becomes a tensor of Python's when the call has ended. What only the
cluster sees, and what rows take for themselves, is let go behind the last row that needs it: as one block, in which
storages that are not needed at the same time share bytes; or, where a block that stays for all of them would be too
much, as a block but for a few large ones, or as pieces that storages of one size have one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import TypeAlias

import torch

from dovetail.execute.native.arrange import OpenRow
from dovetail.execute.native.memory_text import let_go_function, take_function
from dovetail.execute.native.rows import Address, ReadyRow
from dovetail.ir.program import TensorMeta, Value
from dovetail.memory.problem import Buffer, Problem
from dovetail.memory.solve import solve
from dovetail.torch_compat.native_tensors import CODES


@dataclass(frozen=True, slots=True)
class Piece:
    """value: what lies at its start, or stands for it. meta: what the tensor is. size: in bytes. first, last: the rows
    that need it, by their numbers; None: it is there when the call has ended.
    """

    value: Value
    meta: TensorMeta
    size: int
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class CallMemory:
    """pieces: in the order in which they are taken. addresses: by storage that only the cluster sees. rooms: by number,
    of rows whose own memory is in a piece. own_bytes: that are there at most besides what is read behind the cluster.
    """

    pieces: tuple[Piece, ...]
    addresses: Mapping[int, Address]
    rooms: Mapping[int, Address]
    own_bytes: int


_APART = (0, 1, 2, 4)  # how many of the largest are left out of a block

_Placed: TypeAlias = tuple[Piece, dict[int, Address]]  # with the storages in it, and rooms: see `_room`


def call_memory(
    rows: Sequence[OpenRow],
    inner: Collection[int],
    results: Collection[Value],
    sizes: Mapping[int, int],
    scratch: Sequence[int],
    most: float,
    rooms: Mapping[int, int] = MappingProxyType({}),
) -> CallMemory | None:
    """The memory of a call; None where it takes too much.

    inner: storages that only the cluster sees. results: what others see. sizes: bytes of both. scratch:
    what each row takes for itself. most: bytes that may be there at once. rooms: what rows take for themselves by rows
    around them, by number.
    """
    spans: dict[int, tuple[int, int]] = {}
    for at, row in enumerate(rows):
        for storage in row.touched.keys() & inner:
            spans[storage] = (spans.get(storage, (at, at))[0], at)
    kept = []
    for value in results:
        storage = value.tensor.storage
        first = next(at for at, row in enumerate(rows) if storage in row.touched)
        kept.append(Piece(value, value.tensor, sizes[storage], first, None))
    apart = _one_by_one(spans, sizes)
    load = _load([*kept, *(piece for piece, _ in apart)], scratch)
    if max(load, default=0) > most:  # nothing takes less
        return None
    within = {**spans, **{_room(at): (at, at) for at in rooms}}
    all_sizes = {**sizes, **{_room(at): size for at, size in rooms.items()}}
    for find in (
        *(partial(_in_block_but_for, count, within, all_sizes) for count in _APART),
        partial(_in_turns, spans, sizes, load, most),
    ):
        found = find()
        addresses = {storage: address for _, placed in found for storage, address in placed.items()}
        own = [more - rooms.get(at, 0) * (_room(at) in addresses) for at, more in enumerate(scratch)]
        pieces = sorted((*kept, *(piece for piece, _ in found)), key=lambda piece: piece.first)
        peak = max(_load(pieces, own), default=0)
        if peak <= most:
            break
    placed = {at: addresses.pop(_room(at)) for at in rooms if _room(at) in addresses}
    return CallMemory(tuple(pieces), addresses, placed, peak - sum(piece.size for piece in kept))


def _room(at: int) -> int:
    """What stands for a row's own memory among the numbers of storages."""
    return -1 - at


def _in_one_block(spans: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]) -> list[_Placed]:
    if not spans:
        return []
    buffers = [Buffer(str(storage), sizes[storage], first, last + 1) for storage, (first, last) in spans.items()]
    offsets = solve(Problem(tuple(buffers)), decisions=0).offsets
    size = max(offset + buffer.size_bytes for offset, buffer in zip(offsets, buffers, strict=True))
    block = _stand_in("native_block_0", size)
    first, last = min(first for first, _ in spans.values()), max(last for _, last in spans.values())
    placed = {storage: Address(block, offset) for storage, offset in zip(spans, offsets, strict=True)}
    return [(Piece(block, block.tensor, size, first, last), placed)]


def _in_block_but_for(count: int, spans: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]) -> list[_Placed]:
    """One block but for so many of the largest, each of which is a piece, unless it is a room."""
    largest = sorted(spans, key=sizes.__getitem__, reverse=True)[:count]
    within = {storage: span for storage, span in spans.items() if storage not in largest}
    apart = {storage: spans[storage] for storage in largest if storage >= 0}
    return [*_in_one_block(within, sizes), *_one_by_one(apart, sizes)]


def _one_by_one(spans: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]) -> list[_Placed]:
    found = []
    for storage, (first, last) in spans.items():
        block = _stand_in(f"native_block_{storage}", sizes[storage])
        found.append((Piece(block, block.tensor, sizes[storage], first, last), {storage: Address(block)}))
    return found


def _in_turns(
    spans: Mapping[int, tuple[int, int]], sizes: Mapping[int, int], load: Sequence[int], most: float
) -> list[_Placed]:
    """A piece for several storages of one size, one after the other, where it may stay while none needs it.

    load: what rows take while each storage is a piece by itself.
    """
    loads = list(load)
    ends: dict[int, dict[Value, int]] = {}  # by size, the last row that needs each piece
    starts: dict[Value, int] = {}
    placed: dict[Value, dict[int, Address]] = {}
    for storage, (first, last) in sorted(spans.items(), key=lambda each: each[1]):
        size = sizes[storage]
        known = ends.setdefault(size, {})
        block = max((x for x, end in known.items() if end < first), key=known.__getitem__, default=None)
        idle = range(0) if block is None else range(known[block] + 1, first)
        if block is None or any(loads[at] + size > most for at in idle):
            block = _stand_in(f"native_block_{storage}", size)
            starts[block] = first
        for at in idle if block in known else ():
            loads[at] += size
        known[block] = last
        placed.setdefault(block, {})[storage] = Address(block)
    found = [(block, size, end) for size, known in ends.items() for block, end in known.items()]
    return [(Piece(block, block.tensor, size, starts[block], end), placed[block]) for block, size, end in found]


def _stand_in(name: str, size: int) -> Value:
    """What stands for memory of some bytes."""
    meta = TensorMeta((size,), (1,), 0, torch.uint8, torch.device("cpu"), -1)
    return Value(name, meta)


def _load(pieces: Iterable[Piece], scratch: Sequence[int]) -> list[int]:
    """What pieces and rows take in each row."""
    change = [0] * (len(scratch) + 1)
    for piece in pieces:
        change[piece.first] += piece.size
        if piece.last is not None:
            change[piece.last + 1] -= piece.size
    return [held + more for held, more in zip(accumulate(change), scratch, strict=False)]


def with_memory(rows: Mapping[int, ReadyRow], pieces: Sequence[Piece]) -> list[ReadyRow]:
    """The rows with those between them that take pieces and let them go. rows: by number, which may have gaps: at the
    end as well, where nobody reads what a row gives.
    """
    found: list[ReadyRow] = []
    ends = [piece.first if piece.last is None else piece.last for piece in pieces]
    for at in range(max((*rows, *ends), default=-1) + 1):
        found += [taking(piece.value, piece.meta) for piece in pieces if piece.first == at]
        found += [*rows[at].before, rows[at], *rows[at].after] if at in rows else []
        found += [letting_go(piece.value) for piece in pieces if piece.last == at]
    return found


def in_room(row: ReadyRow, place: Address) -> ReadyRow:
    """A row whose own memory, which rows around it would take, lies somewhere already."""
    (room,) = {each.defines for each in row.before} - {None}

    def moved(row: ReadyRow) -> ReadyRow:
        pointers = (
            replace(place, behind=place.behind + each.behind) if each is not None and each.value == room else each
            for each in row.pointers
        )
        return replace(row, pointers=tuple(pointers))

    before = tuple(moved(each) for each in row.before if each.defines is None)
    return replace(moved(row), before=before, after=tuple(each for each in row.after if each.ends is None))


def around(name: str, size: int) -> tuple[Value, ReadyRow, ReadyRow]:
    """What stands for memory of some bytes that one row needs for itself, and the rows that take it and let it go."""
    value = _stand_in(name, size)
    return value, taking(value, value.tensor), letting_go(value)


def letting_go(value: Value) -> ReadyRow:
    """The row that lets memory go. value: what stands for it."""
    return ReadyRow(let_go_function(), 1, ends=value)


def taking(value: Value, meta: TensorMeta) -> ReadyRow:
    """The row that takes memory for a tensor. value: what stands for it."""
    shape, stride = map(int, meta.shape), map(int, meta.stride)  # type: ignore[arg-type]
    slots = [0, len(meta.shape), CODES[meta.dtype], *shape, *stride]
    more = struct.pack(f"{len(slots)}q", *slots)
    return ReadyRow(take_function(), 1, more=more, may_fail=True, defines=value)
