"""The minimum cut of a directed network with whole-number capacities.

Flat lists, no recursion, numbers of any size. The largest flow is as large as the smallest cut.

Source: Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation" (1970); Ford and
        Fulkerson, "Maximal flow through a network" (1956).
Cost:   O(nodes^2 * edges) at worst; close to linear on the networks of programs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Network:
    """Nodes are numbers below `count`. Edge `e` leads to `heads[e]`; `e ^ 1` is the way back."""

    count: int
    heads: list[int] = field(default_factory=list)
    room: list[int] = field(default_factory=list)
    edges: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.edges = [[] for _ in range(self.count)]

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge."""
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.room += (capacity, 0)


def push_flow(network: Network, source: int, sink: int) -> int:
    """Send as much as fits from source to sink; the network's `room` is what is left. Returns the amount."""
    total = 0
    while True:
        levels = _levels(network, source, sink)
        if levels[sink] < 0:
            return total
        total += _push_level(network, source, sink, levels)


def sink_side(network: Network, sink: int) -> list[bool]:
    """After `push_flow`: whether there is room from each node to the sink.

    These nodes are the smallest sink side of any minimum cut, whatever way the flow took.
    """
    heads, room, edges = network.heads, network.room, network.edges
    reaches = [False] * network.count
    reaches[sink] = True
    stack = [sink]
    while stack:
        for edge in edges[stack.pop()]:
            node = heads[edge]
            if room[edge ^ 1] and not reaches[node]:
                reaches[node] = True
                stack.append(node)
    return reaches


def _levels(network: Network, source: int, sink: int) -> list[int]:
    """Distance of each node from the source along edges with room; -1 for those beyond the sink."""
    heads, room, edges = network.heads, network.room, network.edges
    levels = [-1] * network.count
    levels[source] = 0
    queue = deque([source])
    while queue and levels[sink] < 0:
        tail = queue.popleft()
        for edge in edges[tail]:
            if room[edge] and levels[heads[edge]] < 0:
                levels[heads[edge]] = levels[tail] + 1
                queue.append(heads[edge])
    return levels


def _push_level(network: Network, source: int, sink: int, levels: list[int]) -> int:
    """Send flow along shortest paths until each has a full edge."""
    heads, room, edges = network.heads, network.room, network.edges
    turn = [0] * network.count
    path: list[int] = []
    node, total = source, 0
    while True:
        if node == sink:
            amount = min([room[edge] for edge in path])
            total += amount
            full = len(path)
            for place in range(len(path) - 1, -1, -1):
                edge = path[place]
                room[edge] -= amount
                room[edge ^ 1] += amount
                if not room[edge]:
                    full = place
            node = heads[path[full] ^ 1]
            del path[full:]
            continue
        out, at = edges[node], turn[node]
        below = levels[node] + 1
        while at < len(out) and not (room[out[at]] and levels[heads[out[at]]] == below):
            at += 1
        turn[node] = at
        if at < len(out):
            path.append(out[at])
            node = heads[out[at]]
        elif path:
            levels[node] = -1
            node = heads[path.pop() ^ 1]
        else:
            return total
