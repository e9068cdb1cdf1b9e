"""Memory that only a cluster sees: pieces of one block, each for as long as rows need it.

What a cluster makes and nothing behind it reads gets no tensor of its own. Two such results share bytes where the last
row that touches one runs before the first that touches the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from dovetail.execute.native.arrange import OpenRow
from dovetail.ir.program import TensorMeta, Value
from dovetail.memory.problem import Buffer, Problem
from dovetail.memory.solve import solve

BLOCK = Value("native_block", TensorMeta((0,), (1,), 0, torch.uint8, torch.device("cpu"), -1))
"""Stands for the block where an address lies in it."""


def placed_in_block(
    rows: Sequence[OpenRow], storages: Collection[int], sizes: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Where each storage lies in the block, and how large this is. rows: in order. sizes: in bytes, by storage."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, row in enumerate(rows):
        for storage in row.touched.keys() & storages:
            first.setdefault(storage, at)
            last[storage] = at
    buffers = [Buffer(str(storage), sizes[storage], start, last[storage] + 1) for storage, start in first.items()]
    offsets = solve(Problem(tuple(buffers)), decisions=0).offsets
    ends = [offset + buffer.size_bytes for offset, buffer in zip(offsets, buffers, strict=True)]
    return dict(zip(first, offsets, strict=True)), max(ends, default=0)
