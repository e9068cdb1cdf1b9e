"""Look for schedules of a program: of the program as it is, and of the one that keeps draws as narrower copies.

A narrower copy (`partition.narrow_draws`) costs as much as a few pointwise operators for each draw, and saves at most
three quarters of it. Other values may cost less to make again, so both programs are looked at, and the better schedule
counts. Under a limit that is the one with the least work. As peaks and works of both only fall and only rise with the
limit, those of the better one do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dovetail.analysis.liveness import simulate_peak, storage_lives
from dovetail.execute.needs import Needs
from dovetail.ir.program import Phase, Program
from dovetail.ir.sizes import Number
from dovetail.partition.narrow_draws import NO_DRAWS, NarrowDraws, narrow_draws, without_round_trips
from dovetail.partition.policy import Policy
from dovetail.partition.whole.apply import apply_schedule
from dovetail.partition.whole.check import verify_whole
from dovetail.partition.whole.choose import Ladder, Weighed
from dovetail.partition.whole.problem import File, build_whole_problem
from dovetail.partition.whole.schedule import Schedule
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.inplace import PlanMemory, apply_plan, choose_plan, itself
from dovetail.pipeline.held import STEP, Held


@dataclass(frozen=True, slots=True)
class Given:
    """What schedules are looked for with.

    held: what errors say of the program and its inputs. before: what becomes of a program before it works in place.
    around: that program with what runs before and after it. needs: what nodes take besides; measured where it is not
    given. file: to which values may go instead.
    """

    hints: Mapping[str, Number]
    plans: PlanMemory
    policy: Policy
    held: Held = STEP
    before: Callable[[Program], Program] = itself
    around: Callable[[Program], Program] = itself
    needs: Needs | None = None
    file: File | None = None


class Search:
    """Weighs programs in which nodes run again, and keeps none of them.

    was: the peak of the program as it is. is_lowest: whether nothing that runs again lowers it. draws: those of which
    narrower copies are kept in it.
    """

    def __init__(self, program: Program, given: Given, draws: NarrowDraws = NO_DRAWS) -> None:
        self.program = program
        self.draws = draws
        self._given = given
        self._needs = given.needs or Needs(given.hints)
        self._least = given.held.least_bytes(program)
        in_place = given.plans.in_place(self._before(program))[1]
        self.was = self._peak_of(in_place, self._needs)
        self.is_lowest = self._cannot_be_lower(in_place)

    def narrowed(self, most_work: float = math.inf, below_bytes: float = math.inf) -> Search | None:
        """The same of the program that keeps draws as narrower copies; None where the peak would be higher.

        most_work: for the copies. below_bytes: a peak that is of no use; the lowest one is looked at before anything is
        worked out.
        """
        program, draws = narrow_draws(self.program, self._given.hints, most_work)
        if not draws.kept or self.was - draws.saved_bytes >= below_bytes:
            return None
        other = Search(program, self._given, draws)
        return other if other.was <= self.was and other.was < below_bytes else None

    def relaxed(self) -> Search | None:
        """The same where wishes to save are given up; None where there are none."""
        policy = self._given.policy
        relaxed = policy.under_need()
        if len(relaxed.marks) == len(policy.marks):
            return None
        return Search(self.program, replace(self._given, policy=relaxed), self.draws)

    @cached_property
    def ladder(self) -> Ladder:
        """The schedules of the program."""
        program, needs, given = self.program, self._needs, self._given
        needs.measure(program.nodes)
        plan = given.plans.in_place(self._before(program))[0]
        places = {storage: buffer.number for storage, (buffer, _) in plan.places.items()}
        problem = build_whole_problem(program, given.policy, given.hints, needs.need_of, places, file=given.file)

        def weigh(schedule: Schedule) -> int:
            changed = self._before(apply_schedule(program, problem, schedule))
            return self._peak_of(apply_plan(choose_plan(changed, given.plans.donated, commit=True)), needs.apart())

        return Ladder(problem, self.was, weigh)

    def _before(self, program: Program) -> Program:
        """The program before it works in place."""
        return self._given.before(settled(program))

    def _peak_of(self, in_place: Program, needs: Needs) -> int:
        run = self._given.around(in_place)
        needs.measure(run.nodes)
        return max(simulate_peak(run, self._given.hints, need_of=needs.need_of).peak_bytes, self._least)

    def _cannot_be_lower(self, in_place: Program) -> bool:
        """Whether only what ran before the program is there at its peak, and what the node there reads or makes."""
        run, hints = self._given.around(in_place), self._given.hints
        if run is in_place:
            return False
        at = simulate_peak(run, hints, need_of=self._needs.need_of).node
        used = {v.tensor.storage for v in (*run.nodes[at].operands(), *run.nodes[at].results()) if v.is_tensor}
        there = (life for life in storage_lives(run, hints) if life.first <= at <= life.last and life.bytes)
        others = (life for life in there if life.storage not in used and not life.is_returned)
        return all(run.nodes[life.first].phase is Phase.FORWARD for life in others)


def settled(program: Program) -> Program:
    """The program that comes of a schedule, without what only schedules need: runs of which nobody reads the results
    before they are made again, and copies that are widened at once.
    """
    return remove_dead_code(without_round_trips(program))[0]


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule. search: of whose program. weighed: None for that program as it is."""

    search: Search
    weighed: Weighed | None = None

    @property
    def peak_bytes(self) -> int:
        """The peak of what comes of it."""
        return self.search.was if self.weighed is None else self.weighed.peak_bytes

    @property
    def work(self) -> int:
        """Of what runs again, of copies, and of what is waited for."""
        return self.search.draws.work + (0 if self.weighed is None else self.weighed.work)

    @property
    def schedule(self) -> Schedule | None:
        """The order in which nodes run, where some run again."""
        return None if self.weighed is None else self.weighed.schedule

    def written(self) -> Program:
        """The program, proved."""
        result = self.search.program
        if self.weighed is not None:
            result = apply_schedule(result, self.search.ladder.problem, self.weighed.schedule)
            verify_whole(self.search.program, result)
        return settled(result)


def frugal(search: Search, spare: float) -> Found | None:
    """The lowest peak for so much work; None where none is lower than that of the program as it is."""
    weighed = search.ladder.frugal(spare)
    found = None if weighed is None else Found(search, weighed)
    narrowed = search.narrowed(spare, search.was if found is None else found.peak_bytes)
    if narrowed is None:
        return found
    weighed = narrowed.ladder.frugal(spare - narrowed.draws.work)
    return Found(narrowed, weighed)


def under(search: Search, most_bytes: int) -> tuple[Found | None, int]:
    """The least work for a peak below a limit that the program as it is does not keep; and the lowest peak if none."""
    found, floor = _under(search, most_bytes)
    narrowed = search.narrowed()
    if narrowed is None or (found is not None and found.work <= narrowed.draws.work):
        return found, floor
    other, lowest = _under(narrowed, most_bytes)
    both = [one for one in (found, other) if one is not None]
    return min(both, key=lambda one: (one.work, one.peak_bytes), default=None), min(floor, lowest)


def _under(search: Search, most_bytes: int) -> tuple[Found | None, int]:
    """The same for one form of the program."""
    if search.was <= most_bytes:
        return Found(search), search.was
    choice = search.ladder.under(most_bytes)
    if choice.chosen is None:
        return None, min(search.was, choice.floor_bytes)
    return Found(search, choice.chosen), choice.chosen.peak_bytes
