"""Prove a split correct, independently of how it was made.

The checker rebuilds what each half may read and compares the two halves with the program they came from, node by node.
It shares no code with `partition.split` but the type of its result.
"""

from __future__ import annotations

from dovetail.errors import InvalidProgram
from dovetail.ir.program import Program, values_in
from dovetail.ir.signature import Tangent
from dovetail.partition.split import Split


def verify_split(program: Program, split: Split) -> None:
    """Raise InvalidProgram unless the halves together are the program.

    Checked: every node is in exactly one half, in order; forward reads only primals; backward reads only residuals,
    constants and tangents; each residual that backward takes is one that forward gives; each output is given once.
    """
    halves = (*split.forward.nodes, *split.backward.nodes)
    _require(len(halves) == len(program.nodes), program, "every node is in one half", f"{len(halves)} nodes")
    _require(set(map(id, halves)) == set(map(id, program.nodes)), program, "the halves share the program's nodes", "")
    for half in (split.forward, split.backward):
        members = set(half.nodes)
        in_order = [node for node in program.nodes if node in members]
        _require(in_order == list(half.nodes), program, "order is kept", half.name)
        known = set(half.inputs)
        for node in half.nodes:
            for value in node.operands():
                _require(value in known, program, "a half reads only its own inputs", f"{half.name}: {value.name}")
            known.update(node.results())
        for value in values_in(half.outputs):
            _require(value in known, program, "a half gives only what it has", f"{half.name}: {value.name}")
    given = [str(o) for o in split.forward.outputs[len(split.forward.outputs) - len(split.residuals) :]]
    _require(given == list(split.residuals), program, "forward gives each residual", f"{given}")
    taken = [value.name for value in split.backward.inputs[: len(split.residuals)]]
    _require(taken == list(split.residuals), program, "backward takes each residual", f"{taken}")
    tangents = {v for r, v in zip(program.signature.inputs, program.inputs, strict=True) if isinstance(r, Tangent)}
    for half, handed, allowed in (
        (split.forward, split.forward.inputs, set(program.inputs) - tangents),
        (split.backward, split.backward.inputs[len(split.residuals) :], set(program.inputs)),
    ):
        for value in handed:
            _require(value in allowed, program, "a half takes only its inputs", f"{half.name}: {value.name}")
    outputs = [*split.forward.outputs[: len(split.forward.outputs) - len(split.residuals)], *split.backward.outputs]
    same = sorted(map(id, outputs)) == sorted(map(id, program.outputs))
    _require(same, program, "each output is given once", f"{len(outputs)} for {len(program.outputs)}")


def _require(condition: bool, program: Program, rule: str, detail: str) -> None:
    if not condition:
        raise InvalidProgram(program=program.name, stage="split", rule=rule, detail=detail or "see the dump")
