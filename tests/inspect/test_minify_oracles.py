"""When two failures are the same one."""

from __future__ import annotations

import math

import pytest
import torch

from dovetail.errors import InvalidProgram
from dovetail.inspect.minify_isolated import process_ending
from dovetail.inspect.minify_oracles import Failure, FailureKind, SameFailure, difference, raised, worst


def _same(one: str, other: str, *names: str) -> bool:
    first, second = (Failure(FailureKind.RAISED, "ValueError", text) for text in (one, other))
    return SameFailure(first, names).holds(second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12 nodes", "3 nodes"),
        ("object at 0x7f00aa", "object at 0x1"),
        ("shape (3, 4, 5)", "shape (3,)"),
        ("off by 0.5", "off by 1e-05"),
        ("off by -0.5", "off by 2"),
        ("node mul_3 is bad", "node relu is bad"),
        ("  from      a.py:3 in f\nbad", "  from      b.py:4 in g\nbad"),
        ("bad\n\n  thing", "bad thing"),
        ("node erf_default_12", "node erf_default"),
        ("argument 'erf_default'", "argument 'erf_default_1'"),
    ],
)
def test_texts_that_say_the_same(one: str, other: str) -> None:
    assert _same(one, other, "mul_3", "relu")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bad operator aten.mul.Tensor", "bad operator aten.add.Tensor"),
        ("bad operator aten.mul.Tensor", "bad operator aten.add.Tensor of 3"),
        ("no kernel", "no memory"),
        ("no kernel for float32", "no kernel for float64"),
        ("aten::mul failed", "aten::add failed"),
    ],
)
def test_texts_that_say_something_else(one: str, other: str) -> None:
    assert not _same(one, other, "mul", "add")


def test_the_class_of_an_error_counts() -> None:
    first = raised(ValueError("x"))
    assert SameFailure(first, ()).holds(raised(ValueError("x")))
    assert not SameFailure(first, ()).holds(raised(TypeError("x")))
    assert not SameFailure(first, ()).holds(None)
    one = raised(InvalidProgram(program="f", stage="split", rule="a rule", detail="v1", node="v1", origin="a.py:3"))
    other = raised(InvalidProgram(program="f", stage="split", rule="a rule", detail="v7", node="v7", origin="b.py:9"))
    third = raised(InvalidProgram(program="f", stage="split", rule="another rule", detail="v7", node="v7"))
    assert SameFailure(one, ["v1", "v7"]).holds(other)
    assert not SameFailure(one, ["v1", "v7"]).holds(third)


def test_differences_that_fade_are_others() -> None:
    first = Failure(FailureKind.DIFFERS, "numbers", amount=0.5)
    same = SameFailure(first, ())
    assert same.holds(Failure(FailureKind.DIFFERS, "numbers", amount=0.01))
    assert not same.holds(Failure(FailureKind.DIFFERS, "numbers", amount=1e-7))
    assert not same.holds(Failure(FailureKind.DIFFERS, "shape"))
    crashed = SameFailure(Failure(FailureKind.CRASHED, "signal SIGSEGV", "a"), ())
    assert crashed.holds(Failure(FailureKind.CRASHED, "signal SIGSEGV", "b"))
    assert not crashed.holds(Failure(FailureKind.CRASHED, "exit status 3", "a"))


@pytest.mark.parametrize(
    ("expected", "actual", "what"),
    [
        (torch.ones(3), torch.ones(3), None),
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf]), None),
        (torch.ones(3), torch.ones(2), "shape"),
        (torch.ones(3), torch.ones(3, dtype=torch.float64), "dtype"),
        (torch.ones(3), torch.tensor([1.0, 1.0, 1.5]), "numbers"),
        (torch.ones(2), torch.tensor([1.0, math.nan]), "finite numbers"),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), "finite numbers"),
        (torch.tensor([math.inf]), torch.tensor([math.nan]), "finite numbers"),
        (torch.zeros(2), -torch.zeros(2), "signs or strides"),
        (torch.eye(3), torch.eye(3).t(), "signs or strides"),
        (torch.tensor([1j, math.inf]), torch.tensor([2j, math.inf]), "numbers"),
        (torch.tensor([True]), torch.tensor([False]), "numbers"),
        (torch.zeros(0), torch.zeros(0), None),
        (1.0, 1.5, "number"),
        (1.0, 1, "type"),
        (None, torch.ones(1), "type"),
    ],
)
def test_how_results_differ(expected: object, actual: object, what: str | None) -> None:
    found = difference(expected, actual)
    assert (None if found is None else found.what) == what


def test_tolerance_is_relative_to_the_largest_number() -> None:
    one = torch.tensor([1000.0, 1.0])
    assert difference(one, one + 0.5, 1e-3) is None
    found = difference(one, one + 5, 1e-3)
    assert found is not None
    assert found.amount == pytest.approx(0.005)
    assert difference(torch.zeros(2), -torch.zeros(2), 1e-3) is None
    assert difference(1.0, 1.0001, 1e-3) is None


def test_the_worst_of_several() -> None:
    one = torch.ones(2)
    found = worst([(one, one + 1e-6), (one, one + 0.5), (one, one)])
    assert found is not None
    assert found.amount == pytest.approx(0.5)
    found = worst([(one, one + 0.5), (one, torch.ones(3))])
    assert found is not None
    assert found.what == "shape"
    assert worst([(one, one)]) is None


def test_it_is_written_and_read() -> None:
    failure = Failure(FailureKind.DIFFERS, "numbers", "by 1", 0.25)
    assert Failure.from_json(failure.to_json()) == failure
    assert (process_ending(3), process_ending(-11)) == ("exit status 3", "signal SIGSEGV")
