"""The Python numbers that a program takes as inputs: any that lead the code the way that was recorded.

They are among the arguments, or in slots that the code reads. Each has a name, by which it is a symbol of the program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.capture.number_symbols import NumberFact, broken_fact
from dovetail.ir.sizes import Number
from dovetail.ir.text import identifier
from dovetail.reach.read_numbers import ReadNumber


@dataclass(frozen=True, slots=True)
class LiftedNumbers:
    """Which numbers are inputs of a program. leaves: among the arguments. slots: of Python objects."""

    leaves: tuple[int, ...] = ()
    slots: tuple[ReadNumber, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.leaves or self.slots)

    @property
    def names(self) -> list[str]:
        """A name for each."""
        of_slots = (f"number_{identifier(slot.label)}_{place}" for place, slot in enumerate(self.slots))
        return [*(f"number_{leaf}" for leaf in self.leaves), *of_slots]

    @property
    def labels(self) -> list[str]:
        """What a user would call each."""
        return [*(f"argument {leaf}" for leaf in self.leaves), *(slot.label for slot in self.slots)]

    def read(self, leaves: Sequence[Any]) -> list[Any]:
        """The numbers of a call. leaves: its arguments."""
        return [*(leaves[leaf] for leaf in self.leaves), *(slot.read() for slot in self.slots)]


PLAIN_NUMBERS = LiftedNumbers()


class NumberGuard:
    """lifted: which numbers. facts: what code was told of them.

    Cost of a check: 0.5 us, and about 1 us for each fact (one core of an AMD EPYC, November 2026).
    """

    def __init__(self, lifted: LiftedNumbers, facts: Collection[NumberFact]) -> None:
        """facts: of these numbers, by their names; looked at in each call, since more may be added."""
        self.lifted = lifted
        self.facts = facts
        self._names = lifted.names
        self._kinds = [slot.kind for slot in lifted.slots]

    def inputs(self, leaves: Sequence[Any], sizes: Mapping[str, Number]) -> list[Any] | None:
        """The inputs of the program, None when it is not for these numbers. sizes: by symbol."""
        numbers = self.lifted.read(leaves)
        if self._kinds and list(map(type, numbers[len(self.lifted.leaves) :])) != self._kinds:
            return None
        if self.facts and broken_fact(self.facts, {**sizes, **dict(zip(self._names, numbers, strict=True))}):
            return None
        return numbers

    def difference(self, leaves: Sequence[Any], sizes: Mapping[str, Number]) -> str:
        """Why the program is not for these numbers, "" where it is."""
        numbers = self.lifted.read(leaves)
        for slot, number in zip(self.lifted.slots, numbers[len(self.lifted.leaves) :], strict=True):
            if type(number) is not slot.kind:
                return f"{slot.label} is no {slot.kind.__name__} any more"
        fact = broken_fact(self.facts, {**sizes, **dict(zip(self._names, numbers, strict=True))})
        if fact is None:
            return ""
        used = ", ".join(f"{label} is {x!r}" for label, x in zip(self.lifted.labels, numbers, strict=True))
        return f"the program relies on {fact}, and {used}"
