"""Prove a program in which nodes run again right, independently of how it was made.

Every value of the program has a number; equal applications of an operator that always gives the same share one. A node
of the new program that is not there before must apply such an operator to values of the same numbers as a node that ran
already; its results then have the numbers of that one's. All other nodes are the program's, in order, on the same
numbers. Contents may leave for a file and come back (`check_transfers`). Contents of inputs count as others once they
were written. The checker shares no code with the solver, nor with what applies its choice; all rely on the facts of
operators (`ops.facts`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from dovetail.errors import InvalidProgram
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Phase, Program, Value, values_in
from dovetail.ir.signature import InputMutation, Residual, SharedBytes, UserOutput
from dovetail.ops.again import again_form
from dovetail.ops.facts import facts_of, writes_of, written_values
from dovetail.ops.prims import REACHED
from dovetail.ops.transfers import TRANSFERS
from dovetail.partition.frozen import frozen
from dovetail.partition.split import Split, is_forward
from dovetail.partition.whole.check_transfers import Transfers


def verify_whole(program: Program, changed: Program) -> None:
    """Raise InvalidProgram unless the changed program does what the program does, and in no other order.

    program: functional, but for copies into its inputs.
    """
    _Checker(program, changed).check()


def verify_sources(
    program: Program, split: Split, *, only_what_eager_holds: bool, may_hold: frozenset[int] = frozenset()
) -> None:
    """Raise InvalidProgram where backward reads what may be something else by then.

    That is, beyond what the program's own backward reads: inputs that are written, their new contents, and, if asked
    for, inputs and returned values, which the caller may change or let go. may_hold: storages of those all the same.
    """
    roles = list(zip(program.signature.outputs, program.outputs, strict=True))
    inputs = list(zip(program.signature.inputs, program.inputs, strict=True))
    late = [made for role, made in roles if not is_forward(role)]
    own = {v for node in program.nodes if node.phase is Phase.BACKWARD for v in node.operands()} | set(values_in(late))
    held = _storages(own)
    written = [role for role in program.signature.outputs if isinstance(role, InputMutation)]
    lost = _storages(v for role, made in roles if isinstance(role, InputMutation) for v in values_in(made)) | _storages(
        value
        for place, (kind, value) in enumerate(inputs)
        if isinstance(kind, SharedBytes)
        or any(value.name == role.constant if role.constant else place == role.input for role in written)
    )
    if only_what_eager_holds:
        returned = [made for role, made in roles if isinstance(role, UserOutput)]
        lost |= (_storages(values_in(returned)) | _storages(v for _, v in inputs)) - held - may_hold
    known = {value.name for value in own}
    for role, value in zip(split.backward.signature.inputs, split.backward.inputs, strict=True):
        if isinstance(role, Residual) and value.name not in known and not _storages([value]).isdisjoint(lost):
            raise InvalidProgram(
                program=program.name, stage="split", rule="backward reads what stays as it is", detail=value.name
            )


def _storages(values: Iterable[Value]) -> set[int]:
    return {value.tensor.storage for value in values if value.is_tensor}


class _Checker:
    def __init__(self, program: Program, changed: Program) -> None:
        self.program = program
        self.changed = changed
        self.fixed = frozenset(made_symbols(program))
        self.inputs = program.input_storages()
        self.known: dict[Hashable, Node] = {}
        self.numbers: dict[Value, int] = {}
        self.originals: dict[Value, int] = {}
        self.storages: set[int] = set(self.inputs)  # of the changed program, as far as there by now
        self.transfers = Transfers(self._require)
        self.writes: dict[int, int] = {}  # how often the storage of an input was written by now

    def _require(self, condition: bool, rule: str, detail: str) -> None:
        if not condition:
            name = self.program.name
            raise InvalidProgram(program=name, stage="whole", rule=rule, detail=detail or "see the dump")

    def check(self) -> None:
        self._require(self.program.inputs == self.changed.inputs, "inputs stay", self.changed.name)
        self._number_program()
        self.numbers = {value: self.originals[value] for value in self.program.inputs}
        own = iter(self.program.nodes)
        names = {value.name for value in self.program.values()}
        for node in self.changed.nodes:
            if node.target in TRANSFERS:
                self._require(
                    self.inputs.isdisjoint(_storages(node.operands())), "inputs do not leave", str(node.target)
                )
                self.transfers.check(node, self.numbers, self.storages)
                self.storages.update(_storages(node.results()))
                continue
            if node.target is REACHED and self.transfers.has_token(node.operands()):
                continue
            for value in node.operands():
                self._require(value in self.numbers, "a value is read after it is made", value.name)
            if node.results() and not any(value.name in names for value in node.results()):
                self._check_again(node)
            else:
                self._check_own(node, next(own, None))
            self.storages.update(value.tensor.storage for value in node.results() if value.is_tensor)
            self._note_writes(node)
        self._require(next(own, None) is None, "every node runs", self.program.name)
        self.transfers.finish()
        same = frozen(self.changed.outputs, self.numbers) == frozen(self.program.outputs, self.originals)
        self._require(same, "outputs are the same values", self.program.name)

    def _number_program(self) -> None:
        for value in self.program.inputs:
            self.originals[value] = len(self.originals)
        last, shared, written = len(self.originals), dict[Hashable, int](), dict[int, int]()
        for node in self.program.nodes:
            key = self._key(node, self.originals, written)
            for place, made in enumerate(node.outputs):
                if made is not None:
                    last += 1
                    self.originals[made] = last if key is None else shared.setdefault((key, place), last)
            for target in written_values(node):
                written[target.tensor.storage] = written.get(target.tensor.storage, 0) + 1

    def _check_own(self, node: Node, original: Node | None) -> None:
        """A node that was there before: the next one, on the same values."""
        if original is None:
            self._require(False, "a node runs that the program does not have", str(node.target))
            return
        here, there = self._application(node, self.numbers), self._application(original, self.originals)
        self._require(here == there, "nodes run in their order, on the same values", str(node.target))
        for new, old in zip(node.outputs, original.outputs, strict=True):
            if new is not None and old is not None:
                self._check_place(new, node)
                self._require(_looks(new) == _looks(old), "a result is as it was", new.name)
                self.numbers[new] = self.originals[old]
        for ran, form in ((node, original), (again_form(node), again_form(original))):
            key = self._key(ran, self.numbers, self.writes)
            if key is not None:
                self.known[key] = form

    def _check_again(self, node: Node) -> None:
        """A node that is new: it ran already, on the same values, and gives the same each time."""
        key = self._key(node, self.numbers, self.writes)
        original = self.known.get(key) if key is not None else None
        if original is None:
            self._require(False, "what runs again ran already, on the same contents", str(node.target))
            return
        for new, old in zip(node.outputs, original.outputs, strict=True):
            self._require((new is None) == (old is None), "a result is as it was", str(node.target))
            if new is not None and old is not None:
                self._check_place(new, node)
                self._require(_looks(new) == _looks(old), "a result is as it was", new.name)
                self.numbers[new] = self.originals[old]

    def _check_place(self, value: Value, node: Node) -> None:
        """A result lies in memory of its own, or in that of an operand, as it did before."""
        if value.is_tensor and value.tensor.storage in self.storages:
            others = (*node.operands(), *node.results())
            mine = {v.tensor.storage for v in others if v is not value and v.is_tensor}
            self._require(value.tensor.storage in mine, "results have their own memory", value.name)

    def _note_writes(self, node: Node) -> None:
        for value in written_values(node):
            storage = value.tensor.storage
            self._require(storage in self.inputs, "only inputs are written", value.name)
            self.writes[storage] = self.writes.get(storage, 0) + 1

    def _key(self, node: Node, numbers: dict[Value, int], writes: dict[int, int]) -> Hashable | None:
        """What a node applies to which contents; None for one that may give something else each time."""
        facts = facts_of(node.target)
        if not facts.is_pure or not facts.repeats or writes_of(node) or node in self.fixed:
            return None
        if not all(value.is_tensor for value in (*node.operands(), *node.results())):
            return None
        contents = tuple(writes.get(value.tensor.storage, 0) for value in node.operands())
        looks = tuple(None if value is None else _looks(value) for value in node.outputs)
        return (self._application(node, numbers), contents, looks)

    def _application(self, node: Node, numbers: dict[Value, int]) -> Hashable:
        kwargs = tuple((name, frozen(operand, numbers)) for name, operand in node.kwargs)
        return (id(node.target), frozen(node.args, numbers), kwargs, node.unpack, len(node.outputs))


def _looks(value: Value) -> Hashable:
    return (*value.tensor.layout(), value.tensor.offset) if value.is_tensor else value.meta
