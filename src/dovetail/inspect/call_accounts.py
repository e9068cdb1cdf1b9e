"""What a call takes and what that is made of, with what operators take for themselves; and what less would cost."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.analysis.liveness import simulate_peak
from dovetail.execute.needs import Needs
from dovetail.inspect.report_rows import CallMemory
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.pipeline.compile_trace import Lowering
from dovetail.pipeline.driver import StepRecord
from dovetail.pipeline.held import STEP
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import policy_for
from dovetail.pipeline.peak_account import MemoryAccount, peak_account
from dovetail.pipeline.recompute import PlanPoint, StepPlans

_RECOMPUTE = "recompute"  # the name of the pass


def call_memory(
    program: Program, as_run: Program, held_bytes: int, hints: Mapping[str, Number], least: int = 0
) -> tuple[CallMemory, MemoryAccount]:
    """What a run of a program takes. as_run: the program with its groups (`analysis.grouped_run`). held_bytes: of what
    is there before. least: what it takes before it begins.
    """
    needs = Needs(hints)
    needs.measure((*program.nodes, *as_run.nodes))
    account = peak_account(program, hints, needs.need_of, least)
    run_bytes = max(simulate_peak(as_run, hints, need_of=needs.need_of).peak_bytes, least)
    unknown = tuple(dict.fromkeys(str(node.target) for node in needs.unknown))
    return CallMemory(account.peak_bytes, run_bytes, held_bytes, unknown), account


def curve_of_step(lowering: Lowering, options: Options) -> tuple[PlanPoint, ...]:
    """What lower limits of a step cost: of the program before anything runs again."""
    names = [record.name if isinstance(record := step.record, StepRecord) else "" for step in lowering.steps]
    if _RECOMPUTE not in names:
        return ()
    before = lowering.steps[names.index(_RECOMPUTE) - 1].program
    return StepPlans(before, lowering.hints, policy_for(before, options, STEP), Needs(lowering.hints)).points
