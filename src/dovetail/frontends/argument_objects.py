"""Objects among the arguments of a recorded call, which are taken apart: what the code reads of them.

The code gets objects that are put together anew. It must not compare them with others of their classes, which it could
find in other places; and what it does not read of them may be anything in later calls. The same goes for containers in
slots of Python's state that are handed in with the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.frontends.handed_state import STATE
from dovetail.frontends.structure import Made, Structure, changes, classes_in, unflatten
from dovetail.reach.guard import PythonGuard
from dovetail.reach.read_slots import ReadSlot, held_alone, slots_put
from dovetail.reach.reads import Reads
from dovetail.reach.values import is_heap_type
from dovetail.reach.watcher import Watcher


class ObjectSeen(Exception):
    """Code may have seen which object it was given: it has to get the user's."""


class TensorsSeen(Exception):
    """Code has found tensors that are inputs in other places as well, where they are not those that it was given.

    slots: these places.
    """

    def __init__(self, slots: Sequence[ReadSlot]) -> None:
        super().__init__()
        self.slots = slots


class ArgumentObjects:
    """See the module docstring. unread: leaves that the first recording has not read; None before it.

    items: what was put together, until the next time. given, to be set: what is an input, in the recorded call.
    """

    def __init__(self, structure: Structure, state: Mapping[str, ReadSlot] | None = None) -> None:
        """structure: of the arguments. state: slots that are handed in with them, see `handed_state`; None where none
        may be.
        """
        self.unread: frozenset[int] | None = None
        self._structure = structure
        self._state, self._hands_in = state or {}, state is not None
        self.given: Sequence[Any] = ()
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._held: dict[str, Any] = {}
        self._in_slots: frozenset[int] = frozenset()
        self._made: list[Made] = []
        self.items: list[Any] = []
        self._reads: Reads | None = None

    @contextmanager
    def put(self, leaves: list[Any]) -> Iterator[None]:
        """While active, slots of the state hold what is handed in."""
        self._made = []
        self._args, self._kwargs = unflatten(leaves, self._structure, self._made)
        self.items = [one.item for one in self._made]
        self._held = self._kwargs.pop(STATE, {})
        slots = [self._state[name] for name in self._held]
        self._in_slots = frozenset(id(item) for slot in slots for item in held_alone(slot.read()) or ())
        with slots_put(slots, list(self._held.values())):
            yield

    @property
    def lifted(self) -> frozenset[tuple[int, str]]:
        """The keys of these slots."""
        return frozenset(self._state[name].key for name in self._held)

    def call(self, target: Callable[..., Any]) -> Any:
        """Call a function with what was put last."""
        if self._reads is not None:
            self._reads.meet(self.items)
        return target(*self._args, **self._kwargs)

    def are_changed(self, leaves: list[Any]) -> bool:
        """Whether code has put other things into what it was given."""
        held = {STATE: self._held} if self._held else {}
        return changes((self._args, {**self._kwargs, **held}), leaves, self._structure)

    @contextmanager
    def met(self, reads: Reads) -> Iterator[None]:
        """While active, what is read of the objects is noted."""
        self._reads = reads
        try:
            yield
        finally:
            self._reads = None

    def look(self, watcher: Watcher) -> None:
        """Find out what was read. watcher: of the recording, which has just ended. Raises: ObjectSeen."""
        made, reads = self._made, watcher.reads
        assert reads is not None, "it was watched"
        kinds, own = classes_in(self._structure), set(map(id, self.items))
        for item in reads.met.values() if kinds else ():
            if type(item) in kinds and id(item) not in own and not watcher.was_made(item):
                raise ObjectSeen
        if not self._in_slots.isdisjoint(reads.met):
            raise ObjectSeen
        leaves = [(one.item, name, leaf) for one in made for name, some in one.leaves() for leaf in some]
        read = {leaf for item, name, leaf in leaves if _may_have_read(reads, item, name)}
        if self.unread is None:
            self.unread = frozenset(leaf for _, _, leaf in leaves) - read
        elif not self.unread.isdisjoint(read):
            raise ObjectSeen

    def look_elsewhere(self, guard: PythonGuard) -> None:
        """Find out whether inputs were found in other slots. guard: of what was read. Raises: TensorsSeen."""
        given = {id(item) for item in self.given if isinstance(item, torch.Tensor)} if self._hands_in else ()
        known = {slot.key for slot in self._state.values()}
        found = [slot for slot in guard.slots_of(given) if slot.key not in known] if given else []
        if found:
            raise TensorsSeen(found)

    def forget(self) -> None:
        """Nothing more is asked about this recording."""
        self._args, self._kwargs, self._made, self.items, self.given = (), {}, [], [], ()


def _may_have_read(reads: Reads, item: Any, name: str) -> bool:
    """Whether code may have read an attribute: nothing tells where no read of the object was noted."""
    key, is_noted = (id(item), name), is_heap_type(type(item)) and id(item) in reads.owners
    return not is_noted or key in reads.attributes or key in reads.descriptors
