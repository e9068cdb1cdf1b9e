"""Objects among the arguments of a recorded call, which are taken apart: what the code reads of them.

The code gets objects that are put together anew. It must not compare them with others of their classes, which it could
find in other places; and what it does not read of them may be anything in later calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dovetail.frontends.structure import Made, Structure, classes_in, unflatten
from dovetail.reach.reads import Reads
from dovetail.reach.values import is_heap_type
from dovetail.reach.watcher import Watcher


class ObjectSeen(Exception):
    """Code may have seen which object it was given: it has to get the user's."""


class ArgumentObjects:
    """See the module docstring. unread: leaves that the first recording has not read; None before it."""

    def __init__(self, structure: Structure) -> None:
        """structure: of the arguments."""
        self.unread: frozenset[int] | None = None
        self._structure = structure
        self._made: list[Made] = []
        self._reads: Reads | None = None

    def put_together(self, leaves: list[Any]) -> Any:
        """The arguments."""
        self._made = []
        arguments = unflatten(leaves, self._structure, self._made)
        if self._reads is not None:
            self._reads.meet([made.item for made in self._made])
        return arguments

    @contextmanager
    def met(self, reads: Reads) -> Iterator[None]:
        """While active, what is read of the objects is noted. They are kept until `look`."""
        self._reads = reads
        try:
            yield
        finally:
            self._reads = None

    def look(self, watcher: Watcher) -> None:
        """Find out what was read. watcher: of the recording, which has just ended. Raises: ObjectSeen."""
        made, self._made, reads = self._made, [], watcher.reads
        assert reads is not None, "it was watched"
        kinds, own = classes_in(self._structure), {id(one.item) for one in made}
        for item in reads.met.values() if kinds else ():
            if type(item) in kinds and id(item) not in own and not watcher.was_made(item):
                raise ObjectSeen
        leaves = [(one.item, name, leaf) for one in made for name, some in one.leaves() for leaf in some]
        read = {leaf for item, name, leaf in leaves if _may_have_read(reads, item, name)}
        if self.unread is None:
            self.unread = frozenset(leaf for _, _, leaf in leaves) - read
        elif not self.unread.isdisjoint(read):
            raise ObjectSeen


def _may_have_read(reads: Reads, item: Any, name: str) -> bool:
    """Whether code may have read an attribute: nothing tells where no read of the object was noted."""
    key, is_noted = (id(item), name), is_heap_type(type(item)) and id(item) in reads.owners
    return not is_noted or key in reads.attributes or key in reads.descriptors
