"""Guards by words of memory say what guards in Python say, whatever happens to what they compare."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import CellType, CodeType, FunctionType
from typing import Any

import pytest
import torch

from dovetail.reach.contents import MISSING, Snapshot
from dovetail.reach.expected_values import OfType
from dovetail.reach.guard import PythonGuard
from dovetail.reach.guarded import FUNCTION_PARTS, Guarded, Table
from dovetail.reach.object_layout import object_layout, place_of_member, place_of_table, word_at
from dovetail.reach.slots import in_slot
from tests.reach.memory import ask_memory_always
from tests.rotation import seed


class Item:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.hidden = 0


class Slotted:
    __slots__ = ("__weakref__", "first", "second")

    def __init__(self, value: Any) -> None:
        self.first = self.second = value


def _function(value: Any) -> FunctionType:
    def sample(item: Any = value, *, key: Any = None) -> Any:
        return item, key

    return sample


_REFERRED: list[Any] = []  # what weak references lead to, while it is here


def _referred(draw: random.Random) -> weakref.ref[Any]:
    _REFERRED.append(draw.choice([Item(1), torch.ones(2), {1, 2}]))
    return weakref.ref(_REFERRED[-1])


def _let_go(reference: weakref.ref[Any]) -> None:
    _REFERRED[:] = [item for item in _REFERRED if item is not reference()]


def _leaf(draw: random.Random) -> Any:
    tensor = torch.ones(draw.randint(1, 3))
    return draw.choice(
        [1, 1.5, float("1.5"), 2**40 + draw.randint(0, 1), "text", None, True, tensor, Item(1), (1, 2.5)]
    )


def _value(draw: random.Random, depth: int = 3) -> Any:
    """A leaf, or a container."""
    if not depth or draw.random() < 0.3:
        return _leaf(draw)
    held = [_value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    named = {f"k{n}": x for n, x in enumerate(held)}
    kinds: list[Callable[[], Any]] = [lambda: held, lambda: tuple(held), lambda: named]
    kinds += [lambda: _function(held)]
    kinds += [lambda: _referred(draw)]
    kinds += [lambda: OrderedDict(named), lambda: defaultdict(list, named), lambda: deque(held, 7), lambda: {1, 2}]
    return draw.choice(kinds[:5] if draw.random() < 0.8 else kinds)()


def _taken(snapshot: Snapshot, value: Any) -> None:
    """Note what a value holds, and what that holds."""
    if isinstance(value, list | tuple | dict | deque | set | FunctionType | weakref.ref) and not snapshot.has(value):
        for each in snapshot.take(value):
            _taken(snapshot, each)


class _World:
    """Holders of values of all kinds, and guards of them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.items = [Item(_value(draw)) for _ in range(3)]
        self.slotted = [Slotted(_value(draw)) for _ in range(2)]
        self.cells = [CellType(_value(draw)) for _ in range(3)]
        self.functions = [_function(_value(draw)) for _ in range(2)]
        self.space = {"a": _value(draw), "b": _value(draw), "unread": 0}
        self.kind = type("Kind", (), {"value": _value(draw)})

    def guarded(self, *, is_bound: bool) -> Guarded:
        found = Guarded(Snapshot(), is_bound=is_bound)
        for item in self.items:
            found.objects.append((item, type(item)))
            table = Table("item", ".{}", ["value", "missing"], [item.value, MISSING])
            if is_bound:
                found.bound_tables.append((len(found.objects) - 1, vars(item)))
                found.dictionaries.append((vars(item), table))
            else:
                found.tables.append((len(found.objects) - 1, table))
        for slotted in self.slotted:
            found.objects.append((slotted, Slotted))
            for name in ("first", "second"):
                descriptor = vars(Slotted)[name]
                found.descriptors.append((len(found.objects) - 1, descriptor, in_slot(slotted, descriptor)))
        found.cells = [(cell, "x", _in(cell)) for cell in self.cells]
        found.functions = [(f, [getattr(f, name) for name in FUNCTION_PARTS]) for f in self.functions]
        found.dictionaries.append((self.space, Table("", ".{}", ["a", "b"], [self.space["a"], self.space["b"]])))
        found.class_tables.append((self.kind, Table("Kind", ".{}", ["value"], [vars(self.kind)["value"]])))
        values = [self.space["a"], self.space["b"], vars(self.kind)["value"], *(x.value for x in self.items)]
        values += [*(x for *_, x in found.descriptors), *(x for *_, x in found.cells)]
        for value in [*values, *(part for _, parts in found.functions for part in parts[1:])]:
            _taken(found.snapshot, value)
        if is_bound:
            found.containers = [(x, "x") for x in found.snapshot if isinstance(x, list | dict | deque)]
        return found

    def places(self) -> list[tuple[Callable[[], Any], Callable[[Any], object]]]:
        """What can be read and written."""
        found: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
        for item in self.items:
            found.append((lambda x=item: x.value, lambda v, x=item: setattr(x, "value", v)))
            found.append((lambda x=item: x.hidden, lambda v, x=item: setattr(x, "hidden", v)))
        for slotted in self.slotted:
            found.append((lambda x=slotted: x.first, lambda v, x=slotted: setattr(x, "first", v)))
        for cell in self.cells:
            found.append((lambda x=cell: _in(x), lambda v, x=cell: setattr(x, "cell_contents", v)))
        for f in self.functions:
            found.append((lambda x=f: x.__defaults__, lambda v, x=f: setattr(x, "__defaults__", _defaults(v))))
        for key in self.space:
            found.append((lambda k=key: self.space[k], lambda v, k=key: self.space.update({k: v})))
        found.append((lambda: vars(self.kind)["value"], lambda v: setattr(self.kind, "value", v)))
        for value in [get() for get, _ in found]:
            self._inside(value, found)
        return found

    def _inside(self, value: Any, found: list[Any]) -> None:
        if isinstance(value, list):
            found += [
                (lambda v=value, n=n: v[n], lambda x, v=value, n=n: v.__setitem__(n, x)) for n in range(len(value))
            ]
            found.append((lambda v=value: list(v), lambda x, v=value: v.__setitem__(slice(None), _many(x))))
        elif isinstance(value, dict):
            found += [(lambda v=value, k=k: v.get(k), lambda x, v=value, k=k: v.update({k: x})) for k in value]
        elif isinstance(value, FunctionType):
            found.append((lambda v=value: v.__defaults__, lambda x, v=value: setattr(v, "__defaults__", _defaults(x))))
            found.append((lambda v=value: v.__code__, lambda x, v=value: setattr(v, "__code__", _code(x, v))))
            found.append((lambda v=value: getattr(v, "note", 0), lambda x, v=value: setattr(v, "note", x)))
            self._inside(value.__defaults__, found)
            self._inside(vars(value), found)
        elif isinstance(value, weakref.ref):
            found.append((lambda v=value: v, lambda _, v=value: _let_go(v)))
        elif isinstance(value, deque):
            found.append((lambda v=value: list(v), lambda x, v=value: (v.clear(), v.extend(_many(x)))))
        if isinstance(value, list | tuple | dict):
            for each in list(value.values() if isinstance(value, dict) else value):
                self._inside(each, found)


def _in(cell: CellType) -> Any:
    return cell.cell_contents


def _defaults(value: Any) -> Any:
    return value if isinstance(value, tuple) else None


def _code(value: Any, function: FunctionType) -> CodeType:
    return value if isinstance(value, CodeType) else function.__code__.replace(co_name="other")


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("is_bound", [False, True])
def test_words_say_what_python_says(is_bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed())
    held = 0
    for _ in range(20):
        world = _World(draw)
        slots = world.guarded(is_bound=is_bound)
        plain = PythonGuard(slots)
        with monkeypatch.context() as patch:
            ask_memory_always(patch)
            asked = PythonGuard(slots)
            del slots
            for _ in range(25):
                assert asked.holds() == plain.holds()
                get, put = draw.choice(world.places())
                before = get()
                put(draw.choice([_value(draw), before, _leaf(draw), _twin(before)]))
                said = plain.holds()
                assert asked.holds() == said, plain.why()
                held += said
                if draw.random() < 0.7:
                    put(before)
                    assert asked.holds() == plain.holds(), plain.why()
                del before
                if draw.random() < 0.05:
                    gc.collect()
    assert held > 10


def _twin(value: Any) -> Any:
    """Another object that is equal."""
    if isinstance(value, list | tuple):
        return type(value)(map(_twin, value))
    if isinstance(value, dict) and not isinstance(value, defaultdict):
        return type(value)((key, _twin(x)) for key, x in value.items())
    return float(str(value)) if type(value) is float else value


def test_words_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards would say the same without words: in calls that change nothing, no value is compared in Python."""
    ask_memory_always(monkeypatch)
    world = _World(random.Random(3))
    world.cells, world.space = [CellType([1.0, [Item(1)]])], {"a": {"x": [2]}, "b": 1, "unread": 0}
    guard = PythonGuard(world.guarded(is_bound=True))
    assert guard.holds()
    monkeypatch.setattr(PythonGuard, "_holds_one_by_one", lambda _: pytest.fail("compared in Python"))
    assert guard.holds()
    world.space["unread"] = 1  # the dictionary has another version
    assert guard.holds()


def test_another_list_in_the_place_of_one_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_memory_always(monkeypatch)
    for make in (lambda x: [x], lambda x: (x,), lambda x: {"k": x}):
        cell = CellType(make([1.0, 2.0]))
        slots = Guarded(Snapshot(), cells=[(cell, "x", cell.cell_contents)])
        _taken(slots.snapshot, cell.cell_contents)
        guard = PythonGuard(slots)
        del slots
        assert guard.holds()
        assert guard.holds()
        for _ in range(20):  # another one may get the address of the one before
            cell.cell_contents = make([1.0, 2.0])
            assert guard.holds()
            cell.cell_contents = make([1.0, 3.0])
            assert not guard.holds()
            cell.cell_contents = make([1.0, 2.0])
            assert guard.holds()


def test_weak_references_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_memory_always(monkeypatch)
    weights = [torch.ones(2), torch.zeros(3)]
    cell = CellType([weakref.ref(weight) for weight in weights])
    slots = Guarded(Snapshot(), cells=[(cell, "x", cell.cell_contents)])
    _taken(slots.snapshot, cell.cell_contents)
    guard = PythonGuard(slots)
    del slots
    assert guard.holds()
    with monkeypatch.context() as patch:
        patch.setattr(PythonGuard, "_holds_one_by_one", lambda _: pytest.fail("compared in Python"))
        assert guard.holds()
    cell.cell_contents[0] = weakref.ref(weights[1])
    assert not guard.holds()
    cell.cell_contents[0] = weakref.ref(weights[0])
    assert guard.holds()
    del weights[0]
    gc.collect()
    assert not guard.holds()


def test_of_an_input_in_a_variable_only_the_type_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_memory_always(monkeypatch)
    cell = CellType(0.5)
    guard = PythonGuard(Guarded(Snapshot(), is_bound=True, cells=[(cell, "rate", OfType(float))]))
    assert guard.holds()
    monkeypatch.setattr(PythonGuard, "_holds_one_by_one", lambda _: False)
    for n in range(100):
        cell.cell_contents = n / 7
        assert guard.holds()
    cell.cell_contents = 1
    assert not guard.holds()


def test_threads_ask_one_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_memory_always(monkeypatch)
    item, space = Item([1.0]), {"read": 1, "unread": 0}
    slots = Guarded(Snapshot(), objects=[(item, Item)], tables=[(0, Table("item", ".{}", ["value"], [item.value]))])
    slots.dictionaries.append((space, Table("", ".{}", ["read"], [1])))
    _taken(slots.snapshot, item.value)
    guard = PythonGuard(slots)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(lambda: [guard.holds() for _ in range(300)]) for _ in range(4)]
            for number in range(300):
                space["unread"] = number
                item.value = [1.0]
            assert all(all(each.result()) for each in asked)
    finally:
        sys.setswitchinterval(interval)
    item.value.append(2.0)
    assert not guard.holds()


def test_the_layout_is_what_objects_have() -> None:
    layout = object_layout()
    if layout is None:
        pytest.skip("no known layout of objects")
    items: list[Any] = [Item(1), torch.nn.Linear(1, 1), type("Derived", (list,), {})()]
    for item in items:
        assert word_at(place_of_table(item, vars(item))) == id(vars(item))
    slotted = Slotted(object())
    assert word_at(place_of_member(slotted, vars(Slotted)["second"], slotted.second)) == id(slotted.second)
    with pytest.raises(LookupError):
        place_of_member(slotted, vars(Slotted)["second"], object())
    for held in ([], [1], (), (1, 2), {}, {"a": 1}, OrderedDict(a=1), defaultdict(list), deque([1, 2])):
        assert word_at(id(held) + layout.size) == len(held)
