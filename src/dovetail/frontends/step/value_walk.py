"""Walking through Python containers and objects: what is met, in which order, and how it is called."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import torch

from dovetail.frontends.step.containers import Container, Fixed, Named, Sequential, Slot, Unordered, slot_access
from dovetail.frontends.step.hook_tables import tables_of
from dovetail.reach.contents import MISSING
from dovetail.reach.libraries import is_library_class
from dovetail.reach.names import Names
from dovetail.reach.values import (
    CONTAINERS,
    PLAIN,
    Kind,
    attributes_of,
    compiled_from,
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
_MAX_CONTAINERS = 200_000
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
Found = tuple[Any, Kind, Container, Any]


class ValueWalk:
    """Everything reached through containers and objects; what code reaches is in `dovetail.frontends.step.walk`.

    Attributes: containers: in the order in which they were met; objects: objects with their class and `__dict__`;
    slots: by identity of a tensor, where it is held, each with what sorts it; of_kind: containers of modules,
    optimizers, schedulers and scalers; hooks_registered: see `torch_compat.swapping`; arrays, randoms, caches: slots of
    such values; others_compare: slots of containers that are not looked into; unread: containers that nobody reads.
    """

    def __init__(self, read: Names) -> None:
        """Nothing is reached yet. read: where to look."""
        self.read = read
        self.hooks_registered = hooks_registered()
        self.containers: list[Container] = []
        self.objects: list[tuple[Any, type, dict[str, Any] | None, Container]] = []
        self.slots: dict[int, list[tuple[int, int, Slot]]] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.of_kind: dict[Kind, list[Container]] = {}
        self.arrays: list[tuple[Slot, Any]] = []
        self.randoms: list[tuple[Slot, Any]] = []
        self.caches: list[Slot] = []
        self.others_compare: list[Slot] = []
        self.unread: dict[int, Any] = {}
        self.met: dict[int, Container] = {}
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
        return any(held is value for container in self.containers for held in container.values)

    def leads_on(self, value: Any) -> bool:
        """Whether there are slots inside a value."""
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

    def function(self, function: FunctionType, parent: Container) -> None:
        """Reach what a function's code names."""
        raise NotImplementedError

    def class_of_user(self, kind: type) -> None:
        """Reach what code reads of a class."""
        raise NotImplementedError

    def python_module(self, module: ModuleType) -> None:
        """Reach what code reads of a module of Python."""
        raise NotImplementedError

    # --- what is found

    def scan(self, container: Container) -> None:
        """Note the tensors that a container holds where code reads, and what leads on."""
        found: list[Found] = []
        kinds = self._kinds
        for key, value in zip(container.keys, container.values, strict=True):
            if container.read_names is not None and key not in container.read_names:
                continue
            kind = kinds.get(type(value)) or self.kind(value)
            if kind is Kind.TENSOR:
                self.tensor(value, container, key)
            elif kind is Kind.DICT and not value and type(value) in (dict, OrderedDict):
                if self.read.unread and container.path_of(key) in self.read.unread:
                    self.unread[id(value)] = value
                elif id(value) not in self.met:
                    self.met[id(value)] = self.keep(Container(value, container, key))
                    self.containers[-1].rank = container.rank
            elif kind not in LEAF and value is not MISSING:
                found.append((value, kind, container, key))
        self.push(found)

    def push(self, found: list[Found]) -> None:
        """Walk these later, the first of them first."""
        for entry in reversed(found):
            value, kind, container, _ = entry
            rank = _RANKS.get(kind, container.rank)
            if kind is Kind.DICT and not all(type(key) in PLAIN for key in dict.keys(value)):
                rank = _LATE
            self._stacks[rank].append(entry)

    def tensor(self, tensor: torch.Tensor, container: Container, key: Any) -> None:
        """Note where a tensor is held."""
        self._order += 1
        slots = self.slots.setdefault(id(tensor), [])
        slots.append((container.rank, self._order, Slot(container, key)))
        if len(slots) == 1:
            self.tensors[id(tensor)] = tensor
            attributes = Container(attributes_of(tensor), container, key, tensor)
            attributes.link = "attribute"
            attributes.rank = container.rank
            self.keep(attributes)
            if attributes.keys:
                self.scan(attributes)
            if hook_tables(tensor) != (None, None):
                for table in tables_of(tensor, attributes, attributes.title):
                    self.enter(table.item, table, container.rank)

    def _visit(self, value: Any, kind: Kind, parent: Container, key: Any, late: bool) -> None:
        if kind not in _BY_VALUE and (id(value) in self.met or id(value) in self._kept):
            return
        if len(self.containers) > _MAX_CONTAINERS:
            self.others_compare.append(Slot(parent, key))
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
        elif kind is Kind.COMPILED:
            self._fixed(value, parent, key, {"__wrapped__": compiled_from(value)})
        elif kind is Kind.CLASS:
            self.class_of_user(value)
        elif kind is Kind.PYTHON_MODULE:
            self.python_module(value)
        elif not self._noted(value, kind, Slot(parent, key)):
            self._object(value, kind, parent, key)

    def _builtin(self, function: Any, parent: Container, key: Any) -> None:
        """Reach the object that a function of C is bound to. Most are bound to a module or a class, or to nothing."""
        owner = function.__self__
        if owner is not None and not is_a(owner, (ModuleType, type)):
            self._fixed(function, parent, key, {"__self__": owner, "__name__": function.__name__})

    def _fixed(self, value: Any, parent: Container, key: Any, parts: dict[str, Any]) -> None:
        container = Fixed(value, parent, key, parts)
        container.link = "attribute"
        self.enter(value, container, parent.rank)

    def _noted(self, value: Any, kind: Kind, slot: Slot) -> bool:
        """Whether a value is one of those that are only noted."""
        if kind is Kind.ARRAY and fingerprint(value) is not None:
            self.arrays.append((slot, value))
        elif kind is Kind.RANDOM:
            self.randoms.append((slot, value))
        elif kind in (Kind.ARRAY, Kind.CLOSED, Kind.ITERATOR):
            self.others_compare.append(slot)
        elif kind is Kind.CACHED_FUNCTION:
            self.caches.append(slot)
            self.scan(self.keep(Fixed(value, slot.container, slot.key, {"__wrapped__": value.__wrapped__})))
        else:
            return False
        return True

    # --- containers and objects

    def keep(self, container: Container) -> Container:
        """Note a container that is not scanned, or was."""
        self.containers.append(container)
        return container

    def enter(self, value: Any, container: Container, rank: int) -> Container:
        """Note the container of a value, and scan it."""
        container.rank = rank
        self.met.setdefault(id(value), container)
        self.containers.append(container)
        if container.keys:
            self.scan(container)
        return container

    def _container(self, value: Any, kind: Kind, parent: Container, key: Any, late: bool) -> None:
        if self.read.unread and parent.path_of(key) in self.read.unread:
            self.unread[id(value)] = value
            return
        if _length(value, kind) > _MAX_ITEMS:
            self.others_compare.append(Slot(parent, key))
            return
        container: Container
        if kind is Kind.DICT:
            container = Container(value, parent, key)
            if (
                type(key) is str
                and key in _TABLES
                and parent.link == "attribute"
                and is_a(parent.owner, torch.nn.Module)
            ):
                container.link = "table"
                container.read_names = self._of_table(type(parent.owner), key)
            if late:
                container.names = self._names_of(container)
        elif kind is Kind.SET:
            container = Unordered(value, parent, key)
        elif kind in (Kind.TUPLE, Kind.FROZENSET):
            items = tuple.__iter__(value) if kind is Kind.TUPLE else frozenset.__iter__(value)
            container = Fixed(value, parent, key, dict(enumerate(items)))
        else:
            container = Sequential(value, parent, key, list if kind is Kind.LIST else deque)
        self.enter(value, container, parent.rank)
        if not is_library_class(type(value)) and has_attributes(type(value)):
            own = Container(attributes_of(value), parent, key, value)
            own.link = "attribute"
            own.call_it((*container.path, "__dict__"), container.title)
            own.read_names = self.read.of_objects(type(value))
            self.objects.append((value, type(value), own.item, own))
            self.enter(own.item, own, parent.rank)
            self.class_of_user(type(value))
        elif descriptors := slots_of(type(value)):
            slots = self._slots_in(value, parent, key, descriptors)
            slots.call_it((*container.path, "<slots>"), container.title)
            self.objects.append((value, type(value), None, slots))
            self.enter(value, slots, parent.rank)

    def _slots_in(self, item: Any, parent: Container, key: Any, descriptors: Mapping[str, Any]) -> Named:
        slots = Named(item, slot_access(descriptors))
        slots.parent, slots.key = parent, key
        for name in descriptors:
            slots.add(name)
        return slots

    def _names_of(self, container: Container) -> dict[int, tuple[Any, str]]:
        """What keys that are objects are called: tensors by where they are held first."""
        names: dict[int, tuple[Any, str]] = {}
        for index, key in enumerate(container.keys):
            if is_plain_key(key):
                continue
            if is_a(key, Enum):
                names[id(key)] = ((name_of(type(key)), key.name), f"{name_of(type(key))}.{key.name}")
                continue
            slot = self.first_slot(key)
            if slot is not None:
                names[id(key)] = (slot.path, slot.label)
            elif id(key) in self.met:
                names[id(key)] = (self.met[id(key)].path, self.met[id(key)].title)
            else:
                names[id(key)] = (("key", index), f"<{name_of(type(key))} {index}>")
                rest = Fixed((key,), container, ("keys", index), {index: key})
                rest.call_it((*container.path, ("keys", index)), f"keys of {container.title}")
                self.enter(rest, rest, container.rank)
        return names

    def first_slot(self, tensor: Any) -> Slot | None:
        """Where a tensor is held first: in a module, else in an optimizer, else elsewhere."""
        slots = self.slots.get(id(tensor))
        return min(slots, key=lambda slot: slot[:2])[2] if slots else None

    def _object(self, item: Any, kind: Kind, parent: Container, key: Any) -> None:
        self.class_of_user(type(item))
        rank = _RANKS.get(kind, parent.rank)
        read = self._of_object(item, kind)
        descriptors = slots_of(type(item)) if kind is Kind.OBJECT else {}
        if descriptors:
            slots = self._slots_in(item, parent, key, descriptors)
            slots.read_names = read
            self.enter(item, slots, rank)
        if not has_attributes(type(item)):
            if descriptors:
                self.objects.append((item, type(item), None, slots))
            return
        container = Container(attributes_of(item), parent, key, item)
        skipped = self.read.overwritten_of(type(item))
        container.link, container.rank = "attribute", rank
        container.read_names = read - skipped if read is not None and skipped else read
        self.met[id(item)] = self.met[id(container.item)] = self.keep(container)
        self.objects.append((item, type(item), container.item, container))
        if kind is not Kind.OBJECT:
            self.of_kind.setdefault(kind, []).append(container)
        self.scan(container)

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
