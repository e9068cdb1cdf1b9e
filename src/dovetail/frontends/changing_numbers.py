"""Which Python numbers among the arguments of a function are inputs of its next program.

A number is a constant of programs until it differs between two calls; then it is an input. Code that has no use for a
traced number (it asks for its type, say) gets plain ones from then on, whatever they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from dovetail.frontends.call_guard import CallGuard
from dovetail.frontends.structure import Structure

_NUMBERS = (int, float)


class ChangingNumbers:
    """What the calls of one function have shown so far."""

    def __init__(self) -> None:
        self._changed: set[int] = set()
        self._plain: set[int] = set()

    def learn(self, guards: Iterable[CallGuard], leaves: Sequence[Any], structure: Structure) -> None:
        """Note what differs in a call from those that there are programs for."""
        for guard in guards:
            self._changed |= guard.changed_numbers(leaves, structure)

    def lifted(self, leaves: Sequence[Any]) -> list[int]:
        """The leaves that are inputs of a program for this call."""
        return sorted(n for n in self._changed - self._plain if n < len(leaves) and type(leaves[n]) in _NUMBERS)

    def keep_plain(self, numbers: Collection[int]) -> None:
        """Code cannot take these as inputs."""
        self._plain.update(numbers)
