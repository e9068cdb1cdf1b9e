"""Splits in which backward computes values again, and what they are predicted to need.

Fewer saved bytes do not always mean a lower peak: recomputed values live in backward, and values needed only to
recompute them live longer. So splits are simulated, forward and backward as one run. Where nobody asked for
recomputation it must be cheap relative to the step: prices of work are tried until it is. `pipeline.splitting` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from dovetail.analysis.liveness import simulate_peak, storage_bytes
from dovetail.errors import BadOptionValue
from dovetail.ir.program import Node, Program
from dovetail.ir.signature import Residual
from dovetail.ir.sizes import Number
from dovetail.partition.check_recompute import verify_recomputation
from dovetail.partition.policy import Policy
from dovetail.partition.problem import BuiltProblem, Problem, Solution, build_problem
from dovetail.partition.recompute import split_keeping
from dovetail.partition.solve import follow, solve_cut
from dovetail.partition.split import Split, split_by_phase
from dovetail.partition.work import work_of

# How much more work of a step a lower peak may cost where nobody asked for it.
MOST_WORK = 1.02
# Bytes saved that a byte of work counts for, as powers of two: a node moves two bytes at least for each that it saves.
_LOWEST_PRICE, _HIGHEST_PRICE = -9.0, -1.0
_TRIALS = 7
MIN_CUT = "min-cut"
NOTHING_TO_GAIN = "NOTHING-TO-GAIN: every value is saved"


def work_to_spare(work: int) -> float:
    """How much work may run again where nobody asked for it. work: of the program."""
    return (MOST_WORK - 1) * work


@dataclass(frozen=True, slots=True)
class StepCost:
    """What forward and backward of a split need together.

    saved_bytes: of residuals that would be freed otherwise, each piece of memory once. peak_bytes: simulated, without
    inputs. work: of all nodes, in bytes (`partition.work`).
    """

    saved_bytes: int
    peak_bytes: int
    work: int

    def __str__(self) -> str:
        return f"saves {self.saved_bytes} bytes, peak {self.peak_bytes}, work {self.work}"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """default, chosen: costs of two splits; the rejected one where the default one stays. solver: who found it.
    recomputed: how many nodes. reason: why the default one stays.
    """

    default: StepCost
    chosen: StepCost
    solver: str
    recomputed: int
    reason: str = ""

    def __str__(self) -> str:
        kept = f"default split kept, {self.reason}" if self.reason else f"{self.recomputed} nodes run again"
        return f"{kept}: default {self.default}; {self.solver} {self.chosen}"


def split_by_cut(program: Program, policy: Policy, hints: Mapping[str, Number]) -> Split:
    """The split that saves the fewest bytes. hints: a number for each size symbol."""
    built = build_problem(program, policy, hints)
    return _carried_out(program, built, solve_cut(built.problem))


def split_by(
    choose: Callable[[Problem], Collection[int]], program: Program, policy: Policy, hints: Mapping[str, Number]
) -> Split:
    """The split that a function chooses: it is given the problem, and gives numbers of the values to save.

    What backward needs beyond these is computed again where it can be, and saved where it cannot. The split is checked.
    Raises: BadOptionValue for what are not numbers of values.
    """
    built = build_problem(program, policy, hints)
    saved = choose(built.problem)
    values = range(len(built.problem.sizes))
    if not isinstance(saved, Collection) or any(value not in values for value in saved):
        expected = f"a collection of numbers below {len(values)}"
        raise BadOptionValue(option="partition", value=saved, reason="the function returned it", expected=expected)
    kept = frozenset(value for value in saved if built.problem.sizes[value] is not None)
    split = _carried_out(program, built, follow(built.problem, kept))
    verify_recomputation(program, split)
    return split


def cut_within(program: Program, policy: Policy, hints: Mapping[str, Number], most_work: float) -> Split | None:
    """A split that saves few bytes, in which nodes of so much work run again at most; None where none do."""
    built = build_problem(program, policy, hints)
    best = solve_cut(built.problem)
    if best.work > most_work:
        best = _within(built.problem, most_work)
    return _carried_out(program, built, best) if best.recomputed else None


def choose_split(program: Program, policy: Policy, hints: Mapping[str, Number]) -> tuple[Split, PartitionReport]:
    """The split by a minimum cut, or the default one where its peak is lower."""
    default, cut = split_by_phase(program), split_by_cut(program, policy, hints)
    known: dict[Node, int] = {}
    before, after = (step_cost(program, split, hints, known) for split in (default, cut))
    recomputed = added_nodes(default, cut)
    reason = ""
    if not recomputed:
        reason = NOTHING_TO_GAIN
    elif after.peak_bytes > before.peak_bytes:
        reason = f"PEAK-RISES: {after.peak_bytes} > {before.peak_bytes} simulated bytes"
    return default if reason else cut, PartitionReport(before, after, MIN_CUT, recomputed, reason)


def added_nodes(default: Split, other: Split) -> int:
    """How many nodes of the second split run a second time, beyond those of the first one."""
    first, second = (
        sum(node.recomputed for half in (split.forward, split.backward) for node in half.nodes)
        for split in (default, other)
    )
    return second - first


def _within(problem: Problem, most_work: float) -> Solution:
    """The best choice found at a price at which nodes that run again keep to a limit; to save all, if need be."""
    found = follow(problem, range(len(problem.sizes)))
    tilted = _tilted(problem, most_work)
    low, high = _LOWEST_PRICE, _HIGHEST_PRICE  # as powers of two
    for _ in range(_TRIALS):
        middle = (low + high) / 2
        here = follow(problem, solve_cut(tilted, Fraction(2**middle)).saved)
        if here.work <= most_work:
            high, found = middle, here
        else:
            low = middle
    return found


def _tilted(problem: Problem, most_work: float) -> Problem:
    """The problem without nodes that are above the limit by themselves, in which later nodes cost a little more.

    Many nodes are as good as each other, and one price would decide alike on all of them.
    """
    count = len(problem.costs)
    can_run = [cost is not None and cost <= most_work for cost in problem.costs]
    costs = [(count + node) * (cost or 0) if can_run[node] else None for node, cost in enumerate(problem.costs)]
    sizes = [None if size is None else count * size for size in problem.sizes]
    reads = [read if can_run[node] else () for node, read in enumerate(problem.reads)]
    must_run = [value for value, size in enumerate(sizes) if size is None and not can_run[problem.makers[value]]]
    for value in must_run:  # it is asked for, whatever it costs
        node = problem.makers[value]
        costs[node], reads[node] = (count + node) * (problem.costs[node] or 0), problem.reads[node]
    return replace(problem, sizes=tuple(sizes), costs=tuple(costs), reads=tuple(reads))


def _carried_out(program: Program, built: BuiltProblem, solution: Solution) -> Split:
    homes, saved = built.homes, solution.saved
    return split_keeping(program, lambda value: homes[value] < 0 or homes[value] in saved)


def step_cost(
    program: Program, split: Split, hints: Mapping[str, Number], known: dict[Node, int] | None = None
) -> StepCost:
    """What a split of a program is predicted to need. known: the work of nodes, which is added to."""
    both, works = joined(program, split), {} if known is None else known
    works.update((node, work_of(node, hints)) for node in both.nodes if node not in works)
    work = sum(works[node] for node in both.nodes)
    return StepCost(residual_bytes(split, hints), simulate_peak(both, hints).peak_bytes, work)


def joined(program: Program, split: Split) -> Program:
    """Both halves of a split as one program again, with the inputs and outputs of the one that was split."""
    return replace(program, nodes=(*split.forward.nodes, *split.backward.nodes))


def residual_bytes(split: Split, hints: Mapping[str, Number]) -> int:
    """Bytes that residuals hold between forward and backward, without inputs, their contents and what the user gets."""
    sizes = storage_bytes(split.forward, hints)
    roles = list(zip(split.forward.signature.outputs, split.forward.outputs, strict=True))
    handed = {value for role, value in roles if isinstance(role, Residual)}
    given = replace(split.forward, outputs=tuple(v for role, v in roles if not isinstance(role, Residual)))
    others = given.output_storages() | split.forward.input_storages()
    kept = replace(split.forward, outputs=tuple(handed)).output_storages() - others
    return sum(sizes[storage] for storage in kept)
