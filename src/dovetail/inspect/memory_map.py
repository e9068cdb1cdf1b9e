"""Which storages are alive when: in one program, or in forward followed by backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dovetail.analysis.categories import CONSTANTS, input_category, input_storages, made_purposes, module_of_input
from dovetail.analysis.liveness import input_bytes, simulate_peak, storage_lives
from dovetail.inspect.report_rows import MemoryMap, StorageRow
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Origin, Phase, Program, Value
from dovetail.ir.signature import Residual
from dovetail.ir.sizes import Number
from dovetail.ir.text import Names, plain_call
from dovetail.ops.facts import overwrites


def memory_map(program: Program, hints: Mapping[str, Number], saved: frozenset[int] = frozenset()) -> MemoryMap:
    """The map of a program. saved: storages that are kept for backward. hints: a number for each size symbol."""
    purposes = made_purposes(program, saved)
    lives = storage_lives(program, hints)
    makers: dict[int, tuple[Node, Value]] = {}
    for node in program.nodes:
        for value in node.results():
            if value.is_tensor:
                makers.setdefault(value.tensor.storage, (node, value))
    origins = node_origins(program)
    rows = []
    for life in lives:
        node, value = makers[life.storage]
        purpose = purposes[life.storage]
        role = "returned" if life.is_returned else "recomputed" if node.recomputed else "temporary"
        rows.append(
            StorageRow(
                storage=life.storage,
                name=value.name,
                operator=operator_name(node),
                meta=str(value.meta),
                bytes=life.bytes,
                first=life.first,
                last=life.last,
                role="saved" if life.storage in saved else role,
                is_returned=life.is_returned,
                origin=origins[node],
                category=purpose.category,
                later=purpose.later,
                later_from=purpose.later_from,
            )
        )
    steps = [0] * (len(program.nodes) + 1)
    for row in rows:
        steps[row.first] += row.bytes
        steps[row.last + 1] -= row.bytes
    levels: list[int] = []
    for step in steps[:-1]:
        levels.append(step + (levels[-1] if levels else 0))
    peak = simulate_peak(program, hints)
    names = Names()
    phases = [node.phase for node in program.nodes]
    return MemoryMap(
        storages=tuple(rows),
        live_bytes=tuple(levels),
        peak_bytes=peak.peak_bytes,
        peak_node=peak.node,
        nodes=tuple(call_text(names, node) for node in program.nodes),
        backward_from=phases.index(Phase.BACKWARD) if Phase.BACKWARD in phases else len(phases),
        residents=tuple(_residents(program, hints)),
    )


def _residents(program: Program, hints: Mapping[str, Number]) -> Iterator[StorageRow]:
    """What a program is given. What no module is known to hold counts as the module's that reads it first."""
    sizes = input_bytes(program, hints)
    readers: dict[int, str] = {}
    for node in program.nodes:
        for value in node.operands():
            if value.is_tensor:
                readers.setdefault(value.tensor.storage, node.origin.module)
    end = len(program.nodes) - 1
    for role, value in input_storages(program):
        storage, category = value.tensor.storage, input_category(role)
        module = module_of_input(role) or (readers.get(storage, "") if category == CONSTANTS else "")
        yield StorageRow(
            storage=storage,
            name=getattr(role, "name", value.name),
            operator="",
            meta=str(value.meta),
            bytes=sizes[storage],
            first=0,
            last=end,
            role="input",
            is_returned=True,
            origin=Origin(module=module),
            category=category,
        )


def saved_storages(forward: Program) -> frozenset[int]:
    """Storages that forward keeps for backward alone."""
    roles = list(zip(forward.signature.outputs, forward.outputs, strict=True))
    kept = replace(forward, outputs=tuple(operand for role, operand in roles if isinstance(role, Residual)))
    given = replace(forward, outputs=tuple(operand for role, operand in roles if not isinstance(role, Residual)))
    return kept.output_storages() - given.output_storages() - forward.input_storages()


def node_origins(program: Program) -> dict[Node, Origin]:
    """The user's line of each node; of a write that dovetail added, the line that made what it writes."""
    made: dict[Value, Origin] = {}
    found: dict[Node, Origin] = {}
    for node in program.nodes:
        origin = node.origin
        if not origin.file and overwrites(node.target):
            origin = next((made[v] for v in reversed(node.operands()) if v in made and made[v].file), origin)
        found[node] = origin
        made.update(dict.fromkeys(node.results(), origin))
    return found


def operator_name(node: Node) -> str:
    """The operator without its arguments: `aten.mm.default`."""
    if isinstance(node.target, Prim):
        return f"prims.{node.target.name}"
    return call_text(Names(), node).partition("(")[0]


def call_text(names: Names, node: Node) -> str:
    """The call of a node, short: `aten.mm.default(x, w)`."""
    return plain_call(names, node).removeprefix("torch.ops.")
