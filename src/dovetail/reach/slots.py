"""What is in a slot of an object now, which attributes an object has, and what functions and classes say."""

from __future__ import annotations

import decimal
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from dovetail.reach.contents import MISSING
from dovetail.reach.values import attributes_of, has_attributes, is_a

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def in_slot(item: Any, descriptor: Any) -> Any:
    """What a slot of an object holds."""
    try:
        return descriptor.__get__(item)
    except AttributeError:
        return MISSING


def tables_asked(module: torch.nn.Module, name: str) -> Iterator[dict[str, Any]]:
    """The tables of a module in which a name is looked up, up to the one that has it."""
    held = attributes_of(module)
    for table in _MODULE_TABLES:
        entries: Any = held.get(table)
        if isinstance(entries, dict):
            yield entries
            if name in entries:
                return


def settings_of_decimals() -> tuple[Any, ...]:
    """What the arithmetic of decimal numbers goes by, in this thread."""
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.clamp


def sources_of_levels(logger: logging.Logger) -> Iterator[tuple[Any, str]]:
    """The attributes, each with its object, from which a logger works out the levels that it remembers."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from ((at, name) for name in ("level", "disabled", "parent", "propagate"))
        yield at.manager, "_disable"
        at = at.parent


class NamesOf:
    """Asks which attributes an object has."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __call__(self) -> tuple[str, ...]:
        return tuple(attributes_of(self.item)) if has_attributes(type(self.item)) else ()

    def __repr__(self) -> str:
        return f"which attributes a {type(self.item).__name__} has"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamesOf) and other.item is self.item

    def __hash__(self) -> int:
        return id(self.item)


@dataclass(frozen=True, eq=False)
class PartOf:
    """Asks what a function or a class says of itself."""

    item: Any
    name: str

    def __call__(self) -> Any:
        kind = type if is_a(self.item, type) else FunctionType
        return vars(kind)[self.name].__get__(self.item)

    def __repr__(self) -> str:
        return f"the {self.name} of {self.item!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartOf) and other.item is self.item and other.name == self.name

    def __hash__(self) -> int:
        return hash((id(self.item), self.name))


def giving(item: Any) -> Callable[[], Any]:
    """A question whose answer is an object: guards compare what it holds."""
    return lambda: item
