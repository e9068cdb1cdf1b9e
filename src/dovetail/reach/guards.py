"""The guards of one program, asked together."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.reach.guard import PythonGuard
from dovetail.reach.memory_words import ChangedWord
from dovetail.reach.read_slots import ReadSlot


class PythonGuards:
    """The guards of one program: of what it is bound to, of its recording, and of what was recorded of it later.

    unrepeated: how the recording has left what it read, "" for as it was. A program does not do so again: they do
    not hold, even where everything is as it was. tensors: those that are to be the very ones, by their ids.
    """

    def __init__(self, guards: Sequence[PythonGuard] = (), changed_word: ChangedWord | None = None) -> None:
        """changed_word: for guards that ask machine code."""
        self.guards: list[PythonGuard] = []
        self.tensors = frozenset[int]()
        self._changed_word = changed_word
        for guard in guards:
            self.add(guard)
        self.unrepeated = ""

    def ask_memory(self, changed_word: ChangedWord | None) -> None:
        """See `PythonGuard`; for those that come later as well."""
        self._changed_word = changed_word
        for guard in self.guards:
            guard.ask_memory(changed_word)

    def add(self, guard: PythonGuard) -> None:
        """Something more was recorded."""
        guard.ask_memory(self._changed_word)
        self.guards.append(guard)
        self.tensors |= guard.tensors

    def holds(self) -> bool:
        """Whether everything that was read is as it was."""
        if self.unrepeated:
            return False
        if len(self.guards) == 1:
            return self.guards[0].holds()
        return all(guard.holds() for guard in self.guards)

    def known(self) -> frozenset[int]:
        """See `PythonGuard`."""
        return frozenset[int]().union(*(guard.known() for guard in self.guards))

    def why(self) -> str:
        """What is not as it was; empty when everything is."""
        reasons = (reason for guard in self.guards if (reason := guard.why()))
        return next(reasons, f"the recorded call did so: {self.unrepeated}" if self.unrepeated else "")

    def changed_numbers(self) -> list[ReadSlot]:
        """See `PythonGuard`."""
        return [slot for guard in self.guards for slot in guard.changed_numbers()]

    def changed_tensors(self) -> list[ReadSlot]:
        """See `PythonGuard`."""
        return [slot for guard in self.guards for slot in guard.changed_tensors()]

    @property
    def is_alive(self) -> bool:
        """Whether these can hold again."""
        return all(guard.is_alive for guard in self.guards)
