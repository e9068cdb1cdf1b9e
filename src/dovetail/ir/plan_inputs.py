"""The inputs of a program and of its call plan: who of them lasts beyond a call, and putting them in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.ir.calling import (
    AsLeaf,
    CallPlan,
    FromInput,
    FromOutput,
    FromView,
    OutputRule,
    Rebuilt,
    Rewritten,
    WithLook,
)
from dovetail.ir.program import Program, values_in
from dovetail.ir.signature import InputMutation, Signature


@dataclass(frozen=True, slots=True)
class Touched:
    """Inputs by number. written: their contents, shape or flags change. handed_out: the caller gets their memory."""

    written: frozenset[int]
    handed_out: frozenset[int]

    def __contains__(self, number: int) -> bool:
        return number in self.written or number in self.handed_out


def inputs_touched(program: Program, plan: CallPlan) -> Touched:
    """What a call does to the inputs of a functional program."""
    written = {write.input for write in plan.writes} | {change.input for change in plan.metadata}
    written |= {flag.input for flag in plan.flags} | set(plan.touched)
    handed_out = set(plan.returned_inputs())
    storages = {v.tensor.storage: k for k, v in enumerate(program.inputs) if v.is_tensor}
    carried = {write.slot for write in plan.writes}
    for slot, operand in enumerate(program.outputs):
        for value in values_in(operand):
            if slot not in carried and value.is_tensor and value.tensor.storage in storages:
                handed_out.add(storages[value.tensor.storage])
    return Touched(frozenset(written), frozenset(handed_out))


def with_inputs(program: Program, plan: CallPlan, order: Sequence[int]) -> tuple[Program, CallPlan]:
    """The program with only these inputs, by number, in this order; nothing may name another one."""
    place = {old: new for new, old in enumerate(order)}
    roles = program.signature.inputs
    outputs = tuple(
        replace(role, input=place[role.input]) if isinstance(role, InputMutation) and role.input >= 0 else role
        for role in program.signature.outputs
    )
    signature = Signature(tuple(roles[old] for old in order), outputs)
    program = replace(program, inputs=tuple(program.inputs[old] for old in order), signature=signature)
    return program, replace(renumbered(plan, place), extras_at=len(order))


def renumbered(plan: CallPlan, place: Mapping[int, int]) -> CallPlan:
    """The plan with other numbers for the inputs.

    place: the new number of each that the plan names, by the old one; an input without one is gone, and does not move.
    """
    return replace(
        plan,
        outputs=tuple(_renumbered(rule, place) for rule in plan.outputs),
        writes=tuple(replace(write, input=place[write.input]) for write in plan.writes),
        metadata=tuple(replace(change, input=place[change.input]) for change in plan.metadata),
        flags=tuple(replace(flag, input=place[flag.input]) for flag in plan.flags),
        touched=tuple(place[number] for number in plan.touched),
        gradients=tuple(replace(gradient, input=place[gradient.input]) for gradient in plan.gradients),
        moves=tuple(
            replace(move, input=place[move.input], to=_of_input(move.to, place))
            for move in plan.moves
            if move.input in place
        ),
    )


def without_gradients(plan: CallPlan) -> CallPlan:
    """The plan whose results require no gradient: with gradients off, eager's still do where parameters are seen."""

    def cut(rule: OutputRule) -> OutputRule:
        return cut(rule.of) if isinstance(rule, AsLeaf) else rule

    return replace(plan, outputs=tuple(map(cut, plan.outputs)))


def _of_input(rule: FromInput | FromOutput, place: Mapping[int, int]) -> FromInput | FromOutput:
    return FromInput(place[rule.input]) if isinstance(rule, FromInput) else rule


def _renumbered(rule: OutputRule, place: Mapping[int, int]) -> OutputRule:
    if isinstance(rule, FromInput | FromOutput):
        return _of_input(rule, place)
    if isinstance(rule, FromView):
        return replace(rule, base=place[rule.base]) if rule.of_input else rule
    if isinstance(rule, AsLeaf):
        return replace(rule, of=_renumbered(rule.of, place))
    if isinstance(rule, Rewritten):
        view = _renumbered(rule.view, place)
        assert isinstance(view, FromView | Rebuilt), "a view stays a view"
        return replace(rule, view=view)
    if isinstance(rule, WithLook) and isinstance(rule.of, FromView):
        return replace(rule, of=replace(rule.of, base=place[rule.of.base]))
    if isinstance(rule, Rebuilt):
        return replace(rule, parts=tuple(_renumbered(part, place) for part in rule.parts))
    return rule
