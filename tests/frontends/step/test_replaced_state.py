"""State that the user's code replaces between calls is read as arguments are, once two calls have shown it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.frontends.step.captures import StepCaptures
from dovetail.frontends.step.reachable_state import ReachableState

CALLS = 24


@dataclass
class Batch:
    x: Tensor
    scale: float = 1.0


class Pair(NamedTuple):
    x: Tensor
    weight: Tensor


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.01)
        self.x: Any = None
        self.lists: Any = [None]

    def train(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


Made = tuple[Callable[[], Tensor], Callable[[Tensor, int], None]]
"""A step, and what puts the next batch where it finds it."""


def attribute(t: Trainer) -> Made:
    return lambda: t.train(t.x), lambda x, n: setattr(t, "x", x)


def dictionary(t: Trainer) -> Made:
    return lambda: t.train(t.x["x"] * t.x["w"]), lambda x, n: setattr(t, "x", {"x": x, "w": x + 1})


def nested(t: Trainer) -> Made:
    return lambda: t.train(t.x["x"][0] + t.x["x"][1][0]), lambda x, n: setattr(t, "x", {"x": [x, (x * 2,)]})


def an_object(t: Trainer) -> Made:
    return lambda: t.train(t.x.x * t.x.scale), lambda x, n: setattr(t, "x", Batch(x, 0.5))


def a_named_tuple(t: Trainer) -> Made:
    return lambda: t.train(t.x.x * t.x.weight), lambda x, n: setattr(t, "x", Pair(x, x.cos()))


def item_of_a_list(t: Trainer) -> Made:
    return lambda: t.train(t.lists[0]), lambda x, n: t.lists.__setitem__(0, x)


def variable(t: Trainer) -> Made:
    batch: Any = None

    def put(x: Tensor, n: int) -> None:
        nonlocal batch
        batch = x

    return lambda: t.train(batch), put


def global_variable(t: Trainer) -> Made:
    known = {"t": t}
    exec("def step():\n return t.train(BATCH)", known)
    return known["step"], lambda x, n: known.update(BATCH=x)  # type: ignore[return-value]


def with_numbers(t: Trainer) -> Made:
    return lambda: t.train(t.x.x * t.x.scale), lambda x, n: setattr(t, "x", Batch(x, n / 10 + 0.1))


def with_what_stays(t: Trainer) -> Made:
    mask = torch.tensor([1.0, 0.0, 1.0])
    return lambda: t.train(t.x["x"] * t.x["mask"]), lambda x, n: setattr(t, "x", {"x": x, "mask": mask})


MADE = [
    attribute, dictionary, nested, an_object, a_named_tuple, item_of_a_list, variable, global_variable, with_numbers,
    with_what_stays,
]  # fmt: skip


def _batch(n: int) -> Tensor:
    return torch.arange(12.0).view(4, 3) * 0.1 - n * 0.05


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_later_calls_walk_nothing(make: Callable[[Trainer], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = Trainer(), Trainer()
    (eager, give), (step, put) = make(theirs), make(mine)
    compiled, walks = dovetail.compile_step(step), []
    refresh = ReachableState.refresh
    monkeypatch.setattr(ReachableState, "refresh", lambda self: (walks.append(1), refresh(self)))
    for n in range(CALLS):
        give(_batch(n), n)
        put(_batch(n), n)
        if n == 6:
            walks.clear()
        assert torch.equal(compiled(), eager())
    assert walks == []
    assert compiled.stats.eager_calls == 0
    assert len(compiled.stats.variants) <= 3
    for a, b in zip(theirs.net.parameters(), mine.net.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("another shape", lambda x: torch.cat([x, x])),
        ("another dtype", lambda x: x.double().float()[:, :3]),
        ("a weight", nn.Parameter),
        ("a view", lambda x: torch.stack([x, x], -1)[..., 0]),
        ("nothing new", lambda x: x),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_another_kind_of_batch_later(what: str, change: Callable[[Tensor], Tensor]) -> None:
    theirs, mine = Trainer(), Trainer()
    (eager, give), (step, put) = attribute(theirs), attribute(mine)
    compiled = dovetail.compile_step(step)
    for n in range(14):
        x = _batch(n if n < 12 else 3)
        for put_one in (give, put):
            put_one(change(x.clone()) if n in (7, 9, 13) else x.clone(), n)
        assert torch.equal(compiled(), eager())


def test_a_batch_that_something_else_holds_as_well() -> None:
    """A tensor that was read as an argument is one with state for a while."""
    results = []
    for compiled in (False, True):
        t, stays = Trainer(), _batch(5)

        def step(t: Trainer = t, stays: Tensor = stays) -> Tensor:
            return t.train(t.x + stays) + (t.x is stays)

        run, seen = dovetail.compile_step(step) if compiled else step, []
        for n in range(12):
            t.x = stays if n in (6, 7, 10) else _batch(n)
            seen.append(run().item())
        results.append(seen)
    assert results[0] == results[1]


def test_weights_that_are_loaded_again_and_again_are_weights() -> None:
    """They are state of an optimizer: a program is bound to the new ones, and none is captured."""
    t = Trainer()
    step, put = attribute(t)
    put(_batch(0), 0)
    compiled = dovetail.compile_step(step)
    compiled()
    for _ in range(4):
        t.net.load_state_dict({k: v * 0.5 for k, v in t.net.state_dict().items()})
        compiled()
    assert compiled.stats.captures <= 2


@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("kind", [list, dict])
def test_a_container_for_results_that_is_replaced(kind: type, every: int, is_shown: bool) -> None:
    """`trainer.losses = []` at the beginning of each epoch; another slot may come to hold it, or read it, as well."""
    found = []
    for compiled in (False, True):
        t: Any = Trainer()
        t.losses, t.shown, t.x = kind(), None, _batch(0)

        def step(t: Any = t) -> Tensor:
            loss = t.train(t.x)
            if isinstance(t.losses, list):
                t.losses.append(loss.item())
            else:
                t.losses["last"] = loss.item()
            return loss * (0 if t.shown is None else len(t.shown))

        run, seen = dovetail.compile_step(step) if compiled else step, []
        for n in range(24):
            if n % every == 0:
                t.losses = kind()
            if is_shown and n in (9, 10, 15):
                t.shown = {9: t.losses, 10: None, 15: [1]}[n]
            seen.append((run().item(), repr(t.losses), repr(t.shown)))
        found.append(seen)
        if compiled:
            assert run.stats.captures <= (8 if is_shown else 3), run.stats  # type: ignore[attr-defined]
    assert found[0] == found[1]


def test_where_no_program_reads_it_so_the_one_that_there_is_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    monkeypatch.setattr(StepCaptures, "_tried", lambda *_: tries.append(1))
    theirs, mine = Trainer(), Trainer()
    (eager, give), (step, put) = attribute(theirs), attribute(mine)
    compiled = dovetail.compile_step(step)
    for n in range(10):
        give(_batch(n), n)
        put(_batch(n), n)
        assert torch.equal(compiled(), eager())
        if n == 1:
            before = compiled.stats.captures
    assert tries == [1]
    assert (compiled.stats.captures, compiled.stats.eager_calls) == (before, 0)


def test_a_batch_that_is_a_part_of_other_memory() -> None:
    found = []
    for compiled in (False, True):
        whole = torch.arange(24.0).view(6, 4)
        s = SimpleNamespace(rows=whole[2:4], other=torch.ones(2, 4))

        def step(s: Any = s) -> Tensor:
            s.other.add_(s.rows)
            total: Tensor = s.rows.sum() + s.other.mean()
            return total

        run, seen = dovetail.compile_step(step) if compiled else step, []
        for n in range(12):
            s.rows = s.other if n > 8 else whole[n % 4 : n % 4 + 2]  # at last, what is written
            seen.append((run().item(), s.other.tolist()))
        found.append(seen)
    assert found[0] == found[1]
