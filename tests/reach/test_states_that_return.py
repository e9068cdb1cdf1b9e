"""Python state that a compiled function changes, and that is again what it was once: no program changes it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


class Shared:
    """What is kept in a class."""

    turn = 1.0


class Held:
    """What is kept in an object."""

    def __init__(self) -> None:
        Shared.turn = 1.0
        self.is_odd = False
        self.count = 0
        self.factors = [1.0, 2.0]
        self.ring = deque([1.0, 2.0, 3.0])
        self.table = OrderedDict(a=1.0, b=2.0)
        self.parts = {1}
        self.seen: Any = None
        self.now, self.then = torch.ones(2), torch.zeros(2)

    def shown(self) -> Any:
        """Everything, to be compared."""
        return Shared.turn, *map(str, vars(self).values())


def _flag(held: Held, x: Tensor) -> Tensor:
    held.is_odd = not held.is_odd
    return x * (2.0 if held.is_odd else 3.0)


def _count(held: Held, x: Tensor) -> Tensor:
    held.count = (held.count + 1) % 3
    return x * held.count


def _list(held: Held, x: Tensor) -> Tensor:
    held.factors.reverse()
    return x * held.factors[0]


def _ring(held: Held, x: Tensor) -> Tensor:
    held.ring.rotate()
    return x * held.ring[0]


def _order(held: Held, x: Tensor) -> Tensor:
    held.table.move_to_end(next(iter(held.table)))
    return x * next(iter(held.table.values()))


def _set(held: Held, x: Tensor) -> Tensor:
    held.parts ^= {2}
    return x * len(held.parts)


def _class(held: Held, x: Tensor) -> Tensor:
    Shared.turn = 3.0 - Shared.turn
    return x * Shared.turn


def _attribute(held: Held, x: Tensor) -> Tensor:
    if hasattr(held, "extra"):
        del held.extra
        return x
    held.extra = 1.0
    return x * 2


def _size(held: Held, x: Tensor) -> Tensor:
    held.seen = len(x)
    return x * 2


def _tensors(held: Held, x: Tensor) -> Tensor:
    held.now, held.then = held.then, held.now
    return held.now.add_(x.sum()) * 1


CHANGES = [_flag, _count, _list, _ring, _order, _set, _class, _attribute, _size, _tensors]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_made_in_every_call(change: Callable[[Held, Tensor], Tensor]) -> None:
    held, expected = Held(), Held()
    compiled = dovetail.compile(lambda x: change(held, x))
    runs: list[list[Any]] = [[], []]
    for seen, state, call in ((runs[0], expected, lambda x: change(expected, x)), (runs[1], held, compiled)):
        Shared.turn = 1.0
        for number in range(6):
            result = call(torch.full((2 + number % 2,) if change is _size else (2,), float(number)))
            seen.append((result.tolist(), state.shown()))
    assert runs[0] == runs[1]


def test_what_is_filled_once_costs_one_program_more() -> None:
    held = Held()

    def program(x: Tensor) -> Tensor:
        if held.seen is None:
            held.seen = 2.0
        return x * float(held.seen)

    compiled = dovetail.compile(program)
    for number in range(4):
        assert compiled(torch.full((2,), float(number))).tolist() == [2.0 * number] * 2
    assert compiled.stats.captures == 2
    held.seen = None
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert held.seen == 2.0
