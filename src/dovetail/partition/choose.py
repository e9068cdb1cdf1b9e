"""Choose between saving everything and computing again, by what a step is predicted to need.

Fewer saved bytes do not always mean a lower peak: what is computed again lives in backward, and values that only served
it live longer. So both splits are simulated, forward and backward as one run, and the default one stays unless the
other is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail.analysis.liveness import simulate_peak, storage_bytes
from dovetail.ir.program import Program
from dovetail.ir.signature import Residual
from dovetail.ir.sizes import Number
from dovetail.partition.policy import Policy
from dovetail.partition.problem import moved_bytes, pose_problem
from dovetail.partition.recompute import split_keeping
from dovetail.partition.solve import solve_cut
from dovetail.partition.split import Split, split_by_phase

# How much more memory traffic of a step a lower peak may cost where nobody asked for it.
_WORTH = 1.02


@dataclass(frozen=True, slots=True)
class StepCost:
    """What forward and backward of a split need together.

    saved_bytes: of residuals that would be freed otherwise, each piece of memory once. peak_bytes: simulated, without
    inputs. moved_bytes: read and written by all nodes.
    """

    saved_bytes: int
    peak_bytes: int
    moved_bytes: int

    def __str__(self) -> str:
        return f"saves {self.saved_bytes} bytes, peak {self.peak_bytes}, moves {self.moved_bytes}"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """default, min_cut: costs of the two splits. again: how many nodes run again. reason: why the default one stays."""

    default: StepCost
    min_cut: StepCost
    again: int
    reason: str = ""

    def __str__(self) -> str:
        kept = f"default split kept, {self.reason}" if self.reason else f"{self.again} nodes run again"
        return f"{kept}: default {self.default}; min-cut {self.min_cut}"


def split_by_cut(program: Program, policy: Policy, hints: Mapping[str, Number]) -> Split:
    """The split that saves the fewest bytes. hints: a number for each size symbol."""
    posed = pose_problem(program, policy, hints)
    saved = solve_cut(posed.problem).saved
    homes = posed.homes
    return split_keeping(program, lambda value: homes[value] < 0 or homes[value] in saved)


def choose_split(
    program: Program, policy: Policy, hints: Mapping[str, Number], only_if_worth_it: bool
) -> tuple[Split, PartitionReport]:
    """The split by a cheapest cut, or the default one where its peak is lower.

    only_if_worth_it: the default one as well where the step would cost noticeably more.
    """
    default, cut = split_by_phase(program), split_by_cut(program, policy, hints)
    again = sum(node.recomputed for node in cut.backward.nodes) - sum(n.recomputed for n in default.backward.nodes)
    before, after = step_cost(program, default, hints), step_cost(program, cut, hints)
    reason = ""
    if not again:
        reason = "NOTHING-TO-GAIN: every value is saved"
    elif after.peak_bytes > before.peak_bytes:
        reason = f"PEAK-RISES: {after.peak_bytes} > {before.peak_bytes} simulated bytes"
    elif only_if_worth_it and not worth_it(before, after):
        reason = f"NOT-WORTH-IT: moves {after.moved_bytes} bytes, not {before.moved_bytes}"
    return default if reason else cut, PartitionReport(before, after, again, reason)


def step_cost(program: Program, split: Split, hints: Mapping[str, Number]) -> StepCost:
    """What a split of a program is predicted to need."""
    return StepCost(
        residual_bytes(split, hints),
        simulate_peak(joined(program, split), hints).peak_bytes,
        sum(moved_bytes(node, hints) for half in (split.forward, split.backward) for node in half.nodes),
    )


def worth_it(before: StepCost, after: StepCost) -> bool:
    """Whether the peak falls, and the step moves hardly more bytes."""
    return after.peak_bytes < before.peak_bytes and after.moved_bytes <= _WORTH * before.moved_bytes


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
