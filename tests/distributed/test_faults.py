"""Faults of one rank: the others end soon, with a named error and the state from before, or go on as in eager mode."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dovetail
from dovetail.execute import failing_ranks
from tests.distributed.ranks import Failed, Ranks, of_ranks
from tests.distributed.steps import Trained, same, state_of
from tests.rotation import rotated

_TIMEOUT = 4.0  # of the process group, once all is captured
_CALLS = 3  # before the fault
_SOON = 10.0


class _Block(nn.Module):
    """A layer that fails where it is told to: in the forward pass, or in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, fault: Callable[[], None] | None = None) -> torch.Tensor:
        made: torch.Tensor = self.layer(x).tanh()
        if fault is not None:
            made.register_hook(lambda _: fault())
        return made


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(3))

    def forward(self, x: torch.Tensor, fault: Callable[[], None] | None = None) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x, fault if number == 1 else None)
        return x


def _made(door: str, fault: str) -> Trained:
    torch.manual_seed(1)
    model: Any = _Net()
    if door == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.00001)
    if door == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, is_bad: bool = False) -> torch.Tensor:
        optimizer.zero_grad()
        within = None
        if is_bad and fault == "before":
            raise _Trouble("in the step")
        if fault == "data" and x.sum() > 1e6:
            raise _Trouble("what no batch should hold")
        if is_bad and fault == "stopped":
            raise KeyboardInterrupt
        if is_bad and fault in ("within", "killed"):
            within = _raise if fault == "within" else _die
        if is_bad and fault == "branch":
            x = x * 2
        loss = model(x, within).square().mean()
        loss.backward()
        if door == "plain":
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
        optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    return Trained(step, model, optimizer)


class _Trouble(ValueError):
    """What a rank raises."""


def _raise() -> None:
    raise _Trouble("in the middle")


def _die() -> None:
    os._exit(1)


@dataclass(frozen=True)
class _Outcome:
    """Of one rank: the error's name and text, whether the state is that of before, and after how many seconds."""

    name: str
    text: str
    is_as_before: bool
    seconds: float
    result: Any = None


@contextlib.contextmanager
def _new_group(rank: int, store: str) -> Iterator[None]:
    """A process group of the same ranks."""
    failing_ranks._GRACE = 0.5
    warnings.simplefilter("ignore")
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    yield


def _batch(rank: int, number: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * number + rank))


def _last(rank: int, fault: str) -> torch.Tensor:
    """The batch of the call in which something is wrong."""
    x = _batch(rank, 9)
    if rank == 0 or fault not in ("size", "data"):
        return x
    return torch.cat([x, x]) if fault == "size" else x + 1e7


def _suffers(rank: int, store: str, door: str, fault: str) -> _Outcome:
    """Some calls, then one in which something is wrong with rank 1."""
    with _new_group(rank, store):
        made = _made(door, fault)
        step = dovetail.compile_step(made.step, on_unsupported="eager" if fault == "killed" else "raise")
        for number in range(_CALLS):
            step(_batch(rank, number))
        before = state_of(made)
        dist.barrier()
        if fault in ("sleeps", "ends"):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=_TIMEOUT))
        is_bad, begin = rank == 1, time.monotonic()
        if is_bad and fault == "sleeps":
            time.sleep(_TIMEOUT + 1)
        if is_bad and fault == "leaves":
            os._exit(0)
        if is_bad and fault == "ends":
            return _Outcome("", "", True, 0.0)
        try:
            result = step(_last(rank, fault), is_bad and fault != "data")
        except BaseException as error:
            after, seconds = state_of(made), time.monotonic() - begin
            is_as_before = same(before[::2], after[::2])  # gradients apart, which the step has cleared
            return _Outcome(type(error).__name__, str(error), is_as_before, seconds)
        return _Outcome("", "", False, time.monotonic() - begin, (result, state_of(made)))


def _expected(rank: int, store: str, door: str, fault: str) -> Any:
    """The same in eager mode, for faults that are none."""
    with _new_group(rank, store):
        made = _made(door, fault)
        for number in range(_CALLS):
            made.step(_batch(rank, number))
        return made.step(_last(rank, fault), rank == 1), state_of(made)


_LIVING = {  # what the living rank raises
    "before": "RankFailed",
    "data": "RankFailed",
    "stopped": "RankFailed",
    "within": "RankFailed StepInterrupted",
    "sleeps": "CollectiveFailed",
    "ends": "CollectiveFailed",
    "killed": "CollectiveFailed StepInterrupted",
    "leaves": "CollectiveFailed",
    "branch": "",
    "size": "",
}
_DEADLY = ("killed", "leaves")
_CASES = [(door, fault) for fault in _LIVING for door in ("plain", "ddp", "fsdp")]


@pytest.fixture(scope="module")
def two_of_their_own() -> Iterator[Ranks]:
    with of_ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize(("door", "fault"), rotated(_CASES, 30))
def test_a_fault_ends_soon(two_of_their_own: Ranks, tmp_path: Path, door: str, fault: str) -> None:
    ranks, store = two_of_their_own, str(tmp_path / "store")
    living, other = ranks.outcomes(_suffers, store, door, fault, seconds=120)
    if _LIVING[fault]:
        ranks.end()  # the group is of no use any more
    assert isinstance(living, _Outcome), living.text
    assert isinstance(other, Failed) == (fault in _DEADLY)
    assert living.name in _LIVING[fault].split() or living.name == _LIVING[fault], living
    if not living.name:
        expected = ranks(_expected, str(tmp_path / "other"), door, fault)
        assert same([living.result, other.result], expected)
        return
    assert living.seconds < _SOON
    assert living.is_as_before or living.name == "StepInterrupted"
    if "RankFailed" in _LIVING[fault]:
        assert "rank 1 of process group" in living.text
        assert other.name == ("KeyboardInterrupt" if fault == "stopped" else "_Trouble")


def _messages(rank: int, store: str, kind: str, goes_on: bool) -> tuple[list[str], bool, float, list[Any]]:
    """Rank 0 trains on what rank 1 sends, or sends rank 1 much; in one call rank 1 raises before it comes to that."""
    with _new_group(rank, store):
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        much, other = torch.ones(2_000_000), 1 - rank
        sends, moved = (rank == 0) == (kind == "send"), much if kind == "send" else torch.ones(3, 4)

        def step(x: torch.Tensor, is_bad: bool = False) -> torch.Tensor:
            optimizer.zero_grad()
            if is_bad:
                raise _Trouble("in the step")
            place = moved * 2 if sends else torch.empty_like(moved)
            if kind == "irecv":
                work = dist.isend(place, other, tag=3) if sends else dist.irecv(place, other, tag=3)
                assert work is not None
                work.wait()
            else:
                dist.send(place, other) if sends else dist.recv(place, other)
            loss = model(x + place[0]).square().mean()
            loss.backward()
            optimizer.step()
            detached: torch.Tensor = loss.detach()
            return detached

        made = Trained(dovetail.compile_step(step), model, optimizer)
        results = [made.step(_batch(rank, number)) for number in range(_CALLS)]
        before, begin, names = state_of(made), time.monotonic(), []
        for number in range(_CALLS, _CALLS + 2 if goes_on or not rank else _CALLS + 1):
            try:
                results.append(made.step(_batch(rank, number), rank == 1 and number == _CALLS))
            except Exception as error:
                names.append(type(error).__name__)
            if goes_on and not rank and number == _CALLS:
                break
        return names, same(before[::2], state_of(made)[::2]), time.monotonic() - begin, results


@pytest.mark.parametrize("kind", ["recv", "irecv", "send"])
def test_a_message_is_not_waited_for_where_the_other_rank_has_raised(
    two_of_their_own: Ranks, tmp_path: Path, kind: str
) -> None:
    living, other = two_of_their_own(_messages, str(tmp_path / "store"), kind, False)
    two_of_their_own.end()
    assert living[0] == ["RankFailed"] * 2
    assert other[0] == ["_Trouble"]
    assert living[1]
    assert living[2] < _SOON


def test_a_message_of_a_rank_that_goes_on_is_waited_for(two_of_their_own: Ranks, tmp_path: Path) -> None:
    living, other = two_of_their_own(_messages, str(tmp_path / "store"), "recv", True)
    assert (living[0], other[0]) == ([], ["_Trouble"])
    assert len(living[3]) == len(other[3]) == _CALLS + 1


def _skips(rank: int, store: str) -> tuple[list[Any], list[Any]]:
    """A rank raises before it takes part in anything, skips the batch, and goes on: others wait for its next call."""
    found = []
    for compiles in (False, True):
        with _new_group(rank, f"{store}{compiles}"):
            made = _made("ddp", "before")
            step: Any = dovetail.compile_step(made.step) if compiles else made.step
            results = []
            for number in range(9):
                is_bad = rank == 1 and number in (5, 6)
                with contextlib.suppress(_Trouble):
                    results.append(step(_batch(rank, number), is_bad))
                if rank == 0 and len(results) == 7:
                    break
            found.append([results, state_of(made)])
    return found[0], found[1]


def test_a_rank_that_goes_on_is_waited_for(two_of_their_own: Ranks, tmp_path: Path) -> None:
    for eager, compiled in two_of_their_own(_skips, str(tmp_path / "store")):
        assert same(eager, compiled)


def _is_late(rank: int, store: str) -> list[str]:
    """A rank that the others have given up cannot come back."""
    with _new_group(rank, store):
        made = _made("plain", "before")
        step = dovetail.compile_step(made.step)
        names = []
        for number in range(7):
            is_bad = rank == 1 and number == 4
            try:
                step(_batch(rank, number), is_bad)
            except Exception as error:
                names.append(type(error).__name__)
            if is_bad:
                time.sleep(2)
        return names


def test_a_rank_that_comes_too_late_is_told(two_of_their_own: Ranks, tmp_path: Path) -> None:
    first, second = two_of_their_own(_is_late, str(tmp_path / "store"))
    two_of_their_own.end()
    assert first == ["RankFailed"] * 3
    assert second == ["_Trouble", "RankFailed", "RankFailed"]
