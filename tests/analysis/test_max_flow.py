"""Largest flows and minimum cuts, against every cut of small networks and against networkx on larger ones."""

from __future__ import annotations

import itertools
import random

import networkx
import pytest

from dovetail.analysis.max_flow import Network, push_flow, sink_side

Edges = list[tuple[int, int, int]]


def _random_edges(seed: int, count: int, edges: int, largest: int = 20) -> Edges:
    rng = random.Random(seed)
    return [(rng.randrange(count), rng.randrange(count), rng.randint(0, largest)) for _ in range(edges)]


def _solve(count: int, edges: Edges) -> tuple[int, list[bool]]:
    network = Network(count)
    for tail, head, capacity in edges:
        network.connect(tail, head, capacity)
    return push_flow(network, 0, 1), sink_side(network, 1)


def _cost(edges: Edges, late: list[bool]) -> int:
    return sum(capacity for tail, head, capacity in edges if not late[tail] and late[head])


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_of_all_cuts_with_the_smallest_sink_side(seed: int) -> None:
    edges = _random_edges(seed, 7, 14, largest=4)
    flow, late = _solve(7, edges)
    cuts = [[False, True, *sides] for sides in itertools.product((False, True), repeat=5)]
    cheapest = min(_cost(edges, cut) for cut in cuts)
    assert flow == cheapest == _cost(edges, late)
    smallest = [cut for cut in cuts if _cost(edges, cut) == cheapest]
    assert all(not mine or theirs for cut in smallest for mine, theirs in zip(late, cut, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_as_large_as_another_solver_says(seed: int) -> None:
    edges = [edge for edge in _random_edges(seed, 60, 400, largest=2**70) if edge[0] != edge[1]]
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(60))
    for tail, head, capacity in edges:
        before = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=before + capacity)
    flow, late = _solve(60, edges)
    assert flow == networkx.maximum_flow_value(graph, 0, 1) == _cost(edges, late)


def test_nothing_flows_where_nothing_leads() -> None:
    assert _solve(3, [(0, 2, 5)]) == (0, [False, True, False])
