"""What is to be placed for a program: one buffer for each storage, with the times at which it is alive."""

from __future__ import annotations

from dovetail.analysis.liveness import NOTHING, Need, simulate_peak
from dovetail.memory.check import verify_placement
from dovetail.memory.problem import Buffer, build_problem
from dovetail.memory.solve import solve
from dovetail.passes.inplace import work_in_place
from tests.partition.joint_programs import random_program


def test_random_programs_need_their_simulated_peak_and_no_more() -> None:
    for seed in range(150):
        functional = random_program(seed, nodes=30)
        for program in (functional, work_in_place(functional)[0]):
            problem = build_problem(program, alignment=1)
            assert problem.bound_bytes == simulate_peak(program).peak_bytes
            placement = solve(problem)
            verify_placement(problem, placement)
            verify_placement(aligned := build_problem(program), solve(aligned))
            assert placement.is_proved


def test_what_operators_need_besides_is_placed() -> None:
    program = random_program(3, nodes=20)
    need = Need(scratch_bytes=200, kept_bytes=tuple([40] * 4))
    needs = {node: need if at % 3 == 0 and len(node.outputs) <= 4 else NOTHING for at, node in enumerate(program.nodes)}
    problem = build_problem(program, need_of=needs.__getitem__, alignment=1)
    assert problem.bound_bytes == simulate_peak(program, need_of=needs.__getitem__).peak_bytes
    assert Buffer("scratch of node 0", 200, 0, 1) in problem.buffers


def test_storages_that_lie_elsewhere_are_left_out() -> None:
    program = random_program(5, nodes=20)
    returned = program.output_storages()
    names = {buffer.name for buffer in build_problem(program, leave_out=returned).buffers}
    everything = {buffer.name for buffer in build_problem(program).buffers}
    assert names == everything - {f"storage {storage}" for storage in returned}
