"""Functions that a call makes, with what they close over: none of it is there when the next call begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail


def _memo(x: Tensor) -> Tensor:
    known: dict[int, int] = {}

    def count(k: int) -> int:
        if k not in known:
            known[k] = k if k < 2 else count(k - 1) + count(k - 2)
        return known[k]

    return x * count(6)


def _each_other(x: Tensor) -> Tensor:
    seen = {"even": 0, "odd": 0}

    def even(k: int) -> int:
        seen["even"] += 1
        return 0 if k == 0 else odd(k - 1)

    def odd(k: int) -> int:
        seen["odd"] += 1
        return 1 if k == 0 else even(k - 1)

    return x * (1 + even(5)) * seen["odd"]


def _search() -> Callable[[int], int]:
    best = {"x": 9}

    def look(k: int) -> int:
        best["x"] = min(best["x"], k)
        return look(k - 1) if k > 1 else best["x"]

    return look


def _made_elsewhere(x: Tensor) -> Tensor:
    return x * (1 + _search()(3))


def _deep(n: int) -> int:
    return _search()(n)


_SEARCHES = {"deep": _deep}


def _found_in_a_table(x: Tensor) -> Tensor:
    return x * _SEARCHES["deep"](4)


_CALLS = (_memo, _each_other, _made_elsewhere, _found_in_a_table)


@pytest.mark.parametrize("call", _CALLS)
def test_one_program_serves_all_calls(call: Callable[[Tensor], Tensor]) -> None:
    compiled = dovetail.compile(call)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        assert torch.equal(call(x), compiled(x))
    assert compiled.stats.captures == 1, compiled.stats


@pytest.mark.parametrize("call", _CALLS)
def test_steps_change_none_of_it(call: Callable[[Tensor], Tensor]) -> None:
    weight = torch.ones(3, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        loss = call(x * weight).sum()
        loss.backward()
        return loss.detach()

    compiled = dovetail.compile_step(step, keep_grads=False)
    for _ in range(4):
        x = torch.randn(3)
        wanted = call(x * weight).sum()
        assert torch.equal(compiled(x), wanted)
    assert compiled.stats.captures == 2, compiled.stats  # without a gradient from before, and with one


def test_what_a_function_from_before_closes_over_counts() -> None:
    """The same code, of a function that an earlier call has made and kept."""
    kept = {"factor": 2}

    def outer() -> Callable[[int], int]:
        def inner(k: int) -> int:
            return inner(k - 1) if k else kept["factor"]

        return inner

    held = [outer()]
    compiled = dovetail.compile(lambda x: x * held[0](2))
    x = torch.ones(2)
    assert torch.equal(compiled(x), x * 2)
    kept["factor"] = 3
    assert torch.equal(compiled(x), x * 3)
