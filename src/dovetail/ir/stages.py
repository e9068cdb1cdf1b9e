"""The rules of each stage, as an executable check.

Every stage: names are unique Python names; each operand is an input or the result of an earlier node; roles run
parallel to inputs and outputs. Impure, in-place: nothing more. Functional: no operator writes an operand; all forward
nodes come before all backward nodes. Whole: as functional, with phases in any order. Split: as functional, in one
phase.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Phase, Program, Stage, Value, values_in


def verify_program(program: Program, writes: Callable[[Node], bool]) -> None:
    """Raise InvalidProgram for the first rule that the program breaks. writes: whether a node writes an operand."""
    _verify_names(program)
    _verify_order(program)
    if program.stage in (Stage.IMPURE, Stage.IN_PLACE):
        return
    for node in program.nodes:
        if writes(node):
            raise _broken(program, "no operator writes an operand", f"{node.target} does", node)
    phases = [node.phase for node in program.nodes] if program.stage is not Stage.WHOLE else []
    if Phase.BACKWARD in phases and Phase.FORWARD in phases[phases.index(Phase.BACKWARD) :]:
        raise _broken(program, "forward nodes come before backward nodes", "phases are mixed")
    if program.stage is Stage.SPLIT and len(set(phases)) > 1:
        raise _broken(program, "a half has one phase", "phases are mixed")


def _verify_names(program: Program) -> None:
    seen: set[str] = set()
    for value in program.values():
        if not value.name.isidentifier():
            raise _broken(program, "names are Python names", repr(value.name))
        if value.name in seen:
            raise _broken(program, "names are unique", f"{value.name} appears twice")
        seen.add(value.name)
    for roles, items, what in (
        (program.signature.inputs, program.inputs, "input"),
        (program.signature.outputs, program.outputs, "output"),
    ):
        if len(roles) != len(items):
            raise _broken(program, f"each {what} has a role", f"{len(items)} {what}s, {len(roles)} roles")


def _verify_order(program: Program) -> None:
    known: set[Value] = set(program.inputs)
    for node in program.nodes:
        for value in node.operands():
            if value not in known:
                raise _broken(program, "operands are computed before they are read", value.name, node)
        known.update(node.results())
    for value in values_in(program.outputs):
        if value not in known:
            raise _broken(program, "outputs are computed by the program", value.name)


def _broken(program: Program, rule: str, detail: str, node: Node | None = None) -> InvalidProgram:
    name = next((v.name for v in node.results()), str(node.target)) if node is not None else ""
    return InvalidProgram(
        program=program.name,
        stage=program.stage.value,
        rule=rule,
        detail=detail,
        node=name,
        origin=str(node.origin) if node is not None else "",
    )
