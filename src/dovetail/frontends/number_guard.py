"""The Python numbers that a program takes as inputs: any that lead the code the way that was recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dovetail.capture.number_symbols import NumberFact, broken_fact
from dovetail.ir.sizes import Number


class NumberGuard:
    """Numbers among the arguments. leaves: which of them. facts: what code was told of them.

    Cost of a check: 0.3 us for each number, 1 us for each fact that the code was told of them.
    """

    def __init__(self, leaves: Sequence[int], facts: Collection[NumberFact]) -> None:
        """facts: of these numbers, by the symbols `number_<leaf>`; looked at in each call, since more may be added."""
        self.leaves = leaves
        self.facts = facts
        self._names = [f"number_{leaf}" for leaf in leaves]

    def inputs(self, leaves: Sequence[Any], sizes: Mapping[str, Number]) -> list[Any] | None:
        """The inputs of the program, None when it is not for these numbers. sizes: by symbol."""
        numbers = [leaves[leaf] for leaf in self.leaves]
        if self.facts and broken_fact(self.facts, {**sizes, **dict(zip(self._names, numbers, strict=True))}):
            return None
        return numbers

    def difference(self, leaves: Sequence[Any], sizes: Mapping[str, Number]) -> str:
        """Why the program is not for these numbers, "" where it is."""
        numbers = {name: leaves[leaf] for name, leaf in zip(self._names, self.leaves, strict=True)}
        fact = broken_fact(self.facts, {**sizes, **numbers})
        if fact is None:
            return ""
        used = ", ".join(f"argument {leaf} is {leaves[leaf]!r}" for leaf in self.leaves)
        return f"the program relies on {fact}, and {used}"
