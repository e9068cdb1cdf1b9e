"""The Python numbers that a program takes as inputs: any that lead the code the way that was recorded.

They are among the arguments, or in slots that the code reads. Each has a name, by which it is a symbol of the program.
A number is a constant of programs until it differs between two calls; then it is an input. Code that has no use for a
traced number (it asks for its type, say) gets plain ones from then on, whatever they do. Where a program took numbers,
and was for one of them as it is a size or a place, the next program has symbols for these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.capture.number_symbols import NumberFact, all_hold, broken_fact
from dovetail.ir.sizes import Number
from dovetail.ir.text import identifier
from dovetail.reach.read_slots import ReadSlot


@dataclass(frozen=True, slots=True)
class LiftedNumbers:
    """Which numbers are inputs of a program. leaves: among the arguments. slots: of Python objects.

    are_sizes: where whole ones are sizes of tensors, and places in them, they are symbols; else the program is for one.
    """

    leaves: tuple[int, ...] = ()
    slots: tuple[ReadSlot, ...] = ()
    are_sizes: bool = False

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


@dataclass(frozen=True, slots=True)
class ChangedNumbers:
    """What are other numbers in a call than a program is for.

    leaves, slots: of the same type. is_for_one: the program takes numbers, and is for one whole number of them.
    """

    leaves: frozenset[int]
    slots: Sequence[ReadSlot]
    is_for_one: bool


_NUMBERS = (int, float)


class NumberGuard:
    """lifted: which numbers. facts: what code was told of them.

    Cost of a check: 1 us, and about 0.1 us for each fact (one core of an Intel Xeon, November 2026).
    """

    def __init__(self, lifted: LiftedNumbers, facts: Collection[NumberFact]) -> None:
        """facts: of these numbers, by their names; looked at in each call, since more may be added."""
        self.lifted = lifted
        self.facts = facts
        self._names = lifted.names
        self._kinds = [slot.kind for slot in lifted.slots]
        self._known = 0
        self._hold: Callable[[Mapping[str, Number]], bool] = bool

    def inputs(self, leaves: Sequence[Any], sizes: Mapping[str, Number]) -> list[Any] | None:
        """The inputs of the program, None when it is not for these numbers. sizes: by symbol."""
        numbers = self.lifted.read(leaves)
        if self._kinds and list(map(type, numbers[len(self.lifted.leaves) :])) != self._kinds:
            return None
        if self.facts:
            if self._known != len(self.facts):
                self._hold, self._known = all_hold(self.facts), len(self.facts)
            if not self._hold({**sizes, **dict(zip(self._names, numbers, strict=True))}):
                return None
        return numbers

    def is_for_one(self, leaves: Sequence[Any], sizes: Mapping[str, Number]) -> bool:
        """Whether the program is not for these numbers as it is for one whole number."""
        now = {**sizes, **dict(zip(self._names, self.lifted.read(leaves), strict=True))}
        broken = broken_fact((fact for fact in self.facts if fact.is_exact and type(fact.answer) is int), now)
        return broken is not None

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

    def __init__(self, may_be_sizes: bool) -> None:
        """may_be_sizes: programs may have symbols for sizes and places."""
        self._leaves: set[int] = set()
        self._slots: dict[tuple[int, str], ReadSlot] = {}
        self._plain: set[int | tuple[int, str]] = set()
        self._may_be_sizes = may_be_sizes
        self._are_sizes = False

    def learn(self, changes: Iterable[ChangedNumbers]) -> None:
        """Note what differs in a call from those that there are programs for."""
        for changed in changes:
            self._leaves |= changed.leaves
            self._slots.update((slot.key, slot) for slot in changed.slots)
            self._are_sizes = self._are_sizes or changed.is_for_one

    def lifted(self, leaves: Sequence[Any]) -> LiftedNumbers:
        """What are inputs of a program for this call."""
        self._slots = {key: slot for key, slot in self._slots.items() if type(slot.read()) is slot.kind}
        wanted = sorted(self._leaves - self._plain)
        return LiftedNumbers(
            tuple(leaf for leaf in wanted if leaf < len(leaves) and type(leaves[leaf]) in _NUMBERS),
            tuple(slot for key, slot in self._slots.items() if key not in self._plain),
            self._may_be_sizes and self._are_sizes,
        )

    def refuse(self, numbers: LiftedNumbers) -> None:
        """Code cannot take these as inputs, or not as sizes."""
        if numbers.are_sizes:
            self._may_be_sizes = False
        else:
            self._plain.update(numbers.leaves, (slot.key for slot in numbers.slots))
