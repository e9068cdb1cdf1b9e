"""Random numbers from Python and NumPy in a step: drawn for real in each call, in order, also after a wrong guess."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import random as by_name
from typing import Any

import numpy as np
import pytest
import torch

import dovetail
from dovetail.errors import DovetailError

Draw = Callable[[], Any]


def drawn(make: Callable[[], Draw], calls: int = 8, *, branches: bool = False) -> Any:
    """Compare a step that uses a draw, eager and compiled: results and generators. Returns the compiled one."""
    found, run = [], None
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        draw = make()
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> Any:
            number = draw()  # noqa: B023
            if branches and number > 0.5:
                x = -x
            optimizer.zero_grad()  # noqa: B023
            loss = net(number * x + (1 - number) * x.flip(0)).square().mean()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.item(), draw()  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        results = [run(torch.full((4, 3), 0.1 * n) + torch.arange(4.0)[:, None]) for n in range(calls)]
        states = repr(random.getstate()), repr(np.random.get_state()), [draw() for _ in range(3)]
        found.append((results, states, net.weight.tolist()))
    assert found[0] == found[1]
    return run


def closed_over(make: Callable[[], Any], name: str, *args: Any) -> Callable[[], Draw]:
    """A draw from a generator that a closure holds."""

    def made() -> Draw:
        numbers = make()
        return lambda: getattr(numbers, name)(*args)

    return made


DRAWS: dict[str, Callable[[], Draw]] = {
    "beta": lambda: lambda: np.random.beta(0.2, 0.2),
    "randint of NumPy": lambda: lambda: np.random.randint(0, 5),
    "rand": lambda: lambda: np.random.rand() + 0.5,
    "random": lambda: lambda: random.random() / 2,
    "uniform": lambda: lambda: random.uniform(-1, 1),
    "gauss": lambda: lambda: random.gauss(0, 1),
    "randint": lambda: lambda: random.randint(0, 9),
    "by its name": lambda: lambda: by_name() * 1.0,
    "choice": lambda: lambda: random.choice([0.1, 0.2, 0.7]),
    "a generator": closed_over(lambda: np.random.default_rng(0), "beta", 0.3, 0.3),
    "an old generator": closed_over(lambda: np.random.RandomState(0), "normal"),
    "a generator of Python": closed_over(lambda: random.Random(0), "uniform", 0, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_drawn_in_every_call_by_one_program(name: str) -> None:
    stats = drawn(DRAWS[name]).stats
    assert (stats.captures, stats.eager_calls) == (1, 1), stats


@pytest.mark.parametrize("name", ["uniform", "a generator"])
def test_a_branch_on_a_draw_puts_the_generators_back(name: str) -> None:
    stats = drawn(DRAWS[name], 12, branches=True).stats
    assert stats.captures == 2
    assert stats.guard_misses


def test_draws_whose_number_depends_on_data() -> None:
    def make() -> Draw:
        def draw() -> float:
            number = random.random()
            return number + random.random() if number > 0.6 else number

        return draw

    drawn(make, 12)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.permutation(4),
        lambda: np.random.rand(3),
        lambda: random.shuffle([1, 2, 3]),
        lambda: np.random.seed(1),
        lambda: random.choice("abc"),
    ],
    ids=["permutation", "array", "shuffle", "seed", "no number"],
)
def test_other_draws_are_refused_and_nothing_has_moved(draw: Callable[[], Any]) -> None:
    weight = torch.ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        draw()
        return weight.add_(x).clone()

    run = dovetail.compile_step(step)
    run(torch.ones(3))
    before = repr(random.getstate()), repr(np.random.get_state()), weight.clone()
    with pytest.raises(DovetailError, match=r"draws|sets"):
        run(torch.ones(3))
    assert (repr(random.getstate()), repr(np.random.get_state())) == before[:2]
    assert torch.equal(weight, before[2])


def test_arguments_that_are_computed_are_refused() -> None:
    def step(x: torch.Tensor) -> float:
        return random.uniform(0, x.sum().item())

    run = dovetail.compile_step(step)
    run(torch.ones(3))
    with pytest.raises(DovetailError, match="with arguments that it computes"):
        run(torch.ones(3))
