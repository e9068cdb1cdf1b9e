"""Several threads call one compiled step at once: those that write take turns, others run side by side."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.capture.exclusive import Running

pytestmark = pytest.mark.filterwarnings("ignore:.*was compiled for")
THREADS, CALLS = 4, 40


def _in_threads(work: Callable[[int], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _batches(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(1 + k % 5, 8, generator=generator) for k in range(CALLS)]


def test_steps_that_write_lose_nothing() -> None:
    model = nn.Linear(8, 4)
    model.register_buffer("rows", torch.zeros((), dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    counts: list[int] = []

    @dovetail.compile_step
    def step(x: Tensor) -> Tensor:
        model.rows.add_(x.shape[0])
        optimizer.zero_grad()
        loss = model(x).sum() * 0 + model.bias.sum()  # a gradient that no batch changes: any order gives one result
        loss.backward()
        optimizer.step()
        counts.append(x.shape[0])
        return loss.detach()

    with torch.no_grad():
        model.bias.zero_()
    errors = _in_threads(lambda number: [step(x) for x in _batches(number)][-1] and None)
    sizes = [x.shape[0] for number in range(THREADS) for x in _batches(number)]
    assert not errors
    assert int(model.rows) == sum(sizes)
    assert sorted(counts) == sorted(sizes)
    assert torch.equal(model.bias, torch.full((4,), -float(THREADS * CALLS)))


@pytest.mark.parametrize("door", [dovetail.compile_step, dovetail.compile])
def test_steps_that_only_read_run_side_by_side(door: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    wanted: dict[int, list[Any]] = {
        n: [torch.autograd.grad(model(x).sum(), [*model.parameters()]) for x in _batches(n)] for n in range(THREADS)
    }
    step = door(lambda x: torch.autograd.grad(model(x).sum(), [*model.parameters()]))

    def work(number: int) -> None:
        for x, expected in zip(_batches(number), wanted[number], strict=True):
            assert all(map(torch.equal, step(x), expected))

    assert not _in_threads(work)


def test_questions_with_other_answers() -> None:
    """A program that asks, and gets another answer, looks for another program, or is captured, in several threads."""
    model = nn.Linear(8, 4)

    def asks(x: Tensor) -> Any:
        with torch.no_grad():
            y = model(x)
            if y.sum() > 0:
                return y * 2, float(y.max())
            return y - 1

    wanted = {n: [asks(x) for x in _batches(n)] for n in range(THREADS)}
    step = dovetail.compile_step(asks)

    def work(number: int) -> None:
        for x, expected in zip(_batches(number), wanted[number], strict=True):
            got = step(x)
            assert isinstance(got, tuple) is isinstance(expected, tuple)
            found, other = (got, expected) if isinstance(got, tuple) else ((got,), (expected,))
            assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(found, other, strict=True))

    assert not _in_threads(work)


class _Box:
    def __init__(self, item: Tensor) -> None:
        self.item = item

    def __del__(self) -> None:
        """Code that runs when an object goes: no program makes another one."""


def test_warnings_name_the_line_of_the_call() -> None:
    kept: list[_Box] = []
    step = dovetail.compile_step(lambda x: kept.append(_Box(x * 2)), on_unsupported="eager")
    step(torch.ones(2))
    with pytest.warns(dovetail.DovetailWarning, match="runs in eager mode from now on") as caught:
        step(torch.ones(2))
    assert caught[0].filename == __file__
    compiled = dovetail.compile(lambda x, n: x * n, max_variants=1)
    compiled(torch.ones(2), 2)
    with pytest.warns(dovetail.DovetailWarning, match="was compiled for 1 kinds") as caught:
        compiled(torch.ones(2), True)
    assert caught[0].filename == __file__


def test_a_learner_and_actors_share_weights() -> None:
    """Steps are recorded, again and again, while other threads run programs over the same weights."""
    policy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(policy.parameters(), 0.0)
    generator = torch.Generator().manual_seed(5)
    batches = [torch.randn(3, 8, generator=generator) for _ in range(CALLS)]
    with torch.no_grad():
        wanted = [policy(x) for x in batches]
    act = dovetail.compile(policy)
    with torch.no_grad():
        act(batches[0])
    is_done = threading.Event()

    def work(number: int) -> None:
        if number:
            rounds = 0
            while not is_done.is_set() or not rounds:
                rounds += 1
                with torch.no_grad():
                    assert all(torch.equal(act(x), expected) for x, expected in zip(batches, wanted, strict=True))
            return
        try:
            for scale in (1, 2.5, 4):

                @dovetail.compile_step
                def learn(x: Tensor, scale: float = scale) -> Tensor:
                    optimizer.zero_grad()
                    loss = policy(x).square().mean() * scale
                    loss.backward()
                    optimizer.step()
                    return loss.detach()

                assert [learn(x) for x in batches[:3]]
                assert learn.stats.eager_calls == 0
        finally:
            is_done.set()

    assert not _in_threads(work)


def test_running_alone() -> None:
    running = Running()
    seen: list[str] = []
    inside, told = threading.Event(), threading.Event()

    def recorder() -> None:
        with running, running.alone() as is_alone:
            assert is_alone
            seen.append("alone")
            time.sleep(0.05)
            seen.append("done")

    def runner() -> None:
        with running:
            inside.set()
            told.wait(20)
            seen.append("ran")
        with running:
            seen.append("ran again")

    threads = [threading.Thread(target=runner), threading.Thread(target=recorder)]
    threads[0].start()
    inside.wait(20)
    with running, running, running.alone() as is_alone:
        assert not is_alone  # a program within a program does not wait for others
    threads[1].start()
    time.sleep(0.05)
    assert not seen  # one that runs is waited for
    told.set()
    for thread in threads:
        thread.join(20)
    assert seen[0] == "ran"
    assert seen.index("done") == seen.index("alone") + 1


def test_a_thread_that_waits_in_a_program_does_not_hold_up_recordings() -> None:
    running = Running()
    is_recorded = threading.Event()

    def recorder() -> None:
        with running.alone() as is_alone:
            assert is_alone
        is_recorded.set()

    thread = threading.Thread(target=recorder)
    with running:
        with running.suspended():
            thread.start()
            assert is_recorded.wait(20)
        with running, running.alone() as is_alone:
            assert is_alone
    thread.join(20)


@pytest.mark.parametrize("draw", [np.random.rand, random.random], ids=["numpy", "python"])
def test_draws_of_another_thread_are_not_those_of_the_step(draw: Any) -> None:
    """A thread may prepare the next batch while a step is recorded."""
    name, module = draw.__name__, np.random if draw.__name__ == "rand" else random
    ended, drawn = threading.Event(), []

    def prepare() -> None:
        while not ended.is_set():
            drawn.append(float(getattr(module, name)()))

    thread = threading.Thread(target=prepare)
    thread.start()
    try:
        for _ in range(3):
            weight = torch.nn.Parameter(torch.ones(3))

            def train(x: torch.Tensor, weight: torch.nn.Parameter = weight) -> float:
                weight.grad = None
                loss = (weight * x).square().sum()
                loss.backward()
                return loss.item()

            step = dovetail.compile_step(train)
            assert [step(torch.full((3,), float(n))) for n in range(4)] == [0.0, 3.0, 12.0, 27.0]
    finally:
        ended.set()
        thread.join()
    assert getattr(module, name).__name__ == name
    assert drawn
