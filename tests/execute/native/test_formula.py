"""Formulas are compared by what they say."""

from __future__ import annotations

import math

from dovetail.execute.native.formula import constant, fma, operand, substituted


def _made(number: float = 2.0, place: int = 1) -> object:
    return fma(operand(0), constant(number), operand(place) * operand(0))


def test_formulas_that_say_the_same_are_equal() -> None:
    assert _made() == _made()
    assert hash(_made()) == hash(_made())
    assert constant(math.nan) == constant(math.nan)


def test_formulas_that_differ_anywhere_are_not() -> None:
    assert _made() != _made(3.0)
    assert _made() != _made(place=2)
    assert constant(0.0) != constant(-0.0)
    assert operand(0) + operand(1) != operand(1) + operand(0)
    assert operand(0) != "a"


def test_numbers_in_the_places_of_operands() -> None:
    formula = operand(0) * operand(1) + operand(2)
    assert substituted(formula, {}) is formula
    assert str(substituted(formula, {1: -0.0})) == "add(mul(a, -0.0), b)"
    assert str(substituted(formula, {1: 0.0})) == "add(mul(a, 0.0), b)"
