"""What code names: global variables, and attributes of what they hold."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME"))
_READ = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_VARIABLE = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")
_FINDING = frozenset(("__import__", "import_module", "getmodule"))
_BETWEEN = frozenset(("CACHE", "EXTENDED_ARG"))
_SETS_OUTER = frozenset(("STORE_DEREF", "DELETE_DEREF"))
_ATTRIBUTE = frozenset(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"))


@dataclass(frozen=True, slots=True)
class Import:
    """A module, or an attribute of one ("" for none), that code gives a name.

    module: as it is written. level: of packages, 0 for an absolute name.
    """

    module: str
    attribute: str
    name: str
    level: int = 0

    def absolute(self, package: Any) -> str:
        """The module's whole name. package: of the code, for names that begin there."""
        if not self.level:
            return self.module
        above = str(package or "").rsplit(".", self.level - 1)[0]
        return f"{above}.{self.module}".rstrip(".")

    def loaded(self, package: Any) -> ModuleType | None:
        """The module, if it is loaded. package: see `absolute`."""
        return sys.modules.get(self.absolute(package))


@dataclass(frozen=True, slots=True)
class CodeNames:
    """What one code object names, code inside it left out.

    chains: global variables, each with the attributes that are read one from the other. attributes: names of all
    attributes. pairs: names of variables and attributes, each with one that is read from what it names, "" for what has
    no name. imports: made while the code runs, or by functions that are given a text. finds_modules: others are given
    what is computed. asks_types: it asks for the exact type of something else than its object.
    """

    chains: tuple[tuple[str, ...], ...]
    attributes: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    imports: tuple[Import, ...]
    finds_modules: bool
    asks_types: bool


@lru_cache(16384)
def names_of(code: CodeType) -> CodeNames:
    """What a code object names. Cost: what it takes to disassemble it, once."""
    chains: dict[tuple[str, ...], None] = {}
    attributes: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    chain: tuple[str, ...] = ()
    last = ""
    instructions = [found for found in dis.get_instructions(code) if found.opname not in _BETWEEN]
    asks_types = any(map(_is_of_a_type, [None, *instructions], instructions, [*instructions[1:], None]))
    for instruction in instructions:
        name = instruction.opname
        if name in _ATTRIBUTE:
            attributes.add(instruction.argval)
            if name in _READ:
                pairs.add((last, instruction.argval))
                last = instruction.argval
                if chain:
                    chain = (*chain, last)
                    chains[chain] = None
                continue
        elif name in _GLOBAL:
            chain = (instruction.argval,)
            chains[chain] = None
            last = instruction.argval
            continue
        last = instruction.argval if name.startswith(_VARIABLE) and isinstance(instruction.argval, str) else ""
        chain = ()
    imports = tuple(_imports_of(instructions))
    texts = _searched_modules(instructions)
    if texts:
        imports += tuple(_imports_by_text(instructions, texts - {None}))
    return CodeNames(tuple(chains), frozenset(attributes), frozenset(pairs), imports, None in texts, asks_types)


def _imports_of(instructions: list[dis.Instruction]) -> Iterator[Import]:
    """`import a.b` gives a name to `a`, `import a.b as c` to the module, `from a import b as c` to its attribute."""
    module, level, is_from = "", 0, False
    for place, instruction in enumerate(instructions[:-1]):
        after = instructions[place + 1]
        if instruction.opname == "IMPORT_NAME":
            module, level = instruction.argval, instructions[place - 2].argval
            is_from = instructions[place - 1].argval is not None
            if after.opname.startswith("STORE_"):
                yield Import(module.partition(".")[0], "", after.argval)
        elif instruction.opname == "IMPORT_FROM" and after.opname.startswith("STORE_"):
            yield Import(module, instruction.argval if is_from else "", after.argval, level)


def _searched_modules(instructions: list[dis.Instruction]) -> set[str | None]:
    """The names of modules that functions find: texts, None for those that are computed."""
    found: set[str | None] = set()
    for place, instruction in enumerate(instructions):
        if instruction.argval in _FINDING and instruction.opname in _READ | _GLOBAL:
            after = next((x for x in instructions[place + 1 :] if x.opname != "PUSH_NULL"), instruction)
            is_text = after.opname == "LOAD_CONST" and isinstance(after.argval, str)
            found.add(after.argval if is_text else None)
    return found


def _imports_by_text(instructions: list[dis.Instruction], texts: set[str | None]) -> Iterator[Import]:
    """Modules that functions find by a text: for each variable of the code, and for what has no name."""
    variables = {x.argval for x in instructions if x.opname.startswith("STORE_") and isinstance(x.argval, str)}
    for text in texts:
        yield from (Import(str(text), "", name) for name in ("", *sorted(variables)))


def is_made_by(code: CodeType, maker: CodeType) -> bool:
    """Whether a function with this code is made where the other code runs."""
    return any(constant is code for constant in maker.co_consts)


def arguments_of(code: CodeType) -> tuple[str, ...]:
    """The names of what a function takes, `*arguments` and `**options` left out."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


@lru_cache(16384)
def writes_outer_variables(code: CodeType) -> bool:
    """Whether code, or what is defined inside it, sets a variable that it closes over (`nonlocal`)."""
    outer = frozenset(code.co_freevars)
    return any(
        found.opname in _SETS_OUTER and found.argval in outer
        for inner in (code, *codes_inside(code))
        for found in dis.get_instructions(inner)
    )


@lru_cache(16384)
def codes_inside(code: CodeType) -> frozenset[CodeType]:
    """The code of functions that are defined inside a code object."""
    own = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(own).union(*map(codes_inside, own))


def asks_class(code: CodeType) -> bool:
    """Whether it is Python's code that chooses a function by the class of an argument (`functools.singledispatch`)."""
    return code in _BY_CLASS


_dispatching: Any = functools.singledispatch(len)
_BY_CLASS = frozenset(
    (
        _dispatching.__code__,
        *(x for x in functools.singledispatchmethod.__get__.__code__.co_consts if isinstance(x, CodeType)),
    )
)


def _is_of_a_type(before: dis.Instruction | None, instruction: dis.Instruction, after: dis.Instruction | None) -> bool:
    """Whether an instruction asks for a type: `type(x)` or `x.__class__`, of something else than `self` or `cls`; or
    `case int():`.
    """
    if instruction.opname == "MATCH_CLASS":
        return True
    if instruction.opname in _GLOBAL and instruction.argval == "type":
        return after is None or not _is_own_object(after)
    if instruction.opname == "LOAD_ATTR" and instruction.argval == "__class__":
        return before is None or not _is_own_object(before)
    return False


def _is_own_object(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith("LOAD_FAST") and instruction.argval in ("self", "cls")
