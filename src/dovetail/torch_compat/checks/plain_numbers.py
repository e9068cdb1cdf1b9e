"""Checks of `torch_compat.plain_numbers`."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from importlib import import_module
from types import CodeType
from typing import Any

import torch

from dovetail.torch_compat import plain_numbers
from dovetail.torch_compat.checks.difference import first_difference

_OPERANDS: dict[str, tuple[tuple[Any, ...], ...]] = {
    **dict.fromkeys(("expect_true", "guard_or_false", "guard_or_true"), ((True,), (False,))),
    "statically_known_true": ((True,), (False,)),
    "free_unbacked_symbols": ((torch.empty(2, 3, device="meta"),),),
    "guard_int": ((3,),),
    "guarding_hint_or_throw": ((3,), (True,)),
    "has_guarding_hint": ((3,), (0.5,), (True,)),
    "is_nested_int": ((3,), (0.5,)),
    "sym_and": ((True,), (True, False), (True, True, True)),
    "sym_or": ((False,), (False, True), (False, False, False)),
    "sym_eq": ((3, 3), (3, 4), ((2, 3), [2, 3]), ((2, 3), (2,)), (torch.Size((2, 3)), (2, 4))),
}


def check_answers_for_plain_numbers() -> str | None:
    """What stands in for torch's functions answers as they do."""
    here, torchs = plain_numbers.STAND_INS[plain_numbers.SHAPES], import_module(plain_numbers.SHAPES)
    pairs = []
    for name, calls in _OPERANDS.items():
        if not hasattr(torchs, name):  # nothing imports it: torch has it since a later version
            continue
        for operands in calls:
            found, wanted = getattr(here, name)(*operands), getattr(torchs, name)(*operands)
            pairs.append((f"{name}{operands}", found or False, wanted or False))
    pairs.append(("the claim that what has no rule is torch's", here.ShapeEnv is torchs.ShapeEnv, True))
    basic = import_module(plain_numbers.SYMPY).Basic
    stands = plain_numbers.STAND_INS[plain_numbers.SYMPY].Basic
    for one in (3, torch.empty(0), import_module(plain_numbers.SYMPY).Symbol("s")):
        pairs.append((f"whether {one} is an expression", isinstance(one, stands), isinstance(one, basic)))
    return first_difference(*pairs)


def check_importing_functions() -> str | None:
    """Those names are names of modules to import there, and for their functions: nothing else is called so."""
    found = plain_numbers.importing_functions()
    others = [f.__qualname__ for f in found if any(map(_uses_otherwise, _codes(f.__code__)))]
    names = {function.__name__ for function in found}
    return first_difference(
        ("what is missing", {"_check_with", "elementwise_dtypes"} - names, set()),
        ("functions that use the names otherwise", others, []),
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _uses_otherwise(code: CodeType) -> bool:
    steps, names = list(dis.get_instructions(code)), plain_numbers.STAND_INS
    return any(
        step.argval in names and step.opname not in ("IMPORT_NAME", "LOAD_CONST") for step in steps if _named(step)
    )


def _named(step: dis.Instruction) -> bool:
    return isinstance(step.argval, str) and step.opcode in dis.hasname


def check_kernels_for_plain_numbers() -> str | None:
    """Kernels in Python give the same, and functions are as before afterwards."""
    functions = plain_numbers.importing_functions()
    before, is_loaded = [function.__code__ for function in functions], plain_numbers.SHAPES in sys.modules
    with plain_numbers.kernels_for_plain_numbers():
        is_changed = [function.__code__ for function in functions] != before
        x = torch.nn.functional.embedding(
            torch.zeros(2, 5, dtype=torch.int64, device="meta"), torch.empty(7, 3, device="meta")
        )
        x = torch.nn.functional.conv1d(x, torch.empty(4, 5, 3, device="meta"))
        layout = tuple(torch.nn.functional.layer_norm(x, (1,)).shape)
    return first_difference(
        ("the shape of a result", layout, (2, 4, 1)),
        ("whether functions are changed inside", is_changed, not is_loaded),
        ("the claim that functions are as before", [f.__code__ for f in functions] == before, True),
    )


CHECKS = (check_kernels_for_plain_numbers, check_importing_functions, check_answers_for_plain_numbers)
