"""Random programs are deterministic, run by themselves, and hold a bit of everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from tests.harness.programs import RandomProgram, random_program, runs_in_eager
from tests.harness.statements import TEMPLATES

_SEEDS = range(400)


def test_a_seed_gives_one_program_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    assert random_program(5) == random_program(5)
    assert random_program(5).source() != random_program(6).source()
    assert torch.equal(before, torch.get_rng_state())


def test_every_program_runs_and_differentiates_in_eager() -> None:
    assert all(runs_in_eager(random_program(seed)) for seed in range(30))


def test_the_source_is_a_file_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "program_11.py"
    call = "\narguments, leaves = inputs(0)\nprint(len(program(*arguments)))\n"
    path.write_text(random_program(11).source() + call)
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(random_program(11).returns)}\n"


def test_programs_hold_a_bit_of_everything() -> None:
    programs = [random_program(seed) for seed in _SEEDS]
    body = "\n".join(line for program in programs for line in program.body)
    made = "\n".join(line for program in programs for line in program.inputs)
    written = (
        "copy_( out= scatter_( index_put_( masked_fill_( unsqueeze_( normal_( _add_( zero_( .data detach() no_grad"
    )
    viewed = "as_strided( unbind( split( diagonal( view_as_real( view_as_complex( .imag expand( unfold( permute( [0]"
    for part in f"{written} {viewed} dropout( randperm( softmax( cat( @".split():
        assert part in body, part
    for part in (
        "float64",
        "randint",
        "> 0.5",
        "complex64",
        "permute",
        "::2",
        "expand",
        "requires_grad_",
        "* 1",
        "pair",
    ):
        assert part in made, part
    assert any(returned in program.arguments for program in programs for returned in program.returns)
    assert any(len(set(program.returns)) < len(program.returns) for program in programs)


def test_every_template_is_used() -> None:
    assert len({template for template, _ in TEMPLATES}) == len(TEMPLATES)
    assert all(weight > 0 for _, weight in TEMPLATES)


def test_a_program_that_eager_refuses_is_told_apart() -> None:
    broken = RandomProgram(0, ("x0 = torch.ones(2)",), ("x0",), (), ("x0.resize(3)",), ("x0",))
    assert not runs_in_eager(broken)
    warns = RandomProgram(0, ("x0 = torch.ones(2, 3, 4)",), ("x0",), (), ("v1 = x0.T",), ("v1",))
    assert not runs_in_eager(warns)
