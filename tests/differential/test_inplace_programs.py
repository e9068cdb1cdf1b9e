"""Random functional programs that work in place do what they did; `make sweep` runs as many as there is time for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.harness.functional_programs import functional_program, is_functional, read_source
from tests.harness.inplace_agreement import check_careless, check_dynamic, check_in_place
from tests.rotation import rotated

BLOCK = 125
BLOCKS = 8
CARELESS = 60
DYNAMIC = 8
BUGS = sorted((Path(__file__).parents[1] / "data" / "bugs" / "in_place").glob("*.py"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", rotated(range(0, BLOCK * BLOCKS, BLOCK), 4))
def test_programs_in_place_equal_functional_ones(first: int) -> None:
    decisions: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        plan = check_in_place(functional_program(seed), commit=bool(seed & 2))
        decisions.update(type(action).__name__ for action in plan.actions.values())
    often = ("WriteOperands", "WritePart", "Share", "WriteOut", "DropCopyBack")
    assert all(decisions[action] >= 15 for action in often), decisions


def test_wrong_decisions_are_noticed() -> None:
    outcomes = Counter(check_careless(functional_program(seed), commit=bool(seed & 2)) for seed in range(CARELESS))
    assert outcomes[True, True] >= CARELESS // 3, outcomes


def test_programs_with_symbolic_sizes() -> None:
    trace = partial(make_fx, tracing_mode="symbolic")
    symbolic = sum(check_dynamic(functional_program(seed), trace) for seed in range(DYNAMIC))
    assert symbolic >= DYNAMIC // 2


@pytest.mark.parametrize("path", BUGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("commit", [False, True])
def test_smallest_program_works_in_place(path: Path, commit: bool) -> None:
    check_in_place(read_source(path.read_text()), commit=commit)


@pytest.mark.parametrize("path", rotated(BUGS, 4), ids=lambda path: path.stem)
def test_smallest_program_with_symbolic_sizes(path: Path) -> None:
    check_dynamic(read_source(path.read_text()), partial(make_fx, tracing_mode="symbolic"))


def test_a_program_is_its_source() -> None:
    for seed in range(20):
        program = functional_program(seed)
        again = read_source(program.source())
        assert is_functional(again)
        assert (again.inputs, again.returns, again.donated) == (program.inputs, program.returns, program.donated)
        assert read_source(again.source()) == again
