"""Split a program of two phases in which nodes run again: what runs for backward is backward's.

    forward(x, w):                        forward(x, w) -> loss, mm
      mm, gelu, loss                      backward(mm, g):
    backward:                      ->       gelu_again = gelu(mm)
      gelu_again = gelu(mm)                 d = mul(g, gelu_again)
      d = mul(g, gelu_again)

Forward hands over what stands for each value at its end, by the name of the value: backwards for other gradients find
it by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.ir.draft import Draft
from dovetail.ir.program import Phase, Program, Value
from dovetail.ir.signature import InputMutation, Tangent, UserOutput
from dovetail.partition.policy import Policy
from dovetail.partition.problem import written_storages
from dovetail.partition.split import Split, is_forward, residuals_of, split_by_phase


def read_until(program: Program, policy: Policy) -> dict[int, int]:
    """Storages that nothing may be computed again from in backward, with the node at which that begins.

    They are inputs that are written, their new contents, and, if the policy says so, inputs and returned values that
    eager would not keep for backward: the caller may change them, or let them go.
    """
    nodes = program.nodes
    border = next((at for at, node in enumerate(nodes) if node.phase is Phase.BACKWARD), len(nodes))
    roles = list(zip(program.signature.outputs, program.outputs, strict=True))

    def storages(kind: type) -> set[int]:
        given = [operand for role, operand in roles if isinstance(role, kind) and is_forward(role)]
        return {x.tensor.storage for x in given if isinstance(x, Value) and x.is_tensor}

    lost = set(written_storages(program)) | storages(InputMutation)
    if policy.only_what_eager_holds:
        saved, direct = residuals_of(program, nodes[border:])
        inputs = zip(program.signature.inputs, program.inputs, strict=True)
        given = {v.tensor.storage for role, v in inputs if v.is_tensor and not isinstance(role, Tangent)}
        held = {value.tensor.storage for value in (*saved, *direct)} | policy.may_hold()
        lost |= (given | storages(UserOutput)) - held
    return dict.fromkeys(lost, border)


def split_with_repeats(program: Program, changed: Program, originals: Mapping[str, str]) -> tuple[Program, Split]:
    """The changed program and its halves. program: without repeats. originals: see `apply_schedule`."""
    own = {value.name for value in program.values()}
    changed = _named_as_first(changed, originals)
    split = split_by_phase(changed)
    again = [node for node in split.backward.nodes if not any(value.name in own for value in node.results())]
    sources = {value.name for node in again for value in node.operands()}
    return changed, replace(split, sources=tuple(name for name in split.residuals if name in sources))


def _named_as_first(changed: Program, originals: Mapping[str, str]) -> Program:
    """The program in which residuals that forward made again have the names of the first ones."""
    late = tuple(node for node in changed.nodes if node.phase is Phase.BACKWARD)
    renamed = {v.name: originals[v.name] for v in residuals_of(changed, late)[0] if v.name in originals}
    if not renamed:
        return changed
    draft = Draft(changed)
    renamed.update({first: draft.name(f"{first}_first") for first in set(renamed.values())})
    for node in changed.nodes:
        for value in node.results():
            if value.name in renamed:
                draft.substitute(value, Value(renamed[value.name], value.meta))
        draft.take(node)
    return draft.finish()
