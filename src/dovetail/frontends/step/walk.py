"""From a step function to everything in Python that its code reads or writes.

Reached are: what code of the user's that ran names (closure cells, defaults, global variables, attributes of modules,
methods and attributes of classes), containers, the user's objects, modules of torch with their children, tables and
hooks, optimizers, schedulers, gradient scalers, distributions; of all these only what calls have read so far (`Names`).
Modules are walked before all else and optimizers after it, so that a tensor gets the name that its module gives it.

Cost: 2 us for each container.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from dovetail.frontends.step.containers import (
    CLASS,
    FUNCTION,
    GLOBALS,
    Cell,
    Container,
    Fixed,
    Named,
    Path,
)
from dovetail.frontends.step.hook_tables import global_tables
from dovetail.frontends.step.passed import ARGUMENT, PassedObjects, leads_on
from dovetail.frontends.step.value_walk import ELSEWHERE, LEAF, SCHEDULER, Found, ValueWalk
from dovetail.reach.builtin_names import BUILT_IN, is_put_into_builtins
from dovetail.reach.codes import names_of
from dovetail.reach.contents import MISSING
from dovetail.reach.guarded import FUNCTION_PARTS
from dovetail.reach.libraries import is_library_class, is_library_module, is_users_function
from dovetail.reach.names import Names
from dovetail.reach.values import HOST_CALL, Kind, attributes_of, is_a, module_of, mro_of, name_of


class Walk(ValueWalk):
    """Everything that a step function reaches. functions: those of the user's that ran."""

    def __init__(self, target: Any, arguments: Sequence[Any], passed: list[Any], extra: Any, read: Names) -> None:
        """Walk from a step function, from arguments of a call, and from what the user names besides.

        passed: the objects among the arguments, see `passed`.
        """
        super().__init__(read)
        self.functions: list[FunctionType] = []
        self._classes: set[type] = set()
        self._python_modules: set[int] = set()
        self._taken: set[Path] = {()}
        self._target: Any = target
        self._whole = {id(part) for part in (extra, *_parts(extra))}
        self._begin(target, arguments, passed, extra)
        self.run()

    def _begin(self, target: Any, arguments: Sequence[Any], passed: list[Any], extra: Any) -> None:
        roots: dict[str, Any] = {}
        kind = self.kind(target)
        if kind is Kind.METHOD:
            roots["self"] = target.__self__
            self._target = target.__func__
        elif kind is not Kind.FUNCTION:
            roots["self"] = target
        found = {f"{ARGUMENT}{n}": x for n, x in enumerate(arguments) if n >= len(passed) or passed[n] is None}
        roots |= {name: x for name, x in found.items() if leads_on(x) and self.kind(x) is not Kind.PLAIN}
        if _is_given(extra):
            roots["state"] = extra
        root = Fixed(tuple(roots.values()), None, None, roots)
        root.link = "attribute"
        root.call_it((), "")
        self.keep(root)
        for table in global_tables(root):
            self._taken.add(table.path)
            self.enter(table.item, table, ELSEWHERE)
        if isinstance(self._target, FunctionType):
            self.push([(self._target, Kind.FUNCTION, root, "step")])
        if passed:
            self.enter(passed, PassedObjects(passed), ELSEWHERE)
        self.scan(root)

    # --- code

    def function(self, function: FunctionType, parent: Container) -> None:
        is_users = is_users_function(function)
        if HOST_CALL in attributes_of(function) or (is_users and function.__code__ not in self.read.codes):
            return  # it runs for real, and may keep what it likes; or it does not run
        rank = parent.rank if parent.rank == SCHEDULER else ELSEWHERE
        path = () if function is self._target else self._free(f"function {function.__qualname__}")
        container = Named(function, FUNCTION)
        container.call_it(path or self._free("step function"), function.__qualname__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self.met:
                variable = Cell(cell, name)
                variable.call_it(path, "" if function is self._target else function.__qualname__)
                self._taken.add((*path, name))
                self.enter(cell, variable, rank)
        if not is_users:
            return
        self.functions.append(function)
        for part in FUNCTION_PARTS:
            container.add(part)
        self.enter(function, container, rank)
        own = Container(attributes_of(function), container, "__dict__", function)
        own.link = "attribute"
        own.call_it((*container.path, "__dict__"), container.title)
        self.enter(own.item, own, rank)
        names = names_of(function.__code__)
        home = str(function.__globals__.get("__name__"))
        read = [chain[0] for chain in names.chains] + sorted(self.read.of_module(home))
        self._add_globals(function.__globals__, read, home, rank)
        if put := [name for name in read if name not in function.__globals__ and is_put_into_builtins(name)]:
            self._add_globals(BUILT_IN, put, "builtins", rank)
        for imported in names.imports:
            module = imported.loaded(function.__globals__.get("__package__"))
            if isinstance(module, ModuleType):
                self.python_module(module)

    def python_module(self, module: ModuleType) -> None:
        home = str(vars(module).get("__name__"))
        if id(module) not in self._python_modules and not is_library_module(home):
            self._python_modules.add(id(module))
            known = vars(module)
            self._add_globals(known, [n for n in self.read.of_module(home) if n in known], home, ELSEWHERE)

    def _add_globals(self, known: dict[str, Any], names: Iterable[str], home: str, rank: int) -> None:
        container = self.met.get(id(known))
        if not isinstance(container, Named):
            own = isinstance(self._target, FunctionType) and known is self._target.__globals__
            container = Named(known, GLOBALS, "global variable")
            clash = own and any((name,) in self._taken for name in names)
            container.call_it(
                () if own and not clash else self._free(f"module {home}"), "" if own or home == "__main__" else home
            )
            container.rank = rank
            self.met[id(known)] = self.keep(container)
        container.rank = min(container.rank, rank)
        before = set(container.keys)
        self._add(container, [name for name in dict.fromkeys(names) if name not in before])

    def class_of_user(self, kind: type) -> None:
        for owner in mro_of(kind):
            if is_library_class(owner) or owner in self._classes:
                continue
            self._classes.add(owner)
            container = Named(owner, CLASS, "class attribute")
            container.call_it(self._free(f"class {module_of(owner)}.{name_of(owner)}"), name_of(owner))
            self.keep(container)
            self._add(container, sorted(self.read.of_class(owner)))

    def _add(self, container: Named, names: Iterable[str]) -> None:
        """Look at more names, and at the functions behind what is there."""
        found: list[Found] = []
        for name in names:
            value = container.add(name)
            if self.kind(value) is Kind.TENSOR:
                self.tensor(value, container, name)
            elif value is not MISSING:
                found += [(x, self.kind(x), container, name) for x in _unwrapped(value)]
        self.push([entry for entry in found if entry[1] not in LEAF])

    def _free(self, name: str) -> Path:
        """A root that no other has."""
        count, path = 1, (name,)
        while path in self._taken:
            count += 1
            path = (f"{name} {count}",)
        self._taken.add(path)
        return path


def _is_given(extra: Any) -> bool:
    return not (is_a(extra, (list, tuple, dict)) and len(extra) == 0)


def _parts(extra: Any) -> Iterator[Any]:
    if is_a(extra, dict):
        yield from extra.values()
    elif is_a(extra, (list, tuple)):
        yield from extra


def _unwrapped(value: Any) -> list[Any]:
    """The functions behind an attribute of a class, or the attribute itself."""
    if is_a(value, (staticmethod, classmethod)):
        return [value.__func__]
    if is_a(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if is_a(value, (functools.cached_property, functools.partialmethod)):
        return [value.func]
    return [value]
