"""From a step function to everything in Python that it can read or write.

Reached are: what code of the user's names (closure cells, defaults, global variables, attributes of the user's modules,
methods and attributes of the user's classes), containers, the user's objects, modules of torch with their children,
tables and hooks, optimizers, schedulers, gradient scalers, distributions. Modules are walked before all else and
optimizers after it, so that a tensor gets the name that its module gives it.

An attribute of an object of the user's that no reached code names, not even in a string, is not walked: the code cannot
read it. That is not relied on where code of the user's, or of the package of the object's class, may compute names
(`getattr`, `vars`, ...), nor for dataclasses and classes that derive from a library's.

Of installed packages, functions and classes are reached from the user's code, and methods through their objects; what
they call in their turn is not looked into, but the global variables and attributes that they name are watched.

Cost: 2 us for each container, and once per code object what it takes to disassemble it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from dovetail.frontends.step.code_reads import home_of, imported_names, is_users, reads_of
from dovetail.frontends.step.hook_tables import global_tables
from dovetail.frontends.step.places import (
    CLASS,
    FUNCTION,
    FUNCTION_PARTS,
    GLOBALS,
    MISSING,
    Cell,
    Fixed,
    Holder,
    Named,
    Path,
)
from dovetail.frontends.step.value_walk import ELSEWHERE, LEAF, SCHEDULER, USERS, Found, ValueWalk
from dovetail.reach.libraries import is_installed, is_library_class, is_library_module
from dovetail.reach.values import HOST_CALL, Kind, attributes_of, is_a, module_of, mro_of, name_of, own_of

_OF_ENVIRONMENT = frozenset(("environ", "environb", "getenv", "getenvb"))
_WHEN_MADE = ("__init__", "__new__", "__post_init__", "__repr__")


class Walk(ValueWalk):
    """Everything that a step function reaches.

    functions: those of the user's. named_by_code: attributes that their code reads or writes, schedulers' own left out.
    """

    def __init__(self, target: Any, arguments: Iterable[Any], extra: Any) -> None:
        """Walk from a step function, from arguments of a call, and from what the user names besides."""
        super().__init__()
        self.functions: list[FunctionType] = []
        self._named_by_user: set[str] = set()
        self.named_by_code: set[str] = set()
        self._classes: dict[type, tuple[Named, bool]] = {}
        self._grown: dict[type, tuple[int, int, bool]] = {}
        self._python_modules: dict[int, ModuleType] = {}
        self._taken: set[Path] = {()}
        self._target: Any = target
        self._own = _package(home_of(getattr(target, "__func__", target)))
        self._whole = {id(part) for part in (extra, *_parts(extra))}
        self._begin(target, arguments, extra)
        self.run()

    def _begin(self, target: Any, arguments: Iterable[Any], extra: Any) -> None:
        roots: dict[str, Any] = {}
        kind = self.kind(target)
        if kind is Kind.METHOD:
            roots["self"] = target.__self__
            self._target = target.__func__
        elif kind is not Kind.FUNCTION:
            roots["self"] = target
        found = {f"argument_{n}": x for n, x in enumerate(arguments)}
        roots |= {name: x for name, x in found.items() if self.kind(x) not in (Kind.PLAIN, Kind.TENSOR)}
        if _is_given(extra):
            roots["state"] = extra
        root = Fixed(tuple(roots.values()), None, None, roots)
        root.link = "attribute"
        root.call_it((), "")
        self.keep(root)
        for table in global_tables(root):
            self._taken.add(table.path)
            self.enter(table.container, table, ELSEWHERE)
        if isinstance(self._target, FunctionType):
            self.push([(self._target, Kind.FUNCTION, root, "step")])
        self.scan(root)

    def grow_code(self) -> None:
        for module in self._python_modules.values():
            known = vars(module)
            named = self._named_by_user if self.is_installed(module) else self.named
            self._add_globals(known, [n for n in list(known) if n in named], module, ELSEWHERE)
        for owner, (holder, called) in list(self._classes.items()):
            stamp = (len(self.named), len(self._named_by_user), called)
            if self._grown.get(owner) == stamp:
                continue
            self._grown[owner] = stamp
            before = set(holder.keys)
            for name, value in list(own_of(owner).items()):
                if name not in before and (name in self.named or _is_special(name, value, called)):
                    self._add_of_class(holder, name)
            inherited = {name for base in mro_of(owner)[1:-1] for name in own_of(base) if name in self._named_by_user}
            for name in sorted(inherited.difference(holder.keys)):
                holder.add(name)  # nothing is there yet: it would hide that of a base

    def python_module(self, module: ModuleType) -> None:
        if not is_library_module(home_of(module)):
            self._python_modules[id(module)] = module

    def is_installed(self, code: Any) -> bool:
        home = home_of(code)
        return is_installed(home) and _package(home) != self._own

    def group(self, code: Any) -> str:
        return _package(home_of(code)) if self.is_installed(code) else USERS

    # --- code

    def function(self, function: FunctionType, parent: Holder) -> None:
        if HOST_CALL in attributes_of(function):
            return  # it runs for real, and may keep what it likes
        rank = parent.rank if parent.rank == SCHEDULER else ELSEWHERE
        users = is_users(function)
        path = () if function is self._target else self._free(f"function {function.__qualname__}")
        holder = Named(function, FUNCTION)
        holder.foreign = self.is_installed(function)
        holder.call_it(path or self._free("step function"), function.__qualname__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self.met:
                variable = Cell(cell, name)
                variable.foreign = holder.foreign
                variable.call_it(path, "" if function is self._target else function.__qualname__)
                self._taken.add((*path, name))
                self.enter(cell, variable, rank)
        if not users:
            return
        self.functions.append(function)
        for part in FUNCTION_PARTS:
            holder.add(part)
        self.enter(function, holder, rank)
        own = Holder(attributes_of(function), holder, "__dict__", function)
        own.link = "attribute"
        own.call_it((*holder.path, "__dict__"), holder.title)
        self.enter(own.container, own, rank)
        reads = reads_of(function)
        self.named |= reads.attributes
        if not holder.foreign:
            self._named_by_user |= reads.attributes
        if rank != SCHEDULER:
            self.named_by_code |= reads.attributes
        if reads.any_attribute:
            self.by_any_name.add(self.group(function))
        known = function.__globals__
        by_text = [name for name in reads.attributes if name in known] if "globals" in reads.globals else []
        self._add_globals(known, (*reads.globals, *sorted(by_text)), function, rank)
        if not holder.foreign and not _OF_ENVIRONMENT.isdisjoint((*reads.attributes, *reads.globals)):
            self._environment(rank)
        for name in imported_names(function):
            module = sys.modules.get(name)
            if isinstance(module, ModuleType) and not holder.foreign:
                self.python_module(module)

    def _environment(self, rank: int) -> None:
        """Reach the variables of the process's environment."""
        table = attributes_of(os.environ)["_data"]
        if id(table) not in self.met:
            holder = Holder(table, None, None)
            holder.call_it(self._free("os.environ"), "os.environ")
            self.enter(table, holder, rank)

    def _add_globals(self, known: dict[str, Any], names: Iterable[str], code: Any, rank: int) -> None:
        holder = self.met.get(id(known))
        if not isinstance(holder, Named):
            own = isinstance(self._target, FunctionType) and known is self._target.__globals__
            holder = Named(known, GLOBALS, "global variable")
            clash = own and any((name,) in self._taken for name in names)
            home = home_of(code)
            holder.call_it(() if own and not clash else self._free(f"module {home}"), "" if own else home)
            holder.foreign = self.is_installed(code)
            holder.rank = rank
            self.met[id(known)] = self.keep(holder)
        holder.rank = min(holder.rank, rank)
        found: list[Found] = []
        before = set(holder.keys)
        for name in dict.fromkeys(names):
            if name in before:
                continue
            value = holder.add(name)
            if self.kind(value) is Kind.TENSOR:
                self.tensor(value, holder, name)
            elif value is not MISSING:
                found.append((value, self.kind(value), holder, name))
        self.push([entry for entry in found if entry[1] not in LEAF])

    def class_of_user(self, kind: type, called: bool) -> None:
        for owner in mro_of(kind):
            known = self._classes.get(owner)
            if is_library_class(owner) or (known is not None and known[1] >= called):
                continue
            if known is None:
                holder = Named(owner, CLASS, "class attribute")
                holder.call_it(self._free(f"class {module_of(owner)}.{name_of(owner)}"), name_of(owner))
                holder.foreign = self.is_installed(owner)
                self.keep(holder)
            else:
                holder = known[0]
            self._classes[owner] = (holder, called)

    def _add_of_class(self, holder: Named, name: str) -> None:
        value = holder.add(name)
        if self.kind(value) is Kind.TENSOR:
            self.tensor(value, holder, name)
            return
        inner = _unwrapped(value)
        found = [(x, self.kind(x), holder, name) for x in inner if self.kind(x) not in LEAF]
        self.push([entry for entry in found if entry[1] is not Kind.FUNCTION])
        self.push_all([entry for entry in found if entry[1] is Kind.FUNCTION])

    def _free(self, name: str) -> Path:
        """A root that no other has."""
        count, path = 1, (name,)
        while path in self._taken:
            count += 1
            path = (f"{name} {count}",)
        self._taken.add(path)
        return path


def _package(home: str) -> str:
    return home.partition(".")[0]


def _is_given(extra: Any) -> bool:
    return not (is_a(extra, (list, tuple, dict)) and len(extra) == 0)


def _parts(extra: Any) -> Iterator[Any]:
    if is_a(extra, dict):
        yield from extra.values()
    elif is_a(extra, (list, tuple)):
        yield from extra


def _is_special(name: str, value: object, called: bool) -> bool:
    """Whether a method is one that Python calls. called: also those that make an object."""
    return name.startswith("__") and is_a(value, FunctionType) and (called or name not in _WHEN_MADE)


def _unwrapped(value: Any) -> list[Any]:
    """The functions behind an attribute of a class, or the attribute itself."""
    if is_a(value, (staticmethod, classmethod)):
        return [value.__func__]
    if is_a(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if is_a(value, (functools.cached_property, functools.partialmethod)):
        return [value.func]
    return [value]
