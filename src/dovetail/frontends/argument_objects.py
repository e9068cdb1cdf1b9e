"""Objects among the arguments of a recorded call, which are taken apart: what the code reads of them.

The code gets objects that are put together anew. It must not compare them with others of their classes, which it could
find in other places; and what it does not read of them may be anything in later calls. The same goes for containers in
slots of Python's state that are handed in with the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from dovetail.capture.recording import Recording
from dovetail.capture.recording_context import TakenOtherwise
from dovetail.frontends.handed_state import STATE
from dovetail.frontends.structure import (
    Classes,
    Made,
    Structure,
    changed_classes,
    changes,
    classes_in,
    unflatten,
)
from dovetail.reach.guard import PythonGuard
from dovetail.reach.read_slots import ReadSlot, held_alone, slots_put
from dovetail.reach.reads import Reads
from dovetail.reach.values import is_heap_type
from dovetail.reach.watcher import Watcher


class ObjectSeen(TakenOtherwise):
    """Code may have seen which object it was given: it has to get the user's.

    kinds: classes of objects, and of containers, that it has changed; none where it has only seen objects.
    """

    def __init__(self, kinds: Iterable[type] = ()) -> None:
        super().__init__()
        self.kinds = frozenset(kinds)


class TensorsSeen(TakenOtherwise):
    """Code has found tensors that are inputs in other places as well, where they are not those that it was given.

    slots: these places.
    """

    def __init__(self, slots: Sequence[ReadSlot]) -> None:
        super().__init__()
        self.slots = slots


class _Given(NamedTuple):
    """What the code is given in one recording. made: the objects in it. held: in slots of the state."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Made]
    held: dict[str, Any]


_NOTHING = _Given((), {}, [], {})


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
        self._now, self._is_backward = _NOTHING, False
        self._of: WeakKeyDictionary[Recording, _Given] = WeakKeyDictionary()
        self._in_slots: frozenset[int] = frozenset()
        self.items: list[Any] = []
        self._changed = set[type]()
        self._reads: Reads | None = None

    @contextmanager
    def put(self, leaves: list[Any], recording: Recording | None = None) -> Iterator[None]:
        """While active, slots of the state hold what is handed in.

        recording: its backward may find what its forward has got.
        """
        known = None if recording is None else self._of.get(recording)
        self._is_backward = known is not None
        self._now = self._put_together(leaves) if known is None else known
        if recording is not None:
            self._of[recording] = self._now
        self.items = [one.item for one in self._now.made]
        slots = [self._state[name] for name in self._now.held]
        self._in_slots = frozenset(id(item) for slot in slots for item in held_alone(slot.read()) or ())
        with slots_put(slots, list(self._now.held.values())):
            yield

    def _put_together(self, leaves: list[Any]) -> _Given:
        made: list[Made] = []
        args, kwargs = unflatten(leaves, self._structure, made)
        held = kwargs.pop(STATE, {})
        return _Given(args, kwargs, made, held)

    @property
    def lifted(self) -> frozenset[tuple[int, str]]:
        """The keys of these slots."""
        return frozenset(self._state[name].key for name in self._now.held)

    def call(self, target: Callable[..., Any]) -> Any:
        """Call a function with what was put last."""
        if self._reads is not None:
            self._reads.meet(self.items)
        return target(*self._now.args, **self._now.kwargs)

    def are_changed(self, leaves: list[Any]) -> bool:
        """Whether code has put other things into what it was given."""
        held = {STATE: self._now.held} if self._now.held else {}
        return changes((self._now.args, {**self._now.kwargs, **held}), leaves, self._structure)

    def note_changes(self, leaves: list[Any]) -> None:
        """Find out of which classes the containers and objects are into which code has put other things."""
        if self.are_changed(leaves):
            given, before = self._now, self._put_together(leaves)
            classes = Classes(classes_in(self._structure))
            self._changed = changed_classes((given.args, given.kwargs), (before.args, before.kwargs), classes)

    @contextmanager
    def met(self, reads: Reads) -> Iterator[None]:
        """While active, what is read of the objects is noted."""
        self._reads = reads
        if self._is_backward:  # its code has them already
            reads.meet(self.items)
        try:
            yield
        finally:
            self._reads = None

    def look(self, watcher: Watcher) -> None:
        """Find out what was read. watcher: of the recording, which has just ended. Raises: ObjectSeen."""
        if self._changed:
            raise ObjectSeen(self._changed)
        made, reads = self._now.made, watcher.reads
        assert reads is not None, "it was watched"
        kinds, own = classes_in(self._structure), set(map(id, self.items))
        for item in reads.met.values() if kinds else ():
            if type(item) in kinds and id(item) not in own and not watcher.was_made(item):
                raise ObjectSeen
        if not self._in_slots.isdisjoint(reads.met):
            raise ObjectSeen
        leaves = [(one.item, name, leaf) for one in made for name, some in one.leaves() for leaf in some]
        may_have_read = _has_read if self._is_backward else _may_have_read
        read = {leaf for item, name, leaf in leaves if may_have_read(reads, item, name)}
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
        self._now, self.items, self.given = _NOTHING, [], ()


def _may_have_read(reads: Reads, item: Any, name: str) -> bool:
    """Whether code may have read an attribute: nothing tells where no read of the object was noted."""
    is_noted = is_heap_type(type(item)) and id(item) in reads.owners
    return not is_noted or _has_read(reads, item, name)


def _has_read(reads: Reads, item: Any, name: str) -> bool:
    """Whether a read of an attribute was noted. Backward code reads few objects, most often none."""
    key = id(item), name
    return key in reads.attributes or key in reads.descriptors
