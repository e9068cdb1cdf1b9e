"""The rows of a report: frozen, with only numbers and text, so that each converts directly to JSON."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.program import Origin


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of the compilation.

    program: what it worked on. time_us: microseconds; -1 where it was not measured. peak_bytes: simulated, after it.
    did: in words. reason: why its result was dropped, "" when it was kept. diff: of the program text, unified.
    """

    program: str
    name: str
    time_us: int
    nodes_before: int
    nodes_after: int
    peak_bytes: int
    did: str
    reason: str
    diff: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. makes: bytes of storages that begin here. live_bytes: while it runs. storages: of operands, results.

    recomputed: it ran in forward as well. executor: who runs it, "" where that is not known. meta: of the results.
    """

    index: int
    name: str
    operator: str
    call: str
    meta: str
    makes: int
    live_bytes: int
    storages: tuple[int, ...]
    recomputed: bool
    executor: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class StorageRow:
    """One storage that a program makes. first, last: indices of nodes, both included.

    name, operator, origin: of the node that makes it. role: "saved" for backward, "returned", "recomputed" or
    "temporary". is_returned: whether it stays after the program, for backward or the caller. category: what it is for,
    one of `analysis.categories`; from the node `later_from` on, where that is not -1, it is for `later`: backward has
    written something else into memory that was saved for it. One that was there before has no operator, and the role
    "input".
    """

    storage: int
    name: str
    operator: str
    meta: str
    bytes: int
    first: int
    last: int
    role: str
    is_returned: bool
    origin: Origin
    category: str
    later: str = ""
    later_from: int = -1

    def category_at(self, node: int) -> str:
        """What it is for while a node runs."""
        return self.later if 0 <= self.later_from <= node else self.category

    def is_alive(self, node: int) -> bool:
        """Whether it is live while a node runs."""
        return self.first <= node <= self.last


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Who is alive when. storages: in the order in which they are made. live_bytes: one sum for each node.

    residents: what the program is given, which is in memory all the time and in none of the sums.

    peak_node: index of the node with the largest sum, -1 when there is none. nodes: the call of each. backward_from:
    index of the first node of backward; the number of nodes where there is none.
    """

    storages: tuple[StorageRow, ...]
    live_bytes: tuple[int, ...]
    peak_bytes: int
    peak_node: int
    nodes: tuple[str, ...]
    backward_from: int
    residents: tuple[StorageRow, ...] = ()

    @property
    def resident_bytes(self) -> int:
        """Bytes of what the program is given."""
        return sum(row.bytes for row in self.residents)

    def alive(self, node: int) -> tuple[StorageRow, ...]:
        """The storages that are live while a node runs, the largest first; their bytes add up to the level there."""
        found = [row for row in self.storages if row.is_alive(node)]
        return tuple(sorted(found, key=lambda row: (-row.bytes, row.first)))

    def top(self, count: int = 10) -> tuple[StorageRow, ...]:
        """The largest storages at the peak."""
        return self.alive(self.peak_node)[:count]


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One half as it runs. kind: "inference", "forward" or "backward"."""

    name: str
    kind: str
    nodes: tuple[NodeRow, ...]
    memory: MemoryMap

    @property
    def peak_bytes(self) -> int:
        """The simulated peak of this program by itself, without its inputs."""
        return self.memory.peak_bytes


@dataclass(frozen=True, slots=True)
class CallMemory:
    """What a call takes, with what operators take for themselves, which the map of memory does not have.

    peak_bytes: above what is there before it: of forward, what is held, and backward, for a gradient of each output
    that is likely to get one. run_bytes: the same where native code runs, which may take less. state_bytes: of weights
    and arguments. unknown_needs: operators of which it is not known what they take for themselves.
    """

    peak_bytes: int
    run_bytes: int
    state_bytes: int
    unknown_needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EagerMemory:
    """What eager mode would hold at its peak: simulated from the recorded program, operator by operator.

    peak_bytes: of what the program makes. parts: bytes by category (`analysis.categories`), what was there before
    included.
    """

    peak_bytes: int
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(bytes_ for _, bytes_ in self.parts)


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about memory.

    kind: "saved", "recomputed", "in place", "copied" or "donated". code: of the reason, short and stable.
    why: in words, without names of values. detail: the rest, with names. bytes: that are held until backward, made
    again, not allocated, moved, or made in donated memory.
    """

    kind: str
    program: str
    name: str
    operator: str
    code: str
    why: str
    bytes: int
    origin: Origin
    detail: str = ""
