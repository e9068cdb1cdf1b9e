"""Programs in the style of public scripts do on a GPU what they do there in eager mode, bit by bit.

A program that eager mode itself does not take there, or of which it does not repeat its bits, says nothing.
"""

from __future__ import annotations

import functools

import pytest

from tests.programs.harness import BACKEND, DYNAMO, EAGER, Differs, Program, Refused, check
from tests.programs.test_programs import REASONS, programs

# Nodes that a backward makes are numbered in the thread of the device, those of the forward in the caller's. Autograd
# adds gradients in the order of these numbers, so that eager's order depends on what the process did before.
_ORDER_OF_THREADS = frozenset({"unknown_rate_of_decay"})


def _cases() -> list[object]:
    found = []
    for program in programs():
        for door in program.doors:
            why = REASONS.get((program.name, door))
            if program.name in _ORDER_OF_THREADS:
                why = "second derivatives on a GPU are added in another order"
            marks = [] if why is None else [pytest.mark.xfail(strict=False, reason=why)]
            found.append(pytest.param(program, door, id=f"{program.name}-{door}", marks=marks))
    return found


@functools.cache
def _why_not(program: Program, door: str) -> str | None:
    """Why a program says nothing here: eager mode, or Dynamo, does not take it, or does not repeat its bits."""
    try:
        check(program, door)
    except Differs:
        return f"{door} does not repeat its bits"
    except Exception as error:
        return f"{door}: {type(error).__name__}: {error}"
    return None


@pytest.mark.usefixtures("device", "alone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "door"), _cases())
def test_program(program: Program, door: str) -> None:
    why = _why_not(program, EAGER) or (_why_not(program, DYNAMO) if door == BACKEND else None)
    if why is not None:
        pytest.skip(why)
    try:
        check(program, door)
    except Refused as refused:
        pytest.skip(f"refused by name: {refused}")
