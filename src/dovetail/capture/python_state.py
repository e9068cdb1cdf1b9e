"""The Python values that a function can read, so that a compiled program is not used after one of them changed.

Looked at: closure cells, default arguments, globals that the code names (through the user's own helper functions and
module hooks, too), attributes and hook tables of reached modules, attributes of the user's own objects, and the ambient
modes of torch. A plain value (number, string, None) is compared by value, lists, tuples and dictionaries item by item,
any other object by identity. Not looked at: containers and objects of more than 200 items, and what is inside of more
than a few others (4 levels).
"""

from __future__ import annotations

import argparse
import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from dovetail.capture.origins import is_library_file

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_READABLE = (*_PLAIN, tuple, list, dict)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
_MAX_FUNCTIONS = 200
_MAX_ITEMS = 200
_MAX_DEPTH = 4


class PythonState:
    """What `target` can read.

    Attributes: modules, the reached modules by name; functions, objects: what else was reached; reads_gradients:
    whether code reads `.grad` of something.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.functions: list[FunctionType] = []
        self.objects: list[tuple[str, object]] = []
        self._seen: set[int] = set()
        self._kept: list[object] = []
        self._reach(target, "")
        self.reads_gradients = any(reads_attribute(function, "grad") for function in self.functions)
        self._children = [child for _, module in self.modules for child in module.modules()]

    def snapshot(self) -> tuple[object, ...]:
        """Everything readable, as a hashable key: equal snapshots mean nothing visible changed."""
        key: list[object] = [ambient_modes()]
        for module in self._children:
            key.append(_module_key(module))
        for function in self.functions:
            key.extend(_function_key(function))
        for _, item in self.objects:
            key.append(plain_key(item))
        return tuple(key)

    def _reach(self, item: Any, name: str) -> None:
        if id(item) in self._seen or len(self.functions) > _MAX_FUNCTIONS:
            return
        if isinstance(item, torch.nn.Module):
            self._note(item)
            self.modules.append((name, item))
            for child in item.modules():
                self._note(child)
            for child in item.modules():
                self._reach_module(child)
        elif isinstance(item, functools.partial):
            self._note(item)
            for part in (item.func, *item.args, *item.keywords.values()):
                self._reach(part, name)
        elif isinstance(item, MethodType):
            self._reach(item.__self__, name)
            self._reach(item.__func__, name)
        elif isinstance(item, FunctionType) and not is_library_file(item.__code__.co_filename):
            self._note(item)
            self.functions.append(item)
            for cell_name, value in readable(item):
                self._reach(value, cell_name)
        elif isinstance(item, list | tuple) and len(item) < _MAX_FUNCTIONS:
            self._note(item)
            for index, part in enumerate(item):
                if isinstance(part, torch.nn.Module | FunctionType | MethodType):
                    self._reach(part, f"{name}.{index}")
        elif is_user_object(item):
            self._note(item)
            self.objects.append((name, item))
            self._reach(inspect.getattr_static(type(item), "__call__", None), name)

    def _reach_module(self, module: torch.nn.Module) -> None:
        self._reach(type(module).forward, "")
        for table in _HOOKS:
            for hook in module.__dict__.get(table, {}).values():
                self._reach(hook, table)
        for name, value in module.__dict__.items():
            if is_user_object(value):
                self._reach(value, name)

    def _note(self, item: object) -> None:
        self._seen.add(id(item))
        self._kept.append(item)


def is_user_object(item: object) -> bool:
    """Whether an object with attributes is of a class that the user wrote."""
    if isinstance(item, type | ModuleType | FunctionType | MethodType | torch.Tensor | torch.nn.Module):
        return False
    if isinstance(item, SimpleNamespace | argparse.Namespace):
        return True
    return hasattr(item, "__dict__") and not _is_library_module(type(item).__module__)


@functools.cache
def _is_library_module(name: str) -> bool:
    return is_library_file(getattr(sys.modules.get(name), "__file__", None) or "<frozen")


def readable(function: FunctionType) -> Iterable[tuple[str, Any]]:
    """Names and values that a function's code can read from outside of its arguments."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for index, default in enumerate(function.__defaults__ or ()):
        yield f"default_{index}", default
    yield from (function.__kwdefaults__ or {}).items()
    for name in named_globals(function):
        yield name, function.__globals__[name]


def named_globals(function: FunctionType) -> list[str]:
    """The global variables that a function's code names and that exist."""
    return sorted(name for name in _names(function.__code__) if name in function.__globals__)


def assigned_globals(function: FunctionType) -> set[str]:
    """The global variables that a function's own code, or code inside of it, assigns."""
    instructions = (i for code in _codes(function.__code__) for i in dis.get_instructions(code))
    return {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}


def _names(code: CodeType) -> set[str]:
    return {name for part in _codes(code) for name in part.co_names}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def reads_attribute(function: FunctionType, name: str) -> bool:
    """Whether a function's code, or code inside of it, reads an attribute of this name, other than to call it."""
    if name not in _names(function.__code__):
        return False
    instructions = (i for code in _codes(function.__code__) for i in dis.get_instructions(code))
    return any(i.opname == "LOAD_ATTR" and i.argval == name and "NULL" not in i.argrepr for i in instructions)


def _function_key(function: FunctionType) -> Iterable[object]:
    for name, value in readable(function):
        if not isinstance(value, ModuleType | type):
            yield (name, plain_key(value))


def plain_key(value: Any, depth: int = _MAX_DEPTH) -> object:
    """A hashable key of a value: by value when it is plain, item by item for containers, else by identity."""
    if isinstance(value, _PLAIN):
        return (
            (type(value).__name__, repr(value)) if isinstance(value, float | complex) else (type(value).__name__, value)
        )
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value), value.requires_grad, value.shape, value.stride(), value.dtype)
    if depth and isinstance(value, tuple | list | dict) and len(value) <= _MAX_ITEMS:
        items = value if not isinstance(value, dict) else [part for pair in value.items() for part in pair]
        return (type(value).__name__, tuple([plain_key(item, depth - 1) for item in items]))
    if depth > 1 and is_user_object(value) and len(vars(value)) <= _MAX_ITEMS:
        return ("object", id(value), plain_key(vars(value), depth - 1))
    return ("object", id(value))


def _module_key(module: torch.nn.Module) -> object:
    held = module.__dict__
    plain = tuple([(k, plain_key(v)) for k, v in held.items() if k not in _OWN and isinstance(v, _READABLE)])
    hooks = tuple(tuple(map(id, held[table].values())) for table in _HOOKS if held.get(table))
    return (id(module), plain, hooks)


def ambient_modes() -> tuple[object, ...]:
    """Torch's modes that decide what operators a program runs."""
    autocast = tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )
