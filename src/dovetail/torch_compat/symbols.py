"""Reading torch's symbolic numbers.

This module knows sympy and torch's own sympy functions; the rest of dovetail sees nested tuples
`(operation, arguments...)`, from which `dovetail.ir` builds its size expressions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)

_OPERATIONS = {
    "Add": "add",
    "Mul": "mul",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "PythonMod": "mod",
    "Mod": "mod",
    "Pow": "pow",
    "PowByNatural": "pow",
    "FloatPow": "pow",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "Max": "max",
    "Min": "min",
    "FloorToInt": "floor",
    "floor": "floor",
    "CeilToInt": "ceil",
    "ceiling": "ceil",
    "TruncToInt": "trunc",
    "RoundToInt": "round",
    "ToFloat": "float",
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "Where": "where",
    "OpaqueUnaryFn_sqrt": "sqrt",
}


def symbolic_tree(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> object:
    """The expression of a symbolic number as a plain number or nested tuples `(operation, arguments...)`.

    A symbol is `("symbol", name)`. Raises: NotImplementedError for a function that has no counterpart.
    """
    return expression_tree(number.node.expr)


def expression_tree(expr: object) -> object:
    """`symbolic_tree` for a sympy expression."""
    if isinstance(expr, sympy.Symbol):
        return ("symbol", expr.name)
    if expr in (sympy.true, sympy.false):
        return bool(expr)
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Float):
        return float(expr)
    if isinstance(expr, sympy.Rational):
        return ("truediv", int(expr.p), int(expr.q))
    if isinstance(expr, sympy.Basic):
        name = type(expr).__name__
        arguments = tuple(expression_tree(a) for a in expr.args)
        if name == "ModularIndexing":
            return ("mod", ("floordiv", arguments[0], arguments[1]), arguments[2])
        if name == "Identity":
            return arguments[0]
        if name in _OPERATIONS:
            return (_OPERATIONS[name], *arguments)
    raise NotImplementedError(f"no size expression for {expr!r}")


def symbol_name(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> str | None:
    """The name of the symbol, when the number is a bare symbol."""
    expr = number.node.expr
    return expr.name if isinstance(expr, sympy.Symbol) else None


def hint_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """The value that the symbolic number had when it was made, if it is backed by one."""
    return number.node.hint if number.node.has_hint() else None


def concrete_layout(tensor: torch.Tensor) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Sizes and strides as the numbers they had when the tensor was made."""

    def known(number: int | torch.SymInt) -> object:
        return hint_of(number) if isinstance(number, torch.SymInt) else number

    return tuple(map(known, tensor.shape)), tuple(map(known, tensor.stride()))


def new_shape_env() -> ShapeEnv:
    """A fresh environment of size symbols."""
    return ShapeEnv()


@contextmanager
def data_dependent_sizes(shape_env: ShapeEnv | None) -> Iterator[None]:
    """While active, the environment makes symbols for what depends on data, even if it was made not to."""
    if shape_env is None:
        yield
        return
    settings = shape_env.settings
    shape_env.settings = dataclasses.replace(settings, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    try:
        yield
    finally:
        shape_env.settings = settings


def guard_trees(shape_env: ShapeEnv) -> list[object]:
    """Every fact that the environment has assumed so far, as expression trees."""
    return [expression_tree(guard.expr) for guard in shape_env.guards]


def expected_trees(shape_env: ShapeEnv) -> list[object]:
    """Every fact about sizes that are only known when a program runs which the environment has relied on so far."""
    facts = {fact.expr: None for facts in shape_env.deferred_runtime_asserts.values() for fact in facts}
    return [expression_tree(fact) for fact in facts]


def guard_count(shape_env: ShapeEnv | None) -> int:
    """How many facts the environment has assumed so far."""
    return 0 if shape_env is None else len(shape_env.guards)
