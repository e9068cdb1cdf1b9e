"""The reachable state of a step function: every slot in Python that it can read or write, and how to put it back.

`ReachableState` looks once; `guard` tells cheaply whether it still holds, `record` describes it for a comparison with a
later reachable state, `changes` and `restore` serve code that was run on stand-ins. After a change that the guard
noticed, a new one is made; old ones, and their guards, keep alive what they know: drop them. Records keep no tensor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import cached_property, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from dovetail.capture.ambient_modes import ambient_modes
from dovetail.frontends.step.bound_slots import bound_slots
from dovetail.frontends.step.containers import Container, Fixed, Path, Slot, Unordered
from dovetail.frontends.step.hook_tables import HookTable
from dovetail.frontends.step.open_slots import OpenSlots, new_containers
from dovetail.frontends.step.record import Record, record_of
from dovetail.frontends.step.slot_changes import Change, changes_in
from dovetail.frontends.step.source_locator import SourceLocator
from dovetail.frontends.step.value_walk import SCHEDULER
from dovetail.frontends.step.walk import Walk
from dovetail.ir.program import Origin
from dovetail.ir.provenance import is_library_file
from dovetail.passes.collection import collection_paused
from dovetail.reach.codes import asks_class, names_of
from dovetail.reach.contents import MISSING, is_compared_by_contents
from dovetail.reach.guard import PythonGuard
from dovetail.reach.names import Names
from dovetail.reach.reads import Reads
from dovetail.reach.values import (
    PLAIN,
    Kind,
    attributes_of,
    copy_of_array,
    fill_array,
    fingerprint,
    is_a,
    random_state,
    set_random_state,
)

_OF_NO_CONTENTS = (Kind.PLAIN, Kind.TENSOR, Kind.CLASS, Kind.ARRAY)  # or looked at as they are met


class ReachableState:
    """Everything in Python that a step function reaches, as it is when this is made.

    Attributes: tensors: each tensor object once, with where it is held first: those of modules, of optimizers, the
    rest. modules, optimizers, schedulers, scalers: with what a user would call them. caches: labels of functions that
    remember results. late: see `learn`.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        read: Names,
        arguments: Iterable[Any] = (),
        extra: Any = (),
        passed: list[Any] | None = None,
    ) -> None:
        """Look at what a step function reaches, from arguments of a call, and from `extra`, any object or container.

        read: what calls of it have read. Of `extra`, all is looked at. passed: the objects among the arguments.
        Raises nothing of the user's: no code of the user's is run. Cost: 3 us for each container.
        """
        self._target, self._arguments, self._extra, self._passed = target, tuple(arguments), extra, passed or []
        self._read = read
        self.late: list[Any] = []
        self.refresh()

    def refresh(self) -> None:
        """Look again; `changes` and `restore` are about what is there now."""
        with collection_paused():
            walk = self._walk = Walk(self._target, self._arguments, self._passed, self._extra, self._read)
        for found in ("_locator", "_by_path"):
            self.__dict__.pop(found, None)
        self._modes: Hashable = ambient_modes()
        first = sorted((min(slots, key=lambda slot: slot[:2]), key) for key, slots in walk.slots.items())
        self.tensors = [(slot[2], walk.tensors[key]) for slot, key in first]
        self.modules = self._of(Kind.MODULE)
        self.optimizers = self._of(Kind.OPTIMIZER)
        self.schedulers = self._of(Kind.SCHEDULER)
        self.scalers = self._of(Kind.SCALER)
        self.caches = [slot.label for slot in walk.caches]
        known: list[tuple[str, Any]] = [("Python's random numbers", random), ("NumPy's random numbers", np.random)]
        known += [(slot.label, source) for slot, source in walk.randoms]
        self._randoms = [(label, source, *random_state(source)) for label, source in known]
        self._arrays = [(slot, array, fingerprint(array), copy_of_array(array)) for slot, array in walk.arrays]

    def learn(self, reads: Reads, *, is_strict: bool, expects: bool = False) -> bool:
        """Look where a call has read; whether more is reached than before: tensors, optimizers and the like. Or whether
        what was reached has other paths.

        is_strict: any other slot counts as well. expects: see `Names.add`. More of `others`, which are asked before a
        call, count unless the reads know what they held; these are `late`.
        """
        self.late = []
        if not self._read.add(reads, expects=expects):
            return False
        before, compared = self._roles, self.compared
        paths = {container.path for container in self._walk.containers}
        asked = set(map(id, self.others))
        self.refresh()
        if self._roles != before or (is_strict and self.compared != compared):
            return True
        if not paths <= {container.path for container in self._walk.containers}:
            return True
        self.late = [item for item in self.others if id(item) not in asked]
        gone = asked - set(map(id, self.others))
        return bool(gone) or not all(reads.snapshot.has(item) for item in self.late)

    @property
    def _roles(self) -> list[list[Any]]:
        named = (self.modules, self.optimizers, self.schedulers, self.scalers, self._randoms)
        return [self.caches, [slot.path for slot, _ in self.tensors], *([name for name, *_ in x] for x in named)]

    @property
    def caches_of_functions(self) -> list[Slot]:
        """The slots of functions that remember their results."""
        return list(self._walk.caches)

    @property
    def functions(self) -> list[FunctionType]:
        """The functions of the user's that ran."""
        return self._walk.functions

    @property
    def hooks(self) -> list[Any]:
        """The hooks of gradients, to which nothing that code reads leads."""
        return [hook for x in self._walk.containers if isinstance(x, HookTable) for hook in x.values]

    @property
    def asks_types(self) -> bool:
        """Whether code of the user's asks for the exact type of something, which a traced number does not have."""
        codes = self._read.codes
        return any(asks_class(x) or (names_of(x).asks_types and not is_library_file(x.co_filename)) for x in codes)

    def knows(self, item: object) -> bool:
        """Whether an object was reached when this was made."""
        return self._walk.has_met(item)

    def looks_into(self, item: object) -> bool:
        """Whether what an object holds is among what is restored."""
        return id(item) in self._walk.met

    def holding(self, item: Any) -> list[Slot]:
        """Every slot that holds an object."""
        return [slot for slot, _ in self.holding_any({id(item)})]

    def holding_any(self, identities: Collection[int]) -> list[tuple[Slot, Any]]:
        """Every slot that holds one of some objects, which are alive, with the object."""
        return [
            (Slot(container, key), value)
            for container in self._walk.containers
            for key, value in zip(container.keys, container.values, strict=True)
            if id(value) in identities
        ]

    def path_to(self, item: Any) -> Path | None:
        """A path at which an object lay when this was made; None where none leads there alone."""
        for slot in self.holding(item):
            is_compared = slot.container.rank != SCHEDULER and slot.container.is_read(slot.key)
            if is_compared and not isinstance(slot.container, Unordered):
                first = self.slot(slot.path)  # of several with one path
                if first.container is slot.container and first.key is slot.key:
                    return slot.path
        return None

    @property
    def generators(self) -> list[tuple[Slot, Any]]:
        """Random generators of Python and NumPy, with each slot that holds one."""
        found = {id(source): source for _, source in self._walk.randoms}
        return [(slot, source) for source in found.values() for slot in self.holding(source)]

    def slot(self, path: Path) -> Slot:
        """The slot of a path, whatever it holds. Raises: LookupError where nothing leads there."""
        containers = self._by_path.get(path[:-1], ())
        for container in containers:
            for key in container.keys:
                if container.path_of(key) == path:
                    return Slot(container, key)
        for container in containers:  # an attribute, or an entry, that is not there now
            if container.kind == "dict":
                if type(path[-1]) in PLAIN:
                    return Slot(container, path[-1])
                if type(path[-1]) is tuple:  # a tensor, called by where it is held
                    return Slot(container, self.slot(path[-1]).read())
        raise LookupError(path)

    @cached_property
    def _by_path(self) -> dict[Path, list[Container]]:
        """The containers, in order, by their paths: each input, and all that is made, is found by its path."""
        found: dict[Path, list[Container]] = {}
        for container in self._walk.containers:
            found.setdefault(container.path, []).append(container)
        return found

    def slot_in(self, table: int, name: str) -> Slot | None:
        """The slot of an attribute, also of one that is not there; None where its object is not looked into.

        table: the identity of the object's `__dict__`.
        """
        container = self._walk.met.get(table)
        return None if container is None else Slot(container, name)

    def path_of(self, slot: Slot) -> Path:
        """The path of a slot, also of one that came to be since this was made."""
        is_new = is_a(slot.key, torch.Tensor) and id(slot.key) not in slot.container.names
        first = self._walk.first_slot(slot.key) if is_new else None
        return slot.path if first is None else (*slot.container.path, first.path)

    @property
    def slots(self) -> list[Slot]:
        """Every slot where something is held that leads no further: a plain value, a tensor, an opaque object."""
        walk = self._walk
        return [x for container in walk.containers for x in _leaf_slots(container, lambda x: not walk.leads_on(x))]

    @property
    def compared(self) -> frozenset[tuple[int, str]]:
        """The slots that `guard` compares: the identity of what holds them, and the name, "" for every name."""
        known = set[tuple[int, str]]()
        own = {id(table) for _, _, table, _ in self._walk.objects}
        for container in self._walk.containers:
            if container.kind in ("dict", "names", "cell"):
                known.update(
                    (id(container.item), key) for key in container.keys if type(key) is str and container.is_read(key)
                )
                if container.read_names is not None and id(container.item) in own:
                    known.update((id(container.item), name) for name in container.read_names)
            if container.kind == "dict" and container.read_names is None:
                known.add((id(container.item), ""))
        for container, key in self._left_to_others():
            for at, name in _upwards(container, key):
                known -= {(id(at.item), name), (id(at.item), "")}
        return frozenset(known)

    @property
    def others(self) -> list[Any]:
        """Objects whose contents `guard` does not compare, where no slot shows it: arguments, functions' defaults."""
        found: dict[int, Any] = {}
        for container, key in self._left_to_others():
            *_, (end, name) = _upwards(container, key)
            if is_a(end.item, FunctionType):
                found[id(end.item)] = end.item
            elif end.kind == "tuple" and name in end.keys:  # not a table of hooks
                item = end.read(name)
                found[id(item)] = item
        return [*found.values(), *(slot.read() for slot in self._walk.caches)]

    def _left_to_others(self) -> Iterator[tuple[Container, Any]]:
        """Slots of values with contents that are not looked into: the rest of a table, what a function remembers."""
        yield from ((slot.container, slot.key) for slot in self._walk.others_compare)
        for container in self._walk.containers:
            for key, value in zip(container.keys, container.values, strict=True):
                if type(value) in PLAIN or self.looks_into(value) or id(value) in self._walk.unread:
                    continue
                if self._walk.kind(value) in _OF_NO_CONTENTS:
                    continue
                if is_compared_by_contents(value):
                    yield container, key

    def slots_of_tensor(self, tensor: torch.Tensor) -> list[Slot]:
        """Every slot that holds a tensor, first its first; none when it is not reached."""
        return [slot[2] for slot in sorted(self._walk.slots.get(id(tensor), ()), key=lambda slot: slot[:2])]

    def record(self, lifted: frozenset[Path] = frozenset()) -> Record:
        """What was there when this was made, modes included. lifted: slots of which only the type counts."""
        with collection_paused():
            return record_of(self._walk, lifted, self._modes)

    def guard(self, lifted: frozenset[Path] = frozenset(), opened: OpenSlots | None = None) -> PythonGuard:
        """Tells whether it is still so. lifted: as in `record`. opened: slots whose containers may be new ones."""
        with collection_paused():
            return PythonGuard(bound_slots(self._walk, lifted, opened or self.opened(()), self._modes))

    def opened(self, paths: Collection[Path]) -> OpenSlots:
        """The slots of some paths that hold containers which nothing else holds."""
        return OpenSlots(self._walk, paths)

    def new_containers(self, known: Collection[int]) -> frozenset[Path]:
        """See `open_slots.new_containers`."""
        return new_containers(self._walk, known)

    def changes(self) -> list[Change]:
        """What holds something else than when this was made, or was last refreshed: by identity, or by a plain value.

        What a new object holds is not looked at.
        """
        found: list[Change] = []
        for item, kind, table, container in self._walk.objects:
            if type(item) is not kind:
                found.append(Change(None, f"{container.title}.__class__", kind, type(item), item))
            elif table is not None and attributes_of(item) is not table:
                found.append(Change(None, f"{container.title}.__dict__", table, attributes_of(item), item))
        for container in self._walk.containers:
            if not container.is_as_before():
                found += changes_in(container, self._walk)
        for slot, array, held, _ in self._arrays:
            if held is not None and fingerprint(array) != held:
                found.append(Change(slot, slot.label, held, fingerprint(array)))
        for label, source, held, _ in self._randoms:
            if random_state(source)[0] != held:
                found.append(Change(None, label, held, random_state(source)[0], source))
        return found

    def line_of(self, change: Change) -> Origin | None:
        """The user's line that makes a change, as far as the code says so plainly. Cost: milliseconds, once a reachable
        state.
        """
        slot, lines = change.slot, self._locator
        if change.is_draw:
            return lines.of_name(lambda x: _draws_from(x, change.item))
        if slot is None:
            return lines.of_content(change.item)
        if slot.kind == "cell" or (slot.kind == "names" and is_a(slot.item, dict)):
            return lines.of_variable(slot.item, slot.key)
        container = slot.container
        while isinstance(container, Fixed) and container.parent is not None:
            slot = Slot(container.parent, container.key)
            container = slot.container
        if container.link == "attribute" or container.kind == "names":
            return lines.of_attribute(container.owner, slot.key)
        if container.link == "table" and container.parent is not None:
            return lines.of_attribute(container.parent.owner, slot.key) or lines.of_content(container.item)
        return lines.of_content(container.item)

    def line_naming(self, item: Any) -> Origin | None:
        """The first line of the user's that names an object."""
        return self._locator.of_name(lambda x: x is item)

    @cached_property
    def _locator(self) -> SourceLocator:
        return SourceLocator(self._walk.functions, [item for item, _, _, _ in self._walk.objects])

    def restore(self) -> list[str]:
        """Put everything back as it was when this was made, or was last refreshed; answer what could not be.

        Containers hold the same objects again, in the same order, small arrays the same numbers, and random generators
        stand where they stood. The contents of tensors are not looked at. Nothing is raised, and what follows is done
        also when something could not be put back. The answer has a label and the error for each such slot.
        """
        failed: list[str] = []
        for item, kind, table, container in self._walk.objects:
            if type(item) is not kind:
                _try(failed, container.title, partial(object.__setattr__, item, "__class__", kind))
            if table is not None and attributes_of(item) is not table:
                _try(failed, container.title, partial(object.__setattr__, item, "__dict__", table))
        for container in self._walk.containers:
            _try(failed, container.title, container.put_back)
        for slot, array, held, copy in self._arrays:
            if held is not None and fingerprint(array) != held:
                _try(failed, slot.label, partial(fill_array, array, copy))
        for label, source, held, state in self._randoms:
            if random_state(source)[0] != held:
                _try(failed, label, partial(set_random_state, source, state))
        return failed

    def _of(self, kind: Kind) -> list[tuple[str, Any]]:
        return [(container.title, container.owner) for container in self._walk.of_kind.get(kind, ())]


def _leaf_slots(container: Container, is_leaf: Callable[[Any], bool]) -> Iterator[Slot]:
    """The slots of a container whose values lead no further, those that are missing left out."""
    for key, value in zip(container.keys, container.values, strict=True):
        if value is not MISSING and is_leaf(value):
            yield Slot(container, key)


def _upwards(container: Container, key: Any) -> Iterator[tuple[Container, Any]]:
    """A slot, and those that lead to it, up to an attribute, a variable or a function."""
    at: Container | None = container
    while at is not None:
        yield at, key
        if at.link == "attribute" and at.kind == "dict" and not is_compared_by_contents(at.owner):
            return
        key, at = at.key, at.parent


def _draws_from(item: Any, source: Any) -> bool:
    """Whether an object is a random generator, or a function that draws from it."""
    owner = getattr(item, "__self__", None) if is_a(item, BuiltinFunctionType | MethodType) else None
    if source is random:
        return item is random or (owner is not None and owner is getattr(random.random, "__self__", None))
    if source is np.random:
        return item is np.random or (owner is not None and owner is getattr(np.random.rand, "__self__", None))
    return item is source or owner is source


def _try(failed: list[str], label: str, act: Callable[[], Any]) -> None:
    try:
        act()
    except Exception as error:
        failed.append(f"{label}: {type(error).__name__}: {error}")
