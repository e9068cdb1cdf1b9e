"""Rows of a table that are told where others lie: those that define an address or a number write it into the rows that
read it, when they run.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from dovetail.execute.native.driver import HEAD
from dovetail.execute.native.probes import distance_from
from dovetail.execute.native.rows import ReadyRow
from dovetail.ir.program import Value


def linked(rows: Sequence[ReadyRow]) -> tuple[tuple[ReadyRow, ...], dict[Value, int]]:
    """The rows with what they are told; and by address that one defines, the first of its slots in the table.

    Behind the other slots of a row that defines an address: how many rows read it, and for each, how many slots behind
    its own first one the address goes, and how many bytes are added. Of one that defines numbers: how many are handed
    on, and for each where to, from which slot, and the numbers between which it may not lie. Of one that ends memory:
    how many slots behind its own first one the row lies that took it.
    """
    defined = {row.defines for row in rows if row.defines is not None}
    computed = {value for row in rows for value, _ in row.registers}
    addresses: dict[Value, list[tuple[int, int, int]]] = defaultdict(list)  # row, slot of it, bytes
    numbers: dict[Value, list[tuple[int, int, float | None]]] = defaultdict(list)  # row, slot of it, what is avoided
    for at, row in enumerate(rows):
        for index, address in enumerate(row.pointers):
            if address is not None and address.value in defined:
                addresses[address.value].append((at, 1 + index, address.behind))
        for index, (operand, avoided) in enumerate(row.numbers):
            if isinstance(operand, Value) and operand in computed:
                numbers[operand].append((at, 1 + len(row.pointers) + index, avoided))

    def told(row: ReadyRow) -> int:
        """How many slots more a row gets."""
        more = 0 if row.defines is None else 1 + 2 * len(addresses[row.defines])
        more += 1 + 4 * sum(len(numbers[value]) for value, _ in row.registers) if row.registers else 0
        return more + (row.ends is not None)

    starts = list(accumulate((HEAD + row.slots + told(row) for row in rows), initial=HEAD))
    defining = {row.defines: start for row, start in zip(rows, starts, strict=False) if row.defines is not None}
    found = []
    for row, start in zip(rows, starts, strict=False):
        more = row.more
        if row.defines is not None:
            places = addresses[row.defines]
            more += struct.pack("q", len(places))
            more += b"".join(struct.pack("2q", starts[at] + slot - start, behind) for at, slot, behind in places)
        if row.registers:
            handed = [(*place, register) for value, register in row.registers for place in numbers[value]]
            more += struct.pack("q", len(handed))
            for at, slot, avoided, register in handed:
                low, high = (math.inf, -math.inf) if avoided is None else distance_from(avoided)
                more += struct.pack("2q2d", starts[at] + slot - start, register, low, high)
        if row.ends is not None:
            more += struct.pack("q", defining[row.ends] - start)
        pointers = tuple(None if a is None or a.value in defined else a for a in row.pointers)
        given = tuple((None, None) if n in computed else (n, avoided) for n, avoided in row.numbers)
        found.append(replace(row, more=more, pointers=pointers, numbers=given))
    return tuple(found), defining
