"""Classes that report, for a while, which attributes of their objects are read and written.

A class of Python's (not of C) gets a `__getattribute__`, a `__setattr__` and a `__delattr__` that report and then do
what they did before. `getattr` and its like are replaced as well: nothing else shows which attributes of classes and
modules are read by a computed name. All is put back when the recording ends.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch

from dovetail.ir.provenance import is_library_file
from dovetail.reach.contents import MISSING
from dovetail.reach.frames import unfollowed
from dovetail.reach.reads import Reads
from dovetail.reach.values import has_attributes, is_a, is_heap_type, module_of, mro_of, own_of

IsCounted: TypeAlias = "Callable[[Any, FrameType], bool]"
OnGradient: TypeAlias = "Callable[[torch.Tensor, bool], bool]"
"""Gets a tensor whose `.grad` is read, and whether it is about to be another one; tells whether it looks after that."""

_IMMUTABLE_TYPE = 1 << 8
_vars: Any = vars  # also while something else stands in for it
_ALONE = (
    *("dovetail", "torch._", "torch.fx", "torch.overrides", "torch.utils._", "sympy", "mpmath", "_pytest", "pluggy"),
    *("functools", "contextlib", "typing", "re", "inspect", "importlib", "_frozen_importlib", "abc", "enum"),
)
# where `__dict__` is read for one attribute
_OF_ONE_NAME = (torch.nn.Module.__getattr__.__code__.co_filename, functools.__file__)
_OF_RECORDINGS = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, ModuleType)
_SPY = "_dovetail_spy"  # on functions that report: whether what they stand in for is a function of the user's


class Spies:
    """Makes classes report to `reads`."""

    def __init__(self, stack: ExitStack, is_counted: IsCounted, on_moving: Callable[[Any], None]) -> None:
        """stack: gets what puts everything back. is_counted: whether a read of an object, from a frame, is reported.

        on_moving: see `Reads`.
        """
        self._put_in: list[Callable[[], None]] = []
        self._take_out: list[Callable[[], None]] = []
        self._is_out = False
        self._installed: set[int] = set()
        self._is_counted = is_counted
        stack.callback(self.end)
        self.reads = Reads(self.install, on_moving)

    def install(self, kind: type) -> None:
        """Let the objects of a class report."""
        if kind.__flags__ & _IMMUTABLE_TYPE or not is_heap_type(kind):
            return
        is_alone = module_of(kind).startswith(_ALONE) and not issubclass(kind, torch.fx.GraphModule)
        if is_alone or issubclass(kind, _OF_RECORDINGS):
            return
        if id(kind) not in self._installed:
            self._installed.add(id(kind))
            own = _found(kind, "__getattribute__")
            try:
                self._replace(kind, "__getattribute__", self._reading(own))
            except TypeError:  # its own class is of C, and lets nobody do that
                return
            for name, report in (("__setattr__", self.reads.overwrite), ("__delattr__", self.reads.attribute)):
                self._replace(kind, name, self._writing(_found(kind, name), report))

    def install_builtins(self) -> None:
        """Let `getattr` and its like report what classes and modules are asked for."""
        for name in ("getattr", "hasattr", "setattr", "delattr"):
            self._replace_builtin(name, self._named(getattr(builtins, name)))
        self._replace_builtin("vars", self._whole(builtins.vars, is_vars=True))
        self._replace_builtin("dir", self._whole(builtins.dir, is_vars=False))
        self._replace_builtin("globals", self._globals)

    def install_gradients(self, on_gradient: OnGradient, serves_user: Callable[[FrameType], bool]) -> None:
        """Let tensors report that their `.grad` is read, or about to be another one.

        serves_user: whether a frame works for code of the user's.
        """
        own: Any = torch.Tensor.grad
        reads, frame = self.reads, sys._getframe

        def read(item: torch.Tensor) -> Any:
            if serves_user(_reader(frame(1))) and not on_gradient(item, False):
                reads.gradient(item)
            return own.__get__(item)

        def write(item: torch.Tensor, value: Any) -> None:
            if own.__get__(item) is not value and serves_user(_reader(frame(1))):
                on_gradient(item, True)
            own.__set__(item, value)

        self._replace(torch.Tensor, "grad", property(read, write, lambda item: write(item, None)))

    def take_out(self) -> None:
        """Let everything be as it was before, for a while: for a compiler that looks at the same classes."""
        if not self._is_out:
            for act in reversed(self._take_out):
                act()
            self._is_out = True

    def end(self) -> None:
        """Let everything be as it was before, for good."""
        self.take_out()
        self._put_in.clear()
        self._take_out.clear()
        self.reads.end()

    def put_in(self) -> None:
        """Go on after `take_out`."""
        if self._is_out:
            for act in self._put_in:
                act()
            self._is_out = False

    def _changed(self, put_in: Callable[[], None], take_out: Callable[[], None]) -> None:
        if not self._is_out:
            put_in()
        self._put_in.append(put_in)
        self._take_out.append(take_out)

    def _replace_builtin(self, name: str, function: Callable[..., Any]) -> None:
        self._changed(
            partial(setattr, builtins, name, function), partial(setattr, builtins, name, getattr(builtins, name))
        )

    def _replace(self, kind: type, name: str, function: Any) -> None:
        before = own_of(kind).get(name, MISSING)
        put_back = partial(type.__setattr__, kind, name, before)
        if before is MISSING:
            put_back = partial(type.__delattr__, kind, name)
        self._changed(partial(type.__setattr__, kind, name, function), put_back)

    def _reading(self, own: Any) -> Any:
        reads, is_counted, frame = self.reads, self._is_counted, sys._getframe
        is_users = own.__dict__.get(_SPY, True) if is_a(own, FunctionType) else False

        def __getattribute__(item: Any, name: str) -> Any:
            with unfollowed():
                caller = _reader(frame(1))
                if name != "__class__" and is_counted(item, caller):
                    if is_users:
                        reads.whole(item)
                    if name != "__dict__" or caller.f_code.co_filename not in _OF_ONE_NAME:
                        reads.attribute(item, name)
            return own(item, name)

        vars(__getattribute__)[_SPY] = is_users
        return __getattribute__

    def _writing(self, own: Any, report: Callable[[Any, str], None]) -> Any:
        is_counted, frame, by_users = self._is_counted, sys._getframe, self.reads.set_by_users

        def write(item: Any, name: str, *value: Any) -> Any:
            with unfollowed():
                writer = _reader(frame(1))
                if is_counted(item, writer):
                    report(item, name)
                    if not is_library_file(writer.f_code.co_filename):
                        by_users.add((id(item), name))
            return own(item, name, *value)

        return write

    def _named(self, own: Callable[..., Any]) -> Callable[..., Any]:
        reads, is_counted, frame = self.reads, self._is_counted, sys._getframe

        def call(item: Any, name: str, *rest: Any) -> Any:
            kind = type(item)
            if issubclass(kind, type):
                if is_counted(item, _reader(frame(1))):
                    reads.of_class(item, name)
            elif kind is ModuleType and is_counted(item, _reader(frame(1))):
                known = _vars(item)
                reads.entry(known, name, str(known.get("__name__")))
            elif issubclass(kind, torch.Tensor) and is_counted(item, _reader(frame(1))):
                reads.of_tensor(item, name)
            return own(item, name, *rest)

        return call

    def _whole(self, own: Callable[..., Any], is_vars: bool) -> Callable[..., Any]:
        reads, is_counted, frame = self.reads, self._is_counted, sys._getframe

        def call(*items: Any) -> Any:
            if not items:
                known = _reader(frame(1)).f_locals
                return known if is_vars else sorted(known)
            item = items[0]
            if is_counted(item, _reader(frame(1))):
                if is_a(item, ModuleType):
                    reads.every_entry(_vars(item), str(_vars(item).get("__name__")))
                    reads.unshown.add_namespace(_vars(item))
                elif is_a(item, type) or has_attributes(type(item)):
                    reads.whole(item)
            return own(*items)

        return call

    def _globals(self) -> dict[str, Any]:
        caller = _reader(sys._getframe(1))
        if self._is_counted(None, caller):
            self.reads.every_entry(caller.f_globals, str(caller.f_globals.get("__name__")))
            self.reads.unshown.add_namespace(caller.f_globals)
        return caller.f_globals


def _reader(frame: FrameType) -> FrameType:
    """Who reads: spies may stand in for one another, for a recording inside another one."""
    while id(frame.f_code) in _STAND_INS and frame.f_back is not None:
        frame = frame.f_back
    return frame


_STAND_INS = frozenset(
    id(code)
    for method in (Spies._reading, Spies._writing, Spies._named, Spies._whole)
    for code in method.__code__.co_consts
    if isinstance(code, CodeType)
)


def _found(kind: type, name: str) -> Any:
    """What objects of a class find by the name of a special method."""
    return next(own_of(owner)[name] for owner in mro_of(kind) if name in own_of(owner))
