"""Explanations of whole training steps: one program with forward, backward and the update."""

from __future__ import annotations

from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.categories import handed_to_backward
from dovetail.inspect.decisions import inplace_decisions, step_decisions
from dovetail.inspect.explain_rows import (
    JOINT,
    eager_memory,
    kept_inplace_report,
    program_report,
    recorded_program,
    source_lines,
    step_rows,
)
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.memory_map import memory_map
from dovetail.inspect.report_rows import Decision
from dovetail.inspect.step_time import measure_step
from dovetail.ir.program import Program
from dovetail.pipeline.trail import Lowering

KIND = "training step"


def explain_step(lowering: Lowering, executors: ExecutorList | None, *, measure_time: bool = False) -> Explanation:
    """What was decided for a whole step. measure_time: also run it on random inputs, next to eager mode."""
    decisions: list[Decision] = []
    before: Program | None = None
    for step in lowering.steps:
        in_place = kept_inplace_report(step)
        if before is not None and in_place is not None:
            decisions += inplace_decisions(before, in_place)
        before = step.program
    assert before is not None, "a lowering of a step has steps"
    program, hints, recorded = before, lowering.hints, recorded_program(lowering)
    memory = memory_map(program, hints, handed_to_backward(program))
    report = program_report(program, KIND, memory, executors)
    rows = [*step_decisions(program, memory), *decisions]
    time = measure_step(recorded, [program], executors, hints) if measure_time and recorded is not None else None
    return Explanation(
        lowering.name,
        (report,),
        memory,
        tuple(step_rows(lowering, (JOINT,))),
        tuple(rows),
        source_lines([report], rows),
        eager_memory(lowering),
        time,
    )
