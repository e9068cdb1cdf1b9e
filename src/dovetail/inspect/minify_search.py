"""The search for a small part of a program that fails in the same way as the whole.

Cheap steps come first: the shortest failing beginning and the shortest failing end, by bisection; fewer outputs; then
delta debugging over the nodes that are left, and, one by one, those that an operand can replace. Steps repeat until
none of them removes anything, so the result is minimal.

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), for `shortened`. Cost: for a
fault of one operator about 2 log2(nodes) checks; O(nodes^2) at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dovetail.inspect.minify_candidate import Builder, Candidate

_Item = TypeVar("_Item")


class LimitReached(Exception):
    """No more checks are to be made."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. nodes, outputs: how many are left after it; checks: how many were made until then."""

    name: str
    nodes: int
    outputs: int
    checks: int


class Search:
    """A search. best: the smallest candidate known to fail. step: what is being tried.

    fails: whether a candidate fails as the whole does.
    """

    def __init__(self, builder: Builder, fails: Callable[[Candidate], bool]) -> None:
        self.best = builder.whole()
        self.step = ""
        self._builder = builder
        self._asks = fails

    def run(self, after_step: Callable[[], None]) -> None:
        """Make `best` small; called after each step that did. Raises: what `fails` raises; `best` stays good."""
        steps: list[tuple[str, Callable[[], object]]] = [
            ("unused inputs", self._without_spare_inputs),
            ("beginning", self._shorten_to_a_beginning),
            ("outputs", self._with_fewer_outputs),
            ("end", self._shorten_to_an_end),
            ("nodes", self._with_fewer_nodes),
            ("stand-ins", self._with_stand_ins),
        ]
        while True:
            before = self.best
            for self.step, step in steps:
                was = self.best
                step()
                if self.best != was:
                    after_step()
            if self.best == before:
                break
        if not self.best.outputs and self.best.kept:  # a program that gives something reads better
            self.step = "an output"
            unread = self._builder.unread(self.best)
            any(self._take(self._builder.returning(self.best, [output], prune=False)) for output in unread)

    def _take(self, candidate: Candidate) -> bool:
        """Make a candidate the best one if it fails."""
        if candidate == self.best or not self._asks(candidate):
            return False
        self.best = candidate
        return True

    def _without_spare_inputs(self) -> None:
        if self.best.spare and not self._take(replace(self.best, spare=frozenset())):
            spare = sorted(self.best.spare, key=lambda value: value.name)
            shortened(spare, lambda kept: self._take(replace(self.best, spare=frozenset(kept))))

    def _shorten_to_a_beginning(self) -> None:
        start, nodes = self.best, self.best.kept
        fine, failing = 0, len(nodes)
        while failing - fine > 1:
            middle = (fine + failing) // 2
            if self._take(self._builder.without(start, nodes[middle:], cut=True)):
                failing = middle
            else:
                fine = middle

    def _shorten_to_an_end(self) -> None:
        start, nodes = self.best, self.best.kept
        failing, fine = 0, len(nodes)
        while fine - failing > 1:
            middle = (fine + failing) // 2
            if self._take(self._builder.without(start, nodes[:middle])):
                failing = middle
            else:
                fine = middle

    def _with_fewer_outputs(self) -> None:
        start = self.best
        if not start.outputs:
            return
        make = self._builder.returning
        last = self._builder.last_results(start)
        if len(last) < len(start.outputs) and self._take(make(start, last)):
            start = self.best
        shortened(start.outputs, lambda kept: self._take(make(start, kept)))
        if self.best == start:  # what fails is read by no output
            shortened(start.outputs, lambda kept: self._take(make(start, kept, prune=False)))

    def _with_fewer_nodes(self) -> None:
        start = self.best

        def keep(kept: Sequence[int]) -> bool:
            return self._take(self._builder.without(start, set(start.kept) - set(kept)))

        shortened(start.kept, keep)

    def _with_stand_ins(self) -> None:
        for index in reversed(self.best.kept):
            any(self._take(candidate) for candidate in self._builder.swapped(self.best, index))


def shortened(items: Sequence[_Item], fails: Callable[[Sequence[_Item]], bool]) -> Sequence[_Item]:
    """A part of the items that fails, of which no single item can be left out. The items themselves fail."""
    parts = 2
    while items:
        size = -(-len(items) // parts)
        place, is_shorter = 0, False
        while place < len(items):
            rest = [*items[:place], *items[place + size :]]
            if fails(rest):
                items, is_shorter = rest, True
            else:
                place += size
        if size == 1 and not is_shorter:
            break
        parts = min(len(items), max(2, parts if is_shorter else 2 * parts)) or 1
    return items
