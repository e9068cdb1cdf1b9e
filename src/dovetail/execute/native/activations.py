"""Rules of activation functions and their gradients, as torch's kernels compute them: Sleef's functions for elements
that fill vectors, those of C's library for the rest.

GELU of `float32` without approximation has none: torch calls oneDNN, whose polynomial is its own.

Source: `aten/src/ATen/native/cpu/Activation.cpp` and `BinaryOpsKernel.cpp`, and what probes found of multiplications
that compilers fused with additions.
"""

from __future__ import annotations

import math

from dovetail.execute.native.formula import (
    Formula,
    both,
    by_place,
    by_place_of_one,
    compared,
    constant,
    eagers,
    either,
    fma,
    is_nan,
    operand,
    select,
)
from dovetail.execute.native.rule import Rule

_A, _B, _C, _D, _E = map(operand, range(5))
_ONE, _ZERO, _HALF, _THREE, _SIX = map(constant, (1.0, 0.0, 0.5, 3.0, 6.0))


def _sigmoid(x: Formula) -> Formula:
    return _ONE / (_ONE + eagers("exp", -x))


def _within_zero_and_six(x: Formula) -> Formula:
    raised = select(compared("gt", x, _ZERO), x, _ZERO)
    return select(compared("lt", raised, _SIX), raised, _SIX)


def _hardtanh_backward() -> tuple[Formula, ...]:
    """What is not a number counts as outside where elements fill vectors, and as inside in the rest."""
    inside = both(compared("gt", _B, _C), compared("lt", _B, _D))
    outside = either(compared("le", _B, _C), compared("ge", _B, _D))
    vectors, rest = select(inside, _A, _ZERO), select(outside, _ZERO, _A)
    return by_place_of_one(vectors, rest), by_place(vectors, rest), vectors, rest


def _elu_backward(negative: Formula) -> Formula:
    """What is not a number counts as positive in the rest, and as negative elsewhere."""
    positive = _A * _C
    return by_place(
        select(compared("gt", _E, _ZERO), positive, negative), select(compared("le", _E, _ZERO), negative, positive)
    )


_GELU_MOST = 16_384
"""GELU_MIN_ELEMENTS_FOR_MULTI_THREADING."""
_BETA, _KAPPA = constant(math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5), constant(0.044715)


def _inner(x: Formula) -> Formula:
    return _BETA * fma(_KAPPA, x * x * x, x)


def _gelu_tanh_backward(x: Formula) -> Formula:
    tanh = eagers("tanh", _inner(x))
    slope = (_HALF * x) * fma(-tanh, tanh, _ONE) * (_BETA * fma(_THREE * _KAPPA, x * x, _ONE))
    return _A * (_HALF * (_ONE + tanh) + slope)


def _gelu_backward(x: Formula) -> Formula:
    """Of float64."""
    density = constant(2 / math.sqrt(math.pi) * math.sqrt(0.5) * 0.5) * eagers("exp", x * x * -_HALF)
    distribution = _HALF * (_ONE + eagers("erf", x * constant(math.sqrt(0.5))))
    return by_place(_A * fma(x, density, distribution), _A * (distribution + x * density))


ACTIVATIONS: dict[str, Rule] = {
    "sigmoid": Rule(("self",), (_sigmoid(_A),)),
    "silu": Rule(("self",), (_A / (_ONE + eagers("exp", -_A)),)),
    "silu_backward": Rule(("grad_output", "self"), (_A * _sigmoid(_B) * fma(_B, _ONE - _sigmoid(_B), _ONE),)),
    "gelu": Rule(
        ("self",),
        ((_HALF * _A) * (_ONE + eagers("tanh", _inner(_A))),),
        fixed={"approximate": "tanh"},
        or_else=Rule(
            ("self",),
            ((_A * _HALF) * (_ONE + eagers("erf", _A * constant(math.sqrt(0.5)))),),
            fixed={"approximate": "none"},
            most=_GELU_MOST,
        ),
        most=_GELU_MOST,
    ),
    "gelu_backward": Rule(
        ("grad_output", "self"),
        (_gelu_tanh_backward(_B),),
        fixed={"approximate": "tanh"},
        or_else=Rule(("grad_output", "self"), (_gelu_backward(_B),), fixed={"approximate": "none"}, most=_GELU_MOST),
        most=_GELU_MOST,
    ),
    "mish": Rule(("self",), (_A * eagers("tanh", eagers("log1p", eagers("exp", _A))),)),
    "softplus": Rule(
        ("self", "beta", "threshold"),
        (select(compared("gt", _A * _B, _C), _A, eagers("log1p", eagers("exp", _A * _B)) / _B),),
    ),
    "softplus_backward": Rule(
        ("grad_output", "self", "beta", "threshold"),
        (
            select(
                compared("gt", _B * _C, _D),
                _A,
                _A * eagers("exp", _B * _C) / (eagers("exp", _B * _C) + _ONE),
            ),
        ),
    ),
    "elu": Rule(
        ("self", "alpha", "scale", "input_scale"),
        (select(compared("lt", _A, _ZERO), eagers("expm1", _A * _D) * (_B * _C), _A * _C),),
    ),
    "elu_backward": Rule(
        ("grad_output", "alpha", "scale", "input_scale", "self_or_result"),
        (_elu_backward(_A * _D * (_B * _C) * eagers("exp", _E * _D)),),
        fixed={"is_result": False},
    ),
    "hardtanh_backward": Rule(("grad_output", "self", "min_val", "max_val"), _hardtanh_backward()),
    "hardswish": Rule(("self",), (_A * _within_zero_and_six(_A + _THREE) / _SIX,)),
    "hardsigmoid": Rule(("self",), (select(is_nan(_A), _A, _within_zero_and_six(_A + _THREE) / _SIX),)),
    "leaky_relu_backward": Rule(
        ("grad_output", "self", "negative_slope"),
        (select(compared("gt", _B, _ZERO), _A, _A * _C),),
        fixed={"self_is_result": False},
    ),
}
