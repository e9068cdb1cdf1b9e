"""The modules that a target reaches, whose tensors become inputs of its program; and the ambient modes of torch.

Modules are looked for in closure cells, default arguments, global variables that the code names (through the user's own
helper functions, methods, modules of Python and hooks, too), in lists, and in attributes of the user's own objects and
classes. A tensor that is found nowhere is an input as well, once the recording meets it. What the code reads besides is
for `dovetail.reach`.
"""

from __future__ import annotations

import argparse
import dis
import functools
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from dovetail.ir.provenance import is_library_file
from dovetail.reach.libraries import is_library_class, is_library_module
from dovetail.reach.values import attributes_of, has_attributes
from dovetail.torch_compat.modes import surroundings

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), torch.dtype, torch.device)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
_NEVER_CALLED = ("__init__", "__new__", "__repr__")
_MAX_FUNCTIONS = 200
_MISSING = object()
_REACHED = (torch.nn.Module, FunctionType, MethodType, functools.partial)


class PythonState:
    """What `target` reaches.

    Attributes: modules, by name; functions, objects: what else was reached; reads_gradients: whether code reads `.grad`
    of something.
    """

    def __init__(self, target: Callable[..., Any], arguments: Iterable[object] = ()) -> None:
        """Look at what can be reached now, from `target` and from arguments of a call."""
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.functions: list[FunctionType] = []
        self.objects: list[tuple[str, object]] = []
        self._seen: set[int] = set()
        self._kept: list[object] = []
        self._reach(target, "")
        for place, argument in enumerate(arguments):
            self._reach(argument, f"argument_{place}")
        self._children = list({id(m): m for _, module in self.modules for m in module.modules()}.values())
        self._reach_methods()
        self.reads_gradients = any(_reads_attribute(function, "grad") for function in self.functions)

    @property
    def reached(self) -> tuple[int, ...]:
        """Equal for two states that reach the same objects."""
        return tuple(map(id, self._kept))

    def _reach(self, item: Any, name: str) -> None:
        if id(item) in self._seen or len(self._kept) > _MAX_FUNCTIONS + len(self.modules):
            return
        if isinstance(item, torch.nn.Module):
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
            for cell_name, value in _readable(item):
                self._reach(value, cell_name)
        elif isinstance(item, list | tuple) and len(item) < _MAX_FUNCTIONS:
            self._note(item)
            for index, part in enumerate(item):
                if isinstance(part, torch.nn.Module | FunctionType | MethodType):
                    self._reach(part, f"{name}.{index}")
        elif _is_user_object(item):
            self._reach_object(item, name)

    def _reach_object(self, item: Any, name: str) -> None:
        self._note(item)
        self.objects.append((name, item))
        for attribute, value in _attributes(item):
            self._reach(value, attribute)

    def _reach_module(self, module: torch.nn.Module) -> None:
        self._reach(type(module).forward, "")
        for table in _HOOKS:
            for hook in module.__dict__.get(table, {}).values():
                self._reach(hook, table)
        for name, value in module.__dict__.items():
            if name not in _OWN:
                self._reach(value, name)

    def _reach_methods(self) -> None:
        """What the code names of the classes that the user wrote, their special methods included."""
        done: set[tuple[type, str]] = set()
        before = -1
        while before != len(done):
            before = len(done)
            named = {name for function in self.functions for name in _names(function.__code__)}
            items = [*self._children, *(item for _, item in self.objects)]
            owners = {owner: None for item in items for owner in type(item).__mro__ if not is_library_class(owner)}
            for owner in owners:
                for name, value in vars(owner).items():
                    if (name in named or _is_special(name, value)) and (owner, name) not in done:
                        done.add((owner, name))
                        self._reach(_unwrapped(value), name)

    def _note(self, item: object) -> None:
        self._seen.add(id(item))
        self._kept.append(item)


def leads_on(argument: object) -> bool:
    """Whether more than its own value can be reached from an argument."""
    if isinstance(argument, (torch.Tensor, *_PLAIN)):
        return False
    return isinstance(argument, _REACHED) or _is_user_object(argument)


def _is_user_object(item: object) -> bool:
    """Whether an object with attributes is of a class that the user wrote."""
    if isinstance(item, type | ModuleType | FunctionType | MethodType | torch.Tensor | torch.nn.Module):
        return False
    if isinstance(item, SimpleNamespace | argparse.Namespace):
        return True
    kind = type(item)
    return (hasattr(item, "__dict__") or hasattr(kind, "__slots__")) and not is_library_class(kind)


def _attributes(item: object) -> Iterator[tuple[str, Any]]:
    """Names and values of an object's attributes, slots included."""
    if has_attributes(type(item)):
        yield from list(attributes_of(item).items())
    for owner in type(item).__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(item, name):
                yield name, getattr(item, name)


def _is_special(name: str, value: object) -> bool:
    return name.startswith("__") and isinstance(value, FunctionType) and name not in _NEVER_CALLED


def _unwrapped(value: Any) -> Any:
    """The function behind a property or the like."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _readable(function: FunctionType) -> Iterable[tuple[str, Any]]:
    """Names and values that a function's code can read from outside its arguments."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for index, default in enumerate(function.__defaults__ or ()):
        yield f"default_{index}", default
    yield from (function.__kwdefaults__ or {}).items()
    names = _names(function.__code__)
    for name in names:
        value = function.__globals__.get(name, _MISSING)
        if value is _MISSING:
            continue
        yield name, value
        if isinstance(value, ModuleType) and not is_library_module(value.__name__):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))


@functools.lru_cache(4096)
def _names(code: CodeType) -> tuple[str, ...]:
    return tuple(sorted({name for part in _codes(code) for name in part.co_names}))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _reads_attribute(function: FunctionType, name: str) -> bool:
    """Whether a function's code, or code inside it, reads an attribute of this name, other than to call it."""
    if name not in _names(function.__code__):
        return False
    instructions = (i for code in _codes(function.__code__) for i in dis.get_instructions(code))
    return any(i.opname == "LOAD_ATTR" and i.argval == name and "NULL" not in i.argrepr for i in instructions)


def ambient_modes() -> tuple[object, ...]:
    """Torch's modes that decide what operators a program runs."""
    autocast = tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        (autocast, torch.is_autocast_cache_enabled()) if autocast else (),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *surroundings(),
    )
