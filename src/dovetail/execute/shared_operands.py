"""Operands of one call that share memory: which, and where each lies.

A kernel may look whether two operands lie in one storage, and copy one of them if they do: the backward of oneDNN's
recurrent layers does, where hidden state and cell begin as one tensor of zeros. So a call that is tried gets operands
that share memory as those of its program do. Where they lie does not matter otherwise: parts that have no byte in
common follow one another, however far apart they are in the program.

Cost: O(operands log operands).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dovetail.ir.program import Node, Value

_ALIGNMENT = 64


class Span(NamedTuple):
    """The bytes of a storage from the first to the end of the last element of a value."""

    storage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """Where an operand lies that shares memory with others of its call.

    memory: number of the storage that the call has for them. part: of that, which has no byte in common with other
    parts. offset: in that part, in bytes.
    """

    memory: int
    part: int
    offset: int


def shared_operands(
    node: Node, spans: Mapping[Value, Span], in_one: Collection[int] = frozenset()
) -> dict[Value, Sharing]:
    """Those tensors among the operands of a node that share memory, or are given twice.

    spans: of all of them. in_one: storages that lie in one block of memory.
    """
    groups: dict[object, list[Value]] = {}
    for value in node.operands():
        if value.is_tensor:
            storage = value.tensor.storage
            groups.setdefault("one" if storage in in_one else storage, []).append(value)
    shared = [values for values in groups.values() if len(values) > 1]
    found: dict[Value, Sharing] = {}
    for memory, values in enumerate(shared):
        part, end, first = -1, (-1, 0), 0
        for value in sorted(dict.fromkeys(values), key=lambda value: spans[value]):
            storage, start, stop = spans[value]
            if (storage, start) >= end:
                part, first = part + 1, start
            end = max(end, (storage, stop))
            found[value] = Sharing(memory, part, start - first)
    return found


def scaled_offset(offset: int, old: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]]) -> int:
    """Where an operand begins within its part at other sizes, in elements. old, new: size and stride by dimension."""
    found = 0
    for (size, stride), (new_size, new_stride) in sorted(zip(old, new, strict=True), key=lambda pair: -pair[0][1]):
        for step, new_step in ((size * stride, new_size * new_stride), (stride, new_stride)):
            if step:
                count, offset = divmod(offset, step)
                found += count * new_step
    return found + offset


def blocks_for(
    operands: Collection[tuple[Sharing, int, torch.dtype]], device: torch.device
) -> dict[tuple[int, int], torch.Tensor]:
    """Bytes for each part of the memory that operands share, by memory and part. Each operand has a size in bytes.

    They hold halves where all operands in a part have one dtype that has them, else zeros.
    """
    ends: dict[int, dict[int, int]] = {}
    dtypes: dict[tuple[int, int], set[torch.dtype]] = {}
    for sharing, size, dtype in operands:
        parts = ends.setdefault(sharing.memory, {})
        parts[sharing.part] = max(parts.get(sharing.part, 0), sharing.offset + size)
        dtypes.setdefault((sharing.memory, sharing.part), set()).add(dtype)
    found = {}
    for memory, parts in ends.items():
        rounded = {part: -(-size // _ALIGNMENT) * _ALIGNMENT for part, size in sorted(parts.items())}
        whole = torch.zeros(sum(rounded.values()), dtype=torch.uint8, device=device)
        for part, piece in zip(rounded, whole.split(list(rounded.values())), strict=True):
            found[memory, part] = piece
            dtype, *others = dtypes[memory, part]
            if not others and (dtype.is_floating_point or dtype.is_complex):
                piece.view(dtype).fill_(0.5)
    return found


def tensor_in(
    block: torch.Tensor, sharing: Sharing, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """An operand in its part of the memory."""
    at = block.storage_offset() + sharing.offset
    assert at % dtype.itemsize == 0, "operands are aligned in their storage"
    made = torch.empty(0, dtype=dtype, device=block.device)
    return made.set_(block.untyped_storage(), at // dtype.itemsize, shape, stride)
