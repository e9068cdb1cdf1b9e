"""A loop over rows as instructions, in sections: each goes through the row once, and sums in a row end with one.

What a later section needs of an element is read again where it was stored, kept on the stack, or computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.execute.native.formula import AT, ROW_SUMS
from dovetail.execute.native.instructions import Instruction, instructions_of
from dovetail.execute.native.row_loop import RowLoop, Span

LOAD, OF_ROW = "load", "of row"
_SAME = frozenset({"constant", "number", "single"})
_OF_ROWS = frozenset({OF_ROW, "columns"})
_CHEAP = 3  # operations that take no longer than to keep a result and to read it
_COSTS = {"div": 4, "root": 6}


@dataclass(slots=True)
class Sections:
    """instructions: in order of computation. is_same: which are the same for all elements of a row. first: the section
    in which an element's is known, or before which one of a row is. stores: by cell, the instruction and the section.
    wanted: by instruction of an element, the sections in which it is computed or read. kept, stored: those that are
    read later, where they were kept, or by cell. last: the last section.
    """

    instructions: list[Instruction] = field(default_factory=list)
    is_truth: list[bool] = field(default_factory=list)
    is_same: list[bool] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    stores: dict[int, tuple[int, int]] = field(default_factory=dict)
    wanted: list[set[int]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    stored: dict[int, int] = field(default_factory=dict)
    last: int = 0

    def sums(self, section: int) -> list[int]:
        """The sums of rows that end with a section."""
        return [
            at
            for at, each in enumerate(self.instructions)
            if each.operation in ROW_SUMS and self.first[at] == section + 1
        ]


def sections_of(loop: RowLoop) -> Sections:
    """The instructions of a loop, in sections."""

    def reading(cell: int) -> tuple[str, bool]:
        found = loop.cells[cell]
        return {Span.SINGLE: "single", Span.EACH: OF_ROW}.get(found.span, LOAD), found.is_truth

    found = instructions_of(loop.steps, reading)
    made = Sections(found.found, found.is_truth)
    for instruction in found.found:
        made.is_same.append(_is_same(made, instruction))
        made.first.append(_first(made, instruction))
    _place(made, loop, {cell: found.steps[step] for cell, step in loop.stores})
    return made


def _is_same(made: Sections, instruction: Instruction) -> bool:
    """Whether it is the same for all elements of a row."""
    if instruction.operation in _SAME | _OF_ROWS | ROW_SUMS:
        return True
    return (
        bool(instruction.parts)
        and instruction.operation != AT
        and all(made.is_same[part] for part in instruction.parts)
    )


def _first(made: Sections, instruction: Instruction) -> int:
    first = max((made.first[part] for part in instruction.parts), default=0)
    return first + (instruction.operation in ROW_SUMS)


def _place(made: Sections, loop: RowLoop, stores: dict[int, int]) -> None:
    """Say where each element's result is computed, kept and stored."""
    sums = [at for at, each in enumerate(made.instructions) if each.operation in ROW_SUMS]
    whole = {cell: at for cell, at in stores.items() if loop.cells[cell].span is Span.WHOLE}
    made.last = max([*(made.first[at] - 1 for at in sums), *(made.first[at] for at in whole.values())], default=0)
    loaded = {each.index for each in made.instructions if each.operation == LOAD}
    made.wanted = [set[int]() for _ in made.instructions]
    for at in sums:
        (part,) = made.instructions[at].parts
        made.wanted[part].add(made.first[at] - 1)
    for cell, at in whole.items():
        if cell in loaded:  # what is in it is read until the last section
            made.wanted[at].add(made.last)
    fresh = {at: cell for cell, at in whole.items() if cell not in loaded and not made.is_same[at]}
    for at in range(len(made.instructions) - 1, -1, -1):
        if made.is_same[at]:
            continue
        wanted = made.wanted[at]
        if at in fresh:
            wanted.add(min(wanted, default=made.first[at]))
        if not wanted:
            continue
        if len(wanted) > 1 and made.instructions[at].operation != LOAD:
            if at in fresh:
                made.stored[at] = fresh[at]
            elif loop.keeps and _cost(made, at) > _CHEAP:
                made.kept.add(at)
        is_read_again = at in made.kept or at in made.stored
        for part in made.instructions[at].parts:
            made.wanted[part] |= {min(wanted)} if is_read_again else wanted
    for cell, at in stores.items():
        is_fresh = cell in whole and cell not in loaded and not made.is_same[at]
        made.stores[cell] = (at, min(made.wanted[at]) if is_fresh else made.last)


def _cost(made: Sections, at: int) -> int:
    """Operations that an element takes, from what is read."""
    found = 0
    todo = [at]
    while todo and found <= _CHEAP:
        each = made.instructions[todo.pop()]
        found += _COSTS.get(each.operation, each.operation not in _SAME | {LOAD})
        todo += [part for part in each.parts if not made.is_same[part]]
    return found
