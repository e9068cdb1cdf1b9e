"""What a step keeps in Python objects: after each call they hold what eager mode leaves, and the next call reads it."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import DovetailError, FreedGraph, StateChangedOtherwise
from tests.frontends.step.agreement import programs_of

Step = Callable[..., Any]
LAST: Any = None
CALLS = 6


class Training:
    """A net, an optimizer, and whatever a step puts here."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.held: Any = None
        self.history: list[Any] = []
        self.table: dict[Any, Any] = {}

    def train(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def shown(value: Any) -> Any:
    """A value to compare, with the identity of tensors left out."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.requires_grad, value.is_leaf, value.detach().tolist()
    if isinstance(value, dict):
        return type(value), [(key, shown(item)) for key, item in value.items()]
    return (type(value), list(map(shown, value))) if isinstance(value, list | tuple | deque) else value


def followed(make: Any, between: Any = None, calls: int = CALLS) -> Any:
    """Run a step eager and compiled, and compare what it returns and keeps. Returns the compiled one."""
    found, run = [], None
    for compiled in (False, True):
        t = Training()
        step, kept = make(t)
        run = dovetail.compile_step(step) if compiled else step
        seen = []
        for n in range(calls):
            result = run(torch.full((4, 3), 0.1 * n - 0.2))
            seen.append((shown(result), shown(kept()), shown(list(t.net.parameters()))))
            if between is not None:
                between(t, n)
        found.append(seen)
    for n, (wanted, got) in enumerate(zip(*found, strict=True)):
        assert wanted == got, f"call {n}"
    return run


def loss_in_attribute(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        t.held = t.train(x).detach()

    return step, lambda: t.held


def loss_with_its_graph(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        t.held = t.train(x)

    return step, lambda: t.held


def number_in_attribute(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        t.held = t.train(x).item()

    return step, lambda: t.held


def hidden_state(t: Training) -> Any:
    t.held = torch.zeros(4, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        t.optimizer.zero_grad()
        hidden = torch.tanh(t.net(x) + t.held)
        hidden.square().mean().backward()
        t.optimizer.step()
        t.held = hidden.detach()
        return t.held

    return step, lambda: t.held


def two_hidden_states(t: Training) -> Any:
    t.held = (torch.zeros(4, 2), torch.zeros(4, 2))

    def step(x: torch.Tensor) -> None:
        first, second = t.held
        first = torch.tanh(t.net(x) + first)
        second = second + first
        t.held = (first.detach(), second.detach())

    return step, lambda: t.held


def hidden_state_that_comes_to_be(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        before = torch.zeros(4, 2) if t.held is None else t.held
        t.held = torch.tanh(t.net(x) + before).detach()

    return step, lambda: t.held


def variable(t: Training) -> Any:
    last = torch.zeros(4, 2)

    def step(x: torch.Tensor) -> None:
        nonlocal last
        last = (t.net(x) + last).detach()

    return step, lambda: last


def global_variable(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        global LAST  # noqa: PLW0603
        LAST = t.train(x).detach() + (0 if LAST is None else LAST)

    global LAST  # noqa: PLW0603
    LAST = torch.zeros(())
    return step, lambda: LAST


def total(t: Training) -> Any:
    t.held = 0.0

    def step(x: torch.Tensor) -> float:
        t.held += t.train(x).item()
        return float(t.held) if isinstance(t.held, int) else t.held

    return step, lambda: t.held


def total_of_tensors(t: Training) -> Any:
    t.held = torch.zeros(())

    def step(x: torch.Tensor) -> None:
        t.held = t.held + t.train(x).detach()

    return step, lambda: t.held


def one_tensor_in_two_places(t: Training) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        t.held = t.table["loss"] = t.train(x).detach()
        t.history.append(t.held)
        return t.held

    def kept() -> Any:
        return t.held, t.table["loss"] is t.held, [x is t.held for x in t.history]

    return step, kept


def the_argument(t: Training) -> Any:
    t.held = torch.zeros(4, 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = t.train(x + t.held)
        t.held = x
        return loss

    return step, lambda: t.held


def appended(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        loss = t.train(x)
        t.history.append(loss.item())
        t.history.append((len(x), loss.detach(), {"text": f"{loss.item():.3f}"}))
        t.history += [loss.item() * 2]
        t.history.extend(n * loss.item() for n in range(2))

    return step, lambda: t.history


def entries(t: Training) -> Any:
    count = 0

    def step(x: torch.Tensor) -> None:
        nonlocal count
        loss = t.train(x)
        t.table["loss"] = loss.item()
        t.table["tensor"] = loss.detach()
        t.table[count] = loss.item()
        t.table.update(other=loss.detach() * 2)
        count += 1

    return step, lambda: t.table


def lists_in_a_table(t: Training) -> Any:
    t.table = defaultdict(list)

    def step(x: torch.Tensor) -> None:
        loss = t.train(x)
        for name in ("train", "test"):
            t.table[name].append(loss.item())

    return step, lambda: t.table


def average_of_weights(t: Training) -> Any:
    t.table = {name: p.detach().clone() for name, p in t.net.named_parameters()}

    def step(x: torch.Tensor) -> None:
        t.train(x)
        with torch.no_grad():
            for name, p in t.net.named_parameters():
                t.table[name] = 0.9 * t.table[name] + 0.1 * p

    return step, lambda: t.table


def meter(t: Training) -> Any:
    class Meter:
        def __init__(self) -> None:
            self.value, self.total, self.count, self.average = 0.0, 0.0, 0, 0.0

        def update(self, value: float, count: int = 1) -> None:
            self.value = value
            self.total += value * count
            self.count += count
            self.average = self.total / self.count

    t.held = Meter()

    def step(x: torch.Tensor) -> None:
        t.held.update(t.train(x).item(), len(x))

    return step, lambda: [t.held.value, t.held.total, t.held.count, t.held.average]


def buffer_replaced(t: Training) -> Any:
    t.net.register_buffer("total", torch.zeros(()))

    def step(x: torch.Tensor) -> None:
        t.net.total = t.net.total + t.train(x).detach()

    return step, lambda: t.net.total


def replaced_table(t: Training) -> Any:
    def step(x: torch.Tensor) -> None:
        loss = t.train(x)
        t.held = {"loss": loss.item(), "both": [loss.detach(), 1]}

    return step, lambda: t.held


def written_rows(t: Training) -> Any:
    class Writer:
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def add_scalar(self, name: str, value: float, number: int) -> None:
            self.rows.append((name, value, number))

    writer, number = Writer(), 0

    def step(x: torch.Tensor) -> None:
        nonlocal number
        writer.add_scalar("loss", t.train(x).item(), number)
        number += 1

    return step, lambda: writer.rows


KEPT = (
    *(loss_in_attribute, loss_with_its_graph, number_in_attribute, hidden_state, two_hidden_states),
    *(hidden_state_that_comes_to_be, variable, global_variable, total, total_of_tensors, one_tensor_in_two_places),
    *(the_argument, appended, entries, lists_in_a_table, average_of_weights, meter, buffer_replaced, replaced_table),
    written_rows,
)

COMES_TO_BE = (hidden_state_that_comes_to_be, lists_in_a_table)  # in the first call


@pytest.mark.parametrize("make", KEPT, ids=lambda make: make.__name__)
def test_kept_as_in_eager_mode_by_one_program(make: Any) -> None:
    stats = followed(make).stats
    programs = 1 + (make in COMES_TO_BE)
    assert (programs_of(stats), stats.eager_calls, stats.guard_misses) == (programs, 0, 0), stats


def window(t: Training) -> Any:
    t.held = deque(maxlen=3)

    def step(x: torch.Tensor) -> Any:
        t.held.append(t.train(x).item())
        return sum(t.held) / len(t.held)

    return step, lambda: t.held


def length_read(t: Training) -> Any:
    def step(x: torch.Tensor) -> Any:
        t.history.append(t.train(x).detach())
        return len(t.history)

    return step, lambda: t.history


@pytest.mark.parametrize("make", [window, length_read], ids=lambda make: make.__name__)
def test_a_container_that_is_read_is_guarded(make: Any) -> None:
    assert followed(make).stats.captures > 1


def test_what_is_put_there_between_calls_is_read() -> None:
    def between(t: Training, n: int) -> None:
        if n % 2:
            t.held = torch.full((4, 2), float(n))

    assert programs_of(followed(hidden_state, between).stats) == 1


def test_a_list_that_is_replaced_between_calls_is_the_one_that_grows() -> None:
    def between(t: Training, n: int) -> None:
        t.history = [n]

    followed(appended, between)


def test_a_number_in_the_place_of_a_tensor_is_another_kind_of_call() -> None:
    def between(t: Training, n: int) -> None:
        t.held = 0.5 if n == 3 else t.held

    followed(total_of_tensors, between)


def test_what_was_kept_is_not_written_later_on() -> None:
    t = Training()
    step, _ = hidden_state(t)
    run = dovetail.compile_step(step)
    held = []
    for _ in range(5):
        run(torch.ones(4, 3))
        held.append((t.held, t.held.clone()))
    assert all(torch.equal(a, b) for a, b in held)


def test_what_is_replaced_does_not_live_on() -> None:
    t = Training()
    step, _ = hidden_state(t)
    run = dovetail.compile_step(step)
    alive = []
    for _ in range(5):
        run(torch.ones(4, 3))
        alive.append(weakref.ref(t.held))
    gc.collect()
    assert [x() is not None for x in alive] == [False, False, False, False, True]


def test_a_graph_that_is_kept_is_gone() -> None:
    t = Training()
    run = dovetail.compile_step(loss_with_its_graph(t)[0])
    for _ in range(3):
        run(torch.ones(4, 3))
    assert t.held.requires_grad
    assert t.held.grad_fn is not None
    with pytest.raises((FreedGraph, RuntimeError)):
        t.held.backward()


def test_a_guard_that_misses_leaves_everything() -> None:
    def make(t: Training) -> Any:
        def step(x: torch.Tensor) -> None:
            loss = t.train(x)
            t.history.append(loss.item())
            t.held = loss.detach()
            if loss.item() > 0.15:
                t.table["large"] = loss.detach()

        return step, lambda: (t.history, t.held, t.table)

    followed(make, calls=8)


def test_an_object_that_the_step_makes_is_refused_and_nothing_has_changed() -> None:
    t = Training()

    class Box:
        def __init__(self, item: Any) -> None:
            self.item = item

        def __del__(self) -> None: ...

    def step(x: torch.Tensor) -> None:
        t.history.append(1)
        t.held = Box(t.train(x).detach())

    run = dovetail.compile_step(step)
    run(torch.ones(4, 3))
    held, weight = t.held, t.net.weight.detach().clone()
    with pytest.raises(StateChangedOtherwise, match="test_kept"):
        run(torch.ones(4, 3))
    assert t.held is held
    assert t.history == [1]
    assert torch.equal(t.net.weight, weight)


def test_a_state_that_is_taken_away_is_not_said_to_be_replaced() -> None:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(layer.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.state.pop(layer.weight, None)
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    run = dovetail.compile_step(step)
    run(torch.ones(1, 2))
    with pytest.raises(StateChangedOtherwise, match=r"the step changes optimizer\.state\."):
        run(torch.ones(1, 2))
    assert [state["step"] for state in optimizer.state.values()] == [1, 1]


def test_a_list_that_grows_costs_no_more() -> None:
    t = Training()
    run = dovetail.compile_step(appended(t)[0])
    for _ in range(3):
        run(torch.ones(4, 3))
    t.history.extend([0.0] * 20_000)
    run(torch.ones(4, 3))
    assert programs_of(run.stats) == 1


def test_memory_of_a_parameter_is_not_kept() -> None:
    t = Training()

    def step(x: torch.Tensor) -> None:
        t.train(x)
        t.held = t.net.weight.detach()

    run = dovetail.compile_step(step)
    run(torch.ones(4, 3))
    with pytest.raises(DovetailError):
        run(torch.ones(4, 3))


def test_another_kind_of_tensor_where_a_program_is_bound_to_nothing_is_told() -> None:
    """What the program before was bound to is gone by then: each call replaces it."""
    held = SimpleNamespace(h=torch.ones(2), rest=[torch.ones(2)], again=None)

    def step(x: torch.Tensor) -> torch.Tensor:
        held.h = held.h * x
        held.rest = held.again = [held.rest[0] + x]
        return held.rest[0].sum()

    compiled = dovetail.compile_step(step)
    for n in range(6):
        held.h = held.h.double() if n == 4 else held.h
        assert compiled(torch.full((2,), 2.0)).item() == 6 + 4 * n
    assert held.h.tolist() == [64, 64]
    assert "dtype" in compiled.stats.variants[-1].reason
