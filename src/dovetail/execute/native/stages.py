"""A loop as instructions, in stages: between two stages vector functions are called on a tile of elements.

Equal instructions are one. Each runs as late as its readers allow, so that little has to be kept from stage to stage:
what is kept lies in a buffer of one tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.execute.native.instructions import Instruction, instructions_of
from dovetail.execute.native.loop import Loop

VECTOR = "vector "
_INVARIANT = ("constant", "number", "single")


@dataclass(slots=True)
class Staged:
    """instructions: in order of computation. stage: of each. stores: by cell, the instruction. store_stage: by cell.

    kept: instructions whose results are needed in a later stage than their own, or are made by a vector function.
    """

    instructions: list[Instruction] = field(default_factory=list)
    is_truth: list[bool] = field(default_factory=list)
    stage: list[int] = field(default_factory=list)
    stores: dict[int, int] = field(default_factory=dict)
    store_stage: dict[int, int] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    last: int = 0

    def is_invariant(self, at: int) -> bool:
        """Whether it is the same for all elements, so that it is computed before the loop."""
        return self.instructions[at].operation in _INVARIANT


def staged(loop: Loop) -> Staged:
    """The instructions of a loop, in stages."""

    def reading(cell: int) -> tuple[str, bool]:
        return "single" if loop.cells[cell].is_single else "load", loop.cells[cell].is_truth

    found = instructions_of(((step.formula, step.sources) for step in loop.steps), reading)
    made = Staged(found.found, found.is_truth)
    made.stores = {cell: found.steps[step] for cell, step in loop.stores}
    _assign_stages(made)
    return made


def _assign_stages(made: Staged) -> None:
    earliest = [0] * len(made.instructions)
    for at, instruction in enumerate(made.instructions):
        earliest[at] = max((earliest[part] for part in instruction.parts), default=0)
        earliest[at] += instruction.operation.startswith(VECTOR)
    made.last = last = max(earliest, default=0)
    wanted: list[list[int]] = [[] for _ in made.instructions]
    for at in made.stores.values():
        wanted[at].append(last)
    made.stage = [last] * len(made.instructions)
    for at in range(len(made.instructions) - 1, -1, -1):
        instruction = made.instructions[at]
        is_vector = instruction.operation.startswith(VECTOR)
        made.stage[at] = earliest[at] if is_vector else min(wanted[at], default=last)
        for part in instruction.parts:
            wanted[part].append(made.stage[at] - is_vector)
    _assign_stores(made, wanted)


def _assign_stores(made: Staged, wanted: list[list[int]]) -> None:
    """When cells are written: as soon as no later stage loads them; and what has to be kept."""
    kept: dict[int, None] = {}
    for cell, at in made.stores.items():
        loads = [n for n, found in enumerate(made.instructions) if found.operation == "load" and found.index == cell]
        latest = max((stage for load in loads for stage in wanted[load]), default=0)
        made.store_stage[cell] = max(made.stage[at], latest)
        if made.store_stage[cell] > made.stage[at]:
            kept[at] = None
    for at, instruction in enumerate(made.instructions):
        is_vector = instruction.operation.startswith(VECTOR)
        later = any(stage > made.stage[at] for stage in wanted[at])
        reloads = instruction.operation in ("load", "rest", "rest of one")  # as cheap as what would be kept
        if is_vector or (later and not made.is_invariant(at) and not reloads):
            kept[at] = None
    for instruction in made.instructions:
        if instruction.operation.startswith(VECTOR):
            kept[instruction.parts[0]] = None  # an operand of a vector function lies in memory, the same for all or not
    made.kept = list(kept)
