"""What code names: global variables, and attributes of what they hold."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME"))
_ATTRIBUTE = frozenset(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"))


@dataclass(frozen=True, slots=True)
class CodeNames:
    """What one code object names, code inside it left out.

    chains: global variables, each with the attributes that are read one from the other. attributes: names of all
    attributes. imports: names of modules that are imported while the code runs. asks_types: it asks for the exact type
    of something else than its object.
    """

    chains: tuple[tuple[str, ...], ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]
    asks_types: bool


@lru_cache(16384)
def names_of(code: CodeType) -> CodeNames:
    """What a code object names. Cost: what it takes to disassemble it, once."""
    chains: dict[tuple[str, ...], None] = {}
    attributes: set[str] = set()
    imports: dict[str, None] = {}
    chain: tuple[str, ...] = ()
    instructions = list(dis.get_instructions(code))
    asks_types = any(map(_is_of_a_type, [None, *instructions], instructions, [*instructions[1:], None]))
    for instruction in instructions:
        name = instruction.opname
        if name in _ATTRIBUTE:
            attributes.add(instruction.argval)
            if chain and name in ("LOAD_ATTR", "LOAD_METHOD"):
                chain = (*chain, instruction.argval)
                chains[chain] = None
                continue
        elif name in _GLOBAL:
            chain = (instruction.argval,)
            chains[chain] = None
            continue
        elif name == "IMPORT_NAME":
            imports[instruction.argval] = None
        elif name in ("CACHE", "EXTENDED_ARG"):
            continue
        chain = ()
    return CodeNames(tuple(chains), frozenset(attributes), tuple(imports), asks_types)


def runs_inside_its_maker(frame: FrameType) -> bool:
    """Whether the code that makes the function that runs is running: it has all that the function closes over."""
    maker = frame.f_back
    while maker is not None:
        if any(constant is frame.f_code for constant in maker.f_code.co_consts):
            return True
        maker = maker.f_back
    return False


@lru_cache(16384)
def codes_inside(code: CodeType) -> frozenset[CodeType]:
    """The code of functions that are defined inside a code object."""
    own = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(own).union(*map(codes_inside, own))


def _is_of_a_type(before: dis.Instruction | None, instruction: dis.Instruction, after: dis.Instruction | None) -> bool:
    """Whether an instruction asks for a type: `type(x)` or `x.__class__`, of something else than `self` or `cls`."""
    if instruction.opname in _GLOBAL and instruction.argval == "type":
        return after is None or not _is_own_object(after)
    if instruction.opname == "LOAD_ATTR" and instruction.argval == "__class__":
        return before is None or not _is_own_object(before)
    return False


def _is_own_object(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith("LOAD_FAST") and instruction.argval in ("self", "cls")
