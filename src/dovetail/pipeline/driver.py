"""Run passes in order: check each, time each, and dump each; drop what raises the simulated peak.

Stages: the recorded program is impure; capture hands over a functional one of two phases; the passes keep it
functional; the split makes two halves, a step is made to write its state; executors turn those into code.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.analysis.liveness import simulate_peak
from dovetail.deferred import deferred
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Program, Stage
from dovetail.ir.stages import verify_program
from dovetail.ir.text import emit, plain_call
from dovetail.ops.facts import writes_of
from dovetail.pipeline.dump import JOINT, Dump
from dovetail.pipeline.passes import PASSES, Context, PassSpec, is_stopped

if TYPE_CHECKING:
    from dovetail.analysis import verify_inplace
    from dovetail.pipeline import differential
else:
    differential = deferred("dovetail.pipeline.differential")
    verify_inplace = deferred("dovetail.analysis.verify_inplace")

PASS_NAMES = tuple(dict.fromkeys(spec.name for passes in PASSES.values() for spec in passes.specs))
"""The names of all passes, of every kind of program."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one pass did. reason: why its result was dropped ("" when it was kept). details: the pass's own report."""

    name: str
    nodes_before: int
    nodes_after: int
    time_us: int
    report: str
    reason: str = ""
    details: object = None


def run_passes(
    kind: str,
    program: Program,
    context: Context,
    dump: Dump,
    *,
    only: Collection[str] | None = None,
    decisions: Mapping[str, bool] | None = None,
) -> tuple[Program, tuple[StepRecord, ...]]:
    """The program after the passes for its kind, a key of `PASSES`, and a record of each.

    only: names of those to run; all by default. decisions: by name, whether what a pass makes is kept, where that was
    settled before; otherwise the simulated peaks settle it.
    """
    options, passes, records = context.options, PASSES[kind], list[StepRecord]()
    if options.verify:
        verify_program(program, writes)
    if is_stopped(kind, options.stop_after):
        return program, ()
    for spec in passes.specs:
        if spec.name in options.skip or (only is not None and spec.name not in only):
            continue
        keep = (decisions or {}).get(spec.name, None if passes.weighs and not spec.weighs_itself else True)
        program, record = _run_pass(spec, program, context, keep)
        records.append(record)
        dump.step(spec.name if passes.part == JOINT else f"{spec.name}-{passes.part}", program, record, passes.part)
        if spec.name == options.stop_after:
            break
    return program, tuple(records)


def weighed_passes(kind: str, program: Program, context: Context, *, without: str = "") -> Program:
    """The program after the passes for its kind, as `run_passes` makes it, of one that is only weighed.

    without: the name of a pass that is left out.
    """
    options, passes = context.options, PASSES[kind]
    if is_stopped(kind, options.stop_after):
        return program
    for spec in passes.specs:
        if spec.name not in options.skip and spec.name != without:
            result = spec.run(program, context)[0]
            is_weighed = passes.weighs and not spec.weighs_itself
            program = program if is_weighed and _worse(program, result, context) else result
        if spec.name == options.stop_after:
            break
    return program


def _run_pass(spec: PassSpec, program: Program, context: Context, keep: bool | None) -> tuple[Program, StepRecord]:
    """keep: whether the result is kept; None: unless the simulated peak rises."""
    level = context.options.verify
    before_text = program_text(program) if level else ""
    start = time.perf_counter_ns()
    result, report = spec.run(program, context)
    spent = elapsed_us(start)
    if level:
        if program_text(program) != before_text:
            raise _broken(program, "a pass does not edit its input", spec.name)
        if program.stage not in spec.accepts:
            raise _broken(program, "a pass is given a stage that it accepts", spec.name)
        if result is not program and result.stage is not (spec.yields or program.stage):
            raise _broken(result, "a pass makes a program of the stage that it says", spec.name)
        verify_program(result, writes)
    if level > 1 and result is not program and spec.tier == "bitwise":
        differential.verify_same_results(spec.name, program, result, context.hints, lost=context.donated)
        if spec.yields is Stage.IN_PLACE:
            verify_inplace.verify_inplace(program, result, donated=context.donated, commit=True, hints=context.hints)
    reason = "" if keep is not False else "DECIDED-BEFORE: dropped for the first pattern"
    if keep is None:
        reason = _worse(program, result, context)
    kept = program if reason else result
    return kept, StepRecord(spec.name, len(program.nodes), len(kept.nodes), spent, str(report), reason, report)


def _worse(program: Program, result: Program, context: Context) -> str:
    """Why what a pass makes is dropped; "" where it is kept."""
    if result is program:
        return ""
    before, after = (
        simulate_peak(one, context.hints, context.dying, context.plans.need_of).peak_bytes for one in (program, result)
    )
    return f"PEAK-RISES: {after} > {before} simulated bytes" if after > before else ""


def _broken(program: Program, rule: str, name: str) -> InvalidProgram:
    return InvalidProgram(program=program.name, stage=program.stage.value, rule=rule, detail=name)


def elapsed_us(start_ns: int) -> int:
    """Microseconds since a moment of `perf_counter_ns`."""
    return (time.perf_counter_ns() - start_ns) // 1000


def writes(node: Node) -> bool:
    """Whether a node writes one of its operands."""
    return bool(writes_of(node))


def program_text(program: Program) -> str:
    """The program as source, each operator by its full name."""
    return emit(program, plain_call, {}).text
