"""What code names: global variables, and attributes of what they hold."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME"))
_ATTRIBUTE = frozenset(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"))


@dataclass(frozen=True, slots=True)
class Names:
    """What one code object names, code inside it left out.

    chains: global variables, each with the attributes that are read one from the other. attributes: names of all
    attributes. imports: names of modules that are imported while the code runs.
    """

    chains: tuple[tuple[str, ...], ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]


@lru_cache(16384)
def names_of(code: CodeType) -> Names:
    """What a code object names. Cost: what it takes to disassemble it, once."""
    chains: dict[tuple[str, ...], None] = {}
    attributes: set[str] = set()
    imports: dict[str, None] = {}
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
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
    return Names(tuple(chains), frozenset(attributes), tuple(imports))


@lru_cache(16384)
def codes_inside(code: CodeType) -> frozenset[CodeType]:
    """The code of functions that are defined inside a code object."""
    own = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(own).union(*map(codes_inside, own))
