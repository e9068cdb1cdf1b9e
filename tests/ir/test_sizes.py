"""Size expressions print as Python, evaluate as Python does, and survive serialisation."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dovetail.ir.sizes import (
    OPAQUE,
    OPERATIONS,
    OrOne,
    Scalar,
    SizeExpr,
    evaluate,
    from_json,
    holds,
    is_same_product,
    number_text,
    product,
    symbol,
    to_json,
)

S0, S1 = symbol("s0"), symbol("s1")
_ENV = st.fixed_dictionaries({"s0": st.integers(0, 9), "s1": st.integers(-5, 5), "s2": st.floats(-3, 3)})
_LEAVES = st.one_of(
    st.sampled_from([S0, S1, symbol("s2")]),
    st.integers(-4, 4),
    st.floats(-2, 2, allow_nan=False),
    st.sampled_from([math.inf, -math.inf, -0.0]),
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BINARY = ("add", "mul", "floordiv", "truediv", "mod", "max", "min", *_COMPARISONS)
_UNARY = ("floor", "ceil", "trunc", "round", "float", "int", "abs", *OPAQUE)
_BITWISE = ("bitand", "bitor", "bitxor")


def _grow(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    def of(ops: tuple[str, ...], *args: st.SearchStrategy[Scalar]) -> st.SearchStrategy[SizeExpr]:
        return st.builds(SizeExpr, st.sampled_from(ops), st.tuples(*args))

    truth = of(_COMPARISONS, inner, inner)
    return st.one_of(
        of(_BINARY, inner, inner),
        of(("add", "mul"), inner, inner, inner),
        of(_UNARY, inner),
        of(("pow",), inner, st.integers(0, 3)),
        of(("round",), inner, st.integers(-2, 3)),
        of(_BITWISE, inner.map(lambda size: SizeExpr("int", (size,))), st.integers(-9, 9)),
        of(("and", "or"), truth, truth),
        of(("not",), inner),
        of(("where",), truth, inner, inner),
    )


_EXPRESSIONS = st.recursive(_LEAVES, _grow, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(_EXPRESSIONS, _ENV)
def test_the_text_means_what_evaluate_says(size: Scalar, env: dict[str, float]) -> None:
    try:
        value = evaluate(size, env)
    except (ZeroDivisionError, ValueError, OverflowError):
        assume(False)
    text = str(size) if isinstance(size, SizeExpr) else number_text(size)
    told = eval(text, {"math": math}, dict(env))
    assert type(told) is type(value)
    assert repr(told) == repr(value)


@settings(max_examples=200, deadline=None)
@given(_EXPRESSIONS)
def test_serialised_and_read_back(size: Scalar) -> None:
    again = from_json(json.loads(json.dumps(to_json(size))))
    assert again == size
    assert repr(again) == repr(size)
    assert hash(again) == hash(size)


def test_the_strategy_builds_every_operation() -> None:
    assert {*_BINARY, *_UNARY, *_BITWISE, "pow", "and", "or", "not", "where"} == OPERATIONS


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (SizeExpr("mul", (S0, 4)), "s0 * 4"),
        (SizeExpr("mul", (SizeExpr("add", (S0, 1)), S1)), "(s0 + 1) * s1"),
        (SizeExpr("max", (SizeExpr("add", (S0, 1)), 2)), "max(s0 + 1, 2)"),
        (SizeExpr("eq", (SizeExpr("not", (S0,)), S1)), "(not (s0)) == s1"),
        (SizeExpr("pow", (-2, S0)), "(-2) ** s0"),
        (SizeExpr("where", (SizeExpr("gt", (S0, 1)), S0, 0)), "(s0 if s0 > 1 else 0)"),
        (SizeExpr("mul", (S0, math.inf)), "s0 * math.inf"),
        (SizeExpr("bitand", (SizeExpr("add", (S0, 1)), 5)), "(s0 + 1) & 5"),
        (SizeExpr("round", (SizeExpr("log2", (S0,)), 2)), "round(math.log2(s0), 2)"),
    ],
)
def test_text(size: SizeExpr, text: str) -> None:
    assert str(size) == repr(size) == text


def test_terms_are_added_as_python_adds_them() -> None:
    assert SizeExpr("add", (0.1, 0.2, 0.3)).evaluate({}) == 0.1 + 0.2 + 0.3


def test_symbols_come_in_order_with_repeats() -> None:
    assert list(SizeExpr("add", (SizeExpr("mul", (S1, S0)), 3, S1)).symbols()) == ["s1", "s0", "s1"]


def test_a_symbol_without_a_value() -> None:
    with pytest.raises(KeyError, match="s1"):
        SizeExpr("add", (S0, S1)).evaluate({"s0": 1})


@pytest.mark.parametrize(
    "data", [None, "s0", [], ["symbol"], ["symbol", 3], ["add"], ["nope", 1], ["add", "s0"], [1, 2], {}]
)
def test_what_is_no_serialised_size_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a serialised size"):
        from_json(data)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), 1),
        ((2, 3), 6),
        ((S0,), S0),
        ((S0, 0), 0),
        ((1, S0, S1), SizeExpr("mul", (S0, S1))),
        ((2, S0, 3), SizeExpr("mul", (S0, 6))),
    ],
)
def test_product(sizes: tuple[int | SizeExpr, ...], expected: object) -> None:
    assert product(sizes) == expected


def test_a_size_without_a_number_is_no_divisor_of_zero() -> None:
    windows = SizeExpr("floordiv", (S0, SizeExpr("floordiv", (S1, 2))))
    assert evaluate(S0, OrOne()) == 1
    assert evaluate(windows, OrOne()) == 2
    with pytest.raises(ZeroDivisionError):
        evaluate(windows, {"s0": 4, "s1": 1})


def test_a_fact_that_divides_by_zero_does_not_hold() -> None:
    fact = SizeExpr("eq", (SizeExpr("mod", (S0, S1)), 0))
    assert holds(fact, {"s0": 4, "s1": 2})
    assert not holds(fact, {"s0": 4, "s1": 3})
    assert not holds(fact, {"s0": 4, "s1": 0})


def test_products_of_the_same_factors() -> None:
    a, b = SizeExpr("symbol", ("a",)), SizeExpr("symbol", ("b",))
    four_a = SizeExpr("mul", (4, a))
    assert is_same_product(four_a, SizeExpr("mul", (a, 4)))
    assert is_same_product(SizeExpr("mul", (four_a, b)), SizeExpr("mul", (2, SizeExpr("mul", (b, a)), 2)))
    assert not is_same_product(four_a, SizeExpr("mul", (a, 2)))
    assert not is_same_product(four_a, SizeExpr("mul", (b, 4)))
    assert not is_same_product(a, SizeExpr("mul", (a, a)))
    assert is_same_product(SizeExpr("add", (a, 1)), SizeExpr("mul", (1, SizeExpr("add", (a, 1)))))
    assert not is_same_product(4, a)
