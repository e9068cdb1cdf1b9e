"""`step.run`: many steps in one call leave and give what as many calls do, bit by bit."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dovetail
from dovetail.errors import BadOptionValue, UnsupportedStep
from dovetail.frontends.step.many_steps import StackedResults, calls_of


class _Training:
    """A network with dropout, an optimizer with state, and a schedule, that count their steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 7)
        self.seen = 0

    def step(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.optimizer.zero_grad()
        made = self.net(x)
        loss = F.cross_entropy(made, y)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.seen += 1
        return {
            "loss": loss.detach(),
            "number": loss.item(),
            "made": made,
            "first": self.net[0].weight,
            "seen": self.seen,
        }

    def left(self) -> list[Any]:
        states = [self.net.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), self.seen]
        return [*copy.deepcopy(states), torch.get_rng_state()]


def _stacked(steps: int = 9) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(steps, 6, 4, generator=drawn), torch.randint(0, 3, (steps, 6), generator=drawn)


def _copied(result: dict[str, Any]) -> dict[str, Any]:
    return {key: x.detach().clone() if isinstance(x, Tensor) else x for key, x in result.items()}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "stacked tensors": lambda x, y: (x, y),
    "stacked keywords": lambda x, y: {"y": y, "x": x},
    "a list of tuples": lambda x, y: list(zip(x, y, strict=True)),
    "a generator of keywords": lambda x, y: ({"x": a, "y": b} for a, b in zip(x, y, strict=True)),
    "a loader": lambda x, y: DataLoader(TensorDataset(x.flatten(0, 1), y.flatten()), batch_size=6),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_as_many_calls(form: str) -> None:
    x, y = _stacked()
    called, run = _Training(), _Training()
    compiled = dovetail.compile_step(run.step)
    torch.manual_seed(3)
    wanted = [_copied(called.step(*args, **kwargs)) for args, kwargs in calls_of(FORMS[form](x, y))]
    left = called.left()
    torch.manual_seed(3)
    made = compiled.run(FORMS[form](x, y))
    assert _equal(run.left(), left)
    for key in ("loss", "made", "first"):
        assert torch.equal(made[key], torch.stack([result[key] for result in wanted])), key
        assert not made[key].requires_grad
    assert made["number"] == [result["number"] for result in wanted]
    assert made["seen"] == list(range(1, 10))
    assert compiled.stats.calls == 9


def test_what_only_some_steps_give_is_in_lists() -> None:
    weight = torch.ones(3)

    @dovetail.compile_step
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        weight.mul_(2)
        return x * weight[0], weight

    short, long = torch.ones(2), torch.ones(5)
    made, weights = step.run([short, long, long])
    assert [tuple(one.shape) for one in made] == [(2,), (5,), (5,)]
    assert torch.equal(weights[:, 0], torch.tensor([2.0, 4.0, 8.0]))
    assert step.run([]) is None
    assert step.run(torch.ones(0, 2)) is None


def test_results_of_other_structures_and_numbers() -> None:
    results = StackedResults(None)
    kinds = [{"a": torch.ones(1)}, {"a": torch.zeros(1)}, {"b": 2}]
    for kind in kinds:
        results.add(kind)
    assert _equal(results.stacked(), kinds)
    numbers = StackedResults(None)
    for number in range(200):
        numbers.add(torch.tensor(number))
    assert torch.equal(numbers.stacked(), torch.arange(200))


def test_progress() -> None:
    training, seen = _Training(), []
    compiled = dovetail.compile_step(training.step)
    made = compiled.run(_stacked(), lambda count, result: seen.append((count, result["number"])), every=4)
    assert seen == [(4, made["number"][3]), (8, made["number"][7])]


def test_errors_end_a_run_between_steps() -> None:
    called, run = _Training(), _Training()
    x, y = _stacked()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(x[:3], y[:3], strict=True)
        raise ValueError("no more data")

    torch.manual_seed(3)
    for batch in zip(x[:3], y[:3], strict=True):
        called.step(*batch)
    left = called.left()
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="no more data") as caught:
        dovetail.compile_step(run.step).run(batches())
    assert caught.value.__notes__ == ["steps of the run that are done: 3"]
    assert _equal(run.left(), left)


class _Endless:
    """Batches that say that there are more than there is memory for results, or than Python counts."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(3, 2))


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_more_batches_are_said_to_come_than_do(size: int) -> None:
    assert dovetail.compile_step(lambda x: x * 2).run(_Endless(size)).tolist() == [[2.0, 2.0]] * 3


def test_a_step_is_done_whose_result_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: StackedResults, result: object) -> None:
        raise MemoryError

    monkeypatch.setattr(StackedResults, "add", failing)
    training = _Training()
    with pytest.raises(MemoryError) as caught:
        dovetail.compile_step(training.step).run(_stacked())
    assert caught.value.__notes__ == ["steps of the run that are done: 1"]
    assert training.seen == 1


def test_an_interrupt_waits_for_the_end_of_the_step() -> None:
    called, run = _Training(), _Training()
    x, y = _stacked()
    torch.manual_seed(3)
    for batch in zip(x[:4], y[:4], strict=True):
        called.step(*batch)
    left = called.left()

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        result = run.step(x, y)
        interrupt()
        return result

    calls: list[int] = []

    @dovetail.host_call
    def interrupt() -> None:
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    torch.manual_seed(3)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # test runners have processes that ignore it
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            dovetail.compile_step(step).run((x, y))
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.__notes__ == ["steps of the run that are done: 4"]
    assert _equal(run.left(), left)


def test_a_question_with_another_answer() -> None:
    weight = torch.zeros(2)

    @dovetail.compile_step
    def step(x: Tensor) -> Tensor:
        if x.sum() > 0:
            weight.add_(x)
        else:
            weight.sub_(1)
        return weight.sum()

    x = torch.tensor([[1.0, 1.0], [2.0, 2.0], [-1.0, 0.0], [3.0, 3.0], [-1.0, 0.0]])
    assert step.run(x).tolist() == [2.0, 6.0, 4.0, 10.0, 8.0]


@pytest.mark.parametrize(
    ("batches", "match"),
    [
        (3, "it has no batches"),
        ("text", "it has no batches"),
        ({"x": [1]}, "it has no batches"),
        ((torch.ones(3, 2), torch.ones(4)), "differ"),
        (torch.tensor(1.0), "differ"),
    ],
)
def test_what_are_no_batches(batches: Any, match: str) -> None:
    training = _Training()
    with pytest.raises(BadOptionValue, match=match):
        dovetail.compile_step(training.step).run(batches)
    assert training.seen == 0


def test_wrong_progress() -> None:
    compiled = dovetail.compile_step(_Training().step)
    with pytest.raises(BadOptionValue, match="progress"):
        compiled.run(_stacked(), progress="bar")  # type: ignore[arg-type]
    for every in (0, -1, 2.0, True):
        with pytest.raises(BadOptionValue, match="every"):
            compiled.run(_stacked(), every=every)  # type: ignore[arg-type]


def test_a_refusal_names_the_step() -> None:
    @dovetail.compile_step
    def step(x: Tensor) -> Tensor:
        return x[: int(x.numpy()[0])]

    with pytest.raises(UnsupportedStep) as caught:
        step.run(torch.ones(2, 3))
    assert caught.value.__notes__ == ["steps of the run that are done: 1"]  # which ran in eager mode


def test_items_of_a_list_are_batches() -> None:
    calls = list(calls_of([torch.ones(2), [1, 2], {"a": 3}]))
    assert [(len(args), kwargs) for args, kwargs in calls] == [(1, {}), (2, {}), (0, {"a": 3})]
