"""Arrays of NumPy that a step holds: read before each run, indexed by drawn numbers, never from an earlier call."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dovetail
from dovetail.errors import DovetailError, StateChangedOtherwise, UnsupportedStep, WrittenArray
from tests.frontends.step.agreement import programs_of

ROWS = 20


class Held:
    """What a step reads."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __getattr__(self, name: str) -> Any:  # for those that are not there at first
        raise AttributeError(name)


def _held(rows: int = ROWS) -> Held:
    drawn = np.random.default_rng(5)
    data = drawn.standard_normal((rows, 3)).astype(np.float32)
    wide = drawn.standard_normal((rows, 2, 6))
    return Held(data=data, wide=wide, labels=np.arange(rows), rng=np.random.default_rng(1), at=0)


Take = Callable[[Held, torch.Tensor], torch.Tensor]
Change = Callable[[Held, int], Any]
LARGE = 500


def compared(
    take: Take, change: Change = lambda held, n: None, calls: int = 6, rows: int = ROWS, **options: Any
) -> Any:
    """Compare a step that takes a batch from arrays, eager and compiled. change: between calls. Returns: the step."""
    found, run = [], None
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        held, weight = _held(rows), torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x: torch.Tensor) -> float:
            optimizer.zero_grad()  # noqa: B023
            loss = ((take(held, x) * weight).square().mean() + x.mean()).float()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.item()

        run = dovetail.compile_step(step, **options) if compiled else step
        results = []
        for n in range(calls):
            results.append(run(torch.full((4, 3), 0.1 * n)))
            change(held, n)
        states = repr(random.getstate()), repr(np.random.get_state()), repr(held.rng.bit_generator.state)
        found.append((results, weight.tolist(), states, held.at))
    assert found[0] == found[1]
    return run


def _mixed(held: Held, _: torch.Tensor) -> torch.Tensor:
    part = np.random.beta(0.2, 0.2)
    order = np.random.permutation(len(held.data))
    return torch.from_numpy((part * held.data[order] + (1 - part) * held.data).astype(np.float32))


def _shuffled(held: Held, _: torch.Tensor) -> torch.Tensor:
    order = np.arange(len(held.data))
    np.random.shuffle(order)
    return torch.from_numpy(held.data[order[:4]])


def _masked(held: Held, x: torch.Tensor) -> torch.Tensor:
    mask = np.zeros(4, dtype=bool)
    mask[np.random.choice(4, 2, replace=False)] = True
    return x * torch.from_numpy(mask)[:, None] + torch.from_numpy(held.data[:4] * mask[:, None])


def _noisy(held: Held, _: torch.Tensor) -> torch.Tensor:
    noisy = held.data.copy()
    noisy += 0.1 * np.random.randn(*noisy.shape).astype(np.float32)
    noisy[held.rng.integers(0, ROWS, 3)] = 0
    return torch.from_numpy(noisy)


def _listed(held: Held, _: torch.Tensor) -> torch.Tensor:
    order = list(range(ROWS))
    random.shuffle(order)
    return torch.from_numpy(held.data[order[:4]])


def _cut(held: Held, _: torch.Tensor) -> torch.Tensor:
    first = random.randint(0, ROWS - 5)
    return torch.from_numpy(held.data[first : first + 4])


def _tables(held: Held, _: torch.Tensor) -> torch.Tensor:
    rows = np.random.randint(0, ROWS, 4)
    found = {name: torch.as_tensor(getattr(held, name)[rows]) for name in ("data", "labels")}
    return found["data"] * found["labels"][:, None]


def _parts(held: Held, _: torch.Tensor) -> torch.Tensor:
    rows = held.rng.permutation(ROWS)[:4]
    return torch.tensor(np.take(held.wide, rows, axis=0)[:, :, ::2].mean(1), dtype=torch.float32)


TAKES: dict[str, Take] = {
    "permutation": lambda held, _: torch.from_numpy(held.data[np.random.permutation(ROWS)[:4]]),
    "randint": lambda held, _: torch.tensor(held.data[np.random.randint(0, ROWS, 16)]),
    "astype": lambda held, _: torch.from_numpy(held.wide[held.rng.permutation(ROWS)].astype(np.float32)).mean(
        (0, 1, 2)
    ),
    "sampled": lambda held, _: torch.from_numpy(held.data[random.sample(range(ROWS), 5)]),
    "a row": lambda held, _: torch.from_numpy(held.data[np.random.choice(ROWS)]),
    "an old generator": lambda held, _: torch.from_numpy(np.random.permutation(held.data)[:4]),
    "mixed": _mixed,
    "shuffled": _shuffled,
    "masked": _masked,
    "noisy": _noisy,
    "listed": _listed,
    "cut": _cut,
    "tables": _tables,
    "parts": _parts,
}


def _changes(held: Held, number: int) -> None:
    if number % 2:
        held.data += number
    else:
        held.data = held.data * 2
    held.wide[number] = 0


@pytest.mark.parametrize("name", TAKES)
def test_one_program_sees_what_arrays_hold_now(name: str) -> None:
    stats = compared(TAKES[name], _changes if name != "an old generator" else lambda held, n: None).stats
    assert (programs_of(stats), stats.eager_calls) == (1, 0), stats


UNDRAWN: dict[str, Take] = {
    "whole": lambda held, _: torch.from_numpy(held.data),
    "numbers": lambda held, x: x * float(held.data[0, 0]) + float(held.data.mean()),
    "computed": lambda held, _: torch.tensor((held.data - held.data.mean(0)) / held.data.std(0)),
}


@pytest.mark.parametrize("rows", [ROWS, LARGE])
@pytest.mark.parametrize("name", UNDRAWN)
def test_arrays_that_change_between_calls_become_inputs(name: str, rows: int) -> None:
    stats = compared(UNDRAWN[name], _changes, 8, rows).stats
    assert stats.captures <= 3, stats


def test_a_step_that_goes_through_an_array_by_its_own_count() -> None:
    def take(held: Held, _: torch.Tensor) -> torch.Tensor:
        first = held.at % ROWS
        held.at += 4
        return torch.from_numpy(held.data[held.rng.permutation(ROWS)][first : first + 4])

    stats = compared(take, _changes, 9).stats
    assert stats.captures <= 3, stats


def test_another_shape_or_dtype_is_another_program() -> None:
    def change(held: Held, number: int) -> None:
        if number == 3:
            held.data = np.concatenate([held.data, held.data])
        if number == 6:
            held.data = held.data.astype(np.float64)

    compared(lambda held, _: torch.from_numpy(held.data[np.random.permutation(len(held.data))[:4]]), change, 10)


def test_an_array_by_two_names() -> None:
    def change(held: Held, number: int) -> None:
        held.data = np.full((ROWS, 3), number, np.float32)
        if number < 3:
            held.other = held.data
        else:
            held.other += 1

    def take(held: Held, _: torch.Tensor) -> torch.Tensor:
        rows, other = np.random.permutation(ROWS)[:4], getattr(held, "other", held.data)
        return torch.from_numpy(held.data[rows] + other[rows])

    compared(take, change, 9)


def _put_in(held: Held, _: torch.Tensor) -> torch.Tensor:
    rows = np.random.permutation(ROWS)[:4]
    held.data[rows] = 0
    return torch.from_numpy(held.data[rows])


def _added_at(held: Held, _: torch.Tensor) -> torch.Tensor:
    np.add.at(held.data, np.random.permutation(ROWS)[:4], 1)
    return torch.from_numpy(held.data)


def _written_by_torch(held: Held, _: torch.Tensor) -> torch.Tensor:
    torch.from_numpy(held.data).mul_(0.5)
    return torch.from_numpy(held.data[np.random.permutation(ROWS)[:4]])


def _kept(held: Held, _: torch.Tensor) -> torch.Tensor:
    held.last = held.data[np.random.permutation(ROWS)[:4]]
    return torch.from_numpy(held.last)


def _replaced(held: Held, _: torch.Tensor) -> torch.Tensor:
    held.data = held.data[np.random.permutation(ROWS)]
    return torch.from_numpy(held.data[:4])


@pytest.mark.filterwarnings("ignore:.*runs in eager mode from now on")
@pytest.mark.parametrize("take", [_put_in, _added_at, _written_by_torch, _kept, _replaced])
def test_changes_of_arrays_are_refused_and_have_not_happened(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _held()
    run = dovetail.compile_step(lambda x: take(held, x).sum() + x.sum())
    run(torch.ones(2))
    before, names = held.data.copy(), set(vars(held))
    with pytest.raises((WrittenArray, UnsupportedStep, StateChangedOtherwise)):
        run(torch.ones(2))
    assert (held.data == before).all()
    assert type(held.data) is np.ndarray
    assert set(vars(held)) == names
    with monkeypatch.context() as patched:
        patched.setattr(dovetail, "compile_step", lambda f, real=dovetail.compile_step: real(f, on_unsupported="eager"))
        compared(take)


def test_a_tensor_of_the_state_on_the_memory_of_an_array_is_not_written() -> None:
    held = _held()
    state = torch.from_numpy(held.data)

    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(x.sum())
        return x + float(held.data.mean())

    run = dovetail.compile_step(step)
    run(torch.ones(2))
    with pytest.raises(DovetailError, match="DT-ALIAS-005"):
        run(torch.ones(2))
