"""Let a whole program keep less and compute it again: as little as a limit asks for, or what costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dovetail.analysis.liveness import simulate_peak, storage_lives
from dovetail.errors import MemoryLimitTooLow, UnsupportedStep
from dovetail.execute.needs import Needs
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Phase, Program
from dovetail.ir.sizes import Number
from dovetail.ops.transfers import TRANSFERS
from dovetail.partition.choose import work_to_spare
from dovetail.partition.policy import Policy
from dovetail.partition.whole.apply import apply_schedule
from dovetail.partition.whole.check import verify_whole
from dovetail.partition.whole.choose import Ladder
from dovetail.partition.whole.problem import File, WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Move, Schedule, Way
from dovetail.passes.collection import collection_paused
from dovetail.passes.inplace import PlanMemory, apply_plan, choose_plan, itself
from dovetail.pipeline.held import STEP, Held
from dovetail.pipeline.memory_limit import MemoryLimit, readable


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
    if limit is not None:
        _refuse_unknown_sizes(program)
    elif not may_pay(build_whole_problem(program, policy, hints)):
        return program, RecomputeReport(0, -1, -1, reason="NOT-WORTH-IT: all of it costs more work than it is worth")
    search = _Search(program, hints, plans, policy, held, before, around, needs, file)
    was, most = search.was, None if limit is None else limit.above(state_bytes)
    if most is not None and was <= most:
        return program, RecomputeReport(0, was, was, reason="FITS: the limit is kept as it is")
    if limit is not None and search.is_lowest:
        raise too_low(limit, was, state_bytes, held)
    ladder = search.ladder()
    problem = ladder.problem
    if limit is None or most is None:
        chosen = ladder.frugal()
    else:
        choice = ladder.under(most)
        chosen = choice.chosen
        relaxed = policy.under_need()
        if chosen is None and len(relaxed.marks) < len(policy.marks):
            others = (plans, limit, state_bytes, relaxed, held)
            return recompute(program, hints, *others, before=before, around=around, needs=needs, file=file)
        if chosen is None:
            raise too_low(limit, min(was, choice.floor_bytes), state_bytes, held)
    if chosen is None:
        return program, RecomputeReport(0, was, was, reason="NOT-WORTH-IT: it would cost more work than it is worth")
    result = apply_schedule(program, problem, chosen.schedule)
    verify_whole(program, result)
    schedule, all_work = chosen.schedule, max(problem.work, 1)
    again = sum(bool(node.results()) and node.target not in TRANSFERS for node in result.nodes)
    again -= sum(bool(node.results()) for node in program.nodes)
    bound = min(schedule.least_work, schedule.work) / all_work
    moved = None if file is None else _moved(problem, schedule)
    return result, RecomputeReport(again, chosen.peak_bytes, was, schedule.work / all_work, bound, moved=moved)


def _moved(problem: WholeProblem, schedule: Schedule) -> Moved:
    """What a schedule lets go to a file."""
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
        self._given = (program, hints, policy, needs)
        self._file = file

    def keeps(self, limit_bytes: int) -> bool:
        """Whether there is a plan whose peak is no higher."""
        return self._is_kept_as_it_is(limit_bytes) or self._lowest_ladder.keeps(limit_bytes)

    @cached_property
    def floor_bytes(self) -> int:
        """The lowest peak that is found."""
        return min(self._search.was, self._lowest_ladder.floor_bytes())

    @cached_property
    def points(self) -> tuple[PlanPoint, ...]:
        """Plans that limits get, the lowest peak first, and the program as it is last."""
        problem, found = self._ladder.problem, list[PlanPoint]()
        for weighed in self._ladder.curve(_HALVINGS):
            written = _moved(problem, weighed.schedule).written_bytes
            found.append(PlanPoint(weighed.peak_bytes, weighed.work / max(problem.work, 1), written))
        return (*found, PlanPoint(self._search.was, 0.0))

    def _is_kept_as_it_is(self, limit_bytes: int) -> bool:
        return limit_bytes >= self._search.was

    @cached_property
    def _search(self) -> _Search:
        program, hints, policy, needs = self._given
        return _Search(program, hints, PlanMemory(), policy, STEP, itself, itself, needs, self._file)

    @cached_property
    def _ladder(self) -> Ladder:
        return self._search.ladder()

    @cached_property
    def _lowest_ladder(self) -> Ladder:
        """That of what may run again where a limit cannot be kept otherwise."""
        policy = self._given[2]
        relaxed = policy.under_need()
        return self._ladder if len(relaxed.marks) == len(policy.marks) else self._search.ladder(relaxed)


class _Search:
    """Weighs programs in which nodes run again, and keeps none of them.

    was: the peak of the program as it is. is_lowest: whether nothing that runs again lowers it.
    """

    def __init__(
        self,
        program: Program,
        hints: Mapping[str, Number],
        plans: PlanMemory,
        policy: Policy,
        held: Held,
        before: Callable[[Program], Program],
        around: Callable[[Program], Program],
        needs: Needs | None,
        file: File | None,
    ) -> None:
        self._file = file
        self._program = program
        self._hints = hints
        self._plans = plans
        self._policy = policy
        self._before = before
        self._around = around
        self._needs = needs or Needs(hints)
        self._least = held.least_bytes(program)
        in_place = self._plans.in_place(before(program))[1]
        self.was = self._peak_of(in_place, self._needs)
        self.is_lowest = self._cannot_be_lower(in_place)

    def _cannot_be_lower(self, in_place: Program) -> bool:
        """Whether only what ran before the program is there at its peak, and what the node there reads or makes."""
        run = self._around(in_place)
        if run is in_place:
            return False
        at = simulate_peak(run, self._hints, need_of=self._needs.need_of).node
        used = {v.tensor.storage for v in (*run.nodes[at].operands(), *run.nodes[at].results()) if v.is_tensor}
        there = (life for life in storage_lives(run, self._hints) if life.first <= at <= life.last and life.bytes)
        others = (life for life in there if life.storage not in used and not life.is_returned)
        return all(run.nodes[life.first].phase is Phase.FORWARD for life in others)

    def ladder(self, policy: Policy | None = None) -> Ladder:
        """The schedules of the program. policy: another one."""
        program, needs = self._program, self._needs
        needs.measure(program.nodes)
        plan = self._plans.in_place(self._before(program))[0]
        places = {storage: buffer.number for storage, (buffer, _) in plan.places.items()}
        policy = policy or self._policy
        problem = build_whole_problem(program, policy, self._hints, needs.need_of, places, file=self._file)

        def weigh(schedule: Schedule) -> int:
            changed = self._before(apply_schedule(program, problem, schedule))
            return self._peak_of(apply_plan(choose_plan(changed, self._plans.donated, commit=True)), needs.apart())

        return Ladder(problem, self.was, weigh)

    def _peak_of(self, in_place: Program, needs: Needs) -> int:
        run = self._around(in_place)
        needs.measure(run.nodes)
        return max(simulate_peak(run, self._hints, need_of=needs.need_of).peak_bytes, self._least)


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
