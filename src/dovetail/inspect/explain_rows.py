"""The rows that explanations of every kind have: nodes, steps, and the text of the lines that are named."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterator

from dovetail.analysis.liveness import simulate_peak
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.categories import CATEGORIES, handed_to_backward
from dovetail.inspect.memory_map import call_text, memory_map, node_origins, operator_name
from dovetail.inspect.report_rows import Decision, EagerMemory, MemoryMap, NodeRow, ProgramReport, StepRow
from dovetail.ir.program import Program
from dovetail.ir.text import Names
from dovetail.passes.inplace_report import DonationRow, InplaceReport
from dovetail.pipeline.donation import DonationReport
from dovetail.pipeline.driver import StepRecord
from dovetail.pipeline.trail import STEP_STATE, Lowering, Step

JOINT = "joint"
_AS_EAGER = ("recorded", "functional")  # the first steps of a lowering, before anything was improved
_WRITES = "new contents are copied into the state"


def program_report(program: Program, kind: str, memory: MemoryMap, executors: ExecutorList | None) -> ProgramReport:
    """The nodes of a program. executors: who runs them, where that is known."""
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
