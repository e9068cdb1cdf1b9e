"""Objects among the arguments, new ones in each call: batches of a class, what a tokenizer gives."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BatchEncoding

import dovetail
from dovetail.frontends.step.reachable_state import ReachableState


class Batch:
    def __init__(self, x: Tensor, scale: float = 2.0) -> None:
        self.x, self.scale, self.name = x, scale, "a"

    def scaled(self) -> Tensor:
        return self.x * self.scale


class Other(Batch):
    def scaled(self) -> Tensor:
        return self.x - 1


class Slotted:
    __slots__ = ("parts", "x")

    def __init__(self, x: Tensor) -> None:
        self.x, self.parts = x, [x + 1, {"more": x * 2}]


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


Make = Callable[[Tensor], Any]
KINDS: dict[str, tuple[Make, Callable[[Any], Tensor]]] = {
    "an object": (Batch, lambda b: b.scaled()),
    "a namespace": (lambda x: SimpleNamespace(x=x, n=3), lambda b: b.x * b.n),
    "slots, containers inside": (Slotted, lambda b: b.parts[1]["more"] + b.parts[0] - b.x),
    "what a tokenizer gives": (lambda x: BatchEncoding({"x": x, "mask": x > 0}), lambda b: b["x"] * b["mask"]),
    "its attributes": (lambda x: BatchEncoding({"x": x}), lambda b: b.x),
    "a user's dictionary": (lambda x: UserDict(x=x), lambda b: b["x"] + len(b)),
    "two of them": (lambda x: [Batch(x), Batch(x + 1, 3.0)], lambda b: b[0].scaled() - b[1].scaled()),
}


def _x(n: int) -> Tensor:
    return torch.arange(12.0).view(4, 3) * 0.1 - 0.05 * n


@pytest.mark.parametrize("kind", KINDS)
def test_one_program_for_new_objects(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, read = KINDS[kind]
    nets = [_net(), _net()]
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]

    def step(which: int, batch: Any, factor: float) -> Tensor:
        optimizers[which].zero_grad()
        loss = nets[which](read(batch)).square().mean() * factor
        loss.backward()
        optimizers[which].step()
        return loss.detach()

    compiled, walks = dovetail.compile_step(lambda batch, factor: step(1, batch, factor)), []
    refresh = ReachableState.refresh
    monkeypatch.setattr(ReachableState, "refresh", lambda self: (walks.append(1), refresh(self)))
    for n in range(20):
        if n == 6:
            walks.clear()
        assert torch.equal(compiled(make(_x(n)), 1.5), step(0, make(_x(n)), 1.5))
    assert walks == []
    assert (compiled.stats.captures <= 3, compiled.stats.eager_calls) == (True, 0)


def test_what_differs_in_an_object_is_seen() -> None:
    compiled = dovetail.compile_step(lambda b: b.scaled().sum() + len(b.name), max_variants=12)
    shared = torch.ones(4, 3)
    batches: list[Callable[[int], Any]] = [
        lambda n: Batch(_x(n)),
        lambda n: Batch(_x(n), 2.0 + n),
        lambda n: Batch(_x(n)[:2]),
        lambda n: Batch(_x(n).double()),
        lambda _: Batch(shared),
        lambda n: Other(_x(n)),
        lambda n: Batch(_x(n), 3),  # type: ignore[arg-type]
    ]
    for n in range(28):
        batch = batches[n % 7](n) if n > 5 else batches[0](n)
        batch.name = "abc" if n in (8, 21) else "a"
        assert torch.equal(compiled(batch), batch.scaled().sum() + len(batch.name))


def test_objects_that_are_written_filled_and_returned() -> None:
    found = []
    for compiled in (False, True):

        def step(b: Any, total: Any) -> Any:
            b.y = b.x * 2
            total.sum += b.y.sum()
            total.count += 1
            return b, b.y.mean()

        run, seen, total = (
            dovetail.compile_step(step) if compiled else step,
            [],
            SimpleNamespace(sum=torch.zeros(()), count=0),
        )
        for n in range(8):
            batch = Batch(_x(n))
            result, mean = run(batch, total)
            seen.append((result is batch, batch.y.tolist(), mean.item(), total.sum.item(), total.count))  # type: ignore[attr-defined]
        found.append(seen)
    assert found[0] == found[1]


def test_nothing_of_a_call_is_kept() -> None:
    compiled = dovetail.compile_step(lambda b: b.x.sum())
    for n in range(6):
        compiled(Batch(_x(n)))
    batch = Batch(_x(7))
    compiled(batch)
    references = [weakref.ref(batch), weakref.ref(batch.x)]
    del batch
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_threads_have_their_own_objects() -> None:
    compiled, wrong = dovetail.compile_step(lambda b: b.x.sum() * b.scale), list[Any]()

    def call(which: int) -> None:
        for n in range(60):
            batch = Batch(torch.full((4, 3), float(which)), which + n % 3 + 0.5)
            if compiled(batch).item() != 12.0 * which * batch.scale:
                wrong.append((which, n))

    threads = [threading.Thread(target=call, args=(which,)) for which in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_object_that_is_state_as_well() -> None:
    """It is one object, wherever it is found."""
    held = SimpleNamespace(batch=Batch(_x(0)))

    def step(b: Any) -> Tensor:
        b.x.add_(1)
        return held.batch.x * 2

    compiled = dovetail.compile_step(step)
    for n in range(10):
        batch = held.batch if n in (4, 5, 8) else Batch(_x(n))
        before = held.batch.x.clone()
        result = compiled(batch)
        assert torch.equal(result, (before + (batch is held.batch)) * 2)


def test_a_dataclass_that_is_state_as_well_is_one_object() -> None:
    @dataclass
    class Sample:
        x: Tensor

    state = SimpleNamespace(sample=None, sum=torch.zeros(2))

    def step(sample: Sample, other: Sample) -> Tensor:
        state.sum += sample.x * (2 if sample is state.sample else 3) * (5 if sample is other else 7)
        return state.sum.clone()

    compiled, samples = dovetail.compile_step(step), [Sample(torch.ones(2) * n) for n in range(3)]
    for n in range(24):
        state.sample = samples[1] if n > 4 else None
        pair = samples[n % 3], samples[n % 2]
        before = state.sum.clone()
        expected = step(*pair)
        state.sum.copy_(before)
        assert torch.equal(compiled(*pair), expected), n


class Mapped(dict[str, Any]):
    __getattr__ = dict.__getitem__  # raises KeyError


class Answering:
    def __init__(self, w: Any) -> None:
        self.w = w

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 5


class Refusing(Answering):
    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


class Misleading(Answering):
    @property
    def is_nested(self) -> bool:
        raise ValueError

    layout = device = requires_grad = is_nested


@pytest.mark.parametrize("door", [dovetail.compile_step, dovetail.compile])
@pytest.mark.parametrize("weight", [2.0, torch.full((4,), 2.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", [Mapped, Answering, Refusing, Misleading])
def test_attributes_that_only_the_step_asks_for(kind: Any, weight: Any, door: Any) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def step(given: Any, x: Tensor) -> Tensor:
        return (net(x) * given.w).sum().detach()

    compiled, given = door(step), kind(w=weight)
    for number in range(6):
        x = torch.full((3, 4), float(number))
        given = given if number < 3 else kind(w=weight + number)
        assert torch.equal(compiled(given, x), step(given, x))
