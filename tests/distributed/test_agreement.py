"""Ranks agree before the first collective of a call: none waits for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dovetail
from dovetail.errors import CollectiveFailed, CollectivesDiffer
from dovetail.execute.agreement import Agreement
from tests.distributed.ranks import Failed, Ranks, of_ranks


def _summing(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    """A step whose gradients are sums over ranks."""

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        for weight in model.parameters():
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
        optimizer.step()

    return step


def _other_shapes(rank: int) -> tuple[str, bool]:
    torch.manual_seed(0)
    model = nn.Linear(2, 2 + rank)
    optimizer = torch.optim.AdamW(model.parameters())
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    before = [weight.detach().clone() for weight in model.parameters()]

    step = dovetail.compile_step(_summing(model, optimizer))
    steps = [float(optimizer.state[weight]["step"]) for weight in model.parameters()]
    try:
        step(torch.ones(3, 2))
    except CollectivesDiffer as error:
        same = all(map(torch.equal, before, model.parameters()))
        same &= steps == [float(optimizer.state[weight]["step"]) for weight in model.parameters()]
        return str(error), same
    return "", False


def test_programs_that_differ_are_an_error_on_every_rank(two_ranks: Ranks) -> None:
    for text, is_as_before in two_ranks(_other_shapes, seconds=30):
        assert "DT-DIST-002" in text
        assert "rank 0 all_reduce(float32[2, 2], SUM), rank 1 all_reduce(float32[3, 2], SUM)" in text
        assert is_as_before


def _another_way(rank: int, kind: str) -> tuple[list[float], int, int]:
    """Now and then one rank goes another way than the other, before it takes part in a collective."""
    torch.manual_seed(0)
    weight = torch.ones(4)

    def step(x: torch.Tensor, scale: float) -> torch.Tensor:
        if kind == "data" and x.sum() > 10:
            x = x * 0.5
        if kind == "number" and scale > 1:
            x = x * 0.25
        total = x.sum(0)
        dist.all_reduce(total)
        weight.add_(total)
        return total.clone()

    compiled = dovetail.compile_step(step, state=[weight])
    found = []
    for call in range(8):
        odd = call % 3 == 2 and rank == call % 2
        rows = 5 if kind == "rows" and odd else 2
        x = torch.full((rows, 4), 3.0 if odd else 1.0) + rank
        found += compiled(x, 2.0 if odd else 0.5).tolist()
    return [*found, *weight.tolist()], compiled.stats.eager_calls, compiled.stats.captures


def _expected(count: int, kind: str) -> list[float]:
    weight, found = torch.ones(4), []
    for call in range(8):
        total = torch.zeros(4)
        for rank in range(count):
            odd = call % 3 == 2 and rank == call % 2
            x = torch.full((5 if kind == "rows" and odd else 2, 4), 3.0 if odd else 1.0) + rank
            if kind == "data" and x.sum() > 10:
                x = x * 0.5
            if kind == "number" and odd:
                x = x * 0.25
            total += x.sum(0)
        weight += total
        found += total.tolist()
    return [*found, *weight.tolist()]


@pytest.mark.parametrize("kind", ["data", "number", "rows"])
def test_ranks_may_go_different_ways(two_ranks: Ranks, kind: str) -> None:
    for found, _, _ in two_ranks(_another_way, kind, seconds=40):
        assert found == _expected(2, kind)


def _asks_late(rank: int, kind: str) -> tuple[list[float], list[float], int]:
    """What a rank knows before a collective is asked for behind it, and is not the same on all ranks."""

    def step(x: torch.Tensor, scale: float) -> torch.Tensor:
        total, is_large = x.sum(0), x.sum() > 10
        dist.all_reduce(total)
        if is_large if kind == "data" else scale > 1:
            total = total * 0.25
        return total

    batches = [(torch.full((2, 4), 3.0 if (call + rank) % 3 else 1.0), 0.5 + (call + rank) % 3) for call in range(9)]
    compiled = dovetail.compile_step(step)
    found = [value for batch in batches for value in compiled(*batch).tolist()]
    return found, [value for batch in batches for value in step(*batch).tolist()], compiled.stats.eager_calls


@pytest.mark.parametrize("kind", ["data", "number"])
def test_what_was_known_before_a_collective_may_be_asked_for_behind_it(two_ranks: Ranks, kind: str) -> None:
    for found, expected, eager_calls in two_ranks(_asks_late, kind):
        assert found == expected
        assert eager_calls < 4


def _trains_without_early_updates(rank: int) -> int:
    """Settings of an optimizer are asked for when gradients are there."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    compiled = dovetail.compile_step(_summing(model, optimizer), skip=("early_updates",))
    for _ in range(3):
        compiled(torch.ones(2, 2))
    return compiled.stats.eager_calls


def test_settings_are_checked_before_collectives_where_no_update_runs_early(two_ranks: Ranks) -> None:
    assert two_ranks(_trains_without_early_updates) == [0, 0]


def _fails_behind_a_collective(rank: int) -> tuple[str, bool, float]:
    """Both ranks have a label that is out of range, and go on without that batch."""
    weight = torch.ones(3)

    def step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        dist.all_reduce(total)
        loss = nn.functional.cross_entropy(x * total, labels)
        weight.add_(total)
        return loss

    compiled = dovetail.compile_step(step, state=[weight])
    text, x = "", torch.ones(2, 3)
    for label in (0, 9, 1):
        before = weight.clone()
        try:
            compiled(x, torch.tensor([0, label]))
        except dovetail.DovetailError as error:
            text, is_as_before = str(error), weight.equal(before)
    return text, is_as_before, weight[0].item()


def test_a_failure_behind_a_collective_says_that_nothing_was_updated(two_ranks: Ranks) -> None:
    for text, is_as_before, weight in two_ranks(_fails_behind_a_collective):
        assert "DT-STEP-003" in text
        assert "0 of 1 tensors were updated: none." in text
        assert "state is as it was" in text
        assert is_as_before
        assert weight == 25.0


def _dies(rank: int, how: str) -> tuple[str, str, bool]:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)

    def step(x: torch.Tensor) -> None:
        model.zero_grad()
        model(x).sum().backward()
        for weight in model.parameters():
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= weight.grad

    compiled = dovetail.compile_step(step)
    compiled(torch.ones(3, 2))
    compiled(torch.ones(3, 2))
    before = [weight.detach().clone() for weight in model.parameters()]
    if rank == 1:
        if how == "dies":
            os._exit(1)
        raise ValueError("a rank raises")
    try:
        compiled(torch.ones(3, 2))
    except Exception as error:
        return type(error).__name__, str(error), all(map(torch.equal, before, model.parameters()))
    return "", "", False


def test_a_rank_that_dies_is_a_named_error_on_the_others() -> None:
    with of_ranks(2) as ranks:
        first, second = ranks.outcomes(_dies, "dies", seconds=30)
    assert isinstance(second, Failed)
    assert not isinstance(first, Failed), first.text
    name, text, is_as_before = first
    assert name == CollectiveFailed.__name__
    assert "DT-DIST-003" in text
    assert is_as_before


def _costs(rank: int) -> float:
    """Microseconds that a call pays to agree."""
    lines: Any = {"0": ["all_reduce(float32[2], SUM)"]}
    times = []
    for _ in range(50):
        dist.barrier()
        begin = time.perf_counter()
        Agreement().before("0", lines)
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2] * 1e6


def test_to_agree_costs_little(two_ranks: Ranks) -> None:
    assert max(two_ranks(_costs)) < 50_000  # about 300 on an idle machine
