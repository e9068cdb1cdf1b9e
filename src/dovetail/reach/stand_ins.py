"""`int`, `float`, `len` and `type` for the user's code while it is recorded.

Of a tensor the first three give a number that is followed. `type(x)` and `x.__class__` give the class that a tensor, or
a number, has in eager mode, though what is recorded is of another one: `type(x) is torch.Tensor` is true.

Python insists on a plain number from all three, and on an answer which is larger for `max` and `min`. Code that calls
them by their names gets, in the namespace that it looks names up in, functions that ask the tensor itself; of anything
else they give what Python gives. Code that uses the names for more than calls (`map(int, x)`) never runs while they
are there: a namespace of such code is left alone from then on. But `type` is a class in its place, which can be used as
Python's. Whether code asked for a type, and might have seen that
a number is no plain one, is told.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FrameType, GenericAlias
from typing import Any

import torch

from dovetail.reach.codes import asks_class, names_of
from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.hidden_fakes import naming_classes
from dovetail.torch_compat.traced_maths import STANDING_IN
from dovetail.torch_compat.traced_numbers import is_traced, plain_number

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
                if isinstance(found, _SYMBOLIC) and not is_traced(found):  # such as say what they are
                    self._on_given()
                return found
        return getattr(builtins, self._name)(*args, **kwargs)


ON_BEHALF: frozenset[CodeType] = STANDING_IN | {StandIn.__call__.__code__}
"""Code of dovetail's that asks for the user's code."""


def _followed(item: Any) -> Any:
    """The number for which something stands, if it knows one that is followed."""
    told = getattr(type(item), "followed_number", None)
    return item if told is None else told(item)


def _number_in(item: Any) -> Any:
    return item.item() if isinstance(item, torch.Tensor) and item.numel() == 1 else item


def _int(item: Any, *more: Any) -> Any:
    number = _number_in(item)
    if isinstance(number, torch.SymInt) and not more:
        return plain_number(number)
    is_followed = isinstance(number, torch.SymFloat) or _is_traced_answer(number)
    return math.trunc(number) if is_followed and not more else int(number, *more)


def _float(item: Any) -> Any:
    number = _number_in(item)
    if isinstance(number, torch.SymFloat):
        return plain_number(number)
    if _is_traced_answer(number):
        return number / 1
    return torch.sym_float(number) if isinstance(number, torch.SymInt) else float(number)


def _is_traced_answer(number: Any) -> bool:
    return isinstance(number, torch.SymBool) and is_traced(number)


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


def class_in_eager_mode(item: Any) -> type:
    """The class that an object has in eager mode."""
    kind = type(item)
    if issubclass(kind, torch.Tensor) and is_fake(item):
        return torch.nn.Parameter if isinstance(item, torch.nn.Parameter) else torch.Tensor
    if "tells_class" in vars(kind):  # a stand-in of dovetail's, which names its class as `__class__`
        told: type = item.__class__
        return told
    return _CLASSES.get(kind, kind)


_CLASSES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class _ClassOfType(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _Type:  # a class of classes that was made meanwhile
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        found = class_in_eager_mode(args[0])
        return cls if found is type else found

    def __instancecheck__(cls, item: Any) -> bool:
        return isinstance(item, type) if cls is _Type else super().__instancecheck__(item)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, type) if cls is _Type else super().__subclasscheck__(kind)


class _Type(type, metaclass=_ClassOfType):
    """In the place of Python's `type`."""

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """What `type[item]` gives."""
        return GenericAlias(type, item)


_Type.__name__ = _Type.__qualname__ = "type"


def is_stand_in(item: Any) -> bool:
    """Whether something stands in for one of Python's functions."""
    return item is _Type or type(item) is StandIn


_NAMES: dict[str, Callable[..., Any]] = {
    "int": _int,
    "float": _float,
    "len": _len,
    "max": _choice(torch.sym_max),
    "min": _choice(torch.sym_min),
}
_TYPE = "type"


class StandIns:
    """Puts stand-ins into namespaces as code of theirs begins to run, and takes them out again.

    numbers: whether for `int` and its like as well. has_given: a number that is no plain one. asks_types: whether code
    asked for a type, or used a name otherwise.
    asks_exact_types: whether code asked for a type other than by `isinstance`.
    """

    def __init__(self, numbers: bool = True) -> None:
        self.has_given = self.asks_types = self.asks_exact_types = False
        self._made: dict[str, Any] = {_TYPE: _Type}
        if numbers:
            self._made |= {name: StandIn(name, give, self._on_given) for name, give in _NAMES.items()}
        self._put: dict[tuple[int, str], dict[str, Any]] = {}
        self._left_alone: set[tuple[int, str]] = set()
        self._around = ExitStack()
        self._names_classes = False

    def _on_given(self) -> None:
        self.has_given = True

    def runs(self, frame: FrameType) -> None:
        """Code of the user's begins to run."""
        code, known = frame.f_code, frame.f_globals
        if str(known.get("__name__")).partition(".")[0] in sys.stdlib_module_names:
            return  # it works with paths, files and messages
        by_class = frame.f_back is not None and asks_class(frame.f_back.f_code)
        self.asks_exact_types |= names_of(code).asks_types or by_class
        self.asks_types |= self.asks_exact_types
        if names_of(code).asks_types and "__class__" in names_of(code).attributes and not self._names_classes:
            self._names_classes = True
            self._around.enter_context(naming_classes(class_in_eager_mode))
        for name, is_called in uses_of(code):
            key = (id(known), name)
            if name not in self._made:
                continue
            if not is_called and name != _TYPE:
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
        self._around.close()

    def _take_out(self, key: tuple[int, str]) -> None:
        known = self._put.pop(key, None)
        if known is not None and known.get(key[1]) is self._made[key[1]]:
            del known[key[1]]


@functools.lru_cache(16384)
def uses_of(code: CodeType) -> tuple[tuple[str, bool], ...]:
    """The names among those with a stand-in that a code object uses, and whether it only calls them."""
    wanted = {_TYPE, *_NAMES} & set(code.co_names)
    if not wanted:
        return ()
    found: dict[str, bool] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in _BY_NAME and instruction.argval in wanted:
            is_callee = instruction.opname == "LOAD_GLOBAL" and bool((instruction.arg or 0) & 1)
            found[instruction.argval] = found.get(instruction.argval, True) and is_callee
    return tuple(found.items())


_BY_NAME = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL", "DELETE_NAME"))
