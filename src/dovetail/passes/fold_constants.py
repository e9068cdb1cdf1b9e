"""Compute values that depend only on constants once, and store the results in place of their operands.

    c = t(w)              (w, b are constants)          y = addmm(b, x, w_t_1f00ba55)
    y = addmm(b, x, c)                            ->

`fold_plan` decides which values are worth it, `fold_evaluate` computes them, and this pass rewrites the programs: a
stored value becomes an input of role `Constant`, the nodes that computed it go, and so do constant inputs that nothing
reads any more. Nothing is simplified: the bits are those of the operators.

Cost: one run of each folded node, O(nodes + operands) besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dovetail.ir.draft import Draft
from dovetail.ir.program import Program, Value
from dovetail.ir.signature import (
    Constant,
    Gradient,
    GradientBase,
    InputMutation,
    InputRole,
    OutputRole,
    SharedBytes,
    Signature,
)
from dovetail.passes.collection import collection_paused
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.fold_evaluate import Evaluation, described_at, place_of
from dovetail.passes.fold_graph import Pool
from dovetail.passes.fold_plan import FoldDecision, FoldingPlan


@dataclass(frozen=True, slots=True)
class FoldReport:
    """What was done. Bytes are those of the storages of all constants, as they really are.

    stored: names of new constants. dropped: names of constants that are gone. kept_inputs: by program, which inputs
    remain, by their old positions; new ones follow after them. added_inputs: by program, the names of those. failed:
    (value, reason) of what raised when it was computed, and was left as it was.
    """

    stored: tuple[str, ...]
    dropped: tuple[str, ...]
    kept_inputs: tuple[tuple[int, ...], ...]
    added_inputs: tuple[tuple[str, ...], ...]
    failed: tuple[tuple[str, str], ...]
    decisions: tuple[FoldDecision, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        before, after = f"{self.bytes_before / 1e6:.3f}", f"{self.bytes_after / 1e6:.3f}"
        head = f"stored {len(self.stored)} values, dropped {len(self.dropped)} constants: {before} MB -> {after} MB"
        failed = [f"  kept {name}: {reason}" for name, reason in self.failed]
        return "\n".join([head, *failed, *(f"  {decision}" for decision in self.decisions)])


@collection_paused()
def fold_constants(
    programs: Sequence[Program], tensors: dict[str, torch.Tensor], plan: FoldingPlan
) -> tuple[tuple[Program, ...], FoldReport]:
    """The programs with what the plan says computed once.

    Args:
        programs: those that the plan was made for.
        tensors: the constants by name; changed: results are added, and what no program needs is taken out as soon as
            nothing is to be computed from it any more. Other tensors are left alone.
        plan: of `plan_folding`.

    A program without anything to fold is given back itself. What raises when it is computed is left in the programs,
    where it raises as before; nothing that it needs is lost.
    Raises: FoldedOtherwise when a result is not as the program describes it; `tensors` are in between then.
    """
    pool = plan.pool
    assert len(programs) == len(pool.programs), "the plan was made for these programs"
    assert all(a is b for a, b in zip(programs, pool.programs, strict=True)), "the plan was made for these programs"
    known = pool.constants & tensors.keys()
    before = _bytes(tensors, known)
    evaluation = Evaluation(plan, tensors)
    evaluation.run()
    rewriters = [_Rewriter(pool, number, evaluation) for number in range(len(programs))]
    rewritten = tuple(rewriter.run() for rewriter in rewriters)
    # What only dead nodes read has gone with them.
    given = {value.name for program in programs for value in program.inputs}
    live = {value.name for program in rewritten for value in program.inputs}
    for name in ((known & given) | set(evaluation.names.values())) - live:
        tensors.pop(name, None)
    stored = tuple(name for name in evaluation.names.values() if name in live)
    report = FoldReport(
        stored,
        tuple(sorted(known - tensors.keys())),
        tuple(rewriter.kept for rewriter in rewriters),
        tuple(rewriter.added for rewriter in rewriters),
        tuple(evaluation.failed),
        plan.decisions,
        before,
        _bytes(tensors, (known & tensors.keys()) | set(stored)),
    )
    return rewritten, report


def _bytes(tensors: Mapping[str, torch.Tensor], names: set[str] | frozenset[str]) -> int:
    return sum({place_of(tensors[name]): _size_bytes(tensors[name]) for name in names}.values())


def _size_bytes(tensor: torch.Tensor) -> int:
    is_strided = tensor.layout is torch.strided
    return tensor.untyped_storage().nbytes() if is_strided else tensor.numel() * tensor.dtype.itemsize


class _Rewriter:
    """Rewrites one program. kept, added: as in the report."""

    def __init__(self, pool: Pool, number: int, evaluation: Evaluation) -> None:
        self.pool = pool
        self.program = pool.programs[number]
        self.known = pool.of[number]
        self.called = pool.called[number]
        self.evaluation = evaluation
        self.kept: tuple[int, ...] = tuple(range(len(self.program.inputs)))
        self.added: tuple[str, ...] = ()
        self._draft = Draft(self.program)

    def run(self) -> Program:
        """The program over the stored values."""
        program, runs = self.program, self.evaluation.runs
        made = self._new_inputs()
        left = [n for n in program.nodes if n not in self.pool.settled]
        for node in left:
            if node not in self.called or runs[self.called[node]]:
                self._draft.take(node)
        if len(self._draft.nodes) < len(program.nodes):
            nodes, outputs = tuple(self._draft.nodes), tuple(map(self._draft.operand, program.outputs))
            program, _ = remove_dead_code(replace(program, nodes=nodes, outputs=outputs))
        read = program.use_counts()
        added = [value for value in made if value in read]
        self.added = tuple(value.name for value in added)
        self.kept = self._kept_inputs(read)
        return self._with_inputs(program, added)

    def _new_inputs(self) -> list[Value]:
        """An input for each stored value; values that share memory say so."""
        tensors, names = self.evaluation.tensors, self.evaluation.names
        places: dict[int, int] = {}
        for value in self.program.inputs:
            if value in self.known and value.name in tensors:
                places[place_of(tensors[value.name])] = value.tensor.storage
        made: dict[int, Value] = {}
        for value, number in self.known.items():
            name = names.get(number)
            if name is None:
                continue
            where = place_of(tensors[name])
            place = places[where] if where in places else places.setdefault(where, self._draft.storage())
            moved = self.evaluation.moved.get(number)
            if number not in made:
                made[number] = Value(name, described_at(value.tensor, moved, place))
            self._draft.substitute(value, made[number])
            if moved is None:
                self._draft.move(value.tensor.storage, place)
        return list(made.values())

    def _kept_inputs(self, read: Mapping[Value, int]) -> tuple[int, ...]:
        """Inputs but for constants that nothing reads and no role mentions."""
        signature = self.program.signature
        meant = {i for role in signature.outputs for i in _inputs_of(role)}
        meant |= {i for role in signature.inputs for i in _inputs_of(role)}
        return tuple(
            index
            for index, value in enumerate(self.program.inputs)
            if value in read or index in meant or value.name not in self.pool.constants or not value.is_tensor
        )

    def _with_inputs(self, program: Program, added: list[Value]) -> Program:
        if not added and len(self.kept) == len(program.inputs):
            return program
        places = {old: new for new, old in enumerate(self.kept)}
        roles = program.signature.inputs
        inputs: list[InputRole] = [_moved_input(roles[index], places) for index in self.kept]
        inputs += [Constant(value.name) for value in added]
        outputs = tuple(_moved_output(role, places) for role in program.signature.outputs)
        values = (*(program.inputs[index] for index in self.kept), *added)
        return replace(program, inputs=values, signature=Signature(tuple(inputs), outputs))


def _inputs_of(role: InputRole | OutputRole) -> tuple[int, ...]:
    if isinstance(role, SharedBytes | GradientBase):
        return role.inputs
    return (role.input,) if isinstance(role, InputMutation | Gradient) else ()


def _moved_input(role: InputRole, places: Mapping[int, int]) -> InputRole:
    if isinstance(role, SharedBytes | GradientBase):
        return replace(role, inputs=tuple(places[index] for index in role.inputs))
    return role


def _moved_output(role: OutputRole, places: Mapping[int, int]) -> OutputRole:
    if isinstance(role, InputMutation | Gradient):
        return replace(role, input=places.get(role.input, role.input))
    return role
