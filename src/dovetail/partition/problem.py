"""What backward can read, save or recompute: the choice as plain numbers.

A value of the problem is a piece of memory that forward allocates. Views share the memory of their base, so they are no
values of their own: saving the base keeps them. What backward can read anyway costs nothing: inputs that are not
written, and returned values; if the policy says so, only those of them that eager keeps, too.

An input that the program writes has other contents by the time backward runs: nothing is recomputed from it. Its
new contents are read only where the default split reads them, so that a later write is refused where eager refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.analysis.liveness import storage_bytes
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Phase, Program, Value, values_in
from dovetail.ir.signature import InputMutation, SharedBytes, UserOutput
from dovetail.ir.sizes import Number
from dovetail.partition.policy import Mark, Policy, can_run_again, is_view
from dovetail.partition.split import is_forward, residuals_of
from dovetail.partition.work import work_of

FREE = -1
UNAVAILABLE = -2


@dataclass(frozen=True, slots=True)
class Problem:
    """Values and nodes are numbered in program order; a node reads values of earlier nodes.

    sizes: bytes of each value; None where it must not be saved (its node can run again). makers: the node of each
    value. costs: the work of running each node again, in bytes (`partition.work`); None where it cannot. reads: values
    that each node reads. wanted: values that backward reads.
    """

    sizes: tuple[int | None, ...]
    makers: tuple[int, ...]
    costs: tuple[int | None, ...]
    reads: tuple[tuple[int, ...], ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """saved: values. recomputed: nodes. saved_bytes, work: what the two cost."""

    saved: frozenset[int]
    recomputed: frozenset[int]
    saved_bytes: int
    work: int


@dataclass(frozen=True, slots=True)
class BuiltProblem:
    """A problem and what its numbers stand for. homes: where the problem has each value of forward: the number, FREE or
    UNAVAILABLE."""

    problem: Problem
    homes: Mapping[Value, int]


def build_problem(program: Program, policy: Policy, hints: Mapping[str, Number]) -> BuiltProblem:
    """The choice for a functional program of two phases. hints: a number for each size symbol."""
    builder = _Builder(program, policy, hints)
    for node in program.nodes:
        if node.phase is Phase.FORWARD:
            builder.add(node)
    return builder.built()


def written_storages(program: Program) -> frozenset[int]:
    """Storages of inputs whose contents the program replaces, in forward or in backward."""
    by_name = {value.name: value for value in program.inputs}
    written: list[Value] = []
    for role in program.signature.outputs:
        if isinstance(role, InputMutation):
            written.append(by_name[role.constant] if role.constant else program.inputs[role.input])
    roles = zip(program.signature.inputs, program.inputs, strict=True)
    written += [value for role, value in roles if isinstance(role, SharedBytes)]
    return frozenset(value.tensor.storage for value in written if value.is_tensor)


class _Builder:
    def __init__(self, program: Program, policy: Policy, hints: Mapping[str, Number]) -> None:
        self.policy = policy
        self.hints = hints
        self.fixed = frozenset(made_symbols(program))
        self.bytes = storage_bytes(program, hints)
        backward = tuple(node for node in program.nodes if node.phase is Phase.BACKWARD)
        self.saved_by_default = dict.fromkeys(residuals_of(program, backward)[0])
        roles = list(zip(program.signature.outputs, program.outputs, strict=True))
        self.returned = _storages([operand for role, operand in roles if isinstance(role, UserOutput)])
        written = written_storages(program)
        contents = _storages([o for role, o in roles if isinstance(role, InputMutation) and is_forward(role)])
        self.contents = contents - written  # a view of the input itself changes with it
        self.returned_late = _storages([operand for role, operand in roles if not is_forward(role)])
        self.homes: dict[Value, int] = {}
        held = {value.tensor.storage for value in self.saved_by_default if value.is_tensor} | policy.may_hold()
        self.let_go = self.returned - held if policy.only_what_eager_holds else frozenset()
        for value in program.inputs:
            is_free = value.is_tensor and value.tensor.storage not in written
            is_free = is_free and (value.tensor.storage in held or not policy.only_what_eager_holds)
            self.homes[value] = FREE if is_free else UNAVAILABLE
        self.contents_homes: dict[int, int] = {}
        self.sizes: list[int | None] = []
        self.makers: list[int] = []
        self.costs: list[int | None] = []
        self.reads: list[tuple[int, ...]] = []

    def add(self, node: Node) -> None:
        """Find homes for the results of the next node."""
        can_run = can_run_again(node, self.fixed)
        if can_run and is_view(node) and self.policy.marks.get(node) is not Mark.MUST_SAVE:
            self.homes.update({value: self._home_of_view(value, node.operands()[0]) for value in node.results()})
            return
        reads = tuple(dict.fromkeys(self.homes[value] for value in node.operands()))
        storages = {value.tensor.storage for value in node.results() if value.is_tensor}
        can_recompute = (
            can_run
            and self.policy.allows(node)
            and UNAVAILABLE not in reads
            and storages.isdisjoint(self.returned_late)
        )
        number = len(self.costs)
        self.costs.append(self.policy.cost(node, work_of(node, self.hints)) if can_recompute else None)
        self.reads.append(tuple(number for number in reads if number != FREE) if can_recompute else ())
        is_marked = can_recompute and self.policy.marks.get(node) is Mark.MUST_RECOMPUTE
        numbers: dict[int, int] = {}
        for value in node.results():
            self.homes[value] = self._home(value, number, numbers, can_recompute, is_marked)

    def _home(self, value: Value, number: int, numbers: dict[int, int], can_recompute: bool, is_marked: bool) -> int:
        if not value.is_tensor:
            return UNAVAILABLE
        storage = value.tensor.storage
        is_contents = storage in self.contents
        if storage in self.returned and not is_contents:
            return UNAVAILABLE if storage in self.let_go else FREE
        if storage not in numbers:
            numbers[storage] = UNAVAILABLE if is_contents and not can_recompute else len(self.sizes)
            if numbers[storage] != UNAVAILABLE:
                self.sizes.append(None if is_contents or is_marked else self.bytes.get(storage, 0))
                self.makers.append(number)
            if is_contents:
                self.contents_homes[storage] = numbers[storage]
        return FREE if is_contents and value in self.saved_by_default else numbers[storage]

    def _home_of_view(self, value: Value, base: Value) -> int:
        """A view is where its base is; of new contents, the views that the default split saves are there as well."""
        storage = value.tensor.storage
        if storage not in self.contents:
            return self.homes[base]
        return FREE if value in self.saved_by_default else self.contents_homes.get(storage, self.homes[base])

    def built(self) -> BuiltProblem:
        """The problem, once every node of forward was added."""
        wanted = dict.fromkeys(self.homes[value] for value in self.saved_by_default if value in self.homes)
        problem = Problem(
            tuple(self.sizes),
            tuple(self.makers),
            tuple(self.costs),
            tuple(self.reads),
            tuple(number for number in wanted if number >= 0),
        )
        return BuiltProblem(problem, self.homes)


def _storages(operands: list[object]) -> frozenset[int]:
    return frozenset(value.tensor.storage for value in values_in(operands) if value.is_tensor)
