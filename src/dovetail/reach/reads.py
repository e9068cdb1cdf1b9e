"""What the code of a recorded call reads: the slots, and what they held before the call.

A slot is an entry of a namespace (global variables, attributes of an object, of a class, of a module), one of
`__slots__`, a closure cell, or a function without arguments that is asked. `dovetail.reach.spies` and
`dovetail.reach.frames` report reads; what follows from the slots is a `dovetail.reach.guard.PythonGuard`. A slot that
the call writes counts as read before: a program that does not repeat the write is not used after it.
"""

from __future__ import annotations

import decimal
import gc
import logging
import random
from collections import defaultdict
from collections.abc import Callable
from enum import EnumType
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from dovetail.reach.builtin_names import BUILT_IN, OF_PYTHON, is_put_into_builtins
from dovetail.reach.codes import names_of
from dovetail.reach.contents import MISSING, Snapshot, in_cell, is_compared_by_contents
from dovetail.reach.libraries import is_library_class, is_ours, is_own_count, is_users_function
from dovetail.reach.modules import Modules
from dovetail.reach.past_reports import WHOLE, PastReports
from dovetail.reach.run_codes import RunCodes
from dovetail.reach.slots import NamesOf, PartOf, in_slot, settings_of_decimals, sources_of_levels, tables_asked
from dovetail.reach.stand_ins import class_in_eager_mode, is_stand_in
from dovetail.reach.unshown import Unshown
from dovetail.reach.values import (
    PLAIN,
    RANDOM_SOURCES,
    REPORTING,
    attributes_of,
    compiled_from,
    has_attributes,
    is_a,
    is_heap_type,
    is_numbering,
    members_of,
    moves_on,
    mro_of,
    name_of,
    own_of,
    special_names,
)
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.swapping import hooks_of
from dovetail.torch_compat.traced_maths import untraced

_FACTORY = vars(defaultdict)["default_factory"]
_GRADIENT: Any = torch.Tensor.grad  # as it is while nothing stands in for it
_OF_RECORDINGS = ("grad", "tolist")  # what stands on tensors' class while a call is recorded


class Reads:
    """The slots that were read, as they were before.

    namespaces: entries of dictionaries, each with its dictionary and value. attributes: of objects, in their
    `__dict__`. class_attributes, descriptors, cells: the same for those. asked: functions, with their answers. owners:
    objects whose attributes were read. labels: of namespaces. roots: see `root`. holders: of containers, the object or
    cell in which each was found, and whether the collector knew it then. met: by identity. overwritten: attributes set
    before read. set_by_users: by code of theirs. asked_fakes: by identity, that code asked for attributes by name.
    """

    def __init__(self, install: Callable[[type], None], on_moving: Callable[[Any], None] = lambda _: None) -> None:
        """install: gets each class whose objects may be read. on_moving: iterators and files that code may read on."""
        self._install = install
        self._on_moving = on_moving
        self.snapshot = Snapshot()
        self.owners: dict[int, Any] = {}
        self.attributes: dict[tuple[int, str], Any] = {}
        self.namespaces: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self.class_attributes: dict[tuple[int, str], tuple[type, Any]] = {}
        self.descriptors: dict[tuple[int, str], tuple[Any, Any, Any]] = {}
        self.cells: dict[int, tuple[Any, str, Any]] = {}
        self.asked: dict[Callable[[], Any], Any] = {}
        self.labels: dict[int, str] = {}
        self.roots: list[Any] = []
        self.holders: dict[int, tuple[Any, bool]] = {}
        self.unshown = Unshown()
        self.overwritten, self.set_by_users = set[tuple[int, str]](), set[tuple[int, str]]()
        self.asked_fakes: set[int] = set()
        self.met: dict[int, Any] = {}
        self._kinds: dict[int, type] = {}
        self._codes = RunCodes()
        self._named: set[str] = set()
        self._classes: dict[int, type] = {id(torch.Tensor): torch.Tensor}
        self._past = PastReports()
        self._modules = Modules(self._past.meet_owner)
        self._is_reading_on = self._is_guessing = False

    def end(self) -> None:
        """The call is over: nothing more is to be watched."""
        self._modules.end()
        self._read_on()
        self._install = self._on_moving = lambda _: None

    # --- values ---------------------------------------------------------------------------------------------------

    def root(self, value: Any) -> None:
        """The call begins with a value: the function, or an argument that holds more than its own value."""
        self.roots.append(value)
        self.meet(value)

    def meet(self, value: Any, holder: Any = None) -> None:
        """Code may hold a value now, and read what it holds. holder: the object, or the cell, that it was found in."""
        left = [value]
        while left:
            item = left.pop()
            kind = type(item)
            if kind in PLAIN or id(item) in self.met or item is BUILT_IN:
                continue
            self.met[id(item)] = item
            if kind is decimal.Decimal or item is decimal.Decimal or item is decimal:
                self.ask(settings_of_decimals)
            if issubclass(kind, torch.Tensor):
                if not is_fake(item):
                    own = attributes_of(item) or {}  # nothing shows them being read
                    self.unshown.add_tensor(item, own)
                    self.every_entry(own, "a tensor")
                left += hooks_of(item)
                continue
            if issubclass(kind, type):
                self._meet_class(item)
            elif issubclass(kind, ModuleType):
                self._modules.meet(item)
            elif issubclass(kind, RANDOM_SOURCES) and not issubclass(kind, random.SystemRandom):
                self.unshown.add_source(item)
            elif is_compared_by_contents(item):
                held = self.snapshot.take(item)
                left += held
                if issubclass(kind, defaultdict) and class_in_eager_mode(item) is kind:
                    self._slot(item, "default_factory", _FACTORY)
                self._modules.held_by(item, held)
                self.holders[id(item)] = (holder, gc.is_tracked(item))
            elif moves_on(item):
                self._on_moving(item)
            left.append(compiled_from(item))
            self._past.meet(item, kind)
            if kind is FunctionType and not is_ours(item):
                self._codes.meet(item)
                if item.__code__ in self._codes.ran or not is_users_function(item):
                    self._read_cells(item)
            self._meet_kind(kind)
            self.unshown.add_object(item)
        self._read_on()

    def has_met(self, item: Any) -> bool:
        """Whether a value was met."""
        return id(item) in self.met

    def everything(self, values: list[Any]) -> None:
        """All that can be reached from values, as far as code names it, is read: nothing tells what really is."""
        known, self._is_guessing = 0, True
        self.meet(values)
        while known < len(self.met):
            new, known = list(self.met.values())[known:], len(self.met)
            for item in new:
                if is_a(item, FunctionType) and is_users_function(item):
                    self.code(item.__code__, item.__globals__)
                elif is_a(item, torch.nn.Module) or not (is_library_class(type(item)) or is_a(item, type | ModuleType)):
                    self.whole(item)
        self._is_guessing = False

    def _read_on(self) -> None:
        """Read what code may read in ways that nothing shows, before it can, with all that is found there."""
        if self._is_reading_on:
            return
        self._is_reading_on = True
        try:
            while True:
                while (named := self._modules.due()) is not None:
                    self.entry(*named)
                item = self._past.due()
                if item is None:
                    return
                (self.ask if is_a(item, PartOf) else self.whole)(item)
        finally:
            self._is_reading_on = False

    def _meet_kind(self, kind: type) -> None:
        if id(kind) in self._kinds or not is_heap_type(kind):
            return
        self._kinds[id(kind)] = kind
        self._install(kind)
        for owner in (kind for kind in mro_of(kind) if not is_library_class(kind)):
            self._meet_class(owner)
            for name in special_names(owner):
                self.class_attribute(owner, name)

    def _meet_class(self, kind: type) -> None:
        if id(kind) in self._classes or is_library_class(kind):
            return
        self._classes[id(kind)] = kind
        self._past.meet_owner(kind)
        self.unshown.add_class(kind)
        if is_a(kind, EnumType):
            self.class_attribute(kind, "_member_map_")
        self._meet_kind(type(kind))
        self._name_class(kind, self._named)

    def _name_class(self, kind: type, names: set[str]) -> None:
        for name in names:
            if any(name in own_of(owner) for owner in mro_of(kind)):
                self.of_class(kind, name)

    # --- code -----------------------------------------------------------------------------------------------------

    def runs(self, frame: FrameType) -> None:
        """Code of the user's runs."""
        code = frame.f_code
        if code not in self._codes.ran:
            for value in self._codes.held_by(frame):
                self.meet(value)
            self.code(code, frame.f_globals)

    def code(self, code: CodeType, known: dict[str, Any]) -> None:
        """Code of the user's is run. known: its global variables."""
        if code in self._codes.ran:
            return
        self._codes.run(code, known)
        names = names_of(code)
        for chain in names.chains:
            self._follow(known, chain)
        self._modules.code(names, known.get("__package__"))
        self._past.code(code.co_name, names)
        self._read_on()
        new = names.attributes - self._named
        if new:
            self._named |= new
            for kind in list(self._classes.values()):
                self._name_class(kind, set(new))
        for function in self._codes.functions(code):
            self._read_cells(function)

    @property
    def codes(self) -> dict[CodeType, dict[str, Any]]:
        """The user's code that ran, each with its global variables."""
        return self._codes.ran

    @property
    def wholly_read(self) -> list[Any]:
        """Objects of which every attribute was read."""
        return [function.item for function in self.asked if isinstance(function, NamesOf)]

    def lost_codes(self) -> list[CodeType]:
        """See `RunCodes.lost`."""
        return self._codes.lost()

    def _follow(self, known: dict[str, Any], chain: tuple[str, ...]) -> None:
        value = self.entry(known, chain[0], "")
        if value is MISSING and is_put_into_builtins(chain[0]):
            value = self.entry(BUILT_IN, chain[0], "builtins")
        for name in chain[1:]:
            self._past.part(value, name)
            if is_a(value, ModuleType):
                value = self._of_module(value, name)
            else:
                value = self.of_class(value, name) if is_a(value, type) else MISSING

    def _read_cells(self, function: FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self.cells:
                value = in_cell(cell)
                self.cells[id(cell)] = (cell, name, value)
                self._modules.held(name, value)
                self.meet(value, cell)

    # --- slots ---------------------------------------------------------------------------------------------------

    def entry(self, known: dict[str, Any], name: str, label: str) -> Any:
        """An entry of a namespace is read. label: of the namespace."""
        key = (id(known), name)
        if key not in self.namespaces:
            value = dict.get(self.snapshot.entries(known), name, MISSING)
            value = MISSING if is_stand_in(value) else untraced(value)
            self.namespaces[key] = (known, value)
            self.labels[id(known)] = label
            self._modules.held(name, value)
            if not (is_numbering(value) and is_own_count(str(known.get("__name__")), is_guessed=self._is_guessing)):
                self.meet(value)
        return self.namespaces[key][1]

    def _of_module(self, module: ModuleType, name: str) -> Any:
        return self.entry(vars(module), name, str(vars(module).get("__name__")))

    def every_entry(self, known: dict[str, Any], label: str) -> None:
        """A whole namespace is read, but for what Python keeps there itself."""
        for name in list(known):
            if name not in OF_PYTHON:
                self.entry(known, name, label)

    def class_attribute(self, owner: type, name: str) -> Any:
        """What a class itself holds by a name is read."""
        if name in REPORTING or (owner is torch.Tensor and name in _OF_RECORDINGS):  # it is not the class's own now
            return MISSING
        key = (id(owner), name)
        if key not in self.class_attributes:
            value = own_of(owner).get(name, MISSING)
            self.class_attributes[key] = (owner, value)
            self._modules.held(name, value)
            self.meet(value)
        return self.class_attributes[key][1]

    def of_class(self, kind: type, name: str) -> Any:
        """An attribute of a class is read: its own, or one of a class that it derives from."""
        for owner in (*mro_of(kind), *mro_of(type(kind))):
            value = self.class_attribute(owner, name) if is_heap_type(owner) else own_of(owner).get(name, MISSING)
            if value is not MISSING:
                return value
        return MISSING

    def attribute(self, item: Any, name: str) -> None:
        """An attribute of an object is read, or about to be written."""
        key = (id(item), name)
        if key in self.attributes:
            return
        if name == "_cache" and is_a(item, logging.Logger):
            for held, part in sources_of_levels(item):
                self.attribute(held, part)
            return
        self.owners[id(item)] = item
        if is_a(item, type):
            self.attributes[key] = MISSING
            self.of_class(item, name)
            return
        value = dict.get(self.unshown.before(item), name, MISSING) if has_attributes(type(item)) else MISSING
        self.attributes[key] = value
        self._modules.held(name, value)
        found = MISSING
        for owner in mro_of(type(item)):
            if is_heap_type(owner):
                found = self.class_attribute(owner, name)
            if found is not MISSING:
                break
        if type(found) is MemberDescriptorType:
            self._slot(item, name, found)
        if value is MISSING and found is MISSING and is_a(item, torch.nn.Module):
            for entries in tables_asked(item, name):
                self.entry(entries, name, name_of(type(item)))
        self.meet(value, item)
        if name in WHOLE:
            self.whole(item)

    def overwrite(self, item: Any, name: str) -> None:
        """An attribute of an object is about to be set."""
        if (id(item), name) not in self.attributes:
            self.attribute(item, name)
            if not is_a(item, type):
                self.overwritten.add((id(item), name))

    def whole(self, item: Any) -> None:
        """Every attribute of an object, a class or a module is read."""
        if is_a(item, ModuleType):
            self.every_entry(vars(item), str(vars(item).get("__name__")))
        elif is_a(item, type):
            for owner in mro_of(item):
                for name in list(own_of(owner)) if not is_library_class(owner) else ():
                    self.class_attribute(owner, name)
        else:
            self._whole_object(item)

    def _whole_object(self, item: Any) -> None:
        for name in list(attributes_of(item)) if has_attributes(type(item)) else ():
            self.attribute(item, name)
        for name in members_of(type(item)):
            self.attribute(item, name)
        self.ask(NamesOf(item))

    def ask(self, function: Callable[[], Any]) -> None:
        """A function without arguments is asked, whose answer may change."""
        if function not in self.asked:
            self.answered(function, function())

    def answered(self, function: Callable[[], Any], answer: Any) -> None:
        """A function was asked before the call, or by it: the first answer counts."""
        self.asked.setdefault(function, answer)
        self.meet(answer)

    def of_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor is asked for an attribute, perhaps for one that it does not have."""
        if is_fake(tensor):
            self.asked_fakes.add(id(tensor))
        else:
            self.entry(attributes_of(tensor), name, "a tensor")

    def gradient(self, tensor: torch.Tensor) -> None:
        """The `.grad` of a tensor that was there before is read."""
        if (id(tensor), "grad") not in self.descriptors:
            self._slot(tensor, "grad", _GRADIENT)

    def _slot(self, item: Any, name: str, descriptor: Any) -> None:
        self.owners[id(item)], value = item, in_slot(item, descriptor)
        self.descriptors[id(item), name] = (item, descriptor, value)
        self.meet(value, item)
