"""Arguments that a collective cannot have are eager mode's error, and leave what eager mode leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dovetail
from tests.distributed.ranks import Ranks


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


_WRONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "bits of floats": lambda x: dist.all_reduce(x, dist.ReduceOp.BOR),
    "no such root": lambda x: dist.broadcast(x, 5),
    "a root below zero": lambda x: dist.reduce(x, -1),
    "a short list": lambda x: dist.all_gather([_empty(4, 2)], x),
    "another shape in a list": lambda x: dist.all_gather([_empty(4, 2), _empty(3, 2)], x),
    "another dtype in a list": lambda x: dist.all_gather([_empty(4, 2), _empty(4, 2, dtype=torch.float64)], x),
    "another size": lambda x: dist.all_gather_into_tensor(_empty(7, 2), x),
    "another shape": lambda x: dist.all_gather_into_tensor(_empty(16), x),
    "another dtype": lambda x: dist.all_gather_into_tensor(_empty(8, 2, dtype=torch.float64), x),
    "a number": lambda x: dist.all_gather_into_tensor(_empty(2), x.sum()),
    "an own part": lambda x: dist.all_gather_into_tensor(whole := _empty(9), whole[:4]),
    "too many parts": lambda x: dist.reduce_scatter(_empty(4, 2), [x, x, x]),
    "lists of another length": lambda x: dist.all_to_all([_empty(4, 2)], [x]),
    "lists of uneven tensors": lambda x: dist.all_to_all([_empty(3, 2), _empty(1, 2)], [x[:3], x[3:]]),
    "lengths that sum up to less": lambda x: dist.all_to_all_single(_empty(4, 2), x, [2, 2], [1, 2]),
    "lengths of more ranks": lambda x: dist.all_to_all_single(_empty(4, 2), x, [2, 1, 1], [2, 2]),
}
_RIGHT: dict[str, Callable[[torch.Tensor], Any]] = {
    "bits of bools": lambda x: dist.all_reduce(x > 0, dist.ReduceOp.BOR),
    "a list of other strides": lambda x: dist.all_gather([_empty(2, 4).t(), _empty(4, 2)], x),
    "a list of numbers": lambda x: dist.all_gather(list(_empty(2)), x.sum()),
    "another shape of as many rows": lambda x: dist.reduce_scatter_tensor(_empty(2, 2), x),
    "rows that ranks do not divide": lambda x: dist.all_to_all_single(_empty(3, 2), x[:3]),
    "no rows": lambda x: dist.all_gather_into_tensor(_empty(0, 2), x[:0]),
}


def _outcome(step: Callable[..., Any], weight: torch.Tensor) -> tuple[str, list[float]]:
    weight.fill_(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            step(torch.ones(4, 2))
            text = ""
        except (RuntimeError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
    return text, weight.tolist()


def _calls(rank: int, names: list[str]) -> list[tuple[str, Any, Any]]:
    found = []
    for name in names:
        weight, call = torch.ones(2), {**_WRONG, **_RIGHT}[name]

        def step(x: torch.Tensor, weight: torch.Tensor = weight, call: Callable[..., Any] = call) -> None:
            total = x.sum(0)
            weight.add_(1.0)
            call(x.clone())
            weight.add_(total)

        expected = _outcome(step, weight)
        found.append((name, expected, _outcome(dovetail.compile_step(step, state=[weight]), weight)))
    return found


@pytest.mark.parametrize("is_wrong", [True, False])
def test_wrong_arguments_are_an_error_of_eager_mode(two_ranks: Ranks, is_wrong: bool) -> None:
    for outcomes in two_ranks(_calls, list(_WRONG if is_wrong else _RIGHT)):
        for name, expected, found in outcomes:
            assert found == expected, name
            assert bool(expected[0]) == is_wrong, name
