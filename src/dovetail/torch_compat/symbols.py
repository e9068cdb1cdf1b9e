"""Reading torch's symbolic numbers.

This module knows sympy and torch's own sympy functions; the rest of dovetail sees nested tuples
`(operation, arguments...)`, from which `dovetail.ir` builds its size expressions.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial, reduce
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import torch

from dovetail.deferred import deferred

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental import symbolic_shapes
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
else:  # a quarter of a second, which programs that are loaded do without
    sympy = deferred("sympy")
    symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")

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
    "Abs": "abs",
    "RoundDecimal": "round",
    "BitwiseFn_bitwise_and": "bitand",
    "BitwiseFn_bitwise_or": "bitor",
    "BitwiseFn_bitwise_xor": "bitxor",
}
# Functions of `math` that sympy is told nothing about: torch's for symbolic numbers, where it has one.
_OPAQUE: dict[str, Callable[..., Any]] = {
    "sqrt": torch._sym_sqrt,
    "sin": torch._sym_sin,
    "cos": torch._sym_cos,
    "tan": torch._sym_tan,
    "sinh": torch._sym_sinh,
    "cosh": torch._sym_cosh,
    "tanh": torch._sym_tanh,
    "asin": torch._sym_asin,
    "acos": torch._sym_acos,
    "atan": torch._sym_atan,
    "asinh": math.asinh,
    "exp": math.exp,
    "log": math.log,
    "log2": torch._sym_log2,
}
_OPERATIONS |= {f"OpaqueUnaryFn_{name}": name for name in _OPAQUE}

# For each operation of two arguments or one, the function that graphs call for it. It takes symbolic numbers.
NUMBER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "pow": operator.pow,
    "max": torch.sym_max,
    "min": torch.sym_min,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": torch.sym_float,
    "int": torch.sym_int,
    "abs": abs,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    **_OPAQUE,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "not": torch.sym_not,
    "where": torch.sym_ite,
}

_BUILTINS = (abs, bool, float, int, max, min, pow, round)


@cache
def number_function_text(target: Callable[..., object]) -> str | None:
    """Python that gives a function of `operator`, `math`, `torch.sym_*` or Python itself that computes with numbers.

    None for any other function.
    """
    name = str(getattr(target, "__name__", ""))
    if any(target is function for function in _BUILTINS):
        return name
    for space, prefix in ((operator, "operator"), (math, "math"), (torch, "torch")):
        if space is math and isinstance(target, BuiltinFunctionType) and target.__module__ == "math":
            return f"math.{name}"  # also while something else stands in its place
        is_here = space is not torch or name.startswith(("sym_", "_sym_"))
        if is_here and getattr(space, name, None) is target and target is not operator.getitem:
            return f"{prefix}.{name}"
    return None


def symbolic_tree(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> object:
    """The expression of a symbolic number as a plain number or nested tuples `(operation, arguments...)`.

    A symbol is `("symbol", name)`. Raises: NotImplementedError for a function that has no counterpart.
    """
    return expression_tree(number.node.expr)


def expression_tree(expr: object) -> object:
    """`symbolic_tree` for a sympy expression."""
    if isinstance(expr, sympy.Symbol):
        return ("symbol", _name_of(expr))
    if expr in (sympy.true, sympy.false):
        return bool(expr)
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Float):
        return float(expr)
    if isinstance(expr, sympy.Rational):
        return ("truediv", int(expr.p), int(expr.q))
    if isinstance(expr, sympy.Basic):
        return _operation_tree(expr)
    raise NotImplementedError(f"no size expression for {expr!r}")


def _operation_tree(expr: sympy.Basic) -> object:
    name = type(expr).__name__
    if name == "Piecewise" and expr.args[-1].args[1] == sympy.true:  # a truth value as a number
        pieces = [tuple(map(expression_tree, piece.args)) for piece in expr.args]
        return reduce(lambda rest, piece: ("where", piece[1], piece[0], rest), reversed(pieces[:-1]), pieces[-1][0])
    arguments = tuple(expression_tree(a) for a in expr.args)
    if name == "ModularIndexing":
        return ("mod", ("floordiv", arguments[0], arguments[1]), arguments[2])
    if name == "Identity":
        return arguments[0]
    if name == "TruncToFloat":
        return ("float", ("trunc", arguments[0]))
    if name in _OPERATIONS:
        return (_OPERATIONS[name], *arguments)
    raise NotImplementedError(f"no size expression for {expr!r}")


def symbol_name(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> str | None:
    """The name of the symbol, when the number is a bare symbol."""
    expr = number.node.expr
    return _name_of(expr) if isinstance(expr, sympy.Symbol) else None


def _name_of(symbol: sympy.Symbol) -> str:
    name: str = symbol.name
    return name.rpartition(_OF_NUMBER)[2]


def symbol_name_at_first(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> str | None:
    """The name of the symbol that the number was made as, also where it has turned out to be one number since."""
    expr = number.node._expr
    return _name_of(expr) if isinstance(expr, sympy.Symbol) else None


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
    return _environments()()


@cache
def _environments() -> type[ShapeEnv]:
    """Those that do not note which line of torch made a symbol or a guard: nobody asks, and to tell torch's lines from
    others, torch imports its exporter and parts of inductor, which takes half a second.
    """

    class Sizes(symbolic_shapes.ShapeEnv):
        def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> tuple[Any, str]:
            return symbolic_shapes.SLoc(framework_loc, None), ""

        def _generate_unique_id(self, source_name: str) -> Any:
            return source_name if source_name.startswith(_OF_NUMBER) else super()._generate_unique_id(source_name)

    return Sizes


_OF_NUMBER = ":"  # what the names of symbols for numbers begin with, after torch's letter for a size


def number_symbol(shape_env: ShapeEnv, name: str, now: float) -> torch.SymInt | torch.SymFloat | None:
    """A symbol for a number of which nothing is known but what it is now, and its class; `symbol_name` gives this name.

    None where this torch gives it another name.
    """
    source = torch._dynamo.source.ConstantSource(_OF_NUMBER + name)
    dynamic = symbolic_shapes.DimDynamic.DYNAMIC
    made = shape_env.create_symbol(now, source, dynamic, None, positive=None, do_not_specialize_zero_one=True)
    node_of = shape_env.create_symintnode if type(now) is int else shape_env.create_symfloatnode
    number: Any = node_of(made, hint=now, source=source)
    return number if symbol_name(number) == name else None


def product_of_symbols(first: Any, second: Any) -> Any:
    """A product of two numbers as torch computes with symbols, whatever their operators do now."""
    a, b, _ = _nodes_of(first, second)
    return first * second if a is None else _number_of(a.mul(b))


def quotient_of_symbols(first: Any, second: Any) -> Any:
    """A quotient of two numbers, a float, in the same way."""
    a, b, are_whole = _nodes_of(first, second)
    return first / second if a is None else _number_of(a.int_truediv(b) if are_whole else a.float_truediv(b))


def _nodes_of(*numbers: Any) -> tuple[Any, Any, bool]:
    """What torch computes with, of one class, and whether they are whole; None where both numbers are plain."""
    near = next((number.node for number in numbers if isinstance(number, SYMBOLIC_TYPES)), None)
    if near is None:
        return None, None, False
    wrap: dict[type, Callable[[Any], Any]] = {bool: near.wrap_int, int: near.wrap_int, float: near.wrap_float}
    nodes = [wrap[type(x)](x) if type(x) in wrap else x.node for x in numbers]
    are_whole = all(node.is_int() for node in nodes)
    first, second = (node if are_whole or node.is_float() else node.sym_float() for node in nodes)
    return first, second, are_whole


def _number_of(node: Any) -> torch.SymInt | torch.SymFloat:
    return torch.SymInt(node) if node.is_int() else torch.SymFloat(node)


def hints_of_symbols(number: torch.SymInt | torch.SymFloat) -> dict[str, int | float]:
    """What each symbol in a symbolic number is now, by name, where that is known."""
    env, unknown = number.node.shape_env, symbolic_shapes.free_unbacked_symbols(number)
    symbols = number.node.expr.free_symbols - unknown
    return {_name_of(one): _hint_of_symbol(env, one) for one in symbols}


def _hint_of_symbol(env: ShapeEnv, one: sympy.Symbol) -> int | float:
    number: Any = (env.create_symintnode if one.is_integer else env.create_symfloatnode)(one, hint=None)
    return int(number.node.hint) if one.is_integer else float(number.node.hint)


def unknown_symbols(number: torch.SymInt | torch.SymFloat) -> dict[str, type]:
    """The symbols in a symbolic number that only data tell, by name, with the class of numbers that each stands for."""
    unknown = symbolic_shapes.free_unbacked_symbols(number)
    return {_name_of(one): int if one.is_integer else float for one in unknown}


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


def shape_env_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> ShapeEnv | None:
    """The environment that a symbolic number belongs to."""
    found: ShapeEnv | None = number.node.shape_env
    return found


def depends_on_data(value: object) -> bool:
    """Whether a number, or a size of a tensor, is only known when a program runs on data."""
    return isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool) and bool(
        symbolic_shapes.free_unbacked_symbols(value)
    )


@contextmanager
def sizes_made_in_passing(shape_env: ShapeEnv | None) -> Iterator[None]:
    """While active, nobody is to account for new symbols for what depends on data: they describe a second run."""
    if shape_env is None:
        yield
        return
    with shape_env.ignore_fresh_unbacked_symbols():
        yield


def guard_trees(shape_env: ShapeEnv | None, first: int = 0) -> list[object]:
    """Every fact that the environment has assumed so far, from the first one asked for on, as expression trees."""
    return [] if shape_env is None else [expression_tree(guard.expr) for guard in shape_env.guards[first:]]


def expected_trees(shape_env: ShapeEnv | None) -> list[object]:
    """Every fact about sizes that are only known when a program runs which the environment has relied on so far."""
    if shape_env is None:
        return []
    facts = {fact.expr: None for facts in shape_env.deferred_runtime_asserts.values() for fact in facts}
    return [expression_tree(fact) for fact in facts]


def guard_count(shape_env: ShapeEnv | None) -> int:
    """How many facts the environment has assumed so far."""
    return 0 if shape_env is None else len(shape_env.guards)


_LOG = logging.getLogger("torch.fx.experimental.symbolic_shapes")


class NewSizeFact(RuntimeError):
    """An answer about symbolic sizes would have taken a fact that was not assumed before."""


@contextmanager
def _refused_facts(shape_env: Any) -> Iterator[None]:
    """What torch 2.11 asks before it notes a fact raises; later versions have a mode for that."""

    def refuse(expr: object, number: object) -> None:
        raise NewSizeFact(f"{expr} would have to be {number}")

    before = vars(shape_env).get("_check_frozen")
    shape_env._check_frozen = refuse
    try:
        yield
    finally:
        del shape_env._check_frozen
        if before is not None:
            shape_env._check_frozen = before


@contextmanager
def no_new_facts(shape_env: ShapeEnv | None) -> Iterator[None]:
    """While active, what would assume another fact about symbolic sizes raises an exception instead.

    Raises: NewSizeFact at the end, where a fact was assumed nevertheless.
    """
    refusing = getattr(shape_env, "error_on_new_guards", None)
    if refusing is None and shape_env is not None:
        refusing = partial(_refused_facts, shape_env)
    before = guard_count(shape_env)
    was_quiet, _LOG.disabled = _LOG.disabled, True  # it says of each refusal that something failed
    try:
        with nullcontext() if refusing is None else refusing():
            yield
    finally:
        _LOG.disabled = was_quiet
    if guard_count(shape_env) != before:
        raise NewSizeFact("a fact about symbolic sizes was assumed")
