"""Attributes of modules that code reads, whichever way a module comes to it.

Of a module of the user's, whatever attribute code names anywhere counts as read. Of a library's, which holds hundreds
that mean something else, what code names behind a name of the module: `import os` in a function and `os.environ` there,
`self.os.environ`, or a variable that the function closes over.

Code that gives `importlib.import_module` or `__import__` a text has that module; with a computed name, or where the
function has another name, it may have any of the user's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from types import ModuleType
from typing import Any

from dovetail.reach.codes import CodeNames, Import
from dovetail.reach.libraries import is_installed, is_library_module
from dovetail.reach.values import is_a


class Modules:
    """Modules that code of a call may have, by the names that it has for them."""

    def __init__(self, on_users: Callable[[ModuleType], None]) -> None:
        """on_users: gets each module of the user's, once."""
        self._on_users = on_users
        self._due: list[tuple[dict[str, Any], str, str]] = []
        self._users: dict[int, ModuleType] = {}
        self._named: set[str] = set()
        self._after: dict[str, set[str]] = {}
        self._held: dict[str, dict[int, ModuleType]] = {}
        self._not_loaded: list[tuple[Import, Any]] = []
        self._are_found = False

    def meet(self, module: ModuleType) -> None:
        """Code may have a module now, perhaps in ways that show no name of it."""
        if id(module) not in self._users and _is_users(module):
            self._users[id(module)] = module
            self._on_users(module)
            self._read_named(module, self._named)

    def held_by(self, holder: Any, held: Sequence[Any]) -> None:
        """Code may take values out of a container: by a key, or in ways that show no name. held: keys, then values."""
        if not any(issubclass(kind, ModuleType) for kind in set(map(type, held))):
            return
        named = dict.items(holder) if is_a(holder, dict) else ()
        for name, value in (*named, *(("", value) for value in held)):
            if is_a(name, str):
                self.held(name, value)

    def held(self, name: str, value: Any) -> None:
        """Code finds a value under a name: a variable's, or an attribute's; "" for one that is not shown."""
        if value is import_module and name != "import_module":
            self._find_all()
        if is_a(value, ModuleType) and id(value) not in self._held.setdefault(name, {}):
            self._held[name][id(value)] = value
            self._read_behind(value, self._after.get(name, ()))

    def code(self, names: CodeNames, package: Any) -> None:
        """Code runs. package: that it is of."""
        new = names.attributes - self._named
        self._named |= new
        for module in self._users.values() if new else ():
            self._read_named(module, new)
        for name, attribute in names.pairs:
            known = self._after.setdefault(name, set())
            if attribute not in known:
                known.add(attribute)
                for module in self._held.get(name, {}).values():
                    self._read_behind(module, (attribute,))
        self._import([(imported, package) for imported in names.imports])
        if names.finds_modules:
            self._find_all()

    def end(self) -> None:
        """The call is over, and has loaded all modules that its code imports."""
        left, self._not_loaded = self._not_loaded, []
        self._import(left, is_over=True)
        if self._are_found:
            self._meet_loaded()

    def due(self) -> tuple[dict[str, Any], str, str] | None:
        """A namespace, a name there, and the namespace's own, which count as read, once each; None: nothing is left."""
        return self._due.pop() if self._due else None

    def _find_all(self) -> None:
        """Code may have any module."""
        if not self._are_found:
            self._are_found = True
            self._meet_loaded()

    def _meet_loaded(self) -> None:
        for module in list(sys.modules.values()):
            if is_a(module, ModuleType):
                self.meet(module)

    def _import(self, imports: Iterable[tuple[Import, Any]], *, is_over: bool = False) -> None:
        for imported, package in imports:
            module = imported.loaded(package)
            if module is None:
                self._not_loaded.append((imported, package))
                continue
            self.meet(module)
            if id(module) in self._users and not is_over:
                self._due.append((sys.modules, imported.absolute(package), "sys.modules"))
            if imported.attribute:
                self._read_named(module, (imported.attribute,))
                self.held(imported.name, vars(module).get(imported.attribute))
            else:
                self.held(imported.name, module)

    def _read_behind(self, module: ModuleType, names: AbstractSet[str] | tuple[str, ...]) -> None:
        is_whole = "__dict__" in names and _is_users(module)
        self._read_named(module, tuple(vars(module)) if is_whole else names)

    def _read_named(self, module: ModuleType, names: AbstractSet[str] | tuple[str, ...]) -> None:
        known: dict[str, Any] = vars(module)
        if "__getattr__" in known:  # which is asked for the others
            names = {*names, "__getattr__"}
        self._due += [(known, x, str(known.get("__name__"))) for x in names if x in known or "__getattr__" in known]


def _is_users(module: ModuleType) -> bool:
    home = str(vars(module).get("__name__"))
    return not (is_library_module(home) or is_installed(home))
