"""Place all buffers of a part below a given height, or prove that it cannot be done: a search with restarts.

Buffers are placed from the bottom up: each one lies on the floor or on another one, as in any placement that was
pushed down. The search takes a section and asks which buffer lies lowest in it. Either it is one of those that can lie
at the section's floor, or none is, and the floor rises to where the first of them could lie on something else. A
section whose floor and open buffers together are too high ends the branch. A section may be asked only if nothing open
fits below its choices, so that nothing is lost.

A failure names the sections that it depends on. Decisions that changed none of them are taken back with it
(conflict-directed backjumping). Sections that fail often are asked earlier in later runs (weighted degrees). Runs are
cut short and begin anew, with other rules of choice, so that no bad beginning costs much. Everything is decided by
counts and a seeded generator: the same problem has the same answer everywhere.

Source: sections, and buffers that rest on others, after Moffitt, "MiniMalloc" (ASPLOS 2023); Prosser, "Hybrid
algorithms for the constraint satisfaction problem" (1993); Boussemart et al., "Boosting systematic search by weighting
constraints" (ECAI 2004); restarts after Luby et al. (1993).
Cost:   O(buffers that are needed at the same time + sections) for each decision.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from dovetail.memory.items import Items, sections_of

_FIRST_RUN = 500  # decisions
_FORGET = 0.95  # of what weights were, after each run
_NEVER = 1 << 62

_FEWEST, _FEWEST_AND_FULLEST, _LOWEST = range(3)
_RULES = tuple((rule, order) for order in range(4) for rule in (_FEWEST, _LOWEST, _FEWEST_AND_FULLEST))


@dataclass(frozen=True, slots=True)
class Answer:
    """offsets: in units; None where none were found. is_proved: there are none. decisions: that were made."""

    offsets: list[int] | None
    is_proved: bool
    decisions: int


def search(items: Items, most: int, decisions: int, seed: int = 0) -> Answer:
    """Offsets at which all items lie below `most` units. decisions: after how many the search is given up.

    Items must be free to lie anywhere.
    """
    state = _State(items, most)
    if not state.is_possible:
        return Answer(None, True, 0)
    rng = random.Random(seed)
    used = 0
    for run in count():
        rule, order = _RULES[run] if run < len(_RULES) else rng.choice(_RULES)
        chooser = _Chooser(state, rule, order, None if run < len(_RULES) else rng)
        limit = min(_FIRST_RUN * luby(run + 1), decisions - used)
        found = _run(state, chooser, limit)
        used += found.decisions
        if found.offsets is not None or found.is_proved or used >= decisions:
            return Answer(found.offsets, found.is_proved, used)
        state.undo(0)
        state.weights = [1 + (weight - 1) * _FORGET for weight in state.weights]
    raise AssertionError("runs do not end by themselves")


def luby(number: int) -> int:
    """Item of the sequence 1 1 2 1 1 2 4 ... from number 1 on."""
    size = 1
    while size < number:
        size = 2 * size + 1
    while number != size:
        size //= 2
        number = number if number <= size else number - size
        while size // 2 >= number:
            size //= 2
    return (size + 1) // 2


class _State:
    """What is placed, and what follows for the rest; every change is noted, so that it can be taken back.

    bottoms: by item, the lowest offset that it may still have, or its place. live: by section, its open items. left:
    their sizes together. floors: the lowest of their bottoms. candidates: how many have it. lowest_tops: the lowest top
    of an open item. changed, blamed: masks of the sections that the last decision changed, or that its failure depends
    on.
    """

    def __init__(self, items: Items, most: int) -> None:
        self.items, self.most, self.sizes = items, most, items.sizes
        sections = sections_of(items)
        self.sections: list[list[int]] = [[] for _ in range(len(items))]
        for number, section in enumerate(sections):
            for index in section:
                self.sections[index].append(number)
        self.masks = [sum(1 << number for number in numbers) for numbers in self.sections]
        self.meets = [
            sorted(frozenset[int]().union(*(sections[number] for number in numbers)) - {index})
            for index, numbers in enumerate(self.sections)
        ]
        self.live = [set(section) for section in sections]
        self.left = [sum(self.sizes[index] for index in section) for section in sections]
        self.bottoms = [0] * len(items)
        self.is_placed = [False] * len(items)
        self.floors = [0] * len(sections)
        self.candidates = [0] * len(sections)
        self.lowest_tops = [0] * len(sections)
        self.weights = [1.0] * len(sections)
        self.changed = self.blamed = 0
        self.trail: list[tuple[int, ...]] = []
        self.is_possible = self._update(set(range(len(sections))))
        self.trail.clear()

    def place(self, index: int) -> bool:
        """Place an item at its bottom. False where it leads nowhere."""
        bottoms, sizes, trail, masks, most = self.bottoms, self.sizes, self.trail, self.masks, self.most
        size = sizes[index]
        top = bottoms[index] + size
        self.is_placed[index] = True
        trail.append((index,))
        for number in self.sections[index]:
            self.live[number].discard(index)
            self.left[number] -= size
        changed, dirty = masks[index], set(self.sections[index])
        for other in self.meets[index]:
            if bottoms[other] < top and not self.is_placed[other]:
                trail.append((other, bottoms[other]))
                bottoms[other] = top
                dirty.update(self.sections[other])
                changed |= masks[other]
                if top + sizes[other] > most:
                    self.blamed = masks[index]
                    return False
        self.changed = changed
        if self._update(dirty):
            return True
        self.blamed |= masks[index]
        return False

    def leave_empty(self, number: int) -> bool:
        """Nothing lies at the floor of a section: it rises. False where it leads nowhere."""
        bottoms, sizes, live = self.bottoms, self.sizes, self.live[number]
        floor, lowest, blamed = self.floors[number], _NEVER, 1 << number
        for index in live:
            bottom = bottoms[index]
            if bottom == floor:  # it lies higher then, on something that is not in this section
                blamed |= self.masks[index]
                below = [o for o in self.meets[index] if o not in live and not self.is_placed[o]]
                bottom = min([bottoms[other] + sizes[other] for other in below], default=_NEVER)
            lowest = min(lowest, bottom)
        if lowest + self.left[number] > self.most:
            self.weights[number] += 1
            self.blamed = blamed
            return False
        changed, dirty = 0, set[int]()
        for index in live:
            if bottoms[index] < lowest:
                self.trail.append((index, bottoms[index]))
                bottoms[index] = lowest
                dirty.update(self.sections[index])
                changed |= self.masks[index]
        self.changed = changed
        if self._update(dirty):
            return True
        self.blamed |= blamed
        return False

    def _update(self, dirty: set[int]) -> bool:
        bottoms, sizes, most, trail = self.bottoms, self.sizes, self.most, self.trail
        for number in dirty:
            open_ = self.live[number]
            lows = [bottoms[index] for index in open_]
            floor = min(lows, default=most)
            if floor + self.left[number] > most:
                self.weights[number] += 1
                self.blamed = 1 << number
                return False
            trail.append((number, self.floors[number], self.candidates[number], self.lowest_tops[number]))
            self.floors[number] = floor
            self.candidates[number] = lows.count(floor)
            self.lowest_tops[number] = min([bottoms[index] + sizes[index] for index in open_], default=_NEVER)
        return True

    def undo(self, mark: int) -> None:
        """Take back all changes since the trail had this length."""
        trail = self.trail
        while len(trail) > mark:
            entry = trail.pop()
            if len(entry) == 4:
                number, self.floors[number], self.candidates[number], self.lowest_tops[number] = entry
            elif len(entry) == 2:
                self.bottoms[entry[0]] = entry[1]
            else:
                index = entry[0]
                self.is_placed[index] = False
                for number in self.sections[index]:
                    self.live[number].add(index)
                    self.left[number] += self.sizes[index]


@dataclass(slots=True)
class _Decision:
    """A section that was asked. options: what is left to try, the best last: an item, or -1 for leaving it empty.

    depends_on: sections by which this and all that failed was decided. changed: by the option that is tried.
    """

    mark: int
    section: int
    options: list[int]
    depends_on: int
    changed: int = field(default=0)


class _Chooser:
    """Which section is asked next, and in which order its choices are tried."""

    def __init__(self, state: _State, rule: int, order: int, rng: random.Random | None) -> None:
        self.state = state
        self.rule = rule
        self.key = _item_key(state, order, rng)
        self.twins = _earlier_twins(state.items)

    def next(self) -> _Decision | None:
        """The next decision; None where everything is placed."""
        state = self.state
        for number in self._sections():
            floor = state.floors[number]
            choices = [index for index in state.live[number] if state.bottoms[index] == floor]
            if all(state.lowest_tops[other] > floor for index in choices for other in state.sections[index]):
                return self._decision(number, choices)
        return None

    def _decision(self, number: int, choices: list[int]) -> _Decision:
        state, depends_on = self.state, 1 << number
        for index in choices:
            depends_on |= state.masks[index]
        there = set(choices)
        options = sorted((i for i in choices if self.twins[i] not in there), key=self.key)
        if state.floors[number] + state.left[number] < state.most:
            options.insert(0, -1)
        return _Decision(len(state.trail), number, options, depends_on)

    def _sections(self) -> list[int]:
        """Sections with open items, the one to be asked first: with a single choice, or by the rule."""
        state, keys = self.state, list[tuple[float, float, int]]()
        for number, (floor, left, choices) in enumerate(zip(state.floors, state.left, state.candidates, strict=True)):
            if not choices:
                continue
            room = state.most - floor - left
            ways = choices + (room > 0)
            if self.rule == _FEWEST:
                keys.append((ways / state.weights[number] if ways > 1 else 0.0, floor, number))
            elif self.rule == _LOWEST:
                keys.append((float(ways > 1), floor, number))
            else:
                keys.append((float(ways), room, number))
        keys.sort()
        return [number for _, _, number in keys]


def _item_key(state: _State, order: int, rng: random.Random | None) -> Callable[[int], float]:
    items, weights = state.items, state.weights
    lifetimes = [end - start for start, end in zip(items.starts, items.ends, strict=True)]

    def plain(index: int) -> float:
        if order == 0:
            return lifetimes[index] * items.sizes[index]
        if order == 1:
            return lifetimes[index]
        if order == 2:
            return items.sizes[index]
        return sum([weights[number] for number in state.sections[index]])

    return plain if rng is None else lambda index: plain(index) * (1 + 0.5 * rng.random())


def _earlier_twins(items: Items) -> list[int]:
    """For each item, an earlier one of the same size and times, which is placed first; -1 if there is none."""
    last: dict[tuple[int, int, int], int] = {}
    twins = []
    for index, what in enumerate(zip(items.sizes, items.starts, items.ends, strict=True)):
        twins.append(last.get(what, -1))
        last[what] = index
    return twins


def _run(state: _State, chooser: _Chooser, limit: int) -> Answer:
    """One run, from an empty arena."""
    first = chooser.next()
    if first is None:
        return Answer(list(state.bottoms), False, 0)
    stack, used = [first], 0
    while stack:
        decision = stack[-1]
        state.undo(decision.mark)
        if not decision.options:
            stack.pop()
            while stack and not stack[-1].changed & decision.depends_on:
                stack.pop()  # it has nothing to do with the failure
            if stack:
                stack[-1].depends_on |= decision.depends_on
            continue
        if used >= limit:
            return Answer(None, False, used)
        used += 1
        option = decision.options.pop()
        if not (state.leave_empty(decision.section) if option < 0 else state.place(option)):
            decision.depends_on |= state.blamed
            continue
        decision.changed = state.changed
        following = chooser.next()
        if following is None:
            return Answer(list(state.bottoms), False, used)
        stack.append(following)
    return Answer(None, True, used)
