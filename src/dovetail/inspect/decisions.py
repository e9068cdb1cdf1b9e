"""The table of what is saved for backward, computed again, done in place, and copied, each with its reason.

| kind | codes |
|---|---|
| saved | IS-INPUT, IS-RETURNED, SHARES-MEMORY: costs nothing more |
| | READ-BY-BACKWARD: all that backward reads is saved |
| | CANNOT-RUN-AGAIN, NOT-CHEAP, CHEAPEST-CUT: where a cut was made |
| recomputed | REPEATS-FORWARD: the program says so, by a checkpoint; CHEAPEST-CUT: it costs less than saving |
| in place | IN-PLACE |
| copied | the code of an `analysis.inplace_plan.Reason` |
| donated | USED; NOT-USED: no result fits; or that of a `pipeline.donation.Withheld` (only with `donate=`) |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dovetail.analysis.categories import SAVED
from dovetail.analysis.inplace_plan import Reason
from dovetail.analysis.liveness import storage_bytes
from dovetail.inspect.memory_map import node_origins, operator_name, saved_storages
from dovetail.inspect.report_rows import Decision, MemoryMap
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Operand, Origin, Phase, Program, Value, map_operands
from dovetail.ir.provenance import origin_from_text
from dovetail.ir.signature import Residual
from dovetail.ir.sizes import Number
from dovetail.ops.facts import facts_of
from dovetail.partition.policy import can_run_again, is_cheap, is_view
from dovetail.passes.inplace_report import USED, DonationRow, InplaceReport, InplaceRow

KINDS = ("saved", "recomputed", "in place", "copied")
DONATED = "donated"
_MADE_IN = "computed in the memory of"
_REASONS = {reason.code: reason.value for reason in Reason}


@dataclass(frozen=True, slots=True)
class Halves:
    """What the decisions are about.

    joint: the program that was split. forward, backward: as they run. cut: whether backward computes again what it can.
    hints: a number for each size symbol.
    """

    joint: Program
    forward: Program
    backward: Program
    cut: bool
    hints: Mapping[str, Number]


def split_decisions(halves: Halves) -> list[Decision]:
    """Rows for each value that is handed to backward, and for each node that backward runs again."""
    return [*_saved(halves), *_recomputed(halves)]


def _saved(halves: Halves) -> Iterator[Decision]:
    forward = halves.forward
    sizes = storage_bytes(forward, halves.hints)
    makers, origins = forward.producers(), node_origins(forward)
    joint_makers = {value.name: node for node in halves.joint.nodes for value in node.results()}
    readers = _readers(halves.backward)
    fixed = frozenset(made_symbols(halves.joint))
    outside, alone = forward.input_storages(), saved_storages(forward)
    counted: set[int] = set()
    for role, value in zip(forward.signature.outputs, forward.outputs, strict=True):
        if not isinstance(role, Residual) or not isinstance(value, Value) or not value.is_tensor:
            continue
        storage, bytes_ = value.tensor.storage, 0
        maker = makers.get(value)
        if storage in outside:
            code, why = "IS-INPUT", "an input, which the caller keeps"
        elif storage not in alone:
            code, why = "IS-RETURNED", "in memory that is also returned to the caller"
        elif storage in counted:
            code, why = "SHARES-MEMORY", "in memory that is saved anyway"
        else:
            counted.add(storage)
            bytes_ = sizes[storage]
            joint = joint_makers.get(role.name)
            code, why = _why_saved(joint, fixed) if halves.cut else ("READ-BY-BACKWARD", "the default split saves it")
        origin = origins[maker] if maker is not None else Origin()
        operator = operator_name(_computing(maker, makers)) if maker is not None else "input"
        read = readers.get(role.name, "read by no node")
        yield Decision("saved", forward.name, role.name, operator, code, why, bytes_, origin, read)


def step_decisions(program: Program, memory: MemoryMap) -> Iterator[Decision]:
    """Rows for what a whole training step keeps from forward to backward. memory: the map of the program."""
    readers = _readers_by_storage(program)
    for row in memory.storages:
        if row.category == SAVED:
            detail = f"read by {readers[row.storage]}" if row.storage in readers else ""
            why = "a whole step saves it"
            operator, origin = row.operator, row.origin
            yield Decision(
                "saved", program.name, row.name, operator, "READ-BY-BACKWARD", why, row.bytes, origin, detail
            )


def _readers_by_storage(program: Program) -> dict[int, str]:
    """The first node of backward that reads each storage."""
    found: dict[int, str] = {}
    for node in program.nodes:
        if node.phase is Phase.BACKWARD:
            reader = next((value.name for value in node.results()), operator_name(node))
            for value in node.operands():
                if value.is_tensor:
                    found.setdefault(value.tensor.storage, reader)
    return found


def _computing(maker: Node, makers: Mapping[Value, Node]) -> Node:
    """The node that computes what a node gives: the node itself unless it is a view."""
    while is_view(maker):
        source = next((makers[value] for value in maker.operands() if value in makers), None)
        if source is None:
            return maker
        maker = source
    return maker


def _why_saved(maker: Node | None, fixed: frozenset[Node]) -> tuple[str, str]:
    if maker is None or not can_run_again(maker, fixed):
        return "CANNOT-RUN-AGAIN", "the operator could give another result"
    if not is_cheap(maker):
        return "NOT-CHEAP", "running the operator again costs more than one read and write"
    return "CHEAPEST-CUT", "saving it is cheapest: others are recomputed from it, or it is small"


def _readers(backward: Program) -> dict[str, str]:
    """By the name of a saved value, in words who reads it in backward."""
    found: dict[str, list[str]] = {value.name: [] for value in backward.inputs}
    for node in backward.nodes:
        reader = next((value.name for value in node.results()), operator_name(node))
        for value in dict.fromkeys(node.operands()):
            if value.name in found:
                found[value.name].append(reader)
    more = {name: f" and {len(names) - 1} more" if len(names) > 1 else "" for name, names in found.items()}
    return {name: f"read by {names[0]}{more[name]}" for name, names in found.items() if names}


def _recomputed(halves: Halves) -> Iterator[Decision]:
    asked = {value.name for node in halves.joint.nodes for value in node.results()}
    backward = halves.backward
    origins = node_origins(backward)
    sizes = storage_bytes(backward, halves.hints)
    counted = set(backward.input_storages())
    for node in backward.nodes:
        if not node.recomputed or not node.results():
            continue
        value = node.results()[0]
        made = {v.tensor.storage for v in node.results() if v.is_tensor} - counted
        counted |= made
        code, why = "CHEAPEST-CUT", "costs less than saving it"
        if value.name in asked:
            code, why = "REPEATS-FORWARD", "forward runs it, too, on the same values, e.g. in a checkpoint"
        bytes_ = sum(sizes[storage] for storage in made)
        yield Decision("recomputed", backward.name, value.name, operator_name(node), code, why, bytes_, origins[node])


def with_repeats_marked(joint: Program, backward: Program) -> Program:
    """Backward, in which nodes that forward runs as well, on the same values, count as computed again."""
    repeats = _repeats(joint)
    nodes = tuple(
        replace(node, recomputed=True) if any(value.name in repeats for value in node.results()) else node
        for node in backward.nodes
    )
    return replace(backward, nodes=nodes)


def _repeats(joint: Program) -> set[str]:
    """Names of what backward computes and forward has computed before. Draws are never the same; views cost nothing."""
    number: dict[Value, int] = {value: place for place, value in enumerate(joint.inputs)}
    known: dict[str, tuple[int, ...]] = {}
    found: set[str] = set()
    for node in joint.nodes:
        facts = facts_of(node.target)
        key = f"{node.target} {map_operands((node.args, node.kwargs), lambda value: f'%{number[value]}')!r}"
        same = known.get(key) if facts.is_pure and facts.repeats else None
        if same is None:
            same = tuple(range(len(number), len(number) + len(node.results())))
            if node.phase is Phase.FORWARD:
                known[key] = same
        elif node.phase is Phase.BACKWARD and not is_view(node):
            found.update(value.name for value in node.results())
        number.update(zip(node.results(), same, strict=True))
    return found


def kinds_in(decisions: Iterable[Decision]) -> tuple[str, ...]:
    """The kinds that a report shows: those of donations only where there are some."""
    return (*KINDS, *({DONATED} & {row.kind for row in decisions}))


def donation_decisions(program: Program, donations: Iterable[DonationRow]) -> Iterator[Decision]:
    """Rows for inputs that were given away."""
    for row in donations:
        why = "results use its memory" if row.code == USED else row.because
        yield Decision(DONATED, program.name, row.name, "", row.code, why, row.bytes, Origin(), row.because)


def inplace_decisions(before: Program, report: InplaceReport) -> Iterator[Decision]:
    """Rows for a half that works in place. before: the program that the report is about."""
    origins = dict(_origins_by_name(before))
    for row in report.rows:
        origin = origins.get(row.node) or origin_from_text(row.origin)
        if row.is_in_place:
            yield _inplace_row(before, row, origin)
        if row.copied_bytes:
            known = _REASONS.get(row.code, row.because)
            why = known + ("" if row.is_needed else " (not proved to be needed)")
            bytes_, because = row.copied_bytes, row.because
            yield Decision("copied", before.name, row.node, row.operator, row.code, why, bytes_, origin, because)


def _inplace_row(before: Program, row: InplaceRow, origin: Origin) -> Decision:
    detail = row.decision.removeprefix("in place").removeprefix(": ") or "written into its operand"
    why = f"{_MADE_IN} another value" if detail.startswith(_MADE_IN) else detail
    return Decision("in place", before.name, row.node, row.operator, "IN-PLACE", why, row.saved_bytes, origin, detail)


def _origins_by_name(program: Program) -> Iterator[tuple[str, Origin]]:
    origins = node_origins(program)
    for node in program.nodes:
        first: Iterable[Operand] = node.results() or node.args[:1]
        for value in first:
            if isinstance(value, Value):
                yield value.name, origins[node]
