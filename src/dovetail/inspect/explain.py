"""`dovetail.explain(f, *args)`: compile for one call without running it, and tell what was decided."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dovetail.analysis.categories import CATEGORIES, handed_to_backward
from dovetail.analysis.grouped_run import grouped_run
from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.one_run import as_one_run, whole_step
from dovetail.errors import NothingToExplain
from dovetail.execute.needs import bytes_before_run
from dovetail.execute.protocol import ExecutorList
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.function import CompiledFunction, compile
from dovetail.frontends.step.step import CompiledStep
from dovetail.inspect.call_accounts import call_memory, curve_of_step
from dovetail.inspect.decisions import (
    Halves,
    donation_decisions,
    inplace_decisions,
    split_decisions,
    step_decisions,
    with_repeats_marked,
)
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.memory_map import call_text, memory_map, node_origins, operator_name, saved_storages
from dovetail.inspect.report_rows import CallMemory, Decision, EagerMemory, MemoryMap, NodeRow, ProgramReport, StepRow
from dovetail.inspect.step_time import measure_step
from dovetail.ir.program import Program
from dovetail.ir.text import Names
from dovetail.partition.choose import PartitionReport
from dovetail.partition.split import Split, dying_inputs
from dovetail.passes.inplace_report import DonationRow, InplaceReport
from dovetail.pipeline.compile_trace import LIKELY, STEP_STATE, CompileTrace, Lowering, Step
from dovetail.pipeline.donation import DonationReport
from dovetail.pipeline.driver import StepRecord
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.halves import stays_behind
from dovetail.pipeline.memory_limit import state_bytes
from dovetail.pipeline.peak_account import MemoryAccount
from dovetail.torch_compat.autograd import frees_arriving_gradients


def explain(
    target: Callable[..., Any] | CompileTrace,
    *args: Any,
    measure_time: bool = False,
    lower_limits: bool = False,
    **kwargs: Any,
) -> Explanation:
    """Compile a function or module for one call, without running it, and report what was decided.

    Args:
        target: what `dovetail.compile` takes or returned (then with the same options). Or something already compiled: a
            frozen module (the program of this call, or its first one without arguments), a compiled step (the program
            that ran last), or the `CompileTrace` passed as an option (the program compiled last; for `torch.compile`:
            `options={"compile_trace": trace}`).
        args, kwargs: the arguments of the call. They, and the target's parameters, buffers and gradients, are
            unchanged.
        measure_time: also run the program on random inputs, next to eager, to show where the time goes.
        lower_limits: of a compiled step, also look for what lower memory limits would cost, which takes a while.

    Returns:
        An `Explanation`: print it, or write it with `.html(path)`, `.trace(path)` or `.to_json()`.

    Raises:
        DovetailError: the target cannot be compiled.
        NothingToExplain: nothing was compiled.
    """
    if isinstance(target, FrozenModule):
        return _of_frozen(target, args, kwargs, measure_time)
    if isinstance(target, CompiledStep | CompileTrace):
        if args or kwargs:
            hint = "leave the arguments out"
            raise NothingToExplain(
                what=repr(target), reason="explain reports the calls that ran, not another call", hint=hint
            )
        if isinstance(target, CompileTrace):
            return _of_trace(target, measure_time)
        return _of_step(target, measure_time, lower_limits)
    trace = CompileTrace()
    compiled = target if isinstance(target, CompiledFunction) else compile(target)
    compiled.with_options(compile_trace=trace).prepare(*args, **kwargs)
    found = explanations_of(trace.lowerings[-2:], make_executors(compiled.options), measure_time=measure_time)
    if not found:
        hint = "call it with its usual arguments"
        raise NothingToExplain(what=repr(target), reason="no program was compiled for this call", hint=hint)
    is_named = not isinstance(target, CompiledFunction)
    return replace(found[-1], name=str(getattr(target, "__name__", type(target).__name__))) if is_named else found[-1]


def _of_frozen(frozen: FrozenModule, args: tuple[Any, ...], kwargs: dict[str, Any], measure_time: bool) -> Explanation:
    """What was decided for the program that a call of a frozen module runs; without arguments, for its first one."""
    if frozen.compile_trace is None:
        hint = "explain it where it is frozen: files have programs, but not how they were compiled"
        raise NothingToExplain(what=repr(frozen), reason="it was loaded from a file", hint=hint)
    complete = [lowering for lowering in frozen.compile_trace.lowerings if lowering.is_complete]
    name = frozen.program_name(*args, **kwargs) if args or kwargs else complete[0].name
    chosen = [lowering for lowering in complete if lowering.name == name]
    return explanations_of(chosen[-1:], frozen.executors, measure_time=measure_time)[0]


def _of_step(step: CompiledStep, measure_time: bool, lower_limits: bool) -> Explanation:
    program = step.program
    lowering = next(
        x for x in reversed(step.compile_trace.lowerings) if any(made.program is program for made in x.steps)
    )
    found = explanations_of([lowering], make_executors(step.options), measure_time=measure_time)[0]
    if not lower_limits or found.memory is None:
        return found
    return replace(found, memory=replace(found.memory, curve=curve_of_step(lowering, step.options)))


def _of_trace(trace: CompileTrace, measure_time: bool) -> Explanation:
    made = [lowering for lowering in trace.lowerings if lowering.is_complete or lowering.is_step]
    if not made:
        hint = "call the compiled function first"
        raise NothingToExplain(what=repr(trace), reason="nothing was compiled with it", hint=hint)
    first = -2 if len(made) > 1 and made[-1].name == made[-2].name + LIKELY else -1
    return explanations_of(made[first:], measure_time=measure_time)[-1]


def explanations_of(
    lowerings: Sequence[Lowering], executors: ExecutorList | None = None, *, measure_time: bool = False
) -> list[Explanation]:
    """One explanation for each program that was lowered as far as two halves or a whole step.

    A lowering for the gradients that arrive most often belongs to the one before it, which forward is from.
    executors: who runs the nodes, where that is known.
    """
    complete = [lowering for lowering in lowerings if lowering.is_complete or lowering.is_step]
    found: list[Explanation] = []
    for place, main in enumerate(complete):
        if place and main.name == complete[place - 1].name + LIKELY:
            continue
        if main.is_step:
            found.append(explain_step(main, executors, measure_time=measure_time))
            continue
        following = complete[place + 1 : place + 2]
        likely = following[0] if following and following[0].name == main.name + LIKELY else main
        forward, backward = main.half("forward"), likely.half("backward")
        assert forward is not None and backward is not None, "complete lowerings have both halves"
        explanation = _Gatherer(main, likely, forward, backward, executors).gather(main.name)
        recorded = recorded_program(likely)
        if measure_time and recorded is not None:
            halves = [forward, backward] if backward.nodes else [forward]
            explanation = replace(explanation, time=measure_step(recorded, halves, executors, main.hints))
        found.append(explanation)
    return found


class _Gatherer:
    """main: the lowering that forward is from. likely: that of backward, for the gradients that arrive most often."""

    def __init__(
        self, main: Lowering, likely: Lowering, forward: Program, backward: Program, executors: ExecutorList | None
    ) -> None:
        self._main, self._likely = main, likely
        self._joint = [step.program for step in likely.steps if part_of(step, likely) == JOINT][-1]
        self._forward, self._backward = forward, with_repeats_marked(self._joint, backward)
        self._executors = executors

    def gather(self, name: str) -> Explanation:
        """Every row."""
        hints, trains = self._main.hints, bool(self._backward.nodes)
        saved = saved_storages(self._forward)
        forward = memory_map(self._forward, hints, saved)
        programs = [program_report(self._forward, "forward" if trains else "inference", forward, self._executors)]
        step = forward
        if trains:
            backward = memory_map(self._backward, hints)
            programs.append(program_report(self._backward, "backward", backward, self._executors))
            step = memory_map(whole_step(self._forward, self._backward), hints, saved)
        lowerings = [self._main] if self._likely is self._main else [self._main, self._likely]
        steps = [row for lowering in lowerings for row in step_rows(lowering, self._used(lowering, trains))]
        decisions = self._decisions()
        return Explanation(
            name,
            tuple(programs),
            step,
            tuple(steps),
            tuple(decisions),
            source_lines(programs, decisions),
            eager_memory(self._likely),
            None,
            *(self._call_memory(trains=trains) if self._executors is not None else ()),
        )

    def _call_memory(self, *, trains: bool) -> tuple[CallMemory, MemoryAccount]:
        first = Split(self._forward, self._backward, (), tuple(self._main.sources))
        is_partial = self._likely is not self._main
        stays = stays_behind(first, first) if is_partial else frozenset[str]()
        lets_go = frees_arriving_gradients()
        runs = [self._forward, _as_run(self._forward, self._executors)]
        if trains or any(self._backward.outputs):
            dying = dying_inputs(first, arriving=lets_go, is_last=True)
            lates = self._backward, _as_run(self._backward, self._executors, dying)
            for at, late in enumerate(lates):
                runs[at] = as_one_run(runs[at], late, stays, self._main.leaves, lets_go=lets_go)
        return call_memory(runs[0], runs[1], state_bytes(self._joint), self._main.hints)

    def _used(self, lowering: Lowering, trains: bool) -> tuple[str, ...]:
        """Which parts of a lowering are shown: halves that run, and what leads to them."""
        forward = (JOINT, "forward") if lowering is self._main else (JOINT,)
        return (*forward, "backward") if lowering is self._likely and trains else forward

    def _decisions(self) -> list[Decision]:
        records = [record for lowering in (self._main, self._likely) for record in records_of(lowering)]
        cut = any(isinstance(r.details, PartitionReport) and not r.details.reason for r in records)
        found = split_decisions(Halves(self._joint, self._forward, self._backward, cut, self._main.hints))
        for lowering, half in ((self._main, "forward"), (self._likely, "backward")):
            before: Program | None = None
            for step in (step for step in lowering.steps if part_of(step, lowering) == half):
                report = kept_inplace_report(step)
                if before is not None and report is not None:
                    found += inplace_decisions(before, report)
                found += donation_decisions(step.program, report.donations if report is not None else withheld(step))
                before = step.program
        return found


def _as_run(program: Program, executors: ExecutorList | None, dying: Collection[int] = ()) -> Program:
    """A program as executors run it. dying: numbers of inputs that nobody else holds."""
    return program if executors is None else grouped_run(program, executors.bound_to(program, dying=dying).groups)


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
    report = program_report(program, "training step", memory, executors)
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
        *(
            call_memory(program, _as_run(program, executors), state_bytes(program), hints, bytes_before_run(program))
            if executors is not None
            else ()
        ),
    )


JOINT = "joint"
_AS_EAGER = ("recorded", "functional")  # the first steps of a lowering, before anything was improved
_WRITES = "new contents are copied into the state"


def program_report(program: Program, kind: str, memory: MemoryMap, executors: ExecutorList | None) -> ProgramReport:
    """The nodes of a program. executors: who runs them, where that is known."""
    makes = [0] * len(program.nodes)
    for row in memory.storages:
        makes[row.first] += row.bytes
    origins, names = node_origins(program), Names()
    executors = None if executors is None else executors.bound_to(program)
    nodes = []
    for index, node in enumerate(program.nodes):
        values = (*node.operands(), *node.results())
        nodes.append(
            NodeRow(
                index=index,
                name=", ".join(value.name for value in node.results()),
                operator=operator_name(node),
                call=call_text(names, node),
                meta=", ".join(str(value.meta) for value in node.results()),
                makes=makes[index],
                live_bytes=memory.live_bytes[index],
                storages=tuple(dict.fromkeys(v.tensor.storage for v in values if v.is_tensor)),
                recomputed=node.recomputed,
                executor=executors.owner(node).name if executors is not None else "",
                origin=origins[node],
            )
        )
    return ProgramReport(program.name, kind, tuple(nodes), memory)


def recorded_program(lowering: Lowering) -> Program | None:
    """The program as eager mode runs it; None where a dump does not have it."""
    first = lowering.steps[0] if lowering.steps else None
    return first.program if first is not None and first.name in _AS_EAGER else None


def eager_memory(lowering: Lowering) -> EagerMemory | None:
    """What eager mode would hold at its peak, simulated; None where the recorded program is not known."""
    program = recorded_program(lowering)
    if program is None:
        return None
    memory = memory_map(program, lowering.hints, handed_to_backward(program))
    sums = dict.fromkeys(CATEGORIES, 0)
    for row in (*memory.residents, *memory.alive(memory.peak_node)):
        sums[row.category_at(memory.peak_node)] += row.bytes
    return EagerMemory(memory.peak_bytes, tuple((category, sum_) for category, sum_ in sums.items() if sum_))


def withheld(step: Step) -> tuple[DonationRow, ...]:
    """Donated inputs that were not offered, if the step settled that."""
    details = step.record.details if isinstance(step.record, StepRecord) else None
    return details.donations if isinstance(details, DonationReport) else ()


def kept_inplace_report(step: Step) -> InplaceReport | None:
    """What was decided about working in place, if the step did and its result was kept."""
    record = step.record
    details = record.details if isinstance(record, StepRecord) and not record.reason else None
    return details if isinstance(details, InplaceReport) else None


def records_of(lowering: Lowering) -> list[StepRecord]:
    """What the steps of a lowering say of themselves."""
    return [step.record for step in lowering.steps if isinstance(step.record, StepRecord)]


def part_of(step: Step, lowering: Lowering) -> str:
    """Which program a step made: the joint one, "forward" or "backward"."""
    rest = step.program.name.removeprefix(lowering.name)
    return rest.removeprefix("_") if rest in ("_forward", "_backward") else JOINT


def step_rows(lowering: Lowering, parts: tuple[str, ...]) -> Iterator[StepRow]:
    """The timeline of one lowering. A half is compared with the half before it, the first one with the joint."""
    texts: dict[str, list[str]] = {}
    shown: dict[str, Program] = {}
    peaks: dict[int, int] = {}
    for step in lowering.steps:
        part = part_of(step, lowering)
        if part not in parts:
            continue
        program, record = step.program, step.record if isinstance(step.record, StepRecord) else None
        before = texts.get(part)
        if shown.get(part) is program and before is not None:
            lines = before
        else:
            lines = texts[part] = _program_lines(program)
        shown[part] = program
        if id(program) not in peaks:
            peaks[id(program)] = simulate_peak(program, lowering.hints).peak_bytes
        yield StepRow(
            program=program.name,
            name=record.name if record is not None else step.name,
            time_us=record.time_us if record is not None else -1,
            nodes_before=record.nodes_before if record is not None else len(program.nodes),
            nodes_after=record.nodes_after if record is not None else len(program.nodes),
            peak_bytes=peaks[id(program)],
            did=record.report if record is not None else _WRITES if step.name == STEP_STATE else "as eager runs it",
            reason=record.reason if record is not None else "",
            diff="" if before is None or before is lines else _difference(before, lines),
        )


def _program_lines(program: Program) -> list[str]:
    names = Names()
    lines = []
    for node in program.nodes:
        results = ", ".join(value.name for value in node.results())
        call = call_text(names, node)
        lines.append(f"{results} = {call}" if results else call)
    returned = ", ".join(names.text(operand) for operand in program.outputs)
    return [*lines, f"return {returned}"]


def _difference(before: list[str], after: list[str]) -> str:
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))
    return "\n".join(lines[2:])  # without the names of files


def source_lines(programs: list[ProgramReport], decisions: list[Decision]) -> dict[str, str]:
    """The text of each line of the user's that is named, by `file:line`."""
    origins = [node.origin for program in programs for node in program.nodes] + [row.origin for row in decisions]
    places = dict.fromkeys((origin.file, origin.line) for origin in origins if origin.file)
    return {f"{file}:{line}": linecache.getline(file, line).strip() for file, line in places}
