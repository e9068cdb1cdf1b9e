"""What Python does with numbers that a step itself changes, draws or computes: followed, or one program each."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import dovetail

Use = Callable[[Any], Any]


class Counting:
    """What a step counts, and what it writes."""

    def __init__(self) -> None:
        self.number, self.share, self.pair = 3, 0.5, (3, "of")
        self.weight = torch.zeros(2)


def compared(use: Callable[[Counting, torch.Tensor], Any], calls: int = 6) -> Any:
    """Compare a step, eager and compiled: what it gives, with its types, and what it leaves."""
    found, run = [], None
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        now = Counting()

        def step(x: torch.Tensor) -> Any:
            now.weight.add_(x)  # noqa: B023
            return use(now, x)  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        results = [repr(run(torch.ones(2) + number)) for number in range(calls)]
        found.append((results, now.number, now.share, now.pair, now.weight.tolist(), random.getstate()))
    assert found[0] == found[1]
    return run


def counted(now: Counting) -> int:
    now.number += 1
    return now.number


OF_WHOLE: dict[str, Use] = {
    "inverted": lambda n: ~n,
    "parts": lambda n: (n.real, n.imag, n.numerator, n.denominator, n.conjugate()),
    "bits": lambda n: (n.bit_count(), n.bit_length()),
    "rounded": lambda n: (round(n * 37, -1), round(n), round(n, 1)),
    "power and remainder": lambda n: (pow(3, n, 7), pow(n, 2, 7), pow(50, 2, n), pow(n, 2)),
    "divided with remainder": lambda n: (divmod(100, n), divmod(n, 3)),
}
OF_ONE: dict[str, Use] = {
    "bytes": lambda n: n.to_bytes(2, "little"),
    "length": lambda n: deque(range(9), maxlen=n),
    "decimal": lambda n: Decimal(n) / 3,
    "fraction": lambda n: (Fraction(n, 6), Fraction(1, 3) * n),
    "key": lambda n: {f"epoch {n}": 1.0},
    "key with a format": lambda n: {"%03d" % n: 1.0},  # noqa: UP031
    "compared": lambda n: f"{n}" == "5",
    "measured": lambda n: len(str(n)),
    "read again": lambda n: int(f"{n}") + 1,
    "name": lambda n: getattr(math, f"log{n % 2 + 1}p", math.sqrt)(2.0),
}


@pytest.mark.parametrize("name", OF_WHOLE)
@pytest.mark.parametrize("kind", ["counted", "drawn", "computed"])
def test_whole_numbers_are_followed(name: str, kind: str) -> None:
    use = OF_WHOLE[name]
    made: dict[str, Callable[[Counting, torch.Tensor], int]] = {
        "counted": lambda now, _: counted(now),
        "drawn": lambda now, _: random.randint(2, 9),
        "computed": lambda now, x: int(x.sum().item()),
    }
    stats = compared(lambda now, x: use(made[kind](now, x))).stats
    assert stats.captures == 1, stats


@pytest.mark.parametrize("name", OF_ONE)
def test_where_code_needs_the_number_a_program_is_for_one(name: str) -> None:
    stats = compared(lambda now, x: OF_ONE[name](counted(now))).stats
    assert (stats.captures, stats.eager_calls) == (6, 0), stats


def test_a_part_of_a_tuple_is_the_number_where_code_needs_it() -> None:
    def use(now: Counting, x: torch.Tensor) -> Any:
        now.pair = (now.pair[0] + 1, now.pair[1])
        return {f"{now.pair[0]}": x.sum()}

    assert compared(use).stats.captures >= 6


def test_a_number_beside_one_that_code_needs_is_an_input() -> None:
    def use(now: Counting, x: torch.Tensor) -> Any:
        now.share *= 1.5
        return {f"{now.number % 2}": x.sum() * now.share} if counted(now) else None

    compared(use)


def test_more_calls_than_programs_run_in_eager_mode_with_a_warning() -> None:
    with pytest.warns(dovetail.errors.DovetailWarning, match="now.number changed"):
        stats = compared(lambda now, x: {f"{counted(now)}": x.sum()}, 10).stats
    assert (stats.captures, stats.eager_calls) == (8, 2)


def test_floats_are_asked_whether_they_are_whole() -> None:
    def use(now: Counting, x: torch.Tensor) -> Any:
        now.share += 0.5
        return now.share.is_integer(), now.share.real, now.share.imag, pow(now.share, 2)

    assert compared(use).stats.captures == 2


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
def test_numbers_of_numpy_are_divided_by_zero() -> None:
    def use(now: Counting, x: torch.Tensor) -> Any:
        drawn = np.random.rand(2)[0]
        return drawn / 0, drawn % 0, (drawn * 0) / 0.0, drawn**-4000

    def of_python(now: Counting, x: torch.Tensor) -> Any:
        try:
            return random.random() / 0
        except ZeroDivisionError:
            return "not of NumPy"

    compared(of_python)
    compared(use)
