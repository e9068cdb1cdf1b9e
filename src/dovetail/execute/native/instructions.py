"""The steps of a loop as instructions: equal ones are one, and parts come before what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dovetail.execute.native.formula import TRUTHS, Formula
from dovetail.execute.native.loop import From, Source


@dataclass(frozen=True, slots=True)
class Instruction:
    """operation: as in a formula, or how a cell is read, or number. parts: numbers of instructions. index: of cell or
    number.
    """

    operation: str
    parts: tuple[int, ...] = ()
    index: int = 0
    number: str = ""


@dataclass(slots=True)
class Instructions:
    """found: in order. is_truth: of each, whether it is a truth value. steps: the instruction of each step."""

    found: list[Instruction] = field(default_factory=list)
    is_truth: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


def instructions_of(
    steps: Iterable[tuple[Formula, Sequence[Source]]], reading: Callable[[int], tuple[str, bool]]
) -> Instructions:
    """The instructions of steps. reading: how a cell is read, and whether it holds truth values."""
    made = Instructions()
    known: dict[Instruction, int] = {}

    def add(instruction: Instruction, is_truth: bool) -> int:
        at = known.get(instruction)
        if at is None:
            at = known[instruction] = len(made.found)
            made.found.append(instruction)
            made.is_truth.append(is_truth)
        return at

    def source(given: Source) -> int:
        if given.kind is From.STEP:
            return made.steps[given.index]
        if given.kind is From.NUMBER:
            return add(Instruction("number", index=given.index), False)
        operation, is_truth = reading(given.index)
        return add(Instruction(operation, index=given.index), is_truth)

    def lower(formula: Formula, operands: Sequence[int], lowered: dict[Formula, int]) -> int:
        if formula.operation == "operand":
            return operands[formula.place]
        if formula not in lowered:
            number = repr(formula.number) if formula.operation == "constant" else ""
            parts = tuple(lower(part, operands, lowered) for part in formula.parts)
            lowered[formula] = add(Instruction(formula.operation, parts, number=number), formula.operation in TRUTHS)
        return lowered[formula]

    for formula, sources in steps:
        made.steps.append(lower(formula, [source(given) for given in sources], {}))
    return made
