"""Schedules whose contents go to a file: they keep to what they say, and forged programs are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dovetail.analysis.liveness import simulate_peak
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED, TRANSFERS
from dovetail.partition.policy import Policy
from dovetail.partition.whole.apply import apply_schedule
from dovetail.partition.whole.check import verify_whole
from dovetail.partition.whole.problem import NEVER, File, WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Act, Move, Run, Way, schedule_of, waiting_of
from dovetail.partition.whole.solve import solve_quickly, solve_whole
from dovetail.partition.whole.transfers import with_beginnings
from tests.partition.joint_programs import random_program

_FAST = File(1e9, 1e9)
_SLOW = File(1e-9, 1e-9)


def _problem(program: Program, file: File | None) -> WholeProblem:
    return build_whole_problem(program, Policy(recompute="all"), {}, file=file)


@pytest.mark.parametrize("part", range(2))
def test_random_programs_under_random_limits(part: int) -> None:
    moved = lower = 0
    for seed in range(part * 40, part * 40 + 40):
        program = random_program(seed, nodes=24)
        free = simulate_peak(program).peak_bytes
        problem, alone = _problem(program, _FAST), _problem(program, None)
        for share in (0.8, 0.5, 0.2):
            limit = int(free * share)
            schedule = (solve_quickly if seed % 10 else solve_whole)(problem, limit)
            without = solve_quickly(alone, limit)
            changed = apply_schedule(program, problem, schedule)
            verify_whole(program, changed)
            assert simulate_peak(changed).peak_bytes <= schedule.peak_bytes
            assert max(schedule.peak_bytes, limit) <= max(without.peak_bytes, limit)
            moved += any(node.target in TRANSFERS for node in changed.nodes)
            lower += max(schedule.peak_bytes, limit) < max(without.peak_bytes, limit)
    assert moved > 20
    assert lower > 10


def test_a_slow_file_is_not_used_where_the_limit_is_kept_without() -> None:
    for seed in range(12):
        program = random_program(seed, nodes=24)
        limit = int(simulate_peak(program).peak_bytes * 0.8)
        alone, schedule = solve_quickly(_problem(program, None), limit), solve_quickly(_problem(program, _SLOW), limit)
        if alone.peak_bytes <= limit:
            assert schedule.runs == alone.runs


# --- time -------------------------------------------------------------------------------------------------------------


def _timed(costs: list[int], write: int, fetch: int) -> WholeProblem:
    """Nodes of these costs; each makes a storage, and the last one reads the first two."""
    count = len(costs)
    return WholeProblem(
        storages=tuple(range(count)),
        reads=(*[() for _ in costs[:-1]], (0, 1)),
        makes=tuple((k,) for k in range(count)),
        costs=tuple(costs),
        scratch=(0,) * count,
        sizes=(10,) * count,
        places=tuple(range(count)),
        makers=tuple(range(count)),
        uses=((count - 1,), (count - 1,), *[() for _ in costs[2:]]),
        ends=(count - 1, count - 1, *range(2, count)),
        can_drop=(False,) * count,
        writes=(write,) * count,
        fetches=(fetch,) * count,
    )


def _runs(count: int, *moves: tuple[int, Way, int]) -> list[Act]:
    """Nodes in order, with moves before some of them."""
    found: list[Act] = []
    for node in range(count):
        found += [Move(way, storage) for at, way, storage in moves if at == node]
        found.append(Run(node, (node,)))
    return found


def test_who_is_waited_for_first_is_moved_first() -> None:
    problem = _timed([1, 1, 10, 10, 10], write=8, fetch=8)
    both = ((2, Way.SPILL, 0), (2, Way.SPILL, 1), (3, Way.SPILLED, 1), (4, Way.SPILLED, 0))
    assert waiting_of(problem, _runs(5, *both)) == 0  # the second one is there after 8, the first after 16
    late = ((2, Way.SPILL, 0), (2, Way.SPILL, 1), (3, Way.SPILLED, 1), (3, Way.SPILLED, 0))
    assert waiting_of(problem, _runs(5, *late)) == 6


def test_contents_begin_to_come_back_as_early_as_they_need_and_there_is_room() -> None:
    problem = _timed([1, 1, *[10] * 8, 10], write=5, fetch=9)
    walked = _runs(
        11,
        (3, Way.SPILLED, 0),
        (4, Way.SPILLED, 1),
        *[(10, way, storage) for storage in (0, 1) for way in (Way.FETCH, Way.FETCHED)],
    )
    runs = with_beginnings(problem, walked, 40)
    places = {(move.way, move.storage): at for at, move in enumerate(runs) if isinstance(move, Move)}
    assert places[Way.SPILL, 0] == 1  # right after it was made
    assert places[Way.FETCH, 0] < places[Way.FETCH, 1] < places[Way.FETCHED, 0]
    assert schedule_of(problem, runs).waiting == 0
    for limit, waiting in ((20, 9), (15, 18)):  # there is room for one before the last node, and for none
        assert schedule_of(problem, with_beginnings(problem, walked, limit)).waiting == waiting


# --- the checker ------------------------------------------------------------------------------------------------------


def _moving() -> tuple[Program, Program]:
    """A program, and one that does the same with a few transfers."""
    for seed in range(100):
        program = random_program(seed, nodes=24)
        problem = _problem(program, _FAST)
        changed = apply_schedule(program, problem, solve_quickly(problem, simulate_peak(program).peak_bytes // 2))
        if sum(node.target is FETCH for node in changed.nodes) > 1:
            return program, changed
    raise AssertionError("no program has transfers")


def _first(program: Program, target: object, which: int = 0) -> Node:
    return [node for node in program.nodes if node.target is target][which]


def _without(program: Program, node: Node) -> Program:
    return program.replace_nodes(tuple(other for other in program.nodes if other is not node))


def _moved_to(program: Program, node: Node, behind: Node) -> Program:
    nodes = [other for other in program.nodes if other is not node]
    nodes.insert(nodes.index(behind) + 1, node)
    return program.replace_nodes(tuple(nodes))


def _swapped(program: Program) -> Program:
    """Two transfers back, each of what the other one should fetch."""
    one, other = (_first(program, FETCH, k) for k in (0, -1))
    swap = {one: other.args[0], other: one.args[0]}
    fetched = {one.results()[0]: other.args[0], other.results()[0]: one.args[0]}

    def changed(node: Node) -> Node:
        if node in swap:
            return replace(node, args=(swap[node], *node.args[1:]))
        if node.target is FETCHED and node.args[0] in fetched:
            value = node.args[0]
            assert isinstance(value, Value)
            return replace(node, args=(value, fetched[value]))
        return node

    return program.replace_nodes(tuple(map(changed, program.nodes)))


_FORGED: dict[str, Callable[[Program], Program]] = {
    "nobody waits until it has left": lambda p: _without(p, _first(p, SPILLED)),
    "nobody waits until it is back": lambda p: _without(p, _first(p, FETCHED)),
    "it is fetched before it has left": lambda p: _moved_to(p, _first(p, FETCH), _first(p, SPILL)),
    "it is used before it is back": lambda p: _moved_to(p, _first(p, FETCHED), p.nodes[-1]),
    "others come back": _swapped,
    "it leaves twice": lambda p: p.replace_nodes((*p.nodes, _first(p, SPILL))),
}


@pytest.mark.parametrize("forged", _FORGED)
def test_the_checker_refuses_programs_that_move_something_else(forged: str) -> None:
    program, changed = _moving()
    verify_whole(program, changed)
    with pytest.raises(InvalidProgram):
        verify_whole(program, _FORGED[forged](changed))


def test_what_is_returned_does_not_leave() -> None:
    program = random_program(3, nodes=24)
    problem = _problem(program, _FAST)
    returned = [k for k, end in enumerate(problem.ends) if end == NEVER]
    assert returned
    assert all(problem.writes[k] == NEVER for k in returned)
