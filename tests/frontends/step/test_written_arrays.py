"""Memory that NumPy and tensors share: what is written through one of them is not missed by the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import dovetail
from dovetail.errors import UnsupportedStep, WrittenArray

TABLE = np.ones((4, 3), np.float32)
Take = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _a_table_of_ones() -> Iterator[None]:
    """First calls of steps run in eager mode, and write."""
    TABLE[:] = 1
    yield
    TABLE[:] = 1


def _scaled_table(x: torch.Tensor) -> torch.Tensor:
    held = torch.from_numpy(TABLE)
    held.mul_(1.5)
    return x + held + torch.from_numpy(TABLE)


def _part_of_the_table(x: torch.Tensor) -> torch.Tensor:
    torch.as_tensor(TABLE)[1:].add_(1)
    return x + float(TABLE.mean())


def _made_here(x: torch.Tensor) -> torch.Tensor:
    array = np.zeros(3, np.float32)
    held = torch.from_numpy(array)
    first = x + held
    array[0] = 5
    return first + held


WRITES: dict[str, Take] = {"scaled": _scaled_table, "a part": _part_of_the_table, "by NumPy": _made_here}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("door", [dovetail.compile_step, dovetail.compile], ids=["step", "compile"])
def test_a_write_to_an_array_is_refused_and_does_not_happen(door: Callable[..., Any], name: str) -> None:
    run = door(WRITES[name])
    if door is dovetail.compile_step:
        run(torch.zeros(4, 3))
    before = TABLE.copy()
    with pytest.raises(WrittenArray, match="DT-ALIAS-005"):
        run(torch.zeros(4, 3))
    assert (before == TABLE).all()


@pytest.mark.filterwarnings("ignore:.*runs in eager mode from now on")
@pytest.mark.parametrize("name", WRITES)
def test_in_eager_mode_such_a_step_does_what_it_did(name: str) -> None:
    found = []
    for compiled in (False, True):
        TABLE[:] = 1
        take = WRITES[name]
        run = dovetail.compile_step(take, on_unsupported="eager") if compiled else take
        found.append([run(torch.zeros(4, 3)).tolist() for _ in range(4)])
    assert found[0] == found[1]


def _drawn() -> Any:
    return np.random.rand(4, 3).astype(np.float32)


def _read_after(x: torch.Tensor) -> torch.Tensor:
    array = _drawn()
    torch.from_numpy(array).mul_(2)
    return x + torch.from_numpy(array + 1)


def _seen_twice(x: torch.Tensor) -> torch.Tensor:
    array = _drawn()
    one, other = torch.from_numpy(array), torch.from_numpy(array[1:])
    one.mul_(2)
    return x[1:] + other


def _seen_after(x: torch.Tensor) -> torch.Tensor:
    array = _drawn()
    one = torch.from_numpy(array)
    one.mul_(2)
    return x[1:] + torch.from_numpy(array[1:])


@pytest.mark.parametrize("take", [_read_after, _seen_twice, _seen_after])
def test_a_drawn_array_that_is_seen_otherwise_is_not_written(take: Take) -> None:
    run = dovetail.compile_step(take)
    run(torch.zeros(4, 3))
    with pytest.raises((UnsupportedStep, WrittenArray)):
        run(torch.zeros(4, 3))


@pytest.mark.parametrize(
    "copied",
    [lambda: torch.from_numpy(TABLE).clone(), lambda: torch.tensor(TABLE)],
    ids=["clone", "tensor"],
)
def test_a_copy_is_written(copied: Callable[[], torch.Tensor]) -> None:
    run = dovetail.compile_step(lambda x: copied().mul_(2) + x)
    found = [run(torch.zeros(4, 3)).tolist() for _ in range(3)]
    assert found == [[[2.0] * 3] * 4] * 3
