"""Tensors of a recording that the code left in Python objects: in a list, a dictionary, an attribute, a variable.

They are stand-ins without numbers, and a compiled program would not put its own tensors there. So they are looked for
where the code can write (what `capture.python_state` reaches), everything is put back as it was, and the program is
refused.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch

from dovetail.capture.python_state import PythonState, assigned_globals, is_user_object, named_globals, readable
from dovetail.errors import PythonSideEffect
from dovetail.torch_compat.fakes import is_fake

_MAX_DEPTH = 4
_MAX_ITEMS = 10_000
_NO_VALUE = object()
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def no_tensors_left(target: Callable[..., Any], arguments: Iterable[Any] = ()) -> Iterator[None]:
    """Refuse code that leaves a fake tensor in a Python object that `target` reaches, or in one of its arguments.

    Whatever is raised, the contents of those objects are put back.
    Raises: PythonSideEffect.
    """
    held = _Held(target, arguments)
    try:
        yield
        found = held.where_a_fake_is()
        if found:
            raise PythonSideEffect(what=f"left a tensor in {found}")
    except BaseException:
        held.restore()
        raise


@dataclass(frozen=True, slots=True)
class _Before:
    """A container, what it held, and how a user would call it."""

    label: str
    container: Any
    contents: Any


class _Held:
    def __init__(self, target: Callable[..., Any], arguments: Iterable[Any]) -> None:
        self._containers: dict[int, _Before] = {}
        for item in arguments:
            self._add("an argument", item)
        state = PythonState(target)
        for function in state.functions:
            self._add_function(function)
        for name, item in state.objects:
            self._add(name or type(item).__name__, item)
        for _, root in state.modules:
            for path, module in root.named_modules():
                self._add(path or type(module).__name__, module)

    def _add_function(self, function: FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._containers.setdefault(id(cell), _Before(f"the variable {name!r}", cell, _contents(cell)))
        known = function.__globals__
        here = {name: known.get(name, _NO_VALUE) for name in {*named_globals(function), *assigned_globals(function)}}
        self._containers[id(function)] = _Before("a global variable", _Globals(known, tuple(here)), here)
        for name, value in readable(function):
            self._add(name, value)

    def _add(self, label: str, value: Any, depth: int = _MAX_DEPTH) -> None:
        if id(value) in self._containers or depth == 0:
            return
        attributes = hasattr(value, "__dict__") and (isinstance(value, torch.nn.Module) or is_user_object(value))
        container = vars(value) if attributes else value
        if isinstance(container, dict | list | deque | set) and len(container) <= _MAX_ITEMS:
            self._containers[id(value)] = _Before(label, container, _contents(container))
        for name, item in _items(container):
            if name not in _MODULE_TABLES:
                self._add(f"{label}.{name}" if attributes else label, item, depth - 1)

    def where_a_fake_is(self) -> str:
        for before in self._containers.values():
            for name, item in _items(before.container):
                if name not in _MODULE_TABLES and _has_fake(item):
                    return f"{before.label}.{name}" if name and before.label else before.label
        return ""

    def restore(self) -> None:
        for before in self._containers.values():
            _put_back(before.container, before.contents)


@dataclass(frozen=True, slots=True)
class _Globals:
    """The part of a module's global variables that a function names."""

    values: dict[str, Any]
    names: tuple[str, ...]


def _contents(container: Any) -> Any:
    if isinstance(container, CellType):
        return _of_cell(container)
    return container.copy()


def _of_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NO_VALUE


def _items(container: Any) -> list[tuple[str, Any]]:
    if isinstance(container, CellType):
        return [("", _of_cell(container))]
    if isinstance(container, _Globals):
        return [(name, container.values.get(name)) for name in container.names]
    if isinstance(container, dict):
        return [(str(name), item) for name, item in container.items()] if len(container) <= _MAX_ITEMS else []
    if isinstance(container, list | tuple | deque | set | frozenset):
        return [("", item) for item in container] if len(container) <= _MAX_ITEMS else []
    return []


def _has_fake(item: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether a value is a fake tensor, or a container that holds one."""
    if isinstance(item, torch.Tensor):
        return is_fake(item)
    return depth > 0 and any(_has_fake(part, depth - 1) for _, part in _items(item))


def _put_back(container: Any, contents: Any) -> None:
    if isinstance(container, CellType):
        if contents is _NO_VALUE:
            with contextlib.suppress(ValueError):
                del container.cell_contents
        elif _of_cell(container) is not contents:
            container.cell_contents = contents
    elif isinstance(container, _Globals):
        for name, value in contents.items():
            if value is _NO_VALUE:
                container.values.pop(name, None)
            elif container.values.get(name) is not value:
                container.values[name] = value
    elif not _is_same(container, contents):
        container.clear()
        container.update(contents) if isinstance(container, dict | set) else container.extend(contents)


def _is_same(container: Any, contents: Any) -> bool:
    """Whether two containers of one kind hold the same objects in the same order; nothing is compared by value."""
    if len(container) != len(contents):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), contents.items(), strict=True)
        return all(a[0] is b[0] and a[1] is b[1] for a, b in pairs)
    return all(a is b for a, b in zip(container, contents, strict=True))
