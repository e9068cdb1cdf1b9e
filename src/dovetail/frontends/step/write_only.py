"""Containers that a step only writes: `losses.append(loss.item())`, `history[step] = ...`.

While the step is recorded another container stands in for each of them, which notes what is put in, and tells when it
is read. What was put in is put into the real one after each run, in order with the calls outside; what the real one
holds is looked at by nobody, however much it is.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dovetail.errors import CaptureFailed, DovetailError
from dovetail.frontends.step.attempts import ContainersRead
from dovetail.frontends.step.containers import Fixed, Path, Slot
from dovetail.frontends.step.kept import Handed, Tree, Trees, grown
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.reach.contents import contents_of
from dovetail.reach.libraries import OURS
from dovetail.reach.stand_ins import ON_BEHALF

_KINDS: tuple[type, ...] = (list, dict, deque, defaultdict)
_PUTTING: dict[type, tuple[str, ...]] = {
    list: ("append", "extend", "__iadd__", "clear"),
    deque: ("append", "extend", "appendleft", "extendleft", "__iadd__", "clear"),
    dict: ("__setitem__", "update", "clear"),
    defaultdict: ("__setitem__", "update", "clear"),
}
_UNTOUCHED = frozenset(
    (
        *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__"),
        *("__subclasshook__", "__class_getitem__", "__doc__", "__del__", "__dir__", "__sizeof__", "__hash__"),
    )
)


class Put:
    """Something that a step puts into a container. at: the number of the container. trees: how a run makes it."""

    def __init__(self, at: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.at = at
        self._name = name
        self._given: tuple[Any, ...] = (list(args), kwargs)
        self.trees: tuple[Tree, ...] = ()
        self.__qualname__ = f"{name} of a container"

    def settle(self, trees: Trees) -> None:
        """The step has ended: find out how runs make what is put in. Raises: NotMadeAgain."""
        args, kwargs = self._given
        self.trees = (*map(trees.of, args), trees.of(kwargs))
        self._given = ()

    def __call__(self, container: Any, run: Handed) -> None:
        """Put it in."""
        *args, kwargs = [grown(tree, run) for tree in self.trees]
        getattr(container, self._name)(*args, **kwargs)


Note = Callable[[Put], None]


class WriteOnlyContainers:
    """The containers of one recording that are only written, it is hoped. read: those that were read, by path."""

    def __init__(self, reachable: ReachableState, paths: Sequence[Path]) -> None:
        """paths: where they are; where there is none, or nothing can be put in its place, nothing is done."""
        self.read: set[Path] = set()
        self.paths: list[Path] = []
        self._slots: list[tuple[Slot, Any]] = []
        self._reals: list[Any] = []
        for path in paths:
            try:
                real = reachable.slot(path).read()
            except LookupError:
                continue
            slots = reachable.holding(real)
            if type(real) not in _KINDS or any(isinstance(slot.container, Fixed) for slot in slots):
                self.read.add(path)
            elif not any(real is known for known in self._reals):
                self._reals.append(real)
                self.paths.append(path)
                self._slots += [(slot, real) for slot in slots]

    @contextlib.contextmanager
    def noted(self, note: Note) -> Iterator[None]:
        """While active, `note` gets what is put into the containers."""
        notes = [note]  # classes live on for a while, and should not keep the recording
        stand_ins = {id(real): self._stand_in(number, real, notes) for number, real in enumerate(self._reals)}
        for slot, real in self._slots:
            slot.write(stand_ins[id(real)])
        try:
            yield
        finally:
            notes.clear()
            for path, real in zip(self.paths, self._reals, strict=True):
                if not _hold_the_same(stand_ins[id(real)], real):  # C code reached past the methods
                    self.read.add(path)
            for slot, real in self._slots:
                with contextlib.suppress(LookupError):
                    if slot.read() is stand_ins[id(real)]:
                        slot.write(real)

    def refuse_after(self, error: DovetailError | None = None) -> None:
        """Raises: ContainersRead where some were read, or where code failed, perhaps because it takes no stand-in."""
        read = self.paths if isinstance(error, CaptureFailed) else self.read
        if read:
            raise ContainersRead(frozenset(read).union(self.read)) from error

    def look_at(self, values: Sequence[Any]) -> None:
        """Values are handed to something that may read what they hold."""
        for value in values if self._slots else ():
            if isinstance(value, _KINDS) and hasattr(type(value), "told_read"):
                tell: Any = type(value)
                tell.told_read()

    def _stand_in(self, number: int, real: Any, notes: list[Note]) -> Any:
        kind: Any = type(real)
        path = self.paths[number]

        def is_read() -> None:
            self.read.add(path)

        methods: dict[str, Any] = {
            "told_read": staticmethod(is_read),
            "tells_class": True,
            "__class__": property(lambda _: kind),
        }
        if kind is list:  # C code adds lists without asking the second one
            methods["__radd__"] = _reading(lambda second, first: first + list(second), is_read)
        for name in dir(kind):
            before = getattr(kind, name)
            if name not in _UNTOUCHED and callable(before):
                methods[name] = _putting(number, name, notes) if name in _PUTTING[kind] else _reading(before, is_read)
        made: Any = type(kind.__name__, (kind,), methods)
        if kind is defaultdict:
            return made(real.default_factory, real)
        return made(real, real.maxlen) if kind is deque else made(real)


def _hold_the_same(stand_in: Any, real: Any) -> bool:
    """Whether two containers of one kind hold the same objects; the methods of the first one are not asked."""
    held, wanted = contents_of(stand_in), contents_of(real)
    return len(held) == len(wanted) and all(map(operator.is_, held, wanted))


def _putting(number: int, name: str, notes: list[Note]) -> Callable[..., Any]:
    def put(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name in ("extend", "extendleft", "__iadd__"):
            args = (list(args[0]),)
        notes[0](Put(number, "extend" if name == "__iadd__" else name, args, kwargs))
        return self if name == "__iadd__" else None

    return put


def _reading(before: Callable[..., Any], is_read: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(before)
    def read(*args: Any, **kwargs: Any) -> Any:
        code = sys._getframe(1).f_code
        if code in ON_BEHALF or not code.co_filename.startswith(OURS):
            is_read()
        return before(*args, **kwargs)

    return read
