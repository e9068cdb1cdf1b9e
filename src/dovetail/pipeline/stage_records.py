"""Records of what stages of a graph did that are no passes."""

from __future__ import annotations

from dovetail.ir.program import Program
from dovetail.partition.choose import PartitionReport
from dovetail.partition.split import Split
from dovetail.pipeline.driver import StepRecord, elapsed_us, writes


def functionalized(recorded: Program, functional: Program, start_ns: int) -> StepRecord:
    """What recording the backward and taking the writes out did."""
    before, after = (sum(map(writes, program.nodes)) for program in (recorded, functional))
    did = f"{before} writes became new values" if not after else f"{before - after} of {before} writes became values"
    return StepRecord("functional", len(recorded.nodes), len(functional.nodes), elapsed_us(start_ns), did)


def partitioned(program: Program, split: Split, report: PartitionReport | None, start_ns: int) -> StepRecord:
    """What the split did; the rejected cut is its reason."""
    after = len(split.forward.nodes) + len(split.backward.nodes)
    did = f"{len(split.residuals)} values are saved for backward" + (f"; {report}" if report is not None else "")
    reason = report.reason if report is not None else ""
    return StepRecord("partition", len(program.nodes), after, elapsed_us(start_ns), did, reason, report)


def wrote_inputs(before: Program, after: Program) -> StepRecord:
    """What writing inputs in the program did."""
    did = f"{len(after.nodes) - len(before.nodes)} writes to inputs happen in the program"
    return StepRecord("write_inputs", len(before.nodes), len(after.nodes), 0, did)
