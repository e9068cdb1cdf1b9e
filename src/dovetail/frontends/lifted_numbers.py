"""The Python numbers that a program takes as inputs: any that lead the code the way that was recorded.

They are among the arguments, or in slots that the code reads. Each has a name, by which it is a symbol of the program.
A number is a constant of programs until it differs between two calls; then it is an input. Code that has no use for a
traced number (it asks for its type, say) gets plain ones from then on, whatever they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
_NUMBERS = (int, float)


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


class ChangingNumbers:
    """Which numbers are inputs of the next program, by what the calls of one function have shown so far."""

    def __init__(self) -> None:
        self._leaves: set[int] = set()
        self._slots: dict[tuple[int, str], ReadNumber] = {}
        self._plain: set[int | tuple[int, str]] = set()

    def learn(self, changes: Iterable[tuple[frozenset[int], Sequence[ReadNumber]]]) -> None:
        """Note what differs in a call from those that there are programs for: leaves, and slots."""
        for leaves, slots in changes:
            self._leaves |= leaves
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
