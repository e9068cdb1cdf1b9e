"""Sets are compared in the order in which code goes through them: equal ones may give theirs in other orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

DOORS = {"compile": dovetail.compile, "step": dovetail.compile_step}


class Holder:
    """Holds a set."""

    held: Any = frozenset()


def orders(kind: type) -> list[Any]:
    """Equal sets: 0 and 8 have one place in a table of 8, and whoever came first stays there."""
    made = [kind(), kind()]
    if kind is set:
        for one, values in zip(made, ((0, 8), (8, 0)), strict=True):
            for value in values:
                one.add(value)
    else:
        made = [frozenset([0, 8]), frozenset([8, 0])]
    assert made[0] == made[1]
    assert list(made[0]) != list(made[1])
    return made


def folded(x: Tensor, held: Any) -> Tensor:
    for value in held:
        x = x * 2 + value
    return x


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [set, frozenset])
def test_the_order_of_a_set_that_is_held_is_guarded(kind: type, door: str) -> None:
    holder, (one, other), x = Holder(), orders(kind), torch.ones(2)
    compiled = DOORS[door](lambda x: folded(x, holder.held))
    for holder.held in (one, one, one, other, other, one):
        assert torch.equal(compiled(x), folded(x, holder.held))
    assert compiled.stats.captures == 2


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [set, frozenset])
def test_the_order_of_a_set_among_the_arguments_is_guarded(kind: type, door: str) -> None:
    (one, other), x = orders(kind), torch.ones(2)
    compiled = DOORS[door](folded)
    for held in (one, one, one, other, other, one):
        assert torch.equal(compiled(x, held), folded(x, held))


def test_an_equal_set_made_anew_has_the_same_program() -> None:
    holder, x = Holder(), torch.ones(2)
    compiled = dovetail.compile_step(lambda x: folded(x, holder.held) if 8 in holder.held else x)
    for _ in range(4):
        holder.held = {0, 8, 3}
        compiled(x)
    assert compiled.stats.captures == 1
