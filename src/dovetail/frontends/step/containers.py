"""The slots in which Python objects hold values: how each is read, compared, named and put back.

A `Container` is an object and what it held when it was looked at: a dictionary, a list, the attributes of an object,
the slots of one, a closure cell, the part of a module's global variables or of a class that code names, a function. A
`Slot` is one position in it. All of it works on the built-in part of a container: no method that a class of the
user's overrides is run, and nothing is compared by `==`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType
from typing import Any

from dovetail.reach.contents import MISSING
from dovetail.reach.values import dict_methods, is_plain_key, name_of, own_of
from dovetail.torch_compat.traced_numbers import is_traced, keys_found

Path = tuple[Hashable, ...]

_NO_NAMES: Mapping[int, tuple[Hashable, str]] = {}


class Container:
    """One container, what it held, and how it is reached.

    Attributes: item: itself; owner: the object whose attributes a dictionary holds, else the item; parent and key:
    the slot through which it was first reached; keys, values: what it held; names: by identity, how keys that are no
    plain values are called in a path and in a label; link: how a user writes a slot: "item", "attribute", "table" for a
    table of a module; read_names: the keys that code reads, None for all; rank: 0 inside a module, 1 of an optimizer, 2
    elsewhere, 3 only a scheduler leads here.
    """

    __slots__ = (
        "_path", "_title", "item", "key", "keys", "link", "names", "owner", "parent", "rank", "read_names",
        "values",
    )  # fmt: skip
    kind = "dict"

    def __init__(self, container: Any, parent: Container | None, key: Any, owner: Any = None) -> None:
        self.item = container
        self.owner = container if owner is None else owner
        self.parent = parent
        self.key = key
        self.link = "item"
        self.rank = 2
        self.names: Mapping[int, tuple[Hashable, str]] = _NO_NAMES
        self.read_names: AbstractSet[str] | None = None
        self._path: Path | None = None
        self._title: str | None = None
        self.keys, self.values = self.now()

    # --- how it is called

    @property
    def path(self) -> Path:
        """Names from the root to this container."""
        if self._path is None:
            self._path = () if self.parent is None else self.parent.path_of(self.key)
        return self._path

    @property
    def title(self) -> str:
        """What a user would write for this container."""
        if self._title is None:
            self._title = "" if self.parent is None else self.parent.label_of(self.key, inner=True)
        return self._title

    def call_it(self, path: Path, title: str) -> None:
        """Name a container that no other leads to."""
        self._path, self._title = path, title

    def path_of(self, key: Any) -> Path:
        """Names from the root to the slot of a key."""
        return (*self.path, self.names[id(key)][0] if self.names and id(key) in self.names else key)

    def label_of(self, key: Any, inner: bool = False) -> str:
        """What a user would write for the slot of a key. inner: as the beginning of something longer."""
        title = self.title
        if self.link == "attribute":
            return f"{title}.{key}" if title else str(key)
        if self.link == "table":  # of a module, written as attributes of it
            owner = self.parent.title if self.parent is not None else ""
            return f"{owner}.{key}" if owner else str(key)
        if id(key) in self.names:
            return f"{title}[{self.names[id(key)][1]}]"
        return f"{title}[{repr(key) if is_plain_key(key) else f'a {name_of(type(key))}'}]"

    # --- what it holds

    def is_read(self, key: Any) -> bool:
        """Whether code reads a slot."""
        return self.read_names is None or key in self.read_names

    def position_of(self, key: Any) -> int:
        """Where a key is, among `keys`."""
        return next(n for n, known in enumerate(self.keys) if known is key)

    def now(self) -> tuple[list[Any], list[Any]]:
        """Keys and values of this moment."""
        if dict_methods(self.item) is dict:
            return list(dict.keys(self.item)), list(dict.values(self.item))
        with keys_found() if any(map(is_traced, dict.keys(self.item))) else nullcontext():
            return list(OrderedDict.keys(self.item)), list(OrderedDict.values(self.item))

    def read(self, key: Any) -> Any:
        """What is there now. Raises: KeyError, IndexError when there is no such slot any more."""
        value = dict_methods(self.item).get(self.item, key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def reader(self, key: Any) -> Callable[[], Any]:
        """What reads a slot again and again, as `read` does."""
        is_plain = type(self).read is Container.read and type(self.item) is dict  # no `__missing__` runs
        return partial(dict.__getitem__, self.item, key) if is_plain else partial(self.read, key)

    def write(self, key: Any, value: Any) -> None:
        """Put a value there; MISSING takes away what is there. Raises: TypeError where nothing can be put."""
        methods, gone = dict_methods(self.item), value is MISSING
        methods.__delitem__(self.item, key) if gone else methods.__setitem__(self.item, key, value)

    def put_back(self) -> None:
        """Hold what was held: the same objects in the same order."""
        keys, values = self.now()
        methods = dict_methods(self.item)
        if not are_one_by_one(keys, self.keys):
            methods.clear(self.item)
            values = []
        if not are_one_by_one(values, self.values):
            each(lambda key, value: methods.__setitem__(self.item, key, value), self.keys, self.values)

    def is_as_before(self) -> bool:
        """Whether the same objects are held in the same order."""
        keys, values = self.now()
        return are_one_by_one(keys, self.keys) and are_one_by_one(values, self.values)


class Sequential(Container):
    """A list or a deque."""

    __slots__ = ("_kind",)
    kind = "list"

    def __init__(self, container: Any, parent: Container | None, key: Any, kind: type) -> None:
        """kind: `list` or `collections.deque`, whose methods are used."""
        self._kind: Any = kind
        super().__init__(container, parent, key)

    def now(self) -> tuple[list[Any], list[Any]]:
        values = list(self._kind.__iter__(self.item))
        return list(range(len(values))), values

    def read(self, key: Any) -> Any:
        return self._kind.__getitem__(self.item, key)

    def write(self, key: Any, value: Any) -> None:
        self._kind.__setitem__(self.item, key, value)

    def put_back(self) -> None:
        if not self.is_as_before():
            self._kind.clear(self.item)
            self._kind.extend(self.item, self.values)


class Unordered(Container):
    """A set; what is in it has no name of its own, so the keys are positions."""

    __slots__ = ()
    kind = "set"

    def now(self) -> tuple[list[Any], list[Any]]:
        values = list(set.__iter__(self.item))
        return list(range(len(values))), values

    def read(self, key: Any) -> Any:
        return self.now()[1][key]

    def write(self, key: Any, value: Any) -> None:
        raise TypeError(f"an element of a set cannot be assigned: {self.title}")

    def put_back(self) -> None:
        if not self.is_as_before():
            set.clear(self.item)
            set.update(self.item, self.values)


class Fixed(Container):
    """A tuple, a frozenset, a method, a partial's arguments: it cannot change, but it leads on."""

    __slots__ = ("_now",)
    kind = "tuple"

    def __init__(self, container: Any, parent: Container | None, key: Any, parts: Mapping[Any, Any]) -> None:
        """parts: what it holds, by how that is called."""
        self._now = (list(parts), list(parts.values()))
        super().__init__(container, parent, key)

    def now(self) -> tuple[list[Any], list[Any]]:
        return self._now

    def read(self, key: Any) -> Any:
        return dict(zip(*self._now, strict=True))[key]

    def write(self, key: Any, value: Any) -> None:
        raise TypeError(f"{self.label_of(key)} is in a tuple, which cannot be written")

    def put_back(self) -> None:
        return


class Cell(Container):
    """A closure cell: a variable of an enclosing function. Its only key is the variable's name."""

    __slots__ = ("variable",)
    kind = "cell"

    def __init__(self, container: CellType, variable: str) -> None:
        self.variable = variable
        super().__init__(container, None, None)

    def now(self) -> tuple[list[Any], list[Any]]:
        try:
            return [self.variable], [self.item.cell_contents]
        except ValueError:
            return [], []

    def read(self, key: Any) -> Any:
        try:
            return self.item.cell_contents
        except ValueError:
            raise KeyError(key) from None

    def write(self, key: Any, value: Any) -> None:
        self.item.cell_contents = value

    def put_back(self) -> None:
        if self.values:
            self.item.cell_contents = self.values[0]
        else:
            with contextlib.suppress(ValueError):
                del self.item.cell_contents

    def label_of(self, key: Any, inner: bool = False) -> str:
        if inner:
            return str(key)
        return f"variable {key} of {self.title}" if self.title else f"variable {key}"


class Named(Container):
    """The slots that code names in something larger: global variables, attributes of a class, slots, a function's own.

    A name that is not there is one of the keys, with the value MISSING: it may come to be.
    """

    __slots__ = ("_get", "_remove", "_set", "_word")

    def __init__(self, container: Any, access: Access, word: str = "") -> None:
        """access: how slots are read, written and removed. word: what a single slot is called before its name."""
        self._get, self._set, self._remove = access
        self._word = word
        self.keys = []
        super().__init__(container, None, None)

    kind = "names"

    def add(self, key: str) -> Any:
        """Look at one more name, and answer what is there."""
        value = self._get(self.item, key)
        self.keys.append(key)
        self.values.append(value)
        return value

    def now(self) -> tuple[list[Any], list[Any]]:
        return self.keys, [self._get(self.item, key) for key in self.keys]

    def read(self, key: Any) -> Any:
        value = self._get(self.item, key)
        if value is MISSING:
            raise KeyError(key)
        return value

    def write(self, key: Any, value: Any) -> None:
        if value is MISSING:
            self._remove(self.item, key)
        else:
            self._set(self.item, key, value)

    def put_back(self) -> None:
        each(self._put_back_one, self.keys, self.values)

    def _put_back_one(self, key: str, value: Any) -> None:
        if self._get(self.item, key) is not value:
            self.write(key, value)

    def label_of(self, key: Any, inner: bool = False) -> str:
        name = f"{self.title}.{key}" if self.title else str(key)
        return name if inner or not self._word else f"{self._word} {name}"


Access = tuple[Callable[[Any, str], Any], Callable[[Any, str, Any], None], Callable[[Any, str], None]]


def _get_of_class(owner: type, name: str) -> Any:
    return own_of(owner).get(name, MISSING)


def _get_of_function(function: FunctionType, name: str) -> Any:
    return getattr(function, name)


def _get_global(known: dict[str, Any], name: str) -> Any:
    return dict.get(known, name, MISSING)


GLOBALS: Access = (_get_global, dict.__setitem__, dict.__delitem__)
CLASS: Access = (_get_of_class, type.__setattr__, type.__delattr__)
FUNCTION: Access = (_get_of_function, setattr, delattr)


def slot_access(descriptors: Mapping[str, Any]) -> Access:
    """How the slots of an object are read, written and removed, by the descriptors of its class."""

    def get(item: Any, name: str) -> Any:
        try:
            return descriptors[name].__get__(item)
        except (AttributeError, TypeError):  # it is not set, or the object is of another class now
            return MISSING

    def put(item: Any, name: str, value: Any) -> None:
        descriptors[name].__set__(item, value)

    def remove(item: Any, name: str) -> None:
        descriptors[name].__delete__(item)

    return get, put, remove


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One slot: a key of a container.

    path: names from the root, the same after the objects in between were replaced by their like. label: what a user
    would write. kind: of what the slot is a part: dict, list, tuple, set, cell, names.
    """

    container: Container
    key: Any

    @property
    def path(self) -> Path:
        return self.container.path_of(self.key)

    @property
    def label(self) -> str:
        return self.container.label_of(self.key)

    @property
    def item(self) -> Any:
        return self.container.item

    @property
    def kind(self) -> str:
        return self.container.kind

    def read(self) -> Any:
        """What is there now. Raises: LookupError when there is no such slot any more."""
        return self.container.read(self.key)

    def reader(self) -> Callable[[], Any]:
        """What reads it again and again."""
        return self.container.reader(self.key)

    def write(self, value: Any) -> None:
        """Put a value there. Raises: TypeError for a slot in a tuple or a set."""
        self.container.write(self.key, value)


def each(put: Callable[[Any, Any], None], keys: list[Any], values: list[Any]) -> None:
    """Call `put` for every pair, also after one failed. Raises: the first error, at the end."""
    failed: Exception | None = None
    for key, value in zip(keys, values, strict=True):
        try:
            put(key, value)
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed


def are_one_by_one(items: list[Any], others: list[Any]) -> bool:
    """Whether two lists hold the same objects in the same order."""
    return len(items) == len(others) and all(a is b for a, b in zip(items, others, strict=True))
