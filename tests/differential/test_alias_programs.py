"""Programs whose arguments share bytes differently from call to call: one compiled function, right in every call."""

from __future__ import annotations

from functools import partial

import pytest

import dovetail
from tests.harness.agreement import check_program
from tests.harness.aliasing import alias_program
from tests.rotation import rotated

BLOCK = 30
BLOCKS = 10


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", rotated(range(0, BLOCK * BLOCKS, BLOCK), 10))
def test_compiled_programs_equal_eager_in_every_pattern(first: int) -> None:
    compile_checked = partial(dovetail.compile, verify=2)
    for seed in range(first, first + BLOCK):
        program = alias_program(seed)
        check_program(program, compile_checked, program.seeds)
