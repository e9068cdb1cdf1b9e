"""Split a graph: what forward saves, by the peak of both halves as they will run.

Three solvers make splits: the default one, which saves what backward reads; the minimum cut, which knows bytes and no
time (`partition.solve`); and schedules of the whole program (`partition.whole`). What counts is the simulated peak of
what comes of each, in place, with what operators take for themselves (`analysis.one_run`).

| asked for | chosen |
|---|---|
| a limit in bytes | of the splits that keep it, the one with the least work |
| `partition="auto"` | the lowest peak for two percent more work |
| `partition="min_cut"` | the minimum cut, unless its peak is higher than that of the default split |
| `partition="default"` | the default split |
| a function | what it chooses |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.one_run import as_one_run
from dovetail.errors import MemoryLimitTooLow
from dovetail.execute.needs import Needs
from dovetail.ir.calling import CallPlan
from dovetail.ir.program import Node, Phase, Program
from dovetail.ir.sizes import Number
from dovetail.partition.check import verify_split
from dovetail.partition.check_recompute import verify_recomputation
from dovetail.partition.choose import (
    MIN_CUT,
    NOTHING_TO_GAIN,
    PartitionReport,
    StepCost,
    added_nodes,
    choose_split,
    cut_within,
    joined,
    residual_bytes,
    split_by,
    step_cost,
    work_to_spare,
)
from dovetail.partition.narrow_draws import narrow_draws, without_round_trips
from dovetail.partition.policy import Mark, Policy
from dovetail.partition.problem import Problem
from dovetail.partition.split import Split, dying_inputs, split_by_phase
from dovetail.partition.whole.check import verify_sources
from dovetail.partition.whole.choose import Weighed
from dovetail.partition.whole.halves import read_until
from dovetail.partition.whole.problem import build_whole_problem
from dovetail.partition.work import work_of
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.copies_back import carry_out_writes
from dovetail.pipeline.driver import weighed_passes
from dovetail.pipeline.forwards import Way, way_within
from dovetail.pipeline.halves import Candidate, Halves, keeping, stays_behind
from dovetail.pipeline.held import GRAPH
from dovetail.pipeline.memory_limit import MemoryLimit, memory_limit
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import Context
from dovetail.pipeline.recompute import floor_of, may_pay, recompute, too_low
from dovetail.pipeline.split_schedules import WHOLE, Schedules
from dovetail.torch_compat.autograd import frees_arriving_gradients

_HALVINGS = 3  # of the ladder, for a backward that is planned later


class Splitting:
    """Splits the programs of one graph for all patterns of gradients that arrive: the first one decides what is saved.

    kept: names of what forward saves, where that is not the default. needs: what operators take for themselves.
    plans: how halves work in place.
    """

    def __init__(
        self,
        plan: CallPlan,
        hints: Mapping[str, Number],
        options: Options,
        leaves: frozenset[int] = frozenset(),
    ) -> None:
        """leaves: numbers of the inputs that are leaves of autograd's graph."""
        limit = None if options.memory_limit is None else memory_limit(options.memory_limit)
        self.kept: frozenset[str] | None = None
        self._draws: frozenset[str] | None = None  # names of those that are kept as narrower copies, once decided
        self.needs = Needs(hints)
        self.plans = PlanMemory(need_of=None if limit is None else self.needs.need_of)
        self.limit = limit
        self._plan = plan
        self._hints = hints
        self._options = options
        self._leaves = leaves
        self._partition: str | Callable[[Problem], Collection[int]] = options.partition
        self._policy = Policy(recompute=options.recomputes, only_what_eager_holds=options.partition != "min_cut")
        self._patterns = options.policy
        self._is_foreign = options.compilers is not None  # whose code is not ours, and its needs unknown
        self._written: dict[int, tuple[Program, Program]] = {}
        self._works: dict[Node, int] = {}
        self._is_default = False

    # --- how a split runs ---------------------------------------------------------------------------------------------

    def written(self, forward: Program) -> Program:
        """Forward with its writes to inputs; the same object for the same program."""
        known = self._written.get(id(forward))
        if known is None:
            changed = carry_out_writes(without_round_trips(forward), self._plan)
            known = self._written[id(forward)] = (forward, changed)
        return known[1]

    def peak_of_run(self, forward: Program, backward: Program, stays: Collection[str] = ()) -> int:
        """The peak of halves that run one after the other, as they are. stays: see `analysis.one_run`."""
        return self._peaks_of_run(forward, backward, stays)[0]

    def _peaks_of_run(self, forward: Program, backward: Program, stays: Collection[str]) -> tuple[int, int]:
        """That peak, and the one until backward begins."""
        run = as_one_run(forward, backward, stays, self._leaves, lets_go=frees_arriving_gradients())
        self.needs.measure(run.nodes)
        given, border = (run, self._hints, (), self.needs.need_of), len(forward.nodes) + 1
        return simulate_peak(*given).peak_bytes, simulate_peak(*given, end=border).peak_bytes

    def _peak_of(self, split: Split) -> int:
        """The peak of a split as its halves will run, with a gradient for each output."""
        dying = dying_inputs(split, arriving=frees_arriving_gradients(), is_last=True)
        context = Context(self._options, self._hints, dying=dying, plans=self.plans)
        backward = weighed_passes("backward", split.backward, context)
        return self.peak_of_run(self._forward_of(split), backward)

    def weighed(self, halves: Halves, solver: str) -> Candidate:
        """What a split costs. solver: who found it."""
        split = halves.split
        if self._is_foreign:
            peak = simulate_peak(joined(halves.joint, split), self._hints).peak_bytes
        else:
            peak = self._peak_of(split)
        nodes = (*split.forward.nodes, *split.backward.nodes)
        self._works.update({node: work_of(node, self._hints) for node in nodes if node not in self._works})
        free = {node for node, mark in self._patterns.of(halves.joint).items() if mark is Mark.RECOMPUTE}
        return Candidate(halves, solver, peak, sum([self._works[node] for node in nodes if node not in free]))

    def too_low(self, split: Split, stays: Collection[str], state: int) -> MemoryLimitTooLow | None:
        """The error for a split, as its halves run, that does not keep the limit. state: bytes of inputs."""
        if self.limit is None:
            return None
        peak = self.peak_of_run(split.forward, split.backward, stays)
        return too_low(self.limit, peak, state, GRAPH) if peak > self.limit.above(state) else None

    def plans_after(self, forward: Program, stays: Collection[str]) -> PlanMemory:
        """How backwards work in place, and the peaks that they have with the forward that runs before them."""

        def around(late: Program) -> Program:
            run = as_one_run(forward, late, stays, self._leaves, lets_go=frees_arriving_gradients())
            self.needs.measure(run.nodes)
            return run

        return PlanMemory(need_of=self.needs.need_of, around=around)

    def backward_within(self, backward: Program, plans: PlanMemory, dying: Collection[int], state: int) -> Program:
        """The backward for another pattern, in which nodes run again as far as the limit asks for it.

        plans: see `plans_after`. dying: numbers of its inputs that nobody else holds. Raises: MemoryLimitTooLow.
        """

        def before(late: Program) -> Program:
            return weighed_passes("backward", late, context, without="reinplace")

        context = Context(self._options, self._hints, dying=dying, plans=plans)
        limit, policy = self.limit, replace(self._policy, marks=self._patterns.of(backward))
        given = (backward, self._hints, plans, limit, state, policy, GRAPH)
        return recompute(*given, before=before, around=plans.around)[0]

    def apart(self) -> Splitting:
        """The same for splits that are only looked at: what it works out is forgotten with it."""
        other = Splitting(self._plan, self._hints, self._options, leaves=self._leaves)
        other.needs = self.needs.apart()
        other.plans = PlanMemory(need_of=None if self.limit is None else other.needs.need_of)
        return other

    def narrowed(self, program: Program, state_bytes: int = 0) -> Program:
        """The program that keeps draws as narrower copies, where the limit is not kept as it is; itself elsewhere.

        What is decided for the first program holds for all. state_bytes: of inputs.
        """
        if self._draws is None:
            self._draws = frozenset()
            trains = any(node.phase is Phase.BACKWARD for node in program.nodes)
            if trains and self.limit is not None and not self._is_foreign and not callable(self._partition):
                changed, found = narrow_draws(program, self._hints, math.inf)
                plain = self.weighed(Halves(program, split_by_phase(program)), "default") if found.kept else None
                if plain is not None and plain.peak_bytes > self.limit.above(state_bytes):
                    self._draws = frozenset(found.kept)
                    return changed
        return narrow_draws(program, self._hints, math.inf, self._draws)[0] if self._draws else program

    # --- choosing -----------------------------------------------------------------------------------------------------

    def split(self, program: Program, state_bytes: int = 0, likely: Callable[[], Program] | None = None) -> Halves:
        """The program in halves. What the first pattern saves holds for all: the others compute the rest again.

        state_bytes: of inputs. likely: the program with the backward that the limit is for, where it is another one.
        Raises: MemoryLimitTooLow.
        """
        if self.kept is not None:
            return Halves(program, keeping(program, self.kept))
        default = Halves(program, split_by_phase(program))
        policy = replace(self._policy, marks=self._patterns.of(program))
        if self._is_default or all(node.phase is Phase.FORWARD for node in program.nodes):
            return default
        if callable(self._partition):
            found = Halves(program, split_by(self._partition, program, policy, self._hints))
        elif self.limit is not None:
            if likely is None:
                found = self._under(default, policy, self.limit, state_bytes)
            else:
                found = self._for_another(default, policy, self.limit, state_bytes, likely())
        elif self._partition == "default":
            found = default
        elif self._partition == "min_cut":
            found = Halves(program, *choose_split(program, policy, self._hints))
        else:
            found = self._frugal(default, policy)
        self._is_default = found.split.residuals == default.split.residuals and found.joint is program
        self._is_default = self._is_default and not callable(self._partition)
        if not self._is_default:
            self.kept = frozenset(found.split.residuals)
        return found

    def verify(self, program: Program, halves: Halves) -> None:
        """Prove a split of a program, independently of how it was made. Raises: InvalidProgram."""
        if halves.joint is not program:
            verify_split(halves.joint, halves.split)
            policy = replace(self._policy, marks=self._patterns.of(program))
            strict, more = policy.only_what_eager_holds, policy.may_hold()
            verify_sources(program, halves.split, only_what_eager_holds=strict, may_hold=more)
        elif self.kept is None:
            verify_split(program, halves.split)
        else:
            verify_recomputation(program, halves.split)

    def _frugal(self, default: Halves, policy: Policy) -> Halves:
        """The lowest peak for two percent more work at most."""
        program, hints = default.joint, self._hints
        problem = build_whole_problem(program, policy, hints, until=read_until(program, policy))
        most = work_to_spare(problem.work)
        cut = cut_within(program, policy, hints, most)
        if cut is None and not may_pay(problem):
            reason = f"NOT-WORTH-IT: nothing runs again for {most:.0f} of work"
            return self._kept_default(default, None, reason if any(problem.can_drop) else NOTHING_TO_GAIN)
        found = [] if cut is None else [self.weighed(Halves(program, cut), MIN_CUT)]
        before = self.weighed(default, "default")
        if may_pay(problem):
            schedules = Schedules(self, default, before.peak_bytes, policy, self._hints)
            weighed = schedules.ladder.frugal(most)
            found += [] if weighed is None else [schedules.candidate(weighed)]
        best = min(found, key=lambda one: (one.peak_bytes, one.work), default=before)
        if best.peak_bytes >= before.peak_bytes:
            reason = f"NOT-WORTH-IT: peak {best.peak_bytes}, not {before.peak_bytes}"
            return self._kept_default(default, best, reason)
        return self._reported(default, before, best)

    def _under(self, default: Halves, policy: Policy, limit: MemoryLimit, state_bytes: int) -> Halves:
        """The least work below a limit."""
        most, before = limit.above(state_bytes), self.weighed(default, "default")
        if before.peak_bytes <= most:
            return self._kept_default(default, before, "FITS: the limit is kept as it is")
        found = self._cut(default, policy)
        schedules = Schedules(self, default, before.peak_bytes, policy, self._hints)
        choice = schedules.ladder.under(most)
        weighed = choice.chosen or choice.lowest
        found += [] if weighed is None else [schedules.candidate(weighed)]
        fits = [one for one in found if one.peak_bytes <= most]
        relaxed = policy.under_need()
        if not fits and len(relaxed.marks) < len(policy.marks):
            return self._under(default, relaxed, limit, state_bytes)
        if not fits:
            raise too_low(limit, min([one.peak_bytes for one in (before, *found)]), state_bytes, GRAPH)
        return self._reported(default, before, min(fits, key=lambda one: (one.work, one.peak_bytes)))

    def _for_another(
        self, default: Halves, policy: Policy, limit: MemoryLimit, state_bytes: int, likely: Program
    ) -> Halves:
        """The split with which the backward of another program keeps the limit (`pipeline.forwards`)."""
        before, most = self.weighed(default, "default"), limit.above(state_bytes)
        plain = self._way(default, before, likely)
        if plain.both_bytes <= most:
            return self._kept_default(default, before, "FITS: the limit is kept as it is")
        ways = [plain, *self._ways(default, before, policy, likely)]
        way = way_within(ways, most)
        way = way or self._first_planned(default, before, ways, state_bytes, likely)
        if way.solver == "default":
            return self._kept_default(default, before, "FITS: the limit is kept as it is")
        if way.schedule is None or way.policy is None:
            return self._reported(default, before, *self._cut(default, policy))
        schedules = Schedules(self, default, before.peak_bytes, way.policy, self._hints)
        return self._reported(default, before, schedules.candidate(Weighed(way.schedule, way.peak_bytes)))

    def _first_planned(
        self, default: Halves, before: Candidate, ways: Collection[Way], state_bytes: int, likely: Program
    ) -> Way:
        """The first way, from the lowest peak on, whose backward can be planned. Raises: MemoryLimitTooLow."""
        errors, lowest = list[MemoryLimitTooLow](), math.inf
        for way in sorted(ways, key=lambda way: (way.loss_bytes, way.work)):
            if way.forward_bytes >= lowest:
                continue  # its backward can neither keep the limit nor be the lowest
            other = self.apart()
            try:
                other.peaks_later(other.halves_of(default, before, way), default, likely, state_bytes)
                return way
            except MemoryLimitTooLow as error:
                errors.append(error)
                lowest = min(lowest, floor_of(error) - (0 if self.limit and self.limit.is_transient else state_bytes))
        raise min(errors, key=floor_of)

    def halves_of(self, default: Halves, before: Candidate, way: Way) -> Halves:
        """The split of a way, which is only looked at."""
        if way.schedule is not None and way.policy is not None:
            return Schedules(self, default, before.peak_bytes, way.policy, self._hints).halves(way.schedule)[0]
        return default if way.solver == "default" else self._cut(default, self._policy)[0].halves

    def _forward_of(self, split: Split) -> Program:
        context = Context(self._options, self._hints, plans=self.plans)
        return weighed_passes("forward", self.written(split.forward), context)

    def _ways(self, default: Halves, before: Candidate, policy: Policy, likely: Program) -> Iterator[Way]:
        """Ways to split a program beside the default one, the same ones under any limit."""
        yield from (self._way(default, one, likely) for one in self._cut(default, policy))
        relaxed = policy.under_need()
        for some in (policy, relaxed) if len(relaxed.marks) < len(policy.marks) else (policy,):
            schedules = Schedules(self, default, before.peak_bytes, some, self._hints)
            for point in schedules.ladder.curve(_HALVINGS):
                peaks = self.apart().peaks_later(schedules.halves(point.schedule)[0], default, likely)
                yield Way(point.peak_bytes, *peaks, before.work + point.work, WHOLE, point.schedule, some)

    def _way(self, default: Halves, one: Candidate, likely: Program) -> Way:
        return Way(one.peak_bytes, *self.apart().peaks_later(one.halves, default, likely), one.work, one.solver)

    def peaks_later(
        self, halves: Halves, default: Halves, likely: Program, state_bytes: int | None = None
    ) -> tuple[int, int]:
        """The peak of the backward of another program after the forward of a split, and that until backward begins.

        default: what is split by itself. state_bytes: of inputs, where nodes run again in it as far as the limit asks
        for it. Raises: MemoryLimitTooLow.
        """
        split = halves.split
        first = replace(split, forward=self._forward_of(split))
        is_default = halves.joint is default.joint and split.residuals == default.split.residuals
        after = split_by_phase(likely) if is_default else keeping(likely, split.residuals)
        stays = stays_behind(first, after)
        dying = dying_inputs(after, arriving=frees_arriving_gradients())
        plans, backward = self.plans_after(first.forward, stays), after.backward
        if state_bytes is not None:
            backward = self.backward_within(backward, plans, dying, state_bytes)
        context = Context(self._options, self._hints, dying=dying, plans=plans)
        return self._peaks_of_run(first.forward, weighed_passes("backward", backward, context), stays)

    def _cut(self, default: Halves, policy: Policy) -> list[Candidate]:
        """The minimum cut, where anything runs again for it."""
        cut = cut_within(default.joint, policy, self._hints, math.inf)
        return [] if cut is None else [self.weighed(Halves(default.joint, cut), MIN_CUT)]

    # --- reports ------------------------------------------------------------------------------------------------------

    def _cost(self, one: Candidate) -> StepCost:
        return StepCost(residual_bytes(one.halves.split, self._hints), one.peak_bytes, one.work)

    def _kept_default(self, default: Halves, rejected: Candidate | None, reason: str) -> Halves:
        before = step_cost(default.joint, default.split, self._hints, self._works)
        after, solver = (before, "none") if rejected is None else (self._cost(rejected), rejected.solver)
        return replace(default, report=PartitionReport(before, after, solver, 0, reason))

    def _reported(self, default: Halves, before: Candidate, best: Candidate) -> Halves:
        again = added_nodes(default.split, best.halves.split)
        report = PartitionReport(self._cost(before), self._cost(best), best.solver, again)
        return replace(best.halves, report=report)
