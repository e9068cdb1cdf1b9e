"""Functions of rows: which operators go over the last dimensions of their operands, and what they compute of a row.

Source: torch's `SoftMaxKernel.cpp`, `layer_norm.cpp`, `ReduceOps.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail.execute.native.formula import (
    Formula,
    absolute,
    at,
    columns,
    compared,
    constant,
    fma,
    largest,
    operand,
    root,
    select,
    total,
)
from dovetail.execute.native.own_functions import exp, exp_of_negative, log
from dovetail.execute.native.row_loop import Span
from dovetail.ir.program import Operand, Value

Arguments = Mapping[str, Operand]
Result = tuple[Span, Formula]
_A, _B, _ZERO, _ONE = operand(0), operand(1), constant(0.0), constant(1.0)
_INFINITE = constant(float("inf"))


@dataclass(frozen=True, slots=True)
class RowRule:
    """operands: tensors that are read, in the order of formulas, and which part of each; those that are None are left
    out. dims: the dimensions that make up a row, as the arguments name them; None where that is not known. results:
    formulas of the results; None where they are others. of: the argument that is the matrix. index: the operand, whole
    numbers, that says which element of each row is meant. numbers: arguments that formulas read behind the tensors.
    """

    operands: Mapping[str, Span]
    dims: Callable[[Arguments, int], Sequence[int] | None]
    results: Callable[[Arguments], tuple[Result, ...] | None]
    of: str = "self"
    index: str = ""
    numbers: tuple[str, ...] = ()


def _of_dim(arguments: Arguments, count: int) -> Sequence[int] | None:
    """The dimension, or the dimensions, that are given. count: how many there are."""
    given = arguments.get("dim")
    dims = given if isinstance(given, list | tuple) else [given]
    known = [dim % count for dim in dims if isinstance(dim, int) and -count <= dim < count]
    return sorted(known) if known and len(set(known)) == len(dims) else None


def _normalized(arguments: Arguments, count: int) -> Sequence[int] | None:
    """As many of the last dimensions as have sizes."""
    shape = arguments.get("normalized_shape")
    return range(count - len(shape), count) if isinstance(shape, list | tuple) and 0 < len(shape) <= count else None


def _last_of_two(arguments: Arguments, count: int) -> Sequence[int] | None:
    return [1] if count == 2 else None


def _whole(formula: Formula) -> Callable[[Arguments], tuple[Result, ...] | None]:
    return lambda arguments: ((Span.WHOLE, formula),) if _is_float(arguments) else None


def _each(formula: Formula) -> Callable[[Arguments], tuple[Result, ...] | None]:
    return lambda arguments: ((Span.EACH, formula),) if _is_float(arguments) else None


def _is_float(arguments: Arguments) -> bool:
    """Whether nothing is computed of another dtype, or made one."""
    dtypes = [arguments.get(name) for name in ("dtype", "input_dtype")]
    return arguments.get("half_to_float") in (None, False) and all(each in (None, torch.float32) for each in dtypes)


def _softmax() -> Formula:
    grown = exp_of_negative(_A - largest(_A))
    return grown * (_ONE / total(grown))


def _safe_softmax() -> Formula:
    """A row of minus infinity gives zeros."""
    return select(compared("eq", largest(_A), -_INFINITE), _ZERO, _softmax())


def _log_softmax() -> Formula:
    moved = _A - largest(_A)
    return moved - log(total(exp_of_negative(moved)))


def _log_of_sum() -> Formula:
    """A row of minus infinity gives it, not NaN."""
    most = largest(_A)
    moved = select(compared("eq", absolute(most), _INFINITE), _ZERO, most)
    return log(total(exp(_A - moved))) + moved


def _moments() -> tuple[Formula, Formula, Formula]:
    """The difference from the mean, the mean, and the variance.

    What the mean is rounded by is found from the differences, and taken away from them: a row of equal numbers gives
    zeros. Squares that are too large for the dtype give an infinite variance, as in eager mode.
    """
    near = total(_A) / columns()
    rest, squares = _squares(_A - near)
    return _A - near - rest, near + rest, squares / columns()


def _squares(moved: Formula) -> tuple[Formula, Formula]:
    """The mean of differences, and the sum of their squares without it."""
    rest, squares = total(moved) / columns(), total(moved * moved)
    left = squares - rest * rest * columns()
    left = select(compared("lt", squares, _INFINITE), left, squares)
    return rest, select(compared("lt", left, _ZERO), _ZERO, left)


def _variances(*, roots: bool = False, means: bool = False) -> Callable[[Arguments], tuple[Result, ...] | None]:
    """Eager mode adds squares in double precision: here rows of huge or tiny numbers are scaled by a power of two."""

    def results(arguments: Arguments) -> tuple[Result, ...] | None:
        correction = arguments.get("correction")
        less = 1.0 if correction is None else correction
        if not isinstance(less, int | float) or not 0 <= less <= 1:
            return None
        scale, back = _scales(largest(absolute(_A)))
        near = total(_A * (_ONE / columns())) * scale
        rest, squares = _squares(_A * scale - near)
        variance = squares / (columns() - constant(float(less)))
        first = (Span.EACH, root(variance) * back if roots else variance * back * back)
        return (first, (Span.EACH, (near + rest) * back)) if means else (first,)

    return results


def _scales(most: Formula) -> tuple[Formula, Formula]:
    """A power of two by which squares of numbers up to `most` are normal, and what undoes it. Most rows need none."""
    is_huge, is_tiny = compared("gt", most, constant(2.0**40)), compared("lt", most, constant(2.0**-40))
    down, up = constant(2.0**-96), constant(2.0**96)
    return select(is_huge, down, select(is_tiny, up, _ONE)), select(is_huge, up, select(is_tiny, down, _ONE))


def _layer_norm(arguments: Arguments) -> tuple[Result, ...] | None:
    eps = arguments.get("eps")
    if not isinstance(eps, float):
        return None
    moved, mean, variance = _moments()
    scale = _ONE / root(variance + constant(eps))
    made, place = moved * scale, 1
    if isinstance(arguments.get("weight"), Value):
        made, place = made * operand(place), place + 1
    if isinstance(arguments.get("bias"), Value):
        made = made + operand(place) if place == 1 else fma(made.parts[0], made.parts[1], operand(place))
    return (Span.WHOLE, made), (Span.EACH, mean), (Span.EACH, scale)


def _norm(arguments: Arguments) -> tuple[Result, ...] | None:
    is_plain = arguments.get("ord", 2) in (2, 2.0) and _is_float(arguments)
    return ((Span.EACH, root(total(_A * _A))),) if is_plain else None


def _nll_gradient(arguments: Arguments) -> tuple[Result, ...] | None:
    """Of the mean, or of the sum. What is to be ignored is no class."""
    ignored, reduction = arguments.get("ignore_index"), arguments.get("reduction")
    if arguments.get("weight") is not None or reduction not in (1, 2):
        return None
    if not isinstance(ignored, int) or ignored >= 0:
        return None
    gradient = -(operand(1) / operand(2)) if reduction == 1 else -operand(1)
    return ((Span.WHOLE, select(at(_A), gradient, _ZERO)),)


def _scattered(arguments: Arguments) -> tuple[Result, ...] | None:
    """A number, put into one element of each row."""
    if "value" not in arguments or arguments.get("reduce") is not None:
        return None
    return ((Span.WHOLE, select(at(_B), operand(2), _A)),)


_SCATTER = RowRule({"self": Span.WHOLE, "index": Span.EACH}, _of_dim, _scattered, index="index", numbers=("value",))
_ONLY = {"self": Span.WHOLE}
_GRADIENT = {"grad_output": Span.WHOLE, "output": Span.WHOLE}

ROW_RULES: dict[str, RowRule] = {
    "_softmax": RowRule(_ONLY, _of_dim, _whole(_softmax())),
    "_safe_softmax": RowRule(_ONLY, _of_dim, _whole(_safe_softmax())),
    "_log_softmax": RowRule(_ONLY, _of_dim, _whole(_log_softmax())),
    "_softmax_backward_data": RowRule(_GRADIENT, _of_dim, _whole((_A - total(_A * _B)) * _B), of="output"),
    "_log_softmax_backward_data": RowRule(_GRADIENT, _of_dim, _whole(fma(-exp(_B), total(_A), _A)), of="output"),
    "sum": RowRule(_ONLY, _of_dim, _each(total(_A))),
    "mean": RowRule(_ONLY, _of_dim, _each(total(_A) / columns())),
    "amax": RowRule(_ONLY, _of_dim, _each(largest(_A))),
    "amin": RowRule(_ONLY, _of_dim, _each(-largest(-_A))),
    "logsumexp": RowRule(_ONLY, _of_dim, _each(_log_of_sum())),
    "linalg_vector_norm": RowRule(_ONLY, _of_dim, _norm),
    "var": RowRule(_ONLY, _of_dim, _variances()),
    "std": RowRule(_ONLY, _of_dim, _variances(roots=True)),
    "var_mean": RowRule(_ONLY, _of_dim, _variances(means=True)),
    "native_layer_norm": RowRule(
        {"input": Span.WHOLE, "weight": Span.PIECE, "bias": Span.PIECE}, _normalized, _layer_norm, of="input"
    ),
    "nll_loss_backward": RowRule(
        {"target": Span.EACH, "grad_output": Span.SINGLE, "total_weight": Span.SINGLE},
        _last_of_two,
        _nll_gradient,
        index="target",
    ),
    "scatter": _SCATTER,
    "scatter_": _SCATTER,
}
"""By the name of an operator of torch."""
