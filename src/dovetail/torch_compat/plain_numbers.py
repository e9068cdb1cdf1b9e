"""torch's kernels in Python on plain numbers, without the modules that symbolic numbers need.

Many of these kernels import functions for symbolic numbers when they run, and hand them plain ones. The import brings
in sympy: a quarter of a second, most of what loading a small frozen program would take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, reduce
from importlib import import_module
from operator import and_, or_
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from dovetail.torch_compat.python_kernels import kernel_functions

SYMPY, SHAPES = "sympy", "torch.fx.experimental.symbolic_shapes"


@contextmanager
def kernels_for_plain_numbers() -> Iterator[None]:
    """Inside, torch's kernels in Python import functions that answer for plain numbers, in place of torch's.

    Those hand every other number on to torch's, so results are the same, also in threads that run such kernels
    meanwhile. Nothing is done where torch's are loaded already.
    """
    changed: list[tuple[FunctionType, CodeType]] = []
    if SHAPES not in sys.modules:
        sys.modules.update((module.__name__, module) for module in STAND_INS.values())
        for function in importing_functions():
            code = function.__code__
            if _imports(code):  # else another thread is in here
                changed.append((function, code))
                function.__code__ = _importing_stand_ins(code)
    try:
        yield
    finally:
        for function, code in changed:
            function.__code__ = code


@cache
def importing_functions() -> tuple[FunctionType, ...]:
    """Those of `kernel_functions` that import what symbolic numbers need."""
    return tuple([function for function in kernel_functions() if _imports(function.__code__)])


def _imports(code: CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return not STAND_INS.keys().isdisjoint(code.co_names) or any(map(_imports, inner))


def _importing_stand_ins(code: CodeType) -> CodeType:
    names = [STAND_INS[name].__name__ if name in STAND_INS else name for name in code.co_names]
    consts = [_importing_stand_ins(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.replace(co_names=tuple(names), co_consts=tuple(consts))


class _StandIn(ModuleType):
    """Some names of a module that is not loaded; all others are looked up there."""

    def __init__(self, module: str, names: Mapping[str, object]) -> None:
        super().__init__(f"_dovetail_{module.rpartition('.')[2]}", f"Some names of {module}, for plain numbers.")
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # import statements ask for `__path__`
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


class _ExpressionMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        basic = getattr(sys.modules.get(SYMPY), "Basic", None)  # while it is not loaded, nothing is an expression
        return basic is not None and isinstance(instance, basic)


class _Expression(metaclass=_ExpressionMeta):
    """Stands for sympy's class of all expressions where one asks whether something is of it."""


def _is_bool(operand: object) -> bool:
    return type(operand) is bool


def _is_int(operand: object) -> bool:
    return type(operand) is int


def _is_size(operand: object) -> bool:
    return type(operand) in (bool, int)


def _is_plain(operand: object) -> bool:
    return type(operand) in (bool, int, float)


def _is_plain_tensor(operand: object) -> bool:
    if type(operand) is not torch.Tensor or operand.layout is not torch.strided:
        return False
    return all(map(_is_plain, (*operand.shape, *operand.stride(), operand.storage_offset())))


def _are_sizes(operand: object) -> bool:
    if isinstance(operand, list | tuple):
        return all(map(_are_sizes, operand))
    return _is_size(operand)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    raise AssertionError(f"a size and several sizes are compared: {a!r}, {b!r}")  # of the class that torch raises


def _answering(name: str, takes: Callable[[object], bool], answer: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function of this name, which is not asked where the operands are such that the answer is known."""

    def answered(*operands: Any, **named: Any) -> Any:
        if operands and not named and all(map(takes, operands)):
            return answer(*operands)
        return getattr(import_module(SHAPES), name)(*operands, **named)

    return answered


def _is_nothing(operand: object) -> bool:
    return False


def _itself(operand: Any) -> Any:
    return operand


_ANSWERS: dict[str, tuple[Callable[[object], bool], Callable[..., Any]]] = {
    "expect_true": (_is_bool, _itself),
    "free_unbacked_symbols": (_is_plain_tensor, lambda tensor: frozenset()),
    "guard_int": (_is_int, _itself),
    "guard_or_false": (_is_bool, _itself),
    "guard_or_true": (_is_bool, _itself),
    "guarding_hint_or_throw": (_is_size, _itself),
    "has_guarding_hint": (_is_plain, lambda number: True),
    "is_nested_int": (_is_plain, lambda number: False),
    "statically_known_true": (_is_bool, _itself),
    "sym_and": (_is_bool, lambda *operands: reduce(and_, operands)),
    "sym_eq": (_are_sizes, _same),
    "sym_or": (_is_bool, lambda *operands: reduce(or_, operands)),
}
# Functions that are imported beside those, and have no rule.
_OTHERS = (
    "_advise_is_bounded",
    "_advise_is_size",
    "_constrain_range_for_size",
    "constrain_range",
    "guard_size_oblivious",
)
_RULES = {**_ANSWERS, **dict.fromkeys(_OTHERS, (_is_nothing, _itself))}
STAND_INS: dict[str, ModuleType] = {
    SYMPY: _StandIn(SYMPY, {"Basic": _Expression}),
    SHAPES: _StandIn(SHAPES, {name: _answering(name, *rule) for name, rule in _RULES.items()}),
}
"""By the name of the module that they stand for."""
