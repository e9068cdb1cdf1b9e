"""Numbers that are inputs of programs: beside numbers of other classes, in patterns, as keys; `dynamic` programs."""

from __future__ import annotations

import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


class Mode(enum.IntEnum):
    SUM = 2
    MEAN = 3


class Own(int):
    pass


def _matched(x: Tensor, k: int) -> Tensor:
    match k:
        case int():
            return x * k
        case _:
            return x * 0


def _matched_inside(x: Tensor, k: int) -> Tensor:
    match (k, 1.0):
        case (int(a), float(b)):
            return x * a * b
        case _:
            return x * 0


FUNCTIONS: dict[str, Callable[[Tensor, int], Any]] = {
    "enumeration": lambda x, k: x.mean() if k == Mode.MEAN else x.sum(),
    "member": lambda x, k: x * 2 if k in (Mode.MEAN,) else x,
    "key": lambda x, k: x * {Mode.MEAN: 5}.get(k, 1),  # type: ignore[call-overload]
    "other than": lambda x, k: x * (k != Mode.MEAN),
    "own class": lambda x, k: x * (k == Own(3)),
    "decimal": lambda x, k: x * (k == Decimal(3)) * float(Decimal(2) + k),
    "complex": lambda x, k: x * (k == 3 + 0j),
    "difference": lambda x, k: x * (Mode.MEAN - k),
    "pattern": _matched,
    "pattern inside": _matched_inside,
    "scalar tensor": lambda x, k: torch.scalar_tensor(k),
    "key of a result": lambda x, k: {k: x * 2},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers(name: str) -> None:
    compiled = dovetail.compile(FUNCTIONS[name])
    for k in (2, 3, 4, 3, 7):
        found, wanted = compiled(torch.ones(4), k), FUNCTIONS[name](torch.ones(4), k)
        if isinstance(wanted, dict):
            assert list(found) == list(wanted)
            assert [*map(type, found)] == [int]
            found, wanted = found[k], wanted[k]
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted), k


def test_indices_that_tensors_tell_in_dynamic_programs() -> None:
    function: Any = lambda x, i: x[i.item()] * 2 + x[:, int(i)].sum()  # noqa: E731
    compiled = dovetail.compile(function, dynamic=True)
    for size, i in ((6, 2), (6, 1), (6, 1), (7, 4)):
        x = torch.arange(float(size * size)).view(size, size)
        assert torch.equal(compiled(x, torch.tensor(i)), function(x, torch.tensor(i)))


def test_an_argument_that_may_be_none_in_dynamic_programs() -> None:
    compiled = dovetail.compile(lambda x, k, y: x * k if y is None else x + y, dynamic=True)
    for k, y in ((2, None), (3, torch.ones(3)), (4, None), (5, None), (6, torch.ones(3))):
        assert torch.equal(compiled(torch.ones(3), k, y), torch.ones(3) * k if y is None else torch.ones(3) + y)


@pytest.mark.parametrize("through", ["Dynamo", "dovetail.compile"])
def test_views_by_sizes_beside_gradients(through: str) -> None:
    function: Any = lambda x: (x[: x.shape[0] // 2], x.mean(0))  # noqa: E731
    if through == "Dynamo":
        compiled = torch.compile(function, backend="dovetail")
    else:
        compiled = dovetail.compile(function, dynamic=True)
    for size in (4, 5, 6):
        x, y = (torch.ones(size, 3, requires_grad=True) for _ in range(2))
        for given, called in ((x, compiled), (y, function)):
            first, second = called(given)
            (first.sum() + second.sum()).backward()
        assert torch.equal(x.grad, y.grad)
