"""Where CPython keeps what guards compare, by offsets within objects: found by probing, never assumed.

Only for the releases of Python whose dictionaries have versions, of usual builds on 64 bits: an object there has the
sizes that are asked for here. Each offset is then looked for in sample objects, and must be the only one that fits all.

Source: CPython's `Include/cpython`, of which nothing is taken for granted but that objects are made of words.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from gc import get_referents
from types import CellType, MemberDescriptorType
from typing import Any

from dovetail.torch_compat.guards import version_of_dict

_WORD = 8
_MANAGED_DICT, _BEFORE_OBJECT = 1 << 4, 3 * _WORD  # a flag of classes, and where their objects' dictionary is then
_SIZES: dict[Any, int] = {list: 40, tuple: 24, dict: 48, CellType: 24}
_OBJECT, _OBJECT_OR_ERROR = 6, 16  # kinds of members: see `structmember.h`
_MEMBER = 5 * _WORD  # of a descriptor: its name, kind and offset, a word each


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Offsets in bytes from where an object begins.

    kind: of its class. size: how many things a list, tuple, deque or dictionary holds; set_size: a set. version: of a
    dictionary. items: of a list, where its items are; parts: of a tuple, its first one. cell: what a variable holds.
    function: what `__code__`, `__defaults__` and `__kwdefaults__` give; function_table: `__dict__`. referent: of a weak
    reference. class_table: the dictionary of a class.
    """

    kind: int
    size: int
    set_size: int
    version: int
    items: int
    parts: int
    cell: int
    function: tuple[int, int, int]
    function_table: int
    referent: int
    class_table: int


@cache
def object_layout() -> ObjectLayout | None:
    """The layout of objects; None where it is not as expected, or dictionaries have no versions."""
    is_usual = sys.implementation.name == "cpython" and ctypes.sizeof(ctypes.c_void_p) == _WORD
    if not is_usual or version_of_dict is None or any(x.__basicsize__ != size for x, size in _SIZES.items()):
        return None
    try:
        return _probed()
    except LookupError:
        return None


def word_at(address: int) -> int:
    """The word at an address."""
    return ctypes.c_size_t.from_address(address).value


def object_at(address: int) -> Any:
    """The object to which the word at an address leads. Raises: ValueError where it is null."""
    return ctypes.py_object.from_address(address).value


def place_of_table(item: Any, table: dict[str, Any]) -> int:
    """The address of the word that leads to the `__dict__` of an object. Raises: LookupError where none is found."""
    kind: Any = type(item)
    if kind.__flags__ & _MANAGED_DICT:
        place = id(item) - _BEFORE_OBJECT
    elif kind.__dictoffset__ > 0:
        place = id(item) + kind.__dictoffset__
    else:
        raise LookupError
    if word_at(place) != id(table):
        raise LookupError
    return place


def place_of_member(item: Any, descriptor: Any, value: Any) -> int:
    """The address of the word that leads to what is in a slot. Raises: LookupError where none is found."""
    if type(descriptor) is not MemberDescriptorType:
        raise LookupError
    member = word_at(id(descriptor) + _MEMBER)
    kind = ctypes.c_int32.from_address(member + _WORD).value
    offset = word_at(member + 2 * _WORD)
    kind_of_item: Any = type(item)
    if kind not in (_OBJECT, _OBJECT_OR_ERROR) or offset % _WORD or offset + _WORD > kind_of_item.__basicsize__:
        raise LookupError
    if word_at(id(item) + offset) != id(value):
        raise LookupError
    return id(item) + offset


def _probed() -> ObjectLayout:
    assert version_of_dict is not None, "it was asked"
    tables: list[dict[Any, Any]] = [
        kind((n, n) for n in range(count)) for kind in (dict, OrderedDict) for count in (1, 11)
    ]
    tables.append(defaultdict(list, {n: n for n in range(17)}))
    tables[1].pop(3)
    lists: list[list[Any]] = [[object()] * 13, [object(), 2, 3]]
    lists[0].append(1)
    del lists[1][2]
    sets: list[set[Any]] = [set(range(9)), {"x", "y", "z"}]
    sets[0].discard(3)
    sets[1].discard("x")
    sized: list[Any] = [*lists, (1,) * 19, (1, 2, 3), deque(range(23)), deque((1,)), *tables]
    functions = [_function(object(), n) for n in range(2)]
    kept = [type("Sample", (), {"a": n}) for n in range(2)]
    references = [weakref.ref(item) for item in kept]
    cells = [CellType(object()), CellType(1.5)]
    layout = ObjectLayout(
        kind=_place((item, id(type(item))) for item in (*sized, *sets, *functions, *cells, *references)),
        size=_place((item, len(item)) for item in sized),
        set_size=_place((item, len(item)) for item in sets),
        version=_place((table, version_of_dict(table)) for table in tables),
        items=3 * _WORD,
        parts=3 * _WORD,
        cell=_place((cell, id(cell.cell_contents)) for cell in cells),
        function=(
            _place((function, id(function.__code__)) for function in functions),
            _place((function, id(function.__defaults__)) for function in functions),
            _place((function, id(function.__kwdefaults__)) for function in functions),
        ),
        function_table=_place((function, id(function.__dict__)) for function in functions),
        referent=_place((reference, id(item)) for reference, item in zip(references, kept, strict=True)),
        class_table=_place((item, id(get_referents(vars(item))[0])) for item in kept),
    )
    starts = [(item, word_at(id(item) + layout.items)) for item in lists] + [((5, 6.5), 0)]
    for item, start in starts:
        start = start or id(item) + layout.parts
        if [word_at(start + n * _WORD) for n in range(len(item))] != list(map(id, item)):
            raise LookupError
    return layout


def _function(default: object, number: int) -> Any:
    def sample(item: object = default, *, key: object = default) -> tuple[object, object, int]:
        return item, key, number

    return sample


def _place(samples: Iterable[tuple[Any, int]]) -> int:
    """The only offset at which each of some objects has the word that is said beside it. Raises: LookupError."""
    found: set[int] | None = None
    for item, word in samples:
        kind: Any = type(item)
        words = [word_at(id(item) + offset) for offset in range(0, kind.__basicsize__, _WORD)]
        here = {n * _WORD for n, held in enumerate(words) if held == word}
        found = here if found is None else found & here
    if found is None or len(found) != 1:
        raise LookupError
    (place,) = found
    return place
