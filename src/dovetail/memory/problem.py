"""Buffers that are to lie in one arena, as plain numbers, and what is to be placed for a program.

A *buffer* needs `size_bytes` from `start` until before `end`; two whose times meet may share no byte. The *bound* is
the largest sum of sizes, each rounded up to the alignment, that are needed at one time: no arena can be smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dovetail.analysis.liveness import NOTHING, Need, storage_lives
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number

ALIGNMENT = 64
"""Bytes to which torch's own allocations on the CPU are aligned."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that is needed for a while.

    start, end: half-open times. offset: where it must lie; None if anywhere.
    """

    name: str
    size_bytes: int
    start: int
    end: int
    offset: int | None = None

    def meets(self, other: Buffer) -> bool:
        """Whether both are needed at one time."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers to place. alignment: of every offset, in bytes."""

    buffers: tuple[Buffer, ...]
    alignment: int = ALIGNMENT

    @property
    def bound_bytes(self) -> int:
        """The largest sum of rounded sizes at one time, or where a buffer with a fixed offset ends."""
        changes: dict[int, int] = {}
        least = 0
        for buffer in self.buffers:
            size = rounded_up(buffer.size_bytes, self.alignment)
            changes[buffer.start] = changes.get(buffer.start, 0) + size
            changes[buffer.end] = changes.get(buffer.end, 0) - size
            if buffer.offset is not None:
                least = max(least, buffer.offset + size)
        live = 0
        for time in sorted(changes):
            live += changes[time]
            least = max(least, live)
        return least


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each buffer of a problem lies. size_bytes: of the arena. bound_bytes: of the problem. by: who found it."""

    offsets: tuple[int, ...]
    size_bytes: int
    bound_bytes: int
    by: str = ""

    @property
    def is_proved(self) -> bool:
        """Whether no arena can be smaller."""
        return self.size_bytes == self.bound_bytes

    @property
    def ratio(self) -> float:
        """Of the arena to the bound."""
        return self.size_bytes / self.bound_bytes if self.bound_bytes else 1.0


def rounded_up(size_bytes: int, alignment: int) -> int:
    """The next multiple of an alignment."""
    return -(-size_bytes // alignment) * alignment


def build_problem(
    program: Program,
    hints: Mapping[str, Number] = MappingProxyType({}),
    need_of: Callable[[Node], Need] = lambda _: NOTHING,
    leave_out: Collection[int] = (),
    alignment: int = ALIGNMENT,
) -> Problem:
    """A buffer for each storage that a program makes, and for what each node needs while it runs.

    Values that alias lie on one storage, and so do the operands and results of in-place nodes: they are one buffer,
    from the node that makes the first of them to the last node that has any of them, or to the end if one is returned.
    Inputs, donated ones among them, are memory of the caller's, and so is what lies in them.

    hints: a number for each size symbol. need_of: what nodes need besides operands and results. leave_out: storages
    that lie elsewhere.
    """
    needs = [need_of(node) for node in program.nodes]
    kept = kept_bytes(program, needs)
    buffers = [
        Buffer(f"storage {life.storage}", life.bytes + kept.get(life.storage, 0), life.first, life.last + 1)
        for life in storage_lives(program, hints)
        if life.storage not in leave_out
    ]
    buffers += [
        Buffer(f"scratch of node {at}", need.scratch_bytes, at, at + 1)
        for at, need in enumerate(needs)
        if need.scratch_bytes
    ]
    return Problem(tuple(buffer for buffer in buffers if buffer.size_bytes), alignment)


def kept_bytes(program: Program, needs: Iterable[Need]) -> dict[int, int]:
    """By storage, how much larger it is than its description says."""
    kept: dict[int, int] = {}
    for node, need in zip(program.nodes, needs, strict=True):
        for place, value in enumerate(node.outputs):
            if value is not None and value.is_tensor:
                kept.setdefault(value.tensor.storage, need.kept_by(place))
    return kept
