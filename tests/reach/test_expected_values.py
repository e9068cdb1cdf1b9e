"""What stands for containers that are new in each call: what fits, and what of it can change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dovetail.reach.contents import MISSING
from dovetail.reach.expected_values import (
    AttributesOf,
    DictOf,
    ListOf,
    OfType,
    PartsOf,
    SlotsOf,
    TupleOf,
    can_change,
    fits,
    is_new,
)


class Pair(NamedTuple):
    first: Any
    second: Any


class Item:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self, *held: Any) -> None:
        for name, value in zip(self.__slots__, held, strict=False):
            setattr(self, name, value)


class Listed(list[Any]):
    """Not a plain list."""


_KNOWN = object()
_NUMBER = OfType(float)
_LIST = ListOf(list, (_NUMBER, _KNOWN))
_DICT = DictOf(dict, (_NUMBER, 1), ("a", 2))
_WHOLE = AttributesOf(SimpleNamespace, (_NUMBER, _NUMBER), ("a", "b"), True)
_READ = AttributesOf(Item, (_NUMBER, MISSING), ("a", "b"), False)
_SLOTS = SlotsOf(Slotted, (_NUMBER, MISSING), {name: vars(Slotted)[name] for name in Slotted.__slots__})

CASES: list[tuple[PartsOf, Any, bool]] = [
    (_LIST, [2.5, _KNOWN], True),
    (_LIST, [2, _KNOWN], False),
    (_LIST, [2.5, object()], False),
    (_LIST, [2.5], False),
    (_LIST, (2.5, _KNOWN), False),
    (_LIST, Listed([2.5, _KNOWN]), False),
    (_DICT, {"a": 0.5, 2: 1}, True),
    (_DICT, {2: 1, "a": 0.5}, False),
    (_DICT, {"a": 0.5, 2.0: 1}, False),
    (_DICT, {"a": 0.5, 2: True}, False),
    (_DICT, {"a": 0.5, 2: 1, 3: 1}, False),
    (_WHOLE, SimpleNamespace(a=1.5, b=2.5), True),
    (_WHOLE, SimpleNamespace(b=1.5, a=2.5), False),
    (_WHOLE, SimpleNamespace(a=1.5, b=2.5, c=0), False),
    (_READ, Item(a=1.5, c=7), True),
    (_READ, Item(a=1.5, b=7), False),
    (_READ, Item(c=1.5), False),
    (_SLOTS, Slotted(0.5), True),
    (_SLOTS, Slotted(0.5, 1), False),
    (TupleOf(Pair, (_NUMBER, _LIST)), Pair(0.5, [0.5, _KNOWN]), True),
    (TupleOf(Pair, (_NUMBER, _LIST)), (0.5, [0.5, _KNOWN]), False),
    (TupleOf(Pair, (_NUMBER, _LIST)), Pair(0.5, [0.5]), False),
]


@pytest.mark.parametrize(("expected", "now", "is_so"), CASES)
def test_what_fits(expected: PartsOf, now: Any, is_so: bool) -> None:
    assert fits(expected, now) is is_so


def test_what_can_change_is_all_of_it_but_tuples_and_what_is_read() -> None:
    inner, array = [0.5, _KNOWN], np.zeros(2)
    expected = DictOf(dict, (TupleOf(tuple, (_LIST, _NUMBER)), OfType(np.ndarray), _READ), ("a", "b", "c"))
    item = Item(a=1.0)
    now = {"a": (inner, 0.5), "b": array, "c": item}
    assert fits(expected, now)
    found = list(expected.changing(now))
    assert [id(x) for x in found] == [id(now), id(inner), id(array), id(vars(item))]


def test_what_is_new_in_each_call() -> None:
    assert [is_new(x) for x in (_LIST, _DICT, _WHOLE, _SLOTS, TupleOf(tuple, (_NUMBER, _LIST)))] == [True] * 5
    assert not any(map(is_new, (_NUMBER, OfType(np.ndarray), TupleOf(tuple, (_NUMBER,)), 1, [])))
    assert [can_change(x) for x in (_NUMBER, OfType(np.ndarray), TupleOf(tuple, (1,)), _KNOWN)] == [
        False, True, False, False,
    ]  # fmt: skip
