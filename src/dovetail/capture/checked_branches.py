"""Branches on data of which one way only raises: `if bad.any(): raise ...`, `assert good.all()`.

Whoever records goes the other way, and the program checks that the data do.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType

_JUMPS_IF_TRUE = ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE")
_JUMPS_IF_FALSE = ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE")
# Where a way that only raises may not come to: it goes elsewhere, or ends otherwise.
_ELSEWHERE = ("JUMP", "POP_JUMP", "RETURN", "YIELD", "FOR_ITER", "SEND", "STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL")


def answer_that_does_not_raise(frame: FrameType) -> bool | None:
    """How a truth that is asked for now has to be, for the code of a frame not to raise; None where neither way raises.

    frame: of the code that asks, at the instruction that asks.
    """
    return _answers(frame.f_code).get(frame.f_lasti)


def has_checks(code: CodeType) -> bool:
    """Whether code has branches of which one way only raises."""
    return bool(_answers(code))


@functools.lru_cache(maxsize=256)
def _answers(code: CodeType) -> dict[int, bool]:
    """The answer that does not raise, by where code asks."""
    instructions = list(dis.get_instructions(code))
    caught = [range(entry.start, entry.end) for entry in getattr(dis.Bytecode(code), "exception_entries")]  # noqa: B009, unknown to stubs
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    found = {}
    for number, instruction in enumerate(instructions):
        if instruction.opname not in (*_JUMPS_IF_TRUE, *_JUMPS_IF_FALSE):
            continue
        if any(instruction.offset in covered for covered in caught):
            continue  # what is raised may be caught, and the code goes on
        further = _only_raises(instructions, number + 1)
        elsewhere = _only_raises(instructions, at[instruction.argval])
        if further is not elsewhere:
            found[instruction.offset] = (instruction.opname in _JUMPS_IF_TRUE) is further
            before = instructions[number - 1]
            if before.opname == "TO_BOOL":
                found[before.offset] = found[instruction.offset]
    return found


def _only_raises(instructions: list[dis.Instruction], start: int) -> bool:
    """Whether the code from here on raises, whatever happens, and does nothing else that stays."""
    for instruction in instructions[start:]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if instruction.opname.startswith(_ELSEWHERE):
            return False
    return False
