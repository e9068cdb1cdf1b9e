"""Schedules of whole programs: they keep to what they say, and the programs that come of them are the program's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dovetail.analysis.liveness import Need, simulate_peak
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Program, Stage, Value
from dovetail.ir.signature import Gradient, UserOutput
from dovetail.partition.policy import Policy
from dovetail.partition.whole.apply import apply_schedule
from dovetail.partition.whole.check import verify_whole
from dovetail.partition.whole.choose import Ladder
from dovetail.partition.whole.problem import NEVER, WholeProblem, build_whole_problem
from dovetail.partition.whole.rungs import largest_node
from dovetail.partition.whole.schedule import Schedule
from dovetail.partition.whole.solve import solve_quickly, solve_whole
from tests.partition.joint_programs import DRAW, POINTWISE, PRODUCT, VIEW, Maker, random_program

aten = torch.ops.aten
EVERYTHING = Policy(recompute="all")
LIMITS = (0.95, 0.8, 0.6, 0.4, 0.2)


def _problem(program: Program) -> WholeProblem:
    return build_whole_problem(program, EVERYTHING, {})


def _with_late_copy(program: Program, seed: int) -> Program:
    """The program with a copy into an input somewhere behind the last node that reads it."""
    rng = random.Random(seed)
    target = program.inputs[0]
    last = max((at for at, node in enumerate(program.nodes) if target.tensor.storage in _storages(node)), default=-1)
    fitting = [
        (at, value)
        for at, node in enumerate(program.nodes)
        for value in node.results()
        if value.tensor.shape == target.tensor.shape and value.tensor.storage != target.tensor.storage
    ]
    if not fitting:
        return program
    at, value = rng.choice(fitting)
    place = rng.randint(max(at, last) + 1, len(program.nodes))
    copy = Node(aten.copy_.default, (target, value), phase=program.nodes[min(place, len(program.nodes) - 1)].phase)
    return replace(program, stage=Stage.IN_PLACE, nodes=(*program.nodes[:place], copy, *program.nodes[place:]))


def _storages(node: Node) -> set[int]:
    return {value.tensor.storage for value in (*node.operands(), *node.results())}


@pytest.mark.parametrize("part", range(10))
def test_random_programs_under_random_limits(part: int) -> None:
    kept = again = 0
    for seed in range(part * 100, part * 100 + 100):
        program = random_program(seed, nodes=24)
        if seed % 3 == 0:
            program = _with_late_copy(program, seed)
        problem = _problem(program)
        free = simulate_peak(program).peak_bytes
        assert solve_whole(problem, NEVER).peak_bytes == free
        solve = solve_quickly if seed % 10 else solve_whole
        for share in LIMITS:
            schedule = solve(problem, int(free * share))
            changed = apply_schedule(program, problem, schedule)
            verify_whole(program, changed)
            assert simulate_peak(changed).peak_bytes <= schedule.peak_bytes
            assert len(changed.nodes) >= len(schedule.runs)  # views come with what they are of
            kept += schedule.peak_bytes <= int(free * share)
            again += len(schedule.runs) > len(program.nodes)
    assert kept > 20
    assert again > 50


def _chain() -> Program:
    """x -> a -> b -> c -> d, all kept for backward, and a loss that is read at once."""
    maker = Maker({"x": 100, "w": 100})
    x, w = maker.inputs
    values = [x]
    for _ in range(4):
        (made,) = maker.apply(POINTWISE, values[-1], w, sizes=(100,))
        values.append(made)
    (loss,) = maker.apply(POINTWISE, values[-1], w, sizes=(1,))
    arriving = maker.tangent(1)
    for kept in reversed(values[1:]):
        (arriving,) = maker.apply(POINTWISE, arriving, kept, sizes=(1,), late=True)
    return maker.program([(UserOutput(0), loss), (Gradient(0), arriving)])


def test_a_chain_is_made_again_where_it_is_read() -> None:
    program = _chain()
    problem = _problem(program)
    assert simulate_peak(program).peak_bytes == 402
    schedule = solve_whole(problem, 302)
    changed = apply_schedule(program, problem, schedule)
    again = [node.outputs[0].name for node in changed.nodes if node not in program.nodes and node.recomputed]  # type: ignore[union-attr]
    assert again == ["v0_0_again"]  # the first one is not used for the longest time
    assert simulate_peak(changed).peak_bytes == 302
    (place,) = [at for at, node in enumerate(changed.nodes) if node.recomputed]
    reader = changed.nodes[place + 1]
    assert changed.nodes[place].outputs[0] in reader.operands()  # as late as possible


def test_views_of_what_is_made_again_are_made_again() -> None:
    maker = Maker({"x": 100, "w": 100})
    x, w = maker.inputs
    (a,) = maker.apply(POINTWISE, x, w, sizes=(100,))
    (view,) = maker.apply(VIEW, a, sizes=(100,))
    (big,) = maker.apply(POINTWISE, view, w, sizes=(300,))
    (loss,) = maker.apply(POINTWISE, big, w, sizes=(1,))
    (k,) = maker.apply(POINTWISE, view, loss, sizes=(1,), late=True)
    program = maker.program([(UserOutput(0), loss), (Gradient(0), k)])
    problem = _problem(program)
    schedule = solve_whole(problem, 350)
    assert schedule.peak_bytes == 400  # `big` is made of it
    more = Maker({"x": 100, "w": 100})
    x, w = more.inputs
    (a,) = more.apply(POINTWISE, x, w, sizes=(100,))
    (view,) = more.apply(VIEW, a, sizes=(100,))
    (big,) = more.apply(POINTWISE, x, w, sizes=(300,))
    (loss,) = more.apply(POINTWISE, big, w, sizes=(1,))
    (k,) = more.apply(POINTWISE, view, loss, sizes=(1,), late=True)
    program = more.program([(UserOutput(0), loss), (Gradient(0), k)])
    problem = _problem(program)
    changed = apply_schedule(program, problem, solve_whole(problem, 350))
    names = [value.name for node in changed.nodes for value in node.results()]
    assert names == ["v0_0", "v1_0", "v2_0", "v3_0", "v0_0_again", "v1_0_again", "v4_0"]
    verify_whole(program, changed)


def test_what_is_never_dropped() -> None:
    """Draws; what is made of an input that is overwritten before its use; what is returned."""
    maker = Maker({"x": 100, "w": 100})
    x, w = maker.inputs
    (drawn,) = maker.apply(DRAW, x, sizes=(100,))
    (of_x,) = maker.apply(POINTWISE, x, x, sizes=(100,))
    (of_w,) = maker.apply(POINTWISE, w, w, sizes=(100,))
    (returned,) = maker.apply(POINTWISE, w, w, sizes=(100,))
    (big,) = maker.apply(PRODUCT, w, w, sizes=(500,))
    (g,) = maker.apply(POINTWISE, drawn, of_x, sizes=(100,), late=True)
    (h,) = maker.apply(POINTWISE, g, of_w, sizes=(100,), late=True)
    program = maker.program([(UserOutput(0), returned), (UserOutput(1), big), (Gradient(0), h)])
    copy = Node(aten.copy_.default, (x, returned))
    program = replace(program, nodes=(*program.nodes[:5], copy, *program.nodes[5:]))
    problem = _problem(program)
    can_drop = dict(zip(problem.storages, problem.can_drop, strict=True))
    found = {v.name: can_drop[v.tensor.storage] for v in (drawn, of_x, of_w, returned, big)}
    assert found == {drawn.name: False, of_x.name: False, of_w.name: True, returned.name: False, big.name: False}


def test_what_operators_take_besides_counts() -> None:
    program = _chain()
    needs = {program.nodes[4]: Need(scratch_bytes=1000), program.nodes[1]: Need(kept_bytes=(7,))}
    problem = build_whole_problem(program, EVERYTHING, {}, lambda node: needs.get(node, Need()))
    free = solve_whole(problem, NEVER).peak_bytes
    assert free == 1408 == simulate_peak(program, need_of=lambda node: needs.get(node, Need())).peak_bytes
    assert largest_node(problem) == 1101


def _weigh_of(program: Program, problem: WholeProblem, noise: int = 0) -> Callable[[Schedule], int]:
    """Peaks of the programs that schedules make. noise: what they are above or below what the solver thinks, in %."""

    def weigh(schedule: Schedule) -> int:
        peak = simulate_peak(apply_schedule(program, problem, schedule)).peak_bytes
        return peak * (100 + random.Random(len(schedule.runs) + schedule.work).randint(-noise, noise)) // 100

    return weigh


@pytest.mark.parametrize("part", range(4))
def test_a_lower_limit_never_has_a_higher_peak_or_less_work(part: int) -> None:
    """Each limit is asked of a ladder of its own, as of another process."""
    several = 0
    for seed in range(part * 3, part * 3 + 3):
        program = random_program(seed, nodes=25 + 20 * (seed % 3))
        problem, free = _problem(program), simulate_peak(program).peak_bytes
        noise = (0, 2, 10)[seed % 3]
        floor = Ladder(problem, free, _weigh_of(program, problem, noise)).floor_bytes()
        before: tuple[int, int] | None = None
        found = set()
        for limit in sorted({*range(min(floor, free), free, max(1, (free - floor) // 9)), floor - 1, floor}):
            choice = Ladder(problem, free, _weigh_of(program, problem, noise)).under(limit)
            if limit < floor or choice.chosen is None:
                assert choice.chosen is None
                assert choice.floor_bytes == floor > limit
                continue
            point = (choice.chosen.peak_bytes, choice.chosen.work)
            assert point[0] <= limit
            assert choice.chosen.schedule.least_work <= point[1]
            assert before is None or (before[0] <= point[0] and before[1] >= point[1])
            before = point
            found.add(point)
        several += len(found) > 2
    assert several


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_what_is_said_of_limits(seed: int) -> None:
    """The floor, whether a limit is kept, and the curve are those of the limits themselves."""
    program = random_program(seed, nodes=60)
    problem, free = _problem(program), simulate_peak(program).peak_bytes

    def ladder() -> Ladder:
        return Ladder(problem, free, _weigh_of(program, problem, 5))

    floor = ladder().floor_bytes()
    assert ladder().keeps(floor)
    assert not ladder().keeps(min(floor, free) - 1)
    curve = ladder().curve(3)
    assert [point.peak_bytes for point in curve] == sorted(point.peak_bytes for point in curve)
    for point in curve:
        chosen = ladder().under(point.peak_bytes).chosen
        assert chosen is not None
        assert chosen.work <= point.work
    frugal = ladder().frugal(0.02 * problem.work)
    assert frugal is None or (frugal.peak_bytes < free and frugal.work <= 0.02 * problem.work)


# --- the checker sees every corruption --------------------------------------------------------------------------------


def _changed() -> tuple[Program, Program]:
    program = _chain()
    problem = _problem(program)
    return program, apply_schedule(program, problem, solve_whole(problem, 302))


def _swap(program: Program, place: int, **changes: object) -> Program:
    nodes = list(program.nodes)
    nodes[place] = replace(nodes[place], **changes)  # type: ignore[arg-type]
    return replace(program, nodes=tuple(nodes))


def _place_of_copy(program: Program) -> int:
    return next(at for at, node in enumerate(program.nodes) if node.recomputed)


def _without(program: Program, place: int) -> Program:
    return replace(program, nodes=(*program.nodes[:place], *program.nodes[place + 1 :]))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "another operator runs again": lambda p: _swap(p, _place_of_copy(p), target=PRODUCT),
    "on other values": lambda p: _swap(p, _place_of_copy(p), args=(p.inputs[1], p.inputs[1])),
    "a node is lost": lambda p: _without(p, 2),
    "a node of its own is there twice": lambda p: replace(p, nodes=(*p.nodes[:3], p.nodes[2], *p.nodes[3:])),
    "what is read is not made": lambda p: _without(p, _place_of_copy(p)),
    "two nodes changed places": lambda p: replace(p, nodes=(p.nodes[1], p.nodes[0], *p.nodes[2:])),
    "memory of another value": lambda p: _swap(
        p,
        _place_of_copy(p),
        outputs=(
            Value("v0_0_again", replace(p.nodes[0].outputs[0].tensor, storage=p.nodes[1].outputs[0].tensor.storage)),
        ),  # type: ignore[union-attr]
    ),
    "another output": lambda p: replace(p, outputs=(p.outputs[1], p.outputs[0])),
    "an input is written in between": lambda p: replace(
        p,
        nodes=(
            *p.nodes[: _place_of_copy(p)],
            Node(aten.copy_.default, (p.inputs[0], p.inputs[1])),
            *p.nodes[_place_of_copy(p) :],
        ),
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions(name: str) -> None:
    program, changed = _changed()
    verify_whole(program, changed)
    with pytest.raises(InvalidProgram):
        verify_whole(program, CORRUPTIONS[name](changed))


def test_a_write_before_what_runs_again_is_seen() -> None:
    """The write is the program's own; what reads the input again comes behind it."""
    program, changed = _changed()
    place = _place_of_copy(changed)
    copy = Node(aten.copy_.default, (program.inputs[0], program.inputs[1]))
    own = program.nodes.index(changed.nodes[place - 1]) + 1
    written = replace(program, nodes=(*program.nodes[:own], copy, *program.nodes[own:]))
    late = replace(changed, nodes=(*changed.nodes[:place], copy, *changed.nodes[place:]))
    early = replace(changed, nodes=(*changed.nodes[: place + 1], copy, *changed.nodes[place + 1 :]))
    with pytest.raises(InvalidProgram, match="ran already, on the same contents"):
        verify_whole(written, late)
    verify_whole(written, early)
