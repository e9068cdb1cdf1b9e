"""What the code of modules and optimizers will read of them, as far as it names that: before it has run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch

from dovetail.reach.codes import names_of
from dovetail.reach.libraries import is_library_class
from dovetail.reach.values import Kind, attributes_of, is_a, kind_of, mro_of, own_of

_TABLES = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_BASES = (torch.nn.Module, object)
_OF_OTHER_PATHS = (Kind.OBJECT, Kind.DICT, Kind.LIST)


def expected_reads(items: Iterable[Any], codes: Iterable[CodeType]) -> Iterator[tuple[type, frozenset[str]]]:
    """Classes of modules and optimizers among some objects, each with attributes that their code names.

    Of modules these are weights, buffers and modules inside, and what several modules hold, such as a configuration: it
    would have another path later. Of library classes, and of optimizers, any attribute. codes: that ran. Unless one
    of them names `step`, optimizers are not expected to be read.
    """
    left, seen, steps = list(items), set[int](), any("step" in names_of(code).attributes for code in codes)
    modules: list[tuple[type, frozenset[str], dict[str, Any]]] = []
    while left:
        item = left.pop()
        if id(item) in seen or not is_a(item, (torch.nn.Module, torch.optim.Optimizer)):
            continue
        seen.add(id(item))
        kind: Any = type(item)
        held: dict[str, Any] = attributes_of(item) or {}
        if is_a(item, torch.optim.Optimizer):
            if steps:
                yield kind, _named(kind, "step") & held.keys()
            continue
        tables: Any = [held.get(table) for table in _TABLES]
        known = {name for table in tables if is_a(table, dict) for name in table}  # of TorchScript, they are none
        named = _named(kind, "forward")
        found = named & (known | held.keys() if is_library_class(kind) else known)
        inside: dict[str, Any] = held.get("_modules") or {}
        if issubclass(kind, _CONTAINERS):
            found |= {"_modules"}
        left += [module for name, module in inside.items() if "_modules" in found or name in found]
        yield kind, found
        modules.append((kind, named, held))
    yield from _shared(modules)


def _shared(modules: Iterable[tuple[type, frozenset[str], dict[str, Any]]]) -> Iterator[tuple[type, frozenset[str]]]:
    """Classes of modules, with those names among some under which they hold what another one holds as well."""
    places = [
        (kind, name, id(held[name]))
        for kind, named, held in modules
        for name in named & held.keys()
        if kind_of(type(held[name])) in _OF_OTHER_PATHS
    ]
    holders = Counter(key for _, _, key in places)
    for kind, name, key in places:
        if holders[key] > 1:
            yield kind, frozenset((name,))


@lru_cache(4096)
def _named(kind: type, method: str) -> frozenset[str]:
    """Names of attributes in a method of a class, and in other methods of its own that it names."""
    names, left, seen = set[str](), [method], set[str]()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        owner = next((owner for owner in mro_of(kind) if name in own_of(owner)), None)
        function: Any = None if owner is None or owner in _BASES else own_of(owner)[name]
        while is_a(function, FunctionType):
            found = names_of(function.__code__).attributes
            names |= found
            left += found
            function = vars(function).get("__wrapped__")
    return frozenset(names)
