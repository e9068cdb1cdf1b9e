"""`dovetail.explain(f, *args)`: compile for one call without running it, and tell what was decided."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.analysis.liveness import simulate_peak
from dovetail.errors import NothingToExplain
from dovetail.execute.protocol import ExecutorList
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.function import CompiledFunction, compile
from dovetail.inspect.decisions import (
    Halves,
    donation_decisions,
    inplace_decisions,
    split_decisions,
    with_repeats_marked,
)
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.memory_map import call_text, memory_map, node_origins, operator_name, saved_storages, whole_step
from dovetail.inspect.report_rows import Decision, MemoryMap, NodeRow, ProgramReport, StepRow
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.ir.text import Names
from dovetail.partition.choose import PartitionReport
from dovetail.passes.inplace_report import DonationRow, InplaceReport
from dovetail.pipeline.compile import make_executors
from dovetail.pipeline.donation import DonationReport
from dovetail.pipeline.driver import StepRecord
from dovetail.pipeline.trail import Lowering, Step, Trail

_LIKELY = "_likely"
_JOINT = "joint"


def explain(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile a function or module for one call, and tell what was decided. The call itself is not run.

    Args:
        target: what `dovetail.compile` takes, or what it returned: then with the options that were given there. Or a
            frozen module: the program that a call of it runs, or its first one when no arguments are given.
        args, kwargs: what it is called with. They, and the target's parameters, buffers and gradients, stay as they
            are.
    Returns: an `Explanation`; print it, or write it with `.html(path)`, `.trace(path)`, `.to_json()`.
    Raises: DovetailError when the target cannot be compiled; NothingToExplain when nothing was compiled.
    """
    if isinstance(target, FrozenModule):
        return _of_frozen(target, args, kwargs)
    trail = Trail()
    compiled = target if isinstance(target, CompiledFunction) else compile(target)
    compiled.with_options(trail=trail).prepare(*args, **kwargs)
    found = explanations_of(trail.lowerings, make_executors(compiled.options))
    if not found:
        hint = "call it with the arguments that it is used with"
        raise NothingToExplain(what=repr(target), reason="no program was made for this call", hint=hint)
    is_named = not isinstance(target, CompiledFunction)
    return replace(found[-1], name=str(getattr(target, "__name__", type(target).__name__))) if is_named else found[-1]


def _of_frozen(frozen: FrozenModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """What was decided for the program that a call of a frozen module runs; without arguments, for its first one."""
    if frozen.trail is None:
        hint = "explain it where it is frozen: files hold programs, not how they were made"
        raise NothingToExplain(what=repr(frozen), reason="it was loaded from a file", hint=hint)
    found = {explanation.name: explanation for explanation in explanations_of(frozen.trail.lowerings, frozen.executors)}
    return found[frozen.program_name(*args, **kwargs) if args or kwargs else next(iter(found))]


def explanations_of(lowerings: Sequence[Lowering], executors: ExecutorList | None = None) -> list[Explanation]:
    """One explanation for each program that was lowered as far as two halves, by the name of the program.

    A lowering for the gradients that arrive most often belongs to the one before it, which forward is from.
    executors: who runs the nodes, where that is known.
    """
    complete = [lowering for lowering in lowerings if lowering.is_complete]
    found: list[Explanation] = []
    for place, main in enumerate(complete):
        if place and main.name == complete[place - 1].name + _LIKELY:
            continue
        following = complete[place + 1 : place + 2]
        likely = following[0] if following and following[0].name == main.name + _LIKELY else main
        forward, backward = main.half("forward"), likely.half("backward")
        assert forward is not None and backward is not None, "complete lowerings have both halves"
        found.append(_Gatherer(main, likely, forward, backward, executors).gather(main.name))
    return found


class _Gatherer:
    """main: the lowering that forward is from. likely: that of backward, for the gradients that arrive most often."""

    def __init__(
        self, main: Lowering, likely: Lowering, forward: Program, backward: Program, executors: ExecutorList | None
    ) -> None:
        self._main, self._likely = main, likely
        self._joint = [step.program for step in likely.steps if _part_of(step, likely) == _JOINT][-1]
        self._forward, self._backward = forward, with_repeats_marked(self._joint, backward)
        self._executors = executors

    def gather(self, name: str) -> Explanation:
        """Every row."""
        hints, trains = self._main.hints, bool(self._backward.nodes)
        saved = saved_storages(self._forward)
        programs = [self._report(self._forward, "forward" if trains else "inference", hints, saved)]
        step: MemoryMap = programs[0].memory
        if trains:
            programs.append(self._report(self._backward, "backward", hints, frozenset()))
            step = memory_map(whole_step(self._forward, self._backward), hints, saved)
        lowerings = [self._main] if self._likely is self._main else [self._main, self._likely]
        steps = [row for lowering in lowerings for row in _step_rows(lowering, self._used(lowering, trains))]
        decisions = self._decisions()
        return Explanation(
            name, tuple(programs), step, tuple(steps), tuple(decisions), _source_lines(programs, decisions)
        )

    def _used(self, lowering: Lowering, trains: bool) -> tuple[str, ...]:
        """Which parts of a lowering are shown: halves that run, and what leads to them."""
        forward = (_JOINT, "forward") if lowering is self._main else (_JOINT,)
        return (*forward, "backward") if lowering is self._likely and trains else forward

    def _report(self, program: Program, kind: str, hints: Mapping[str, Number], saved: frozenset[int]) -> ProgramReport:
        memory = memory_map(program, hints, saved)
        makes = [0] * len(program.nodes)
        for row in memory.storages:
            makes[row.first] += row.bytes
        origins, names = node_origins(program), Names()
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
                    executor=self._executors.owner(node).name if self._executors is not None else "",
                    origin=origins[node],
                )
            )
        return ProgramReport(program.name, kind, tuple(nodes), memory)

    def _decisions(self) -> list[Decision]:
        records = [record for lowering in (self._main, self._likely) for record in _records(lowering)]
        cut = any(isinstance(r.details, PartitionReport) and not r.details.reason for r in records)
        found = split_decisions(Halves(self._joint, self._forward, self._backward, cut, self._main.hints))
        for lowering, half in ((self._main, "forward"), (self._likely, "backward")):
            before: Program | None = None
            for step in (step for step in lowering.steps if _part_of(step, lowering) == half):
                report = _kept_inplace_report(step)
                if before is not None and report is not None:
                    found += inplace_decisions(before, report)
                found += donation_decisions(step.program, report.donations if report is not None else _withheld(step))
                before = step.program
        return found


def _withheld(step: Step) -> tuple[DonationRow, ...]:
    """Donated inputs that were not offered, if the step settled that."""
    details = step.record.details if isinstance(step.record, StepRecord) else None
    return details.donations if isinstance(details, DonationReport) else ()


def _kept_inplace_report(step: Step) -> InplaceReport | None:
    """What was decided about working in place, if the step did and its result was kept."""
    record = step.record
    details = record.details if isinstance(record, StepRecord) and not record.reason else None
    return details if isinstance(details, InplaceReport) else None


def _records(lowering: Lowering) -> list[StepRecord]:
    return [step.record for step in lowering.steps if isinstance(step.record, StepRecord)]


def _part_of(step: Step, lowering: Lowering) -> str:
    """Which program a step made: the joint one, "forward" or "backward"."""
    rest = step.program.name.removeprefix(lowering.name)
    return rest.removeprefix("_") if rest in ("_forward", "_backward") else _JOINT


def _step_rows(lowering: Lowering, parts: tuple[str, ...]) -> Iterator[StepRow]:
    """The timeline of one lowering. A half is compared with the half before it, the first one with the joint."""
    texts: dict[str, list[str]] = {}
    shown: dict[str, Program] = {}
    peaks: dict[int, int] = {}
    for step in lowering.steps:
        part = _part_of(step, lowering)
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
            did=record.report if record is not None else "as eager runs it",
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


def _source_lines(programs: list[ProgramReport], decisions: list[Decision]) -> dict[str, str]:
    """The text of each line of the user's that is named, by `file:line`."""
    origins = [node.origin for program in programs for node in program.nodes] + [row.origin for row in decisions]
    places = dict.fromkeys((origin.file, origin.line) for origin in origins if origin.file)
    return {f"{file}:{line}": linecache.getline(file, line).strip() for file, line in places}
