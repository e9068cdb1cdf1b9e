"""Which foldable groups of nodes run at each call, so that the fewest bytes are stored: a minimum cut.

Source is what is computed once, sink is what runs at each call. A *piece* of memory that a group makes is stored when
its group is computed once and one of its readers runs at each call; an edge that costs its bytes says so. Of equally
good cuts the one with the smallest sink side is taken: as much as possible is computed once.

Before the cut, groups that read nothing undecided are settled: one with a single reader passes on the smaller of what
it reads and what it makes; one that reads more than it makes is computed once. Chains and trees need no flow at all.

Cost: O(pieces + readers), and `max_flow` on what is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from dovetail.analysis.max_flow import Network, push_flow, sink_side

CONSTANT = -1
OUTSIDE = -2


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of memory. owner: the group that makes it, or CONSTANT. size_bytes: None if it cannot be stored.

    readers: groups that read it; OUTSIDE stands for nodes that run at each call in any case.
    """

    owner: int
    size_bytes: int | None
    readers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Choice:
    """runs: whether each group runs at each call. stored_bytes: of all pieces that are then stored."""

    runs: tuple[bool, ...]
    stored_bytes: int


def choose_cut(count: int, pieces: Collection[Piece], forced: Collection[int] = ()) -> Choice:
    """The cheapest choice for `count` groups that folds most. forced: groups that are computed once in any case.

    A forced group makes no piece that cannot be stored, and constants are no such pieces.
    """
    problem = _Problem(count, frozenset(forced))
    endless = 1 + sum(piece.size_bytes or 0 for piece in pieces)
    for piece in pieces:
        problem.add(piece, endless)
    problem.settle()
    flow = problem.cut()
    return Choice(tuple(problem.runs[:count]), problem.settled_bytes + flow)


@dataclass
class _Problem:
    count: int
    forced: frozenset[int]
    arrives: list[int] = field(default_factory=list)  # bytes that can arrive straight from the source
    leaves: list[dict[int, int]] = field(default_factory=list)  # edges to nodes, with what they cost
    settled_bytes: int = 0

    def __post_init__(self) -> None:
        self.arrives = [0] * self.count
        self.leaves = [{} for _ in range(self.count)]
        self.runs = [False] * self.count
        self.order: list[int] = []

    def add(self, piece: Piece, endless: int) -> None:
        """Add the edges of a piece of memory."""
        size = endless if piece.size_bytes is None else piece.size_bytes
        readers = piece.readers - self.forced - {piece.owner}
        if not readers or size == 0:
            return
        owner = CONSTANT if piece.owner in self.forced else piece.owner
        if OUTSIDE in readers:
            self._connect(owner, OUTSIDE, size)
        elif len(readers) == 1:
            self._connect(owner, next(iter(readers)), size)
        else:
            middle = len(self.leaves)
            self.arrives.append(0)
            self.leaves.append({})
            self.runs.append(False)
            self._connect(owner, middle, size)
            for reader in readers:
                self._connect(middle, reader, endless)

    def _connect(self, tail: int, head: int, size: int) -> None:
        if tail == CONSTANT:
            self._arrive(head, size)
        else:
            self.leaves[tail][head] = self.leaves[tail].get(head, 0) + size

    def _arrive(self, head: int, size: int) -> None:
        if head == OUTSIDE:
            self.settled_bytes += size
        else:
            self.arrives[head] += size

    def settle(self) -> None:
        """Take out, in an order in which makers come first, nodes whose choice follows from that of their readers."""
        waits = [0] * len(self.leaves)
        for heads in self.leaves:
            for head in heads:
                if head != OUTSIDE:
                    waits[head] += 1
        ready = deque(node for node, count in enumerate(waits) if not count)
        while ready:
            node = ready.popleft()
            heads, arriving = self.leaves[node], self.arrives[node]
            if len(heads) > 1 and 0 < arriving < sum(heads.values()):
                continue
            self.order.append(node)
            for head, size in heads.items():
                self._arrive(head, min(arriving, size))
                if head != OUTSIDE:
                    waits[head] -= 1
                    if not waits[head]:
                        ready.append(head)

    def cut(self) -> int:
        """Decide what is left by a flow, then what was settled; the bytes of the flow."""
        settled = set(self.order)
        left = [node for node in range(len(self.leaves)) if node not in settled]
        place = {node: 2 + number for number, node in enumerate(left)}
        place[OUTSIDE] = 1
        network = Network(2 + len(left))
        for node in left:
            if self.arrives[node]:
                network.connect(0, place[node], self.arrives[node])
            for head, size in self.leaves[node].items():
                network.connect(place[node], place[head], size)
        flow = push_flow(network, 0, 1)
        reaches = sink_side(network, 1)
        for node in left:
            self.runs[node] = reaches[place[node]]
        for node in reversed(self.order):
            arriving = self.arrives[node]
            self.runs[node] = any(
                arriving < size and (head == OUTSIDE or self.runs[head]) for head, size in self.leaves[node].items()
            )
        return flow
