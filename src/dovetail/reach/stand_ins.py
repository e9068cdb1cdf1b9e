"""`int`, `float` and `len` for the user's code while it is recorded: of a tensor they give a number that is followed.

Python insists on a plain number from all three. Code that calls them by their names gets, in the namespace that it
looks names up in, functions that ask the tensor itself; of anything else they give what Python gives. Code that uses
the names for more than calls (`map(int, x)`) never runs while they are there: a namespace of such code is left alone
from then on. Whether code asked for a type, and might have seen that a number is no plain one, is told.
"""

from __future__ import annotations

import builtins
import dis
import math
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

from dovetail.reach.codes import names_of

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class StandIn:
    """A function in the place of one of Python's. on_given: called when it gives another number than that does."""

    __slots__ = ("_give", "_on_given", "_plain")

    def __init__(
        self, plain: Callable[..., Any], give: Callable[[Any], Any], on_given: Callable[[], None] = lambda: None
    ) -> None:
        self._plain = plain
        self._give = give
        self._on_given = on_given

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What Python gives; of one tensor, or a number that is followed, what `give` does."""
        if len(args) == 1 and not kwargs and isinstance(args[0], (torch.Tensor, *_SYMBOLIC)):
            found = self._give(args[0])
            if isinstance(found, _SYMBOLIC):
                self._on_given()
            return found
        return self._plain(*args, **kwargs)


def _number_in(item: Any) -> Any:
    return item.item() if isinstance(item, torch.Tensor) and item.numel() == 1 else item


def _int(item: Any) -> Any:
    number = _number_in(item)
    if isinstance(number, torch.SymInt):
        return number
    return math.trunc(number) if isinstance(number, torch.SymFloat) else int(number)


def _float(item: Any) -> Any:
    number = _number_in(item)
    if isinstance(number, torch.SymFloat):
        return number
    return torch.sym_float(number) if isinstance(number, torch.SymInt) else float(number)


def _len(item: Any) -> Any:
    size = item.shape[0] if isinstance(item, torch.Tensor) and item.dim() else None
    return size if isinstance(size, torch.SymInt) else len(item)


_NAMES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "int": (builtins.int, _int),
    "float": (builtins.float, _float),
    "len": (builtins.len, _len),
}


class StandIns:
    """Puts stand-ins into namespaces as code of theirs begins to run, and takes them out again.

    has_given: a number that is no plain one. asks_types: whether code asked for a type, or used a name otherwise.
    """

    def __init__(self) -> None:
        self.has_given = self.asks_types = False
        self._made = {name: StandIn(*functions, self._on_given) for name, functions in _NAMES.items()}
        self._put: dict[tuple[int, str], dict[str, Any]] = {}
        self._left_alone: set[tuple[int, str]] = set()

    def _on_given(self) -> None:
        self.has_given = True

    def runs(self, frame: FrameType) -> None:
        """Code of the user's begins to run."""
        code, known = frame.f_code, frame.f_globals
        if str(known.get("__name__")).partition(".")[0] in sys.stdlib_module_names:
            return  # it works with paths, files and messages
        self.asks_types |= names_of(code).asks_types
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


@lru_cache(16384)
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
