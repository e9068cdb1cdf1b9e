"""The guard itself: what it compares, says and keeps alive: by versions of dictionaries, without, by machine code."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import torch

from dovetail.reach import tables
from dovetail.reach.contents import MISSING, Snapshot
from dovetail.reach.expected_values import OfType, TupleOf
from dovetail.reach.guard import PythonGuard
from dovetail.reach.guarded import Guarded, Table
from dovetail.reach.guards import PythonGuards
from tests.reach.memory import ask_memory_always


@pytest.fixture(params=["versions", "no versions", "machine code"], autouse=True)
def _each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "machine code":
        ask_memory_always(monkeypatch)
    if request.param == "no versions":
        monkeypatch.setattr(tables, "version_of_dict", None)
    elif tables.version_of_dict is None:
        pytest.skip("dictionaries have no versions here")


class Item:
    def __init__(self) -> None:
        self.number = 1.0
        self.unread = 0


class Other(Item):
    pass


def bound(*containers: Any, **entries: Any) -> Guarded:
    slots = Guarded(Snapshot(), is_bound=True)
    for place, item in enumerate(containers):
        slots.snapshot.expect(item, [*item.keys(), *item.values()] if isinstance(item, dict) else list(item))
        slots.containers.append((item, f"container {place}"))
    table = Table("", ".{}", list(entries), list(entries.values()))
    slots.dictionaries.append((dict(entries), table))
    return slots


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [1, 2], lambda x: x.append(3)),
        (lambda: [], lambda x: x.append(3)),
        (lambda: [1, 2], lambda x: x.reverse()),
        (lambda: {"a": 1}, lambda x: x.update(a=2)),
        (lambda: {"a": 1}, lambda x: x.update(b=2)),
        (lambda: {"a": 1, "b": 1}, lambda x: x.update(a=x.pop("a"))),
        (lambda: {}, lambda x: x.update(b=2)),
        (lambda: OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    ],
)
def test_containers_that_a_program_is_bound_to(make: Callable[[], Any], change: Callable[[Any], object]) -> None:
    held = make()
    guard = PythonGuard(bound(held))
    assert guard.holds()
    assert guard.why() == ""
    change(held)
    assert not guard.holds()
    assert guard.why()


def test_a_container_counts_by_identity_where_it_is_held() -> None:
    inner = [1.0]
    outer = [inner]
    guard = PythonGuard(bound(outer, inner))
    assert guard.holds()
    outer[0] = [1.0]
    assert not guard.holds()
    assert guard.why() == "container 0 changed"


def test_of_an_input_only_the_type_counts() -> None:
    slots = Guarded(Snapshot(), is_bound=True)
    held: dict[str, Any] = {"rate": 0.1, "betas": (0.9, 0.99), "other": 1}
    expected = [OfType(float), TupleOf(tuple, (OfType(float), 0.99)), 1]
    slots.dictionaries.append((held, Table("self", ".{}", list(held), expected)))
    guard = PythonGuard(slots)
    assert guard.holds()
    held.update(rate=0.2, betas=(0.8, 0.99))
    assert guard.holds()
    for entry, value in (("rate", 1), ("betas", (0.9, 0.5)), ("betas", (1, 0.99)), ("betas", (0.9,)), ("other", 2)):
        before = held[entry]
        held[entry] = value
        assert not guard.holds()
        assert guard.why().startswith(f"self.{entry} changed")
        held[entry] = before
        assert guard.holds()


def test_objects_their_classes_and_their_dictionaries() -> None:
    item = Item()
    table = vars(item)
    slots = Guarded(Snapshot(), is_bound=True, objects=[(item, Item)], bound_tables=[(0, table)])
    slots.dictionaries.append((table, Table("item", ".{}", ["number", "hidden"], [1.0, MISSING])))
    guard = PythonGuard(slots)
    item.unread += 1
    assert guard.holds()
    item.number = float("1.0")
    assert guard.holds()
    item.hidden = 1  # type: ignore[attr-defined]
    assert guard.why() == "item.hidden changed"
    del item.hidden  # type: ignore[attr-defined]
    item.number = 2.0
    assert guard.why() == "item.number changed: 1.0 -> 2.0"
    item.number = 1.0
    assert guard.holds()
    item.__dict__ = dict(table)
    assert not guard.holds()
    item.__dict__ = table
    assert guard.holds()
    item.__class__ = Other
    assert guard.why() == "an object that it read has another class"


def test_what_counts_by_value_is_not_kept_alive() -> None:
    item = Item()
    slots = Guarded(Snapshot(), objects=[(item, Item)], tables=[(0, Table("item", ".{}", ["number"], [1.0]))])
    guards = PythonGuards([PythonGuard(slots)])
    assert guards.holds()
    alive = weakref.ref(item)
    del item, slots
    gc.collect()
    assert alive() is None
    assert not guards.is_alive
    assert not guards.holds()
    assert guards.why() == "an object that it read is gone"


@pytest.mark.parametrize(
    "make", [lambda: UUID(int=7), lambda: Fraction(1, 3), lambda: (Path("a"), 1.5), lambda: torch.Size([2, 3])]
)
def test_an_equal_value_is_as_good_when_the_old_one_is_gone(make: Callable[[], Any]) -> None:
    item: Any = Item()
    item.number = make()
    slots = Guarded(Snapshot(), objects=[(item, Item)], tables=[(0, Table("item", ".{}", ["number"], [item.number]))])
    guard = PythonGuard(slots)
    del slots
    item.number = make()
    gc.collect()
    assert guard.holds()
    assert guard.is_alive
    item.number = object()
    assert not guard.holds()


def test_questions_are_asked_again() -> None:
    answers = [3, 3, True]
    guard = PythonGuard(Guarded(Snapshot(), asked={lambda: answers[0]: 3}))
    assert guard.holds()
    answers[0] = True
    assert not guard.holds()
    assert "3 -> True" in guard.why()
