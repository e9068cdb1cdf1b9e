"""The Python values that a function can read, so that a compiled program is not used after one of them changed.

Looked at: closure cells, default arguments, globals that the code names (through the user's own helper functions, too),
the `training` flag, plain attributes and hook tables of reached modules, and the ambient modes of torch. A plain value
(number, string, None, tuple of these) is compared by value; any other object by identity. Not looked at: attributes of
other objects, and contents of containers beyond their top level.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from dovetail.capture.origins import is_library_file

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MAX_FUNCTIONS = 200


class PythonState:
    """What `target` can read. Attributes: modules, the reached modules by name."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self._functions: list[FunctionType] = []
        self._seen: set[int] = set()
        self._kept: list[object] = []
        self._reach(target, "")
        self._children = [child for _, module in self.modules for child in module.modules()]

    def snapshot(self) -> tuple[object, ...]:
        """Everything readable, as a hashable key: equal snapshots mean nothing visible changed."""
        key: list[object] = [ambient_modes()]
        for module in self._children:
            key.append(_module_key(module))
        for function in self._functions:
            key.extend(_function_key(function))
        return tuple(key)

    def _reach(self, item: Any, name: str) -> None:
        if id(item) in self._seen or len(self._functions) > _MAX_FUNCTIONS:
            return
        if isinstance(item, torch.nn.Module):
            self._note(item)
            self.modules.append((name, item))
            self._reach(type(item).forward, "")
        elif isinstance(item, functools.partial):
            self._note(item)
            for part in (item.func, *item.args, *item.keywords.values()):
                self._reach(part, name)
        elif isinstance(item, MethodType):
            self._reach(item.__self__, name)
            self._reach(item.__func__, name)
        elif isinstance(item, FunctionType) and not is_library_file(item.__code__.co_filename):
            self._note(item)
            self._functions.append(item)
            for cell_name, value in readable(item):
                self._reach(value, cell_name)
        elif isinstance(item, list | tuple) and len(item) < _MAX_FUNCTIONS:
            self._note(item)
            for index, part in enumerate(item):
                if isinstance(part, torch.nn.Module | FunctionType | MethodType):
                    self._reach(part, f"{name}.{index}")

    def _note(self, item: object) -> None:
        self._seen.add(id(item))
        self._kept.append(item)


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
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _function_key(function: FunctionType) -> Iterable[object]:
    for name, value in readable(function):
        if not isinstance(value, ModuleType | type):
            yield (name, plain_key(value))


def plain_key(value: Any) -> object:
    """A hashable key of a value: by value when it is plain, else by identity."""
    if isinstance(value, _PLAIN):
        return (
            (type(value).__name__, repr(value)) if isinstance(value, float | complex) else (type(value).__name__, value)
        )
    if isinstance(value, tuple | list) and all(isinstance(item, _PLAIN) for item in value):
        return (type(value).__name__, tuple(plain_key(item) for item in value))
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value), value.requires_grad, value.shape, value.stride(), value.dtype)
    if isinstance(value, tuple | list) and len(value) <= _MAX_FUNCTIONS:
        return (type(value).__name__, id(value), tuple(map(id, value)))
    return ("object", id(value))


def _module_key(module: torch.nn.Module) -> object:
    held = module.__dict__
    plain = tuple((k, plain_key(v)) for k, v in held.items() if isinstance(v, (*_PLAIN, tuple)))
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
