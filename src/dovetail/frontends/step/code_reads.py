"""What the code of a function names: global variables, attributes, modules that it imports while it runs."""

from __future__ import annotations

import dis
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dovetail.ir.provenance import is_library_file
from dovetail.reach.libraries import is_library_module
from dovetail.reach.values import attributes_of, is_a, module_of

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"))
# what can read an attribute that the code does not name; the first four do not, if they are given a text
_OF_A_NAME = frozenset(("getattr", "hasattr", "setattr", "delattr"))
_OF_ANY_NAME = frozenset(
    (
        *("vars", "dir", "eval", "exec", "__dict__", "__getattribute__", "attrgetter", "methodcaller", "getmembers"),
        "getattr_static",
    )
)
_SIMPLE = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")


@dataclass(frozen=True, slots=True)
class CodeReads:
    """globals: names of global variables. attributes: every other name, and text of the code that could be one.

    imports: dotted names with levels, as `import` takes them. any_attribute: it may use names that it computes.
    asks_types: it asks for the exact type of something else than its object.
    """

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[tuple[str, int], ...]
    any_attribute: bool
    asks_types: bool


def reads_of(function: FunctionType) -> CodeReads:
    """What a function's code names, functions defined inside it included; worked out once for each code."""
    return _reads(function.__code__)


def is_users(function: FunctionType) -> bool:
    """Whether a function is the user's. Code from a string is when the module is that it was made in."""
    filename = function.__code__.co_filename
    if not is_library_file(filename):
        return True
    home = function.__globals__.get("__name__", "")
    return filename.startswith("<string") and isinstance(home, str) and bool(home) and not is_library_module(home)


def home_of(code: Any) -> str:
    """The name of the module that a function, a class or a module is of."""
    if is_a(code, ModuleType):
        name: object = vars(code).get("__name__")
    elif is_a(code, FunctionType):
        name = code.__globals__.get("__name__")
    else:
        name = attributes_of(code).get("__module__") if not is_a(code, type) else module_of(code)
    return name if isinstance(name, str) else ""


def imported_names(function: FunctionType) -> Iterator[str]:
    """Full names of the modules that a function's code imports, their packages included."""
    package = function.__globals__.get("__package__") or ""
    for name, level in reads_of(function).imports:
        try:
            full = importlib.util.resolve_name("." * level + name, package) if level else name
        except (ImportError, TypeError):
            continue
        parts = full.split(".")
        yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


@lru_cache(8192)
def _reads(code: CodeType) -> CodeReads:
    known: dict[str, None] = {}
    imports: dict[tuple[str, int], None] = {}
    attributes: set[str] = set()
    computed = asks_types = False
    for part in _codes(code):
        attributes.update(part.co_names)
        attributes.update(text for text in _texts(part.co_consts) if text.isidentifier())
        instructions = list(dis.get_instructions(part))
        computed = computed or any(map(_is_of_any_name, instructions, instructions[1:], instructions[2:]))
        asks_types = asks_types or any(
            map(_is_of_a_type, [None, *instructions], instructions, [*instructions[1:], None])
        )
        before: list[dis.Instruction] = []
        for instruction in instructions:
            if instruction.opname in _GLOBAL:
                known[instruction.argval] = None
            elif instruction.opname == "IMPORT_NAME":
                level = before[-2].argval if len(before) > 1 else 0
                imports[instruction.argval, level if isinstance(level, int) else 0] = None
            before = [*before[-1:], instruction]
    return CodeReads(tuple(known), frozenset(attributes), tuple(imports), computed, asks_types)


def _is_of_any_name(instruction: dis.Instruction, second: dis.Instruction, third: dis.Instruction) -> bool:
    """Whether an instruction, with the two that follow, may read an attribute that the code does not name."""
    if not isinstance(instruction.argval, str) or not instruction.opname.startswith(("LOAD_", "IMPORT_")):
        return False
    if instruction.argval in _OF_A_NAME:
        return not (second.opname in _SIMPLE and third.opname == "LOAD_CONST" and isinstance(third.argval, str))
    return instruction.argval in _OF_ANY_NAME


def _is_of_a_type(before: dis.Instruction | None, instruction: dis.Instruction, after: dis.Instruction | None) -> bool:
    """Whether an instruction asks for a type: `type(x)` or `x.__class__`, of something else than `self` or `cls`."""
    if instruction.opname in _GLOBAL and instruction.argval == "type":
        return after is None or not _is_own_object(after)
    if instruction.opname == "LOAD_ATTR" and instruction.argval == "__class__":
        return before is None or not _is_own_object(before)
    return False


def _is_own_object(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith("LOAD_FAST") and instruction.argval in ("self", "cls")


def _texts(constants: tuple[object, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _texts(tuple(constant))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
