"""Run the passes in order, check each, time each, and dump each.

Stages: the recorded program is impure; capture hands over a functional one of two phases; the passes below keep it
functional; the split makes two halves; executors turn those into code. A pass is a function `program -> (program,
report)`. The driver checks it (`verify`), and keeps its result only if it does not raise the simulated peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.verify_inplace import verify_inplace
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number
from dovetail.ir.stages import verify_program
from dovetail.ir.text import emit, plain_call
from dovetail.ops.facts import writes_of
from dovetail.passes.common_subexpressions import merge_common_subexpressions
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.inplace import work_in_place
from dovetail.passes.no_ops import remove_no_ops
from dovetail.passes.run_late import run_late
from dovetail.passes.unbundle import unbundle
from dovetail.pipeline.differential import verify_same_results
from dovetail.pipeline.dump import JOINT, Dump
from dovetail.pipeline.options import Options

Pass = Callable[..., tuple[Program, object]]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("dead_code", remove_dead_code),
    ("no_ops", remove_no_ops),
    ("common_subexpressions", merge_common_subexpressions),
)
HALF_PASSES: tuple[tuple[str, Pass], ...] = (
    ("unbundle", unbundle),
    ("run_late", run_late),
    ("reinplace", work_in_place),
)
PASS_NAMES = tuple(name for name, _ in (*PASSES, *HALF_PASSES))


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
    program: Program,
    options: Options,
    dump: Dump,
    hints: Mapping[str, Number],
    decisions: Mapping[str, bool] | None = None,
) -> tuple[Program, tuple[StepRecord, ...]]:
    """The simplified program and a record per pass.

    hints: a number for each size symbol, for simulated peaks. decisions: by pass name, whether its result is kept,
    where that was settled before; otherwise the simulated peaks settle it.
    """
    if options.verify:
        verify_program(program, writes)
    return _run_all(PASSES, program, options, dump, hints, decisions or {})


def run_half_passes(
    program: Program,
    options: Options,
    dump: Dump,
    hints: Mapping[str, Number],
    part: str,
    donated: Collection[int] = (),
    dying: Collection[int] = (),
) -> Program:
    """One half of a split after the passes that look at it alone.

    part: which half. donated: numbers of inputs whose memory may be used. dying: of those that nobody else holds.
    """
    if options.stop_after in {name for name, _ in PASSES}:
        return program
    return _run_all(HALF_PASSES, program, options, dump, hints, {}, part, donated, dying)[0]


def _run_all(
    passes: tuple[tuple[str, Pass], ...],
    program: Program,
    options: Options,
    dump: Dump,
    hints: Mapping[str, Number],
    decisions: Mapping[str, bool],
    part: str = JOINT,
    donated: Collection[int] = (),
    dying: Collection[int] = (),
) -> tuple[Program, tuple[StepRecord, ...]]:
    records: list[StepRecord] = []
    for name, function in passes:
        if name in options.skip:
            continue
        program, record = _run_pass(name, function, program, options, hints, decisions.get(name), donated, dying)
        records.append(record)
        dump.step(name if part == JOINT else f"{name}-{part}", program, record, part)
        if name == options.stop_after:
            break
    return program, tuple(records)


def _run_pass(
    name: str,
    function: Pass,
    program: Program,
    options: Options,
    hints: Mapping[str, Number],
    keep: bool | None,
    donated: Collection[int],
    dying: Collection[int],
) -> tuple[Program, StepRecord]:
    before_text = program_text(program) if options.verify else ""
    start = time.perf_counter_ns()
    is_last = function is work_in_place
    result: Program
    report: object
    if is_last:
        result, report = work_in_place(program, donated, hints=hints)
    else:
        result, report = function(program, dying) if name == "run_late" else function(program)
    elapsed_us = (time.perf_counter_ns() - start) // 1000
    if options.verify:
        if program_text(program) != before_text:
            raise InvalidProgram(
                program=program.name, stage=program.stage.value, rule="a pass does not edit its input", detail=name
            )
        verify_program(result, writes)
    if options.verify > 1 and result is not program:
        verify_same_results(name, program, result, hints)
        if is_last:
            verify_inplace(program, result, donated=donated, commit=True, hints=hints)
    reason = "" if keep is not False else "DECIDED-BEFORE: dropped for the first pattern"
    if keep is None and result is not program:
        before, after = (simulate_peak(one, hints, dying).peak_bytes for one in (program, result))
        if after > before:
            reason = f"PEAK-RISES: {after} > {before} simulated bytes"
    kept = program if reason else result
    return kept, StepRecord(name, len(program.nodes), len(kept.nodes), elapsed_us, str(report), reason, report)


def writes(node: Node) -> bool:
    """Whether a node writes one of its operands."""
    return bool(writes_of(node))


def program_text(program: Program) -> str:
    """The program as source, each operator by its full name."""
    return emit(program, plain_call, {}).text
