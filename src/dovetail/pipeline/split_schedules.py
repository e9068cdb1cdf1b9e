"""Splits of a graph that come of schedules of the whole program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dovetail.execute.needs import Needs
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.partition.policy import Policy
from dovetail.partition.split import Split
from dovetail.partition.whole.apply import apply_schedule
from dovetail.partition.whole.check import verify_whole
from dovetail.partition.whole.choose import Ladder, Weighed
from dovetail.partition.whole.halves import read_until, split_with_repeats
from dovetail.partition.whole.problem import build_whole_problem
from dovetail.partition.whole.schedule import Schedule
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.halves import Candidate, Halves

WHOLE = "whole program"


class Weighing(Protocol):
    """What says what splits cost. needs: what operators take for themselves. plans: how halves work in place."""

    needs: Needs
    plans: PlanMemory

    def weighed(self, halves: Halves, solver: str) -> Candidate:
        """What a split costs. solver: who found it."""

    def written(self, forward: Program) -> Program:
        """Forward with its writes to inputs."""

    def apart(self) -> Weighing:
        """The same for splits that are only looked at."""


class Schedules:
    """Splits that come of schedules of the whole program."""

    def __init__(
        self, splitting: Weighing, default: Halves, peak_bytes: int, policy: Policy, hints: Mapping[str, Number]
    ) -> None:
        """peak_bytes: of the default split."""
        self._splitting = splitting
        self._program = program = default.joint
        splitting.needs.measure(program.nodes)
        places, until = self._places(default.split), read_until(program, policy)
        self._problem = build_whole_problem(program, policy, hints, splitting.needs.need_of, places, until)
        self.ladder = Ladder(self._problem, peak_bytes, self._weigh)

    def candidate(self, weighed: Weighed) -> Candidate:
        """What comes of a schedule that is chosen, proved."""
        halves, changed = self.halves(weighed.schedule)
        verify_whole(self._program, changed)
        return self._splitting.weighed(halves, WHOLE)

    def _weigh(self, schedule: Schedule) -> int:
        """The peak of what comes of a schedule, which is not kept."""
        return self._splitting.apart().weighed(self.halves(schedule)[0], WHOLE).peak_bytes

    def halves(self, schedule: Schedule) -> tuple[Halves, Program]:
        """The split that comes of a schedule, and the whole program."""
        originals: dict[str, str] = {}
        changed = apply_schedule(self._program, self._problem, schedule, originals)
        return Halves(*split_with_repeats(self._program, remove_dead_code(changed)[0], originals)), changed

    def _places(self, split: Split) -> dict[int, int]:
        """In which storage each one lies once the halves work in place."""
        found: dict[int, int] = {}
        for half in (split.backward, self._splitting.written(split.forward)):
            places = self._splitting.plans.in_place(half)[0].places
            found.update({storage: buffer.number for storage, (buffer, _) in places.items()})
        return found
