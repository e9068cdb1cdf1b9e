"""Disjoint sets of numbers.

Source: Tarjan, "Efficiency of a good but not linear set union algorithm" (1975), with path halving.
"""

from __future__ import annotations


class UnionFind:
    """Sets of the numbers below a count; the smallest number of a set stands for it."""

    def __init__(self, count: int = 0) -> None:
        self._parents = list(range(count))

    def new(self) -> int:
        """A further number, in a set of its own."""
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def find(self, number: int) -> int:
        """The number that stands for the set of this one."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def join(self, one: int, other: int) -> bool:
        """Make the two sets one; whether they were two."""
        one, other = self.find(one), self.find(other)
        self._parents[max(one, other)] = min(one, other)
        return one != other

    def sets(self) -> list[list[int]]:
        """All sets, by their smallest numbers."""
        members: dict[int, list[int]] = {}
        for number in range(len(self._parents)):
            members.setdefault(self.find(number), []).append(number)
        return list(members.values())
