"""Modules that a target holds, by name: the tensors of each are inputs of the target's programs.

`held_modules` looks where targets usually hold modules. It need not be complete: while a call is recorded, its reads
show every module whose tensors it takes (`modules_read`), and the call is recorded again with those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from dovetail.reach.codes import codes_inside
from dovetail.reach.contents import MISSING, in_cell
from dovetail.reach.libraries import is_library_class, is_users_function
from dovetail.reach.reads import Reads
from dovetail.reach.values import attributes_of, has_attributes, is_a

_MOST = 200
_TABLES = ("_parameters", "_buffers")

Named = tuple[str, torch.nn.Module]


def held_modules(target: Callable[..., Any], arguments: Iterable[object]) -> list[Named]:
    """Modules in closures, defaults, global variables, attributes and sequences, children left out.

    arguments: of the call, which may hold modules as well.
    """
    found: list[Named] = []
    seen = set[int]()
    left = [("", target), *((f"argument_{place}", argument) for place, argument in enumerate(arguments))]
    left.reverse()
    while left and len(seen) < _MOST + len(found):
        name, item = left.pop()
        if id(item) in seen:
            continue
        parts = list(_parts(name, item))
        if isinstance(item, torch.nn.Module):
            found.append((name, item))
            seen.update(map(id, item.modules()))
        elif parts:
            seen.add(id(item))
        left += reversed(parts)
    return found


def modules_read(reads: Reads, is_known: Callable[[torch.nn.Module], bool]) -> list[Named]:
    """Modules whose tensors were read, beside those that are known: the outermost, by the names that led to them."""
    modules = [item for item in reads.owners.values() if is_a(item, torch.nn.Module) and not is_known(item)]
    if not any(_gives_tensors(module, reads) for module in modules):
        return []
    children = {id(child) for module in modules for child in list(module.modules())[1:]}
    names = {id(value): name for (_, name), value in reads.attributes.items() if is_a(value, torch.nn.Module)}
    outermost = [module for module in modules if id(module) not in children and any(True for _ in _tensors(module))]
    return [(names.get(id(module), type(module).__name__.lower()), module) for module in outermost]


def _gives_tensors(module: torch.nn.Module, reads: Reads) -> bool:
    tables = [attributes_of(module).get(table) for table in _TABLES]
    return any((id(table), name) in reads.namespaces for table in tables if table for name in table)


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _parts(name: str, item: Any) -> Sequence[tuple[str, Any]]:
    """What something holds, with names; nothing for what is not looked into."""
    if is_a(item, functools.partial):
        return [(name, part) for part in (item.func, *item.args, *item.keywords.values())]
    if is_a(item, MethodType):
        return [(name, item.__self__), (name, item.__func__)]
    if is_a(item, FunctionType):
        return list(_readable(item)) if is_users_function(item) else []
    if is_a(item, (list, tuple)):
        return [(f"{name}.{place}", part) for place, part in enumerate(item)] if len(item) < _MOST else []
    if is_a(item, (torch.nn.Module, torch.Tensor, type)) or is_library_class(type(item)):
        return []
    return list(attributes_of(item).items()) if has_attributes(type(item)) else []


def _readable(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Names and values that a function's code can read from outside its arguments."""
    code = function.__code__
    yield from zip(code.co_freevars, map(in_cell, function.__closure__ or ()), strict=True)
    yield from ((f"default_{index}", default) for index, default in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    for name in sorted({name for part in (code, *codes_inside(code)) for name in part.co_names}):
        value = function.__globals__.get(name, MISSING)
        if value is not MISSING:
            yield name, value
