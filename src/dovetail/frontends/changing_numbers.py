"""Which Python numbers that a function reads, among its arguments and in objects, are inputs of its next program.

A number is a constant of programs until it differs between two calls; then it is an input. Code that has no use for a
traced number (it asks for its type, say) gets plain ones from then on, whatever they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.frontends.call_guard import CallGuard
from dovetail.frontends.number_guard import LiftedNumbers
from dovetail.frontends.structure import Structure
from dovetail.reach.read_numbers import ReadNumber

_NUMBERS = (int, float)


class ChangingNumbers:
    """What the calls of one function have shown so far."""

    def __init__(self) -> None:
        self._leaves: set[int] = set()
        self._slots: dict[tuple[int, str], ReadNumber] = {}
        self._plain: set[int | tuple[int, str]] = set()

    def learn(self, guards: Iterable[CallGuard], leaves: Sequence[Any], structure: Structure) -> None:
        """Note what differs in a call from those that there are programs for."""
        for guard in guards:
            changed, slots = guard.changed_numbers(leaves, structure)
            self._leaves |= changed
            self._slots.update((slot.key, slot) for slot in slots)

    def lifted(self, leaves: Sequence[Any]) -> LiftedNumbers:
        """What are inputs of a program for this call."""
        self._slots = {key: slot for key, slot in self._slots.items() if type(slot.read()) is slot.kind}
        wanted = sorted(self._leaves - self._plain)
        return LiftedNumbers(
            tuple(leaf for leaf in wanted if leaf < len(leaves) and type(leaves[leaf]) in _NUMBERS),
            tuple(slot for key, slot in self._slots.items() if key not in self._plain),
        )

    def keep_plain(self, numbers: LiftedNumbers) -> None:
        """Code cannot take these as inputs."""
        self._plain.update(numbers.leaves, (slot.key for slot in numbers.slots))
