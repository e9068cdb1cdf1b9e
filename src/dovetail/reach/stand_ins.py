"""`int`, `float` and `len` for the user's code while it is recorded: of a tensor they give a number that is followed.

Python insists on a plain number from all three, and on an answer which is larger for `max` and `min`. Code that calls
them by their names gets, in the namespace that it looks names up in, functions that ask the tensor itself; of anything
else they give what Python gives. Code that uses the names for more than calls (`map(int, x)`) never runs while they
are there: a namespace of such code is left alone from then on. Whether code asked for a type, and might have seen that
a number is no plain one, is told.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from dovetail.reach.codes import names_of
from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.traced_numbers import plain_float

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class StandIn:
    """A function in the place of one of Python's. on_given: called when it gives another number than that does."""

    __slots__ = ("_give", "_name", "_on_given")

    def __init__(self, name: str, give: Callable[..., Any], on_given: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._give = give
        self._on_given = on_given

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What Python gives; of tensors, or numbers that are followed, what `give` does."""
        args = tuple(map(_followed, args))
        if not kwargs and any(isinstance(argument, (torch.Tensor, *_SYMBOLIC)) for argument in args):
            found = self._give(*args)
            if found is not NotImplemented:
                if isinstance(found, _SYMBOLIC):
                    self._on_given()
                return found
        return getattr(builtins, self._name)(*args, **kwargs)


ON_BEHALF: CodeType = StandIn.__call__.__code__  # which asks for the user's code


def _followed(item: Any) -> Any:
    """The number for which something stands, if it knows one that is followed."""
    told = getattr(type(item), "followed_number", None)
    return item if told is None else told(item)


def _number_in(item: Any) -> Any:
    return item.item() if isinstance(item, torch.Tensor) and item.numel() == 1 else item


def _int(item: Any, *more: Any) -> Any:
    number = _number_in(item)
    if isinstance(number, torch.SymInt) and not more:
        return number
    return math.trunc(number) if isinstance(number, torch.SymFloat) and not more else int(number, *more)


def _float(item: Any) -> Any:
    number = _number_in(item)
    if isinstance(number, torch.SymFloat):
        return plain_float(number)
    return torch.sym_float(number) if isinstance(number, torch.SymInt) else float(number)


def _len(item: Any) -> Any:
    size = item.shape[0] if isinstance(item, torch.Tensor) and item.dim() else None
    return size if isinstance(size, torch.SymInt) else len(item)


def _choice(among: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Of whole numbers of which torch knows nothing: the choice itself is followed, and not which it is."""

    def choose(*items: Any) -> Any:
        if (
            len(items) > 1
            and all(type(item) in (int, torch.SymInt) for item in items)
            and any(map(without_hint, items))
        ):
            return functools.reduce(among, items)
        return NotImplemented

    return choose


_NAMES: dict[str, Callable[..., Any]] = {
    "int": _int,
    "float": _float,
    "len": _len,
    "max": _choice(torch.sym_max),
    "min": _choice(torch.sym_min),
}


class StandIns:
    """Puts stand-ins into namespaces as code of theirs begins to run, and takes them out again.

    has_given: a number that is no plain one. asks_types: whether code asked for a type, or used a name otherwise.
    asks_exact_types: whether code asked for a type other than by `isinstance`.
    """

    def __init__(self) -> None:
        self.has_given = self.asks_types = self.asks_exact_types = False
        self._made = {name: StandIn(name, give, self._on_given) for name, give in _NAMES.items()}
        self._put: dict[tuple[int, str], dict[str, Any]] = {}
        self._left_alone: set[tuple[int, str]] = set()

    def _on_given(self) -> None:
        self.has_given = True

    def runs(self, frame: FrameType) -> None:
        """Code of the user's begins to run."""
        code, known = frame.f_code, frame.f_globals
        if str(known.get("__name__")).partition(".")[0] in sys.stdlib_module_names:
            return  # it works with paths, files and messages
        self.asks_exact_types |= names_of(code).asks_types
        self.asks_types |= self.asks_exact_types
        for name, is_called in uses_of(code):
            key = (id(known), name)
            if not is_called:
                self.asks_types = True
                self._left_alone.add(key)
                self._take_out(key)
            elif key not in self._left_alone and name not in known:
                known[name] = self._made[name]
                self._put[key] = known

    def end(self) -> None:
        """Let every namespace be as it was."""
        for key in list(self._put):
            self._take_out(key)

    def _take_out(self, key: tuple[int, str]) -> None:
        known = self._put.pop(key, None)
        if known is not None and known.get(key[1]) is self._made[key[1]]:
            del known[key[1]]


@functools.lru_cache(16384)
def uses_of(code: CodeType) -> tuple[tuple[str, bool], ...]:
    """The names among those with a stand-in that a code object uses, and whether it only calls them."""
    wanted = _NAMES.keys() & set(code.co_names)
    if not wanted:
        return ()
    found: dict[str, bool] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in _BY_NAME and instruction.argval in wanted:
            is_callee = instruction.opname == "LOAD_GLOBAL" and bool((instruction.arg or 0) & 1)
            found[instruction.argval] = found.get(instruction.argval, True) and is_callee
    return tuple(found.items())


_BY_NAME = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL", "DELETE_NAME"))
