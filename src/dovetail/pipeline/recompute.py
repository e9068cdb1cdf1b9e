"""Let a whole program keep less and compute it again: as little as a limit asks for, or what costs next to nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dovetail.errors import MemoryLimitTooLow, UnsupportedStep
from dovetail.execute.needs import Needs
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.ops.transfers import TRANSFERS
from dovetail.partition.choose import work_to_spare
from dovetail.partition.policy import Policy
from dovetail.partition.whole.problem import File, WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Move, Schedule, Way
from dovetail.passes.collection import collection_paused
from dovetail.passes.inplace import PlanMemory, itself
from dovetail.pipeline.held import STEP, Held
from dovetail.pipeline.memory_limit import MemoryLimit, readable
from dovetail.pipeline.schedule_search import Found, Given, Search, frugal, under


@dataclass(frozen=True, slots=True)
class RecomputeReport:
    """runs_again: how many nodes. peak_bytes, was_bytes: of the program once it works in place, and without them.
    work: of what runs again, as a part of all. least_work: the part that any schedule would need for a
    peak like it, as the solver counts. reason: why nothing runs again. moved: what goes to a file, where there is one.
    """

    runs_again: int
    peak_bytes: int
    was_bytes: int
    work: float = 0.0
    least_work: float = 0.0
    reason: str = ""
    moved: Moved | None = None

    def __str__(self) -> str:
        if not self.runs_again and (self.moved is None or not self.moved.count):
            return f"nothing runs again, {self.reason}"
        peak = f"peak {self.peak_bytes}, not {self.was_bytes} bytes"
        is_known = self.moved is None and self.least_work < self.work
        least = f" (no schedule needs less than {100 * self.least_work:.2g} %)" if is_known else ""
        moved = "" if self.moved is None else f"; {self.moved}"
        return f"{self.runs_again} nodes run again: {peak}, for {100 * self.work:.1f} % of work{least}{moved}"


@dataclass(frozen=True, slots=True)
class Moved:
    """What goes to a file: count: of values. written_bytes, read_bytes: in each call. waiting: the time in which
    nothing runs because of it, as a part of all work.
    """

    count: int
    written_bytes: int = 0
    read_bytes: int = 0
    waiting: float = 0.0

    def __str__(self) -> str:
        if not self.count:
            return "nothing goes to the file, as making it again is faster"
        moved = f"{self.written_bytes} bytes are written and {self.read_bytes} read"
        return f"{self.count} values go to the file, {moved} ({100 * self.waiting:.1f} % of work is waited for them)"


_ALL = Policy(recompute="all")
_HALVINGS = 3  # of the ladder, for a curve


@collection_paused()
def recompute(  # noqa: PLR0913 (each is known where a program is weighed)
    program: Program,
    hints: Mapping[str, Number],
    plans: PlanMemory,
    limit: MemoryLimit | None = None,
    state_bytes: int = 0,
    policy: Policy = _ALL,
    held: Held = STEP,
    *,
    before: Callable[[Program], Program] = itself,
    around: Callable[[Program], Program] = itself,
    needs: Needs | None = None,
    file: File | None = None,
) -> tuple[Program, RecomputeReport]:
    """The program in which some nodes run again, so that their results need not be kept.

    limit: for the peak; where there is none, as much as two percent of work give. state_bytes: of inputs. held: what
    errors say of the program and its inputs. before: what becomes of a program before it works in place. around: that
    program with what runs before and after it. needs: what nodes take besides; measured where it is not given.
    file: to which values may go instead.
    Raises: MemoryLimitTooLow; UnsupportedStep where a limit is given and sizes depend on data.
    """
    spare = math.inf
    if limit is not None:
        _refuse_unknown_sizes(program)
    else:
        plain = build_whole_problem(program, policy, hints)
        spare = work_to_spare(plain.work)
        if not may_pay(plain):
            return program, RecomputeReport(
                0, -1, -1, reason="NOT-WORTH-IT: all of it costs more work than it is worth"
            )
    search = Search(program, Given(hints, plans, policy, held, before, around, needs, file))
    was, most = search.was, None if limit is None else limit.above(state_bytes)
    if most is not None and was <= most:
        return program, RecomputeReport(0, was, was, reason="FITS: the limit is kept as it is")
    if limit is not None and search.is_lowest:
        raise too_low(limit, was, state_bytes, held)
    if limit is None or most is None:
        found = frugal(search, spare)
    else:
        found, floor = under(search, most)
        relaxed = None if found is not None else search.relaxed()
        if relaxed is not None:
            found, floor = under(relaxed, most)
        if found is None:
            raise too_low(limit, floor, state_bytes, held)
    if found is None:
        return program, RecomputeReport(0, was, was, reason="NOT-WORTH-IT: it would cost more work than it is worth")
    return _carried_out(program, found, was)


def _carried_out(program: Program, found: Found, was: int) -> tuple[Program, RecomputeReport]:
    """The program that comes of a schedule. program: without it. was: its peak."""
    result, schedule, problem = found.written(), found.schedule, found.search.ladder.problem
    all_work = max(problem.work, 1)
    again = sum(bool(node.results()) and node.target not in TRANSFERS for node in result.nodes)
    again -= sum(bool(node.results()) for node in program.nodes) + len(found.search.draws.kept)
    bound = 0 if schedule is None else min(schedule.least_work, schedule.work)
    moved = _moved(problem, schedule) if problem.writes else None
    report = RecomputeReport(again, found.peak_bytes, was, found.work / all_work, bound / all_work, moved=moved)
    return result, report


def _moved(problem: WholeProblem, schedule: Schedule | None) -> Moved:
    """What a schedule lets go to a file."""
    if schedule is None:
        return Moved(0)
    moves = [run for run in schedule.runs if isinstance(run, Move)]
    written = [problem.sizes[move.storage] for move in moves if move.way is Way.SPILL]
    read = [problem.sizes[move.storage] for move in moves if move.way is Way.FETCH]
    return Moved(len(written), sum(written), sum(read), schedule.waiting / max(problem.work, 1))


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """A plan. peak_bytes: of it, above state and arguments. work: of what runs again, and waiting, as a part of all.
    written_bytes: what goes to a file.
    """

    peak_bytes: int
    work: float
    written_bytes: int = 0


class StepPlans:
    """What lower peaks of a step cost: found when it is asked for, as far as it is asked for."""

    def __init__(
        self, program: Program, hints: Mapping[str, Number], policy: Policy, needs: Needs, file: File | None = None
    ) -> None:
        """program: before anything runs again. needs: what nodes take besides. file: to which values may go."""
        self._program = program
        self._given = Given(hints, PlanMemory(), policy, needs=needs, file=file)

    def keeps(self, limit_bytes: int) -> bool:
        """Whether there is a plan whose peak is no higher."""
        if any(limit_bytes >= search.was for search in self._searches):
            return True
        return any(search.ladder.keeps(limit_bytes) for search in self._lowest_searches)

    @cached_property
    def floor_bytes(self) -> int:
        """The lowest peak that is found."""
        return min([min(search.was, search.ladder.floor_bytes()) for search in self._lowest_searches])

    @cached_property
    def points(self) -> tuple[PlanPoint, ...]:
        """Plans that limits get, the lowest peak first, and the program as it is last."""
        found = list[Found]()
        for search in self._searches:
            found += [Found(search, weighed) for weighed in search.ladder.curve(_HALVINGS)]
            found.append(Found(search))
        best = list[Found]()
        for one in sorted(found, key=lambda one: (one.peak_bytes, one.work)):
            if not best or one.work < best[-1].work:
                best.append(one)
        return tuple(map(_point, best))

    @cached_property
    def _searches(self) -> tuple[Search, ...]:
        search = Search(self._program, self._given)
        narrowed = search.narrowed()
        return (search,) if narrowed is None else (search, narrowed)

    @cached_property
    def _lowest_searches(self) -> tuple[Search, ...]:
        """Those for what may run again where a limit cannot be kept otherwise."""
        return tuple([search.relaxed() or search for search in self._searches])


def _point(found: Found) -> PlanPoint:
    problem = found.search.ladder.problem
    written = _moved(problem, found.schedule).written_bytes
    return PlanPoint(found.peak_bytes, found.work / max(problem.work, 1), written)


def may_pay(problem: WholeProblem) -> bool:
    """Whether any value costs little enough to be made again where nobody asked for it."""
    most = work_to_spare(problem.work)
    makers = zip(problem.can_drop, problem.makers, problem.sizes, strict=True)
    return any(can_drop and size and problem.costs[maker] <= most for can_drop, maker, size in makers)


def _refuse_unknown_sizes(program: Program) -> None:
    """A limit is not kept where nobody knows beforehand how large tensors are."""
    for node in made_symbols(program):
        if any(value.is_tensor and not all(isinstance(x, int) for x in value.tensor.shape) for value in node.results()):
            raise UnsupportedStep(
                what="makes a tensor whose size depends on data, and has a memory limit",
                why="how much memory it needs is not known before it runs",
                hint="leave memory_limit out",
                origin=node.origin,
            )


def too_low(limit: MemoryLimit, transient: int, state_bytes: int, held: Held) -> MemoryLimitTooLow:
    """The error for a limit below the lowest peak that was found."""
    floor = transient if limit.is_transient else transient + state_bytes
    return MemoryLimitTooLow(
        what=held.what,
        limit=str(limit),
        floor=readable(floor),
        floor_bytes=floor,
        least=f'memory_limit="transient:{floor}B"' if limit.is_transient else f"memory_limit={floor}",
        state=f"{readable(state_bytes)} of {held.state}",
        transient=readable(transient),
        others=held.others,
    )


def floor_of(error: MemoryLimitTooLow) -> int:
    """The lowest peak that an error names."""
    return int(str(error.facts["floor_bytes"]))
