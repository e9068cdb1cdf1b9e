"""Which operators can be machine code, and by which formulas: candidates, of which probes choose.

A rule is found by the name of an operator without its `_`; it serves the functional form, the one in place, and the one
with `out=`. Whether a candidate gives eager's bits is never assumed: see `execute.native.probes`.
"""

from __future__ import annotations

from dovetail.execute.native.activations import ACTIVATIONS
from dovetail.execute.native.formula import (
    Formula,
    absolute,
    by_place,
    by_place_of_one,
    compared,
    constant,
    eagers,
    either,
    fma,
    is_nan,
    operand,
    root,
    rounded,
    select,
    sleef,
    vector,
)
from dovetail.execute.native.rule import TWO_BY_COUNT, Rule

_A, _B, _C, _D = map(operand, range(4))
_E = operand(4)
_ONE, _ZERO, _HALF = constant(1.0), constant(0.0), constant(0.5)


def _largest(a: Formula, b: Formula) -> tuple[Formula, ...]:
    """The larger one, or what is not a number; they differ in which of two zeros, and in which NaN, is taken."""
    return _extreme(a, b, "gt", "ge", "lt", "le")


def _smallest(a: Formula, b: Formula) -> tuple[Formula, ...]:
    return _extreme(a, b, "lt", "le", "gt", "ge")


def _extreme(a: Formula, b: Formula, strict: str, loose: str, back: str, loose_back: str) -> tuple[Formula, ...]:
    sum_of_both = a + b
    found: list[Formula] = []
    for how, first, second in ((strict, a, b), (loose, a, b), (back, b, a), (loose_back, b, a)):
        chosen = select(compared(how, a, b), first, second)
        found += [chosen, select(either(is_nan(a), is_nan(b)), sum_of_both, chosen)]
        found += [select(is_nan(a), a, chosen), select(is_nan(b), b, chosen)]
    return tuple(dict.fromkeys(found))


def _by_zeros(better: str, worse: str) -> tuple[Formula, ...]:
    """The larger (smaller) one: of two zeros the second where elements fill vectors, the first in the rest."""
    vectors, rest = select(compared(better, _A, _B), _A, _B), select(compared(worse, _A, _B), _B, _A)
    chosen = (by_place_of_one(vectors, rest), by_place(vectors, rest), vectors, rest)
    return tuple(select(either(is_nan(_A), is_nan(_B)), _A + _B, each) for each in chosen)


def _within(a: Formula, low: Formula, high: Formula) -> Formula:
    """Not less than one number, and not more than another; not a number if either of them is not."""
    raised = select(compared("lt", a, low), low, a)
    lowered = select(compared("lt", high, raised), high, raised)
    return select(either(is_nan(low), is_nan(high)), low + high, lowered)


def _lerps() -> tuple[Formula, ...]:
    """From the nearer end. Where the weight is 1, a product is a zero, whose sign is another one in the rest."""
    is_near, difference = compared("lt", absolute(_C), _HALF), _B - _A
    fused = select(is_near, fma(_C, difference, _A), fma(_C - _ONE, difference, _B))
    fused_rest = select(is_near, fma(_C, difference, _A), fma(-difference, _ONE - _C, _B))
    plain = select(is_near, _A + _C * difference, _B + (_C - _ONE) * difference)
    plain_rest = select(is_near, _A + _C * difference, _B - difference * (_ONE - _C))
    vectors, rests = (fused, plain), (fused_rest, plain_rest)
    return tuple(how(a, b) for how in (by_place, by_place_of_one) for a in vectors for b in rests)


def _compared(how: str) -> Rule:
    return Rule(("self", "other"), (compared(how, _A, _B),))


def _error_gradient(reduction: int, *others: int) -> Rule:
    """Of the squared error, for the ways to reduce it: 0 not at all, 1 to the mean, 2 to the sum."""
    twice = _D if reduction == 1 else constant(2.0)
    operands = ("grad_output", "self", "target", *((TWO_BY_COUNT,) if reduction == 1 else ()))
    products = (twice * (_B - _C) * _A, twice * ((_B - _C) * _A), (_B - _C) * (twice * _A))
    or_else = _error_gradient(*others) if others else None
    return Rule(operands, products, fixed={"reduction": reduction}, or_else=or_else)


_CLAMP_ONE_SIDE = Rule(
    ("self", "min"),
    _largest(_A, _B),
    fixed={"max": None},
    or_else=Rule(("self", "max"), _smallest(_A, _B), fixed={"min": None}),
)

_SIMPLE: dict[str, Rule] = {
    "add": Rule(("self", "other", "alpha"), (fma(_B, _C, _A), _A + _B * _C)),
    "sub": Rule(("self", "other", "alpha"), (fma(_B, -_C, _A), _A - _B * _C), avoided={"alpha": 0.0}),
    "rsub": Rule(("self", "other", "alpha"), (fma(_A, -_C, _B), _B - _A * _C), avoided={"alpha": 0.0}),
    "mul": Rule(("self", "other"), (_A * _B,)),
    "div": Rule(("self", "other"), (_A / _B, _A * (_ONE / _B)), fixed={"rounding_mode": None}),
    "neg": Rule(("self",), (-_A,)),
    "abs": Rule(("self",), (absolute(_A),)),
    "reciprocal": Rule(("self",), (_ONE / _A,)),
    "square": Rule(("self",), (_A * _A,)),
    "sqrt": Rule(("self",), (vector("Sqrt", _A), root(_A))),
    "rsqrt": Rule(("self",), (_ONE / root(_A), _ONE / vector("Sqrt", _A))),
    "exp": Rule(("self",), (vector("Exp", _A),)),
    "log": Rule(("self",), (vector("Ln", _A),)),
    "tanh": Rule(("self",), (vector("Tanh", _A),)),
    "erf": Rule(("self",), (vector("Erf", _A),)),
    **{name: Rule(("self",), (sleef(name, _A),)) for name in ("expm1", "log1p")},
    **{
        name: Rule(("self",), (vector(name.capitalize(), _A),))
        for name in ("log2", "log10", "asin", "acos", "atan", "tan")
    },
    **{name: Rule(("self",), (eagers(name, _A),)) for name in ("sinh", "cosh", "exp2")},
    **{name: Rule(("self",), (rounded(name, _A),)) for name in ("floor", "ceil", "trunc")},
    "round": Rule(("self",), (rounded("rint", _A),)),
    "frac": Rule(("self",), (_A - rounded("trunc", _A),)),
    "sign": Rule(
        ("self",), (select(compared("gt", _A, _ZERO), _ONE, select(compared("lt", _A, _ZERO), -_ONE, _ZERO)),)
    ),
    "sin": Rule(("self",), (vector("Sin", _A),)),
    "cos": Rule(("self",), (vector("Cos", _A),)),
    "relu": Rule(("self",), (select(compared("lt", _A, _ZERO), _ZERO, _A), *_largest(_A, _ZERO))),
    "clamp_min": Rule(("self", "min"), _largest(_A, _B)),
    "clamp_max": Rule(("self", "max"), _smallest(_A, _B)),
    "clamp": Rule(("self", "min", "max"), (_within(_A, _B, _C),), or_else=_CLAMP_ONE_SIDE),
    "hardtanh": Rule(("self", "min_val", "max_val"), (_within(_A, _B, _C),)),
    "maximum": Rule(("self", "other"), _by_zeros("gt", "lt")),
    "minimum": Rule(("self", "other"), _by_zeros("lt", "gt")),
    "threshold_backward": Rule(
        ("grad_output", "self", "threshold"),
        (select(compared("le", _B, _C), _ZERO, _A), select(compared("gt", _B, _C), _A, _ZERO)),
    ),
    "leaky_relu": Rule(
        ("self", "negative_slope"),
        (select(compared("gt", _A, _ZERO), _A, _A * _B), _A * select(compared("gt", _A, _ZERO), _ONE, _B)),
    ),
    "tanh_backward": Rule(
        ("grad_output", "output"),
        (_A * (_ONE - _B * _B), _A * fma(-_B, _B, _ONE)),
    ),
    "sigmoid_backward": Rule(
        ("grad_output", "output"),
        (_A * (_ONE - _B) * _B, _A * ((_ONE - _B) * _B), fma(-_B, _B, _B) * _A),
    ),
    "addcmul": Rule(
        ("self", "tensor1", "tensor2", "value"),
        (fma(_D * _B, _C, _A), _A + _D * _B * _C, fma(_D, _B * _C, _A), _A + _D * (_B * _C)),
    ),
    "addcdiv": Rule(
        ("self", "tensor1", "tensor2", "value"),
        (_A + (_D * _B) / _C, fma(_D, _B / _C, _A), _A + _D * (_B / _C)),
    ),
    "lerp": Rule(("self", "end", "weight"), _lerps()),
    "native_dropout_backward": Rule(
        ("grad_output", "mask", "scale"),
        (_A * (select(_B, _ONE, _ZERO) * _C), _A * select(_B, _ONE, _ZERO) * _C),
    ),
    "logical_not": Rule(("self",), (compared("eq", _A, _ZERO),)),
    "where": Rule(("condition", "self", "other"), (select(_A, _B, _C),)),
    "masked_fill": Rule(("mask", "self", "value"), (select(_A, _C, _B),)),
    "lt": _compared("lt"),
    "le": _compared("le"),
    "gt": _compared("gt"),
    "ge": _compared("ge"),
    "eq": _compared("eq"),
    "ne": _compared("ne"),
    "copy": Rule(("src",), (_A,)),
    "clone": Rule(("self",), (_A,)),
    "zero": Rule((), (_ZERO,)),
    "fill": Rule(("value",), (_A,)),
    **{name: Rule((), (_ONE,), is_fill=True) for name in ("ones", "ones_like", "new_ones")},
    **{name: Rule((), (_ZERO,), is_fill=True) for name in ("zeros", "zeros_like", "new_zeros")},
    **{name: Rule(("fill_value",), (_A,), is_fill=True) for name in ("full", "full_like", "new_full")},
    "scalar_tensor": Rule(("s",), (_A,), is_fill=True),
    "mse_loss": Rule(("self", "target"), ((_A - _B) * (_A - _B),), fixed={"reduction": 0}),
    "mse_loss_backward": _error_gradient(1, 2, 0),
    "pow": Rule(
        ("self",),
        by_value="exponent",
        of_value={
            0.5: (vector("Sqrt", _A), root(_A)),
            1.0: (_A,),
            2.0: (_A * _A,),
            3.0: (_A * _A * _A,),
            -0.5: (_ONE / root(_A), _ONE / vector("Sqrt", _A)),
            -1.0: (_ONE / _A,),
            -2.0: (_ONE / (_A * _A),),
        },
    ),
}

RULES: dict[str, Rule] = {**_SIMPLE, **ACTIVATIONS}

TRUTH_OPERANDS = frozenset({("where", "condition"), ("masked_fill", "mask"), ("native_dropout_backward", "mask")})
"""Operands that are tensors of truth values, by name of the rule and of the argument."""
