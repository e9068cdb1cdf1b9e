"""State that each call replaces is found where it lies: later calls run the program without walking what is reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.frontends.step.reachable_state import ReachableState

X = torch.arange(6.0).view(2, 3) * 0.1
Step = Callable[[Any, Tensor], Any]
Between = dict[int, Callable[[Any], None]]


@dataclass
class Average:
    mean: Tensor
    count: int


@dataclass(slots=True)
class Slotted:
    mean: Tensor
    count: int


class Pair(NamedTuple):
    first: Tensor
    rest: list[Tensor]


def _zeros() -> Tensor:
    return torch.zeros(2, 3)


def a_list(s: Any, x: Tensor) -> Any:
    s.h = [s.h[0] * 0.5 + x, s.h[0]]
    return s.h[1] + 1


def a_dictionary(s: Any, x: Tensor) -> Any:
    s.h = {name: value * 0.5 + x for name, value in s.h.items()}
    return s.h["b"] + 1


def an_entry(s: Any, x: Tensor) -> Any:
    s.table["h"] = [value + x for value in s.table["h"]]
    return s.table["h"][0] + s.table["k"]


def an_object(s: Any, x: Tensor) -> Any:
    s.h = replace(s.h, mean=s.h.mean * 0.5 + x, count=s.h.count + 1)
    return s.h.mean * s.h.count


def a_named_tuple(s: Any, x: Tensor) -> Any:
    s.h = Pair(s.h.first + x, [s.h.first, *s.h.rest[:1]])
    return s.h.rest[0] * 2


def nested(s: Any, x: Tensor) -> Any:
    s.h = {"layers": [Average(v.mean + x, v.count + 1) for v in s.h["layers"]], "last": (s.h["last"][0] + x, [x * 2])}
    return s.h["layers"][0].mean + s.h["last"][0]


def exchanged(s: Any, x: Tensor) -> Any:
    s.old, s.h = s.h, [s.old[0] + x]
    return s.old[0] + s.h[0]


def item_of_a_list(s: Any, x: Tensor) -> Any:
    s.all[1] = [s.all[1][0] + x]
    return s.all[1][0] + s.all[0]


def a_variable(s: Any, x: Tensor) -> Any:
    return s.step(x)


def _with_variable() -> Any:
    held = [_zeros()]

    def step(x: Tensor) -> Tensor:
        nonlocal held
        held = [held[0] + x]
        return held[0] * 2

    return SimpleNamespace(step=step, shown=lambda: held)


STEPS: dict[Step, Callable[[], Any]] = {
    a_list: lambda: SimpleNamespace(h=[_zeros(), _zeros()]),
    a_dictionary: lambda: SimpleNamespace(h={"a": _zeros(), "b": _zeros() + 1}),
    an_entry: lambda: SimpleNamespace(table={"h": [_zeros(), _zeros()], "k": torch.ones(3)}),
    an_object: lambda: SimpleNamespace(h=Average(_zeros(), 0)),
    a_named_tuple: lambda: SimpleNamespace(h=Pair(_zeros(), [_zeros()])),
    nested: lambda: SimpleNamespace(
        h={"layers": [Average(_zeros(), 0), Average(_zeros(), 3)], "last": (_zeros(), [_zeros()])}
    ),
    exchanged: lambda: SimpleNamespace(h=[_zeros()], old=[_zeros() + 1]),
    item_of_a_list: lambda: SimpleNamespace(all=[torch.ones(3), [_zeros()]]),
    a_variable: _with_variable,
}


def _shown(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.tolist()
    if isinstance(item, Average | Slotted):
        return type(item).__name__, _shown(item.mean), item.count
    if isinstance(item, dict):
        return [(name, _shown(value)) for name, value in item.items()]
    return [_shown(value) for value in item] if isinstance(item, list | tuple) else item


def _state(s: Any) -> Any:
    return [_shown(s.shown())] if hasattr(s, "shown") else _shown(vars(s))


def _called(step: Step, make: Callable[[], Any], between: Between, compiled: bool) -> list[Any]:
    s, seen = make(), []

    def run(x: Tensor) -> Any:
        return step(s, x)

    called = dovetail.compile_step(run) if compiled else run
    for n in range(8):
        between.get(n, id)(s)
        seen.append((_shown(called(X + n)), _state(s)))
    return seen


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_later_calls_walk_nothing(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    s, other = STEPS[step](), STEPS[step]()
    compiled = dovetail.compile_step(lambda x: step(s, x))
    for n in range(4):  # numbers become inputs when they have changed
        assert torch.equal(compiled(X + n), step(other, X + n))
    refresh = ReachableState.refresh
    monkeypatch.setattr(ReachableState, "refresh", lambda self: (walks.append(1), refresh(self)))
    for n in range(40):
        assert torch.equal(compiled(X + n), step(other, X + n))
        assert _state(s) == _state(other)
    assert walks == []
    assert compiled.stats.eager_calls == 0


BETWEEN: list[tuple[Step, str, Callable[[Any], None]]] = [
    (a_list, "a longer list", lambda s: s.h.append(_zeros())),
    (a_list, "an item set", lambda s: s.h.__setitem__(0, _zeros() + 7)),
    (a_list, "turned", lambda s: s.h.reverse()),
    (a_list, "one tensor twice", lambda s: setattr(s, "h", [s.h[0], s.h[0]])),
    (a_list, "a tuple", lambda s: setattr(s, "h", tuple(s.h))),
    (a_list, "another dtype", lambda s: setattr(s, "h", [v.double() for v in s.h])),
    (a_list, "overlapping", lambda s: setattr(s, "h", list(torch.zeros(3, 3).unfold(0, 2, 1).transpose(1, 2)))),
    (a_list, "a number", lambda s: s.h.__setitem__(0, 2.5)),
    (a_dictionary, "keys in another order", lambda s: setattr(s, "h", dict(reversed(s.h.items())))),
    (a_dictionary, "one more key", lambda s: s.h.update(c=_zeros())),
    (a_dictionary, "another key", lambda s: setattr(s, "h", {"b": s.h["b"], "z": s.h["a"]})),
    (an_entry, "the entry beside it", lambda s: s.table.update(k=torch.ones(3) * 2)),
    (an_entry, "one list in two entries", lambda s: s.table.update(j=s.table["h"])),
    (an_object, "a number set", lambda s: setattr(s.h, "count", 10)),
    (an_object, "a number of another type", lambda s: setattr(s.h, "count", 10.5)),
    (an_object, "a subclass", lambda s: setattr(s, "h", type("Mine", (Average,), {})(s.h.mean, s.h.count))),
    (a_named_tuple, "a list emptied", lambda s: s.h.rest.clear()),
    (nested, "one object twice", lambda s: s.h.update(layers=[s.h["layers"][0]] * 2)),
    (nested, "deep inside", lambda s: s.h["layers"][1].__dict__.update(count=8, mean=_zeros() - 1)),
    (exchanged, "one list in two slots", lambda s: setattr(s, "old", s.h)),
    (item_of_a_list, "one item less", lambda s: s.all[1].append(_zeros())),
]


@pytest.mark.parametrize(("step", "what", "change"), BETWEEN, ids=lambda x: getattr(x, "__name__", x))
@pytest.mark.parametrize("at", [3, 6])
def test_what_is_changed_between_calls_is_seen(step: Step, what: str, change: Callable[[Any], None], at: int) -> None:
    between: Between = {at: change}
    assert _called(step, STEPS[step], between, compiled=True) == _called(step, STEPS[step], between, compiled=False)


def test_objects_with_slots() -> None:
    def make() -> Any:
        return SimpleNamespace(h=Slotted(_zeros(), 0))

    between: Between = {4: lambda s: setattr(s.h, "count", 9), 6: lambda s: setattr(s, "h", Slotted(_zeros() + 5, 1))}
    assert _called(an_object, make, between, compiled=True) == _called(an_object, make, between, compiled=False)


def test_a_list_that_another_slot_holds_is_the_one_that_is_written() -> None:
    """What two slots lead to counts by which object it is."""

    def step(s: Any, x: Tensor) -> Tensor:
        s.h = [s.h[0] + x]
        s.other[0].add_(1)
        return s.h[0] * 2

    def make() -> Any:
        return SimpleNamespace(h=[_zeros()], other=[_zeros()])

    between: Between = {3: lambda s: setattr(s, "other", s.h), 5: lambda s: setattr(s, "other", [_zeros()])}
    assert _called(step, make, between, compiled=True) == _called(step, make, between, compiled=False)


def test_what_is_replaced_is_not_kept_alive() -> None:
    s = STEPS[a_list]()
    compiled = dovetail.compile_step(lambda x: a_list(s, x))
    for n in range(4):
        compiled(X + n)
    held = torch.utils.weak.WeakTensorKeyDictionary()
    for value in s.h:
        held[value] = True
    assert len(held) == 2
    del value
    s.h = [_zeros(), _zeros()]
    assert len(held) == 0


def gathered(s: Any, x: Tensor) -> Any:
    s.h.append(x * 2)
    if len(s.h) == 3:
        mean = torch.stack(s.h).mean(0)
        s.h = []
        return mean
    return s.h[-1] + 0


def told_now_and_then(s: Any, x: Tensor) -> Any:
    s.count += 1
    s.h.append((s.count, x.sum().item()))
    if s.count % 4 == 0:
        s.h = []
    return x * s.count


def window(s: Any, x: Tensor) -> Any:
    s.h.append(x + 1)
    return torch.stack(list(s.h)).sum(0)


@pytest.mark.parametrize(
    ("step", "make"),
    [
        (gathered, lambda: SimpleNamespace(h=[])),
        (told_now_and_then, lambda: SimpleNamespace(h=[], count=0)),
        (window, lambda: SimpleNamespace(h=deque([_zeros(), _zeros()], maxlen=2))),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_lists_that_grow_and_are_replaced(step: Step, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    walks, refresh = [], ReachableState.refresh
    monkeypatch.setattr(ReachableState, "refresh", lambda self: (walks.append(1), refresh(self)))
    s, other = make(), make()
    compiled = dovetail.compile_step(lambda x: step(s, x))
    for n in range(36):
        if n == 16:
            walks.clear()
        assert torch.equal(compiled(X + n), step(other, X + n))
        assert _shown(list(s.h)) == _shown(list(other.h))
    assert walks == []
    assert compiled.stats.eager_calls == 0
