"""Walking through Python containers and objects: what is met, in which order, and how it is called."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Set as AbstractSet
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import torch

from dovetail.frontends.step.hook_tables import tables_of
from dovetail.frontends.step.places import Fixed, Holder, Named, Place, Sequential, Unordered, slot_access
from dovetail.reach.contents import MISSING
from dovetail.reach.libraries import is_library_class
from dovetail.reach.names import Names
from dovetail.reach.values import (
    CONTAINERS,
    PLAIN,
    Kind,
    attributes_of,
    fingerprint,
    has_attributes,
    is_a,
    is_plain_key,
    kind_of,
    name_of,
    referent_of,
    slots_of,
)
from dovetail.torch_compat.swapping import hook_tables, hooks_registered

_MAX_ITEMS = 10_000
_MAX_HOLDERS = 200_000
_MODULE, OPTIMIZER, ELSEWHERE, SCHEDULER = range(4)
_LATE = 4
_ORDER = (_MODULE, ELSEWHERE, OPTIMIZER, _LATE, SCHEDULER)
_RANKS = {Kind.MODULE: _MODULE, Kind.OPTIMIZER: OPTIMIZER, Kind.SCHEDULER: SCHEDULER}
_TABLES = ("_parameters", "_buffers", "_modules")
LEAF = (Kind.PLAIN, Kind.OPAQUE)
_BUILT_IN: dict[Kind, Any] = {
    Kind.DICT: dict,
    Kind.LIST: list,
    Kind.DEQUE: deque,
    Kind.SET: set,
    Kind.TUPLE: tuple,
    Kind.FROZENSET: frozenset,
}
_BY_VALUE = (Kind.TUPLE, Kind.FROZENSET, Kind.METHOD)
Found = tuple[Any, Kind, Holder, Any]


class ValueWalk:
    """Everything reached through containers and objects; what code reaches is in `dovetail.frontends.step.walk`.

    Attributes: holders: in the order in which they were met; objects: objects with their class and `__dict__`;
    spots: by identity of a tensor, where it is held, each with what sorts it; of_kind: holders of modules, optimizers,
    schedulers and scalers; hooks_registered: see `torch_compat.swapping`; arrays, randoms, caches: spots of such
    values; others_compare: spots of containers that are not looked into; unread: containers that nobody reads.
    """

    def __init__(self, read: Names) -> None:
        """Nothing is reached yet. read: where to look."""
        self.read = read
        self.hooks_registered = hooks_registered()
        self.holders: list[Holder] = []
        self.objects: list[tuple[Any, type, dict[str, Any] | None, Holder]] = []
        self.spots: dict[int, list[tuple[int, int, Place]]] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.of_kind: dict[Kind, list[Holder]] = {}
        self.arrays: list[tuple[Place, Any]] = []
        self.randoms: list[tuple[Place, Any]] = []
        self.caches: list[Place] = []
        self.others_compare: list[Place] = []
        self.unread: dict[int, Any] = {}
        self.met: dict[int, Holder] = {}
        self._kinds: dict[type, Kind] = {}
        self._kept: dict[int, Any] = {}
        self._stacks: list[list[Found]] = [[], [], [], [], []]
        self._whole: set[int] = set()
        self._order = 0

    def kind(self, value: Any) -> Kind:
        """How a value is treated."""
        kind = self._kinds.get(type(value))
        if kind is None:
            kind = self._kinds[type(value)] = kind_of(type(value))
        return kind

    def has_met(self, value: object) -> bool:
        """Whether a value was walked, or is held somewhere."""
        if id(value) in self.met or id(value) in self._kept:
            return True
        return any(held is value for holder in self.holders for held in holder.values)

    def leads_on(self, value: Any) -> bool:
        """Whether there are spots inside a value."""
        return self.kind(value) in CONTAINERS or id(value) in self.met

    # --- in which order

    def run(self) -> None:
        """Walk from what was pushed, until nothing new is found."""
        ordered = [self._stacks[rank] for rank in _ORDER]
        while True:
            stack = next((stack for stack in ordered if stack), None)
            if stack is None:
                return
            self._visit(*stack.pop(), stack is self._stacks[_LATE])

    # --- what is left to those that know code

    def function(self, function: FunctionType, parent: Holder) -> None:
        """Reach what a function's code names."""
        raise NotImplementedError

    def class_of_user(self, kind: type) -> None:
        """Reach what code reads of a class."""
        raise NotImplementedError

    def python_module(self, module: ModuleType) -> None:
        """Reach what code reads of a module of Python."""
        raise NotImplementedError

    # --- what is found

    def scan(self, holder: Holder) -> None:
        """Note the tensors that a holder holds where code reads, and what leads on."""
        found: list[Found] = []
        kinds = self._kinds
        for key, value in zip(holder.keys, holder.values, strict=True):
            if holder.read_names is not None and key not in holder.read_names:
                continue
            kind = kinds.get(type(value)) or self.kind(value)
            if kind is Kind.TENSOR:
                self.tensor(value, holder, key)
            elif kind is Kind.DICT and not value and type(value) in (dict, OrderedDict):
                if id(value) not in self.met and not (self.read.unread and holder.path_of(key) in self.read.unread):
                    self.met[id(value)] = self.keep(Holder(value, holder, key))
                    self.holders[-1].rank = holder.rank
            elif kind not in LEAF and value is not MISSING:
                found.append((value, kind, holder, key))
        self.push(found)

    def push(self, found: list[Found]) -> None:
        """Walk these later, the first of them first."""
        for entry in reversed(found):
            value, kind, holder, _ = entry
            rank = _RANKS.get(kind, holder.rank)
            if kind is Kind.DICT and not all(type(key) in PLAIN for key in dict.keys(value)):
                rank = _LATE
            self._stacks[rank].append(entry)

    def tensor(self, tensor: torch.Tensor, holder: Holder, key: Any) -> None:
        """Note where a tensor is held."""
        self._order += 1
        spots = self.spots.setdefault(id(tensor), [])
        spots.append((holder.rank, self._order, Place(holder, key)))
        if len(spots) == 1:
            self.tensors[id(tensor)] = tensor
            attributes = Holder(attributes_of(tensor), holder, key, tensor)
            attributes.link = "attribute"
            attributes.rank = holder.rank
            self.keep(attributes)
            if attributes.keys:
                self.scan(attributes)
            if hook_tables(tensor) != (None, None):
                for table in tables_of(tensor, attributes, attributes.title):
                    self.enter(table.container, table, holder.rank)

    def _visit(self, value: Any, kind: Kind, parent: Holder, key: Any, late: bool) -> None:
        if kind not in _BY_VALUE and (id(value) in self.met or id(value) in self._kept):
            return
        if len(self.holders) > _MAX_HOLDERS:
            self.others_compare.append(Place(parent, key))
            return
        self._kept[id(value)] = value
        if kind in CONTAINERS:
            self._container(value, kind, parent, key, late)
        elif kind is Kind.FUNCTION:
            self.function(value, parent)
        elif kind is Kind.METHOD:
            self._fixed(value, parent, key, {"__self__": value.__self__, "__func__": value.__func__})
        elif kind is Kind.BUILTIN:
            self._builtin(value, parent, key)
        elif kind is Kind.PARTIAL:
            self._fixed(value, parent, key, {name: getattr(value, name) for name in ("func", "args", "keywords")})
        elif kind is Kind.WEAK:
            self._fixed(value, parent, key, {"()": referent_of(value)})
        elif kind is Kind.CLASS:
            self.class_of_user(value)
        elif kind is Kind.PYTHON_MODULE:
            self.python_module(value)
        elif not self._noted(value, kind, Place(parent, key)):
            self._object(value, kind, parent, key)

    def _builtin(self, function: Any, parent: Holder, key: Any) -> None:
        """Reach the object that a function of C is bound to. Most are bound to a module or a class, or to nothing."""
        owner = function.__self__
        if owner is not None and not is_a(owner, (ModuleType, type)):
            self._fixed(function, parent, key, {"__self__": owner, "__name__": function.__name__})

    def _fixed(self, value: Any, parent: Holder, key: Any, parts: dict[str, Any]) -> None:
        holder = Fixed(value, parent, key, parts)
        holder.link = "attribute"
        self.enter(value, holder, parent.rank)

    def _noted(self, value: Any, kind: Kind, place: Place) -> bool:
        """Whether a value is one of those that are only noted."""
        if kind is Kind.ARRAY and fingerprint(value) is not None:
            self.arrays.append((place, value))
        elif kind is Kind.RANDOM:
            self.randoms.append((place, value))
        elif kind in (Kind.ARRAY, Kind.CLOSED, Kind.ITERATOR):
            self.others_compare.append(place)
        elif kind is Kind.CACHED_FUNCTION:
            self.caches.append(place)
            self.scan(self.keep(Fixed(value, place.holder, place.key, {"__wrapped__": value.__wrapped__})))
        else:
            return False
        return True

    # --- containers and objects

    def keep(self, holder: Holder) -> Holder:
        """Note a holder that is not scanned, or was."""
        self.holders.append(holder)
        return holder

    def enter(self, value: Any, holder: Holder, rank: int) -> Holder:
        """Note the holder of a value, and scan it."""
        holder.rank = rank
        self.met.setdefault(id(value), holder)
        self.holders.append(holder)
        if holder.keys:
            self.scan(holder)
        return holder

    def _container(self, value: Any, kind: Kind, parent: Holder, key: Any, late: bool) -> None:
        if self.read.unread and parent.path_of(key) in self.read.unread:
            self.unread[id(value)] = value
            return
        if _length(value, kind) > _MAX_ITEMS:
            self.others_compare.append(Place(parent, key))
            return
        holder: Holder
        if kind is Kind.DICT:
            holder = Holder(value, parent, key)
            if (
                type(key) is str
                and key in _TABLES
                and parent.link == "attribute"
                and is_a(parent.owner, torch.nn.Module)
            ):
                holder.link = "table"
                holder.read_names = self._of_table(type(parent.owner), key)
            if late:
                holder.names = self._names_of(holder)
        elif kind is Kind.SET:
            holder = Unordered(value, parent, key)
        elif kind in (Kind.TUPLE, Kind.FROZENSET):
            items = tuple.__iter__(value) if kind is Kind.TUPLE else frozenset.__iter__(value)
            holder = Fixed(value, parent, key, dict(enumerate(items)))
        else:
            holder = Sequential(value, parent, key, list if kind is Kind.LIST else deque)
        self.enter(value, holder, parent.rank)
        if not is_library_class(type(value)) and has_attributes(type(value)):
            own = Holder(attributes_of(value), parent, key, value)
            own.link = "attribute"
            own.call_it((*holder.path, "__dict__"), holder.title)
            own.read_names = self.read.of_objects(type(value))
            self.objects.append((value, type(value), own.container, own))
            self.enter(own.container, own, parent.rank)
            self.class_of_user(type(value))

    def _names_of(self, holder: Holder) -> dict[int, tuple[Any, str]]:
        """What keys that are objects are called: tensors by where they are held first."""
        names: dict[int, tuple[Any, str]] = {}
        for index, key in enumerate(holder.keys):
            if is_plain_key(key):
                continue
            if is_a(key, Enum):
                names[id(key)] = ((name_of(type(key)), key.name), f"{name_of(type(key))}.{key.name}")
                continue
            place = self.first_place(key)
            if place is not None:
                names[id(key)] = (place.path, place.label)
            elif id(key) in self.met:
                names[id(key)] = (self.met[id(key)].path, self.met[id(key)].title)
            else:
                names[id(key)] = (("key", index), f"<{name_of(type(key))} {index}>")
                rest = Fixed((key,), holder, ("keys", index), {index: key})
                rest.call_it((*holder.path, ("keys", index)), f"keys of {holder.title}")
                self.enter(rest, rest, holder.rank)
        return names

    def first_place(self, tensor: Any) -> Place | None:
        """Where a tensor is held first: in a module, else in an optimizer, else elsewhere."""
        spots = self.spots.get(id(tensor))
        return min(spots, key=lambda spot: spot[:2])[2] if spots else None

    def _object(self, item: Any, kind: Kind, parent: Holder, key: Any) -> None:
        self.class_of_user(type(item))
        rank = _RANKS.get(kind, parent.rank)
        read = self._of_object(item, kind)
        descriptors = slots_of(type(item)) if kind is Kind.OBJECT else {}
        if descriptors:
            slots = Named(item, slot_access(descriptors))
            slots.parent, slots.key, slots.rank, slots.read_names = parent, key, rank, read
            for name in descriptors:
                slots.add(name)
            self.enter(item, slots, rank)
        if not has_attributes(type(item)):
            if descriptors:
                self.objects.append((item, type(item), None, slots))
            return
        holder = Holder(attributes_of(item), parent, key, item)
        skipped = self.read.overwritten_of(type(item))
        holder.link, holder.rank = "attribute", rank
        holder.read_names = read - skipped if read is not None and skipped else read
        self.met[id(item)] = self.met[id(holder.container)] = self.keep(holder)
        self.objects.append((item, type(item), holder.container, holder))
        if kind is not Kind.OBJECT:
            self.of_kind.setdefault(kind, []).append(holder)
        self.scan(holder)

    def _of_object(self, item: Any, kind: Kind) -> AbstractSet[str] | None:
        """The attributes of an object to look at. Nothing tells which a library reads, but of its own modules."""
        if id(item) in self._whole or (kind is Kind.OBJECT and is_library_class(type(item))):
            return None
        read = self.read.of_objects(type(item))
        if kind is Kind.MODULE and read is not None:
            return frozenset((*read, *_TABLES))
        return None if kind is Kind.SCALER else read

    def _of_table(self, kind: type, table: str) -> AbstractSet[str] | None:
        """The entries of a table of a module to look at: those that are read as attributes, or all of them."""
        read = self.read.of_objects(kind)
        return None if read is None or table in read else read


def _length(value: Any, kind: Kind) -> int:
    return int(_BUILT_IN[kind].__len__(value))
