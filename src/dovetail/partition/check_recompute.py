"""Prove a split in which backward recomputes values correct, independently of how it was made.

Every value gets a *value number* that says what it holds: inputs and results of nodes that are not pure have one each,
and equal applications of a pure operator to equal numbers share one. A copy in backward is right when its numbers are
known from forward. The checker shares no code with the solver, nor with the code that applies its choice; all three
rely on the facts of operators (`ops.facts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from dovetail.errors import InvalidProgram
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Phase, Program, Value, values_in
from dovetail.ir.signature import InputMutation, InputRole, Residual, SharedBytes, Tangent
from dovetail.ops.facts import facts_of, may_be_removed, writes_of
from dovetail.partition.frozen import frozen
from dovetail.partition.split import Split


def verify_recomputation(program: Program, split: Split) -> None:
    """Raise InvalidProgram unless the halves together do what the program does.

    Checked: forward is the program's forward, in order, but for pure nodes that nobody reads; every node of backward is
    there once, in order, on the same values; any other node of backward applies a pure forward node again to the same
    values, once; each half reads only what it is given, and each output is given once; backward reads no input
    that is written, unless the program's own backward does.
    """
    _Checker(program, split).check()


class _Checker:
    def __init__(self, program: Program, split: Split) -> None:
        self.program = program
        self.split = split
        self.numbers: dict[Value, int] = {}
        self.known: dict[Hashable, int] = {}
        self.views: dict[int, bool] = {}
        self.fixed = frozenset(made_symbols(program))
        for value in program.inputs:
            self.numbers[value] = len(self.numbers)
        self.next = len(self.numbers)
        for node in program.nodes:
            self._number(node, may_be_new=True)

    def check(self) -> None:
        self._check_forward()
        self._check_backward()
        self._check_handed()
        self._check_outputs()

    def _require(self, condition: bool, rule: str, detail: str) -> None:
        if not condition:
            name = self.program.name
            raise InvalidProgram(program=name, stage="split", rule=rule, detail=detail or "see the dump")

    # --- what values hold -----------------------------------------------------------------------------------

    def _number(self, node: Node, may_be_new: bool) -> None:
        """Give the results of a node their numbers."""
        key = self._key(node)
        for place, value in enumerate(node.outputs):
            if value is None:
                continue
            at = None if key is None else (key, place, value.tensor.layout() if value.is_tensor else None)
            number = self.known.get(at) if at is not None else None
            if number is None:
                self._require(may_be_new, "what runs again ran in forward", value.name)
                number, self.next = self.next, self.next + 1
                if at is not None:
                    self.known[at] = number
            self.numbers[value] = number
            if may_be_new:
                self.views[number] = _lies_in_operand(node, value)

    def _key(self, node: Node) -> Hashable | None:
        """What a node applies to which numbers; None for one that may give something else each time."""
        facts = facts_of(node.target)
        if not facts.is_pure or not facts.repeats or writes_of(node) or node in self.fixed:
            return None
        kwargs = tuple((name, frozen(operand, self.numbers)) for name, operand in node.kwargs)
        return (node.target, frozen(node.args, self.numbers), kwargs, node.unpack, len(node.outputs))

    # --- the halves -----------------------------------------------------------------------------------------

    def _check_forward(self) -> None:
        own = [node for node in self.program.nodes if node.phase is Phase.FORWARD]
        there = set(self.split.forward.nodes)
        self._require(
            [node for node in own if node in there] == list(self.split.forward.nodes),
            "forward is the program's forward",
            self.split.forward.name,
        )
        for node in own:
            lost = node not in there and not may_be_removed(node)
            self._require(not lost, "no draw, write or effect is lost", str(node.target))
        self._check_closed(self.split.forward)

    def _check_backward(self) -> None:
        self._check_closed(self.split.backward)
        own = iter([node for node in self.program.nodes if node.phase is Phase.BACKWARD])
        originals = {_names(node) for node in self.program.nodes if node.phase is Phase.BACKWARD}
        storages = {v.tensor.storage for v in self.numbers if v.is_tensor}
        early = [node for node in self.program.nodes if node.phase is Phase.FORWARD]
        left = Counter(self.numbers[value] for node in early for value in node.results())
        for node in self.split.backward.nodes:
            if _names(node) in originals:
                self._check_same(node, next(own, None))
                continue
            self._require(not any(v in self.numbers for v in node.results()), "a value is made once", str(node.target))
            self._require(self._key(node) is not None, "only pure nodes run again", str(node.target))
            self._number(node, may_be_new=False)
            self._check_place(node, storages)
            for value in node.results():
                left[self.numbers[value]] -= 1
                self._require(left[self.numbers[value]] >= 0, "nothing runs again twice", value.name)
        self._require(next(own, None) is None, "no node of backward is lost", self.split.backward.name)

    def _check_same(self, node: Node, original: Node | None) -> None:
        """A node of backward is the program's next one, on the same values."""
        detail = str(node.target)
        self._require(original is not None and _names(node) == _names(original), "order is kept", detail)
        assert original is not None, "just checked"
        for old, new in zip(original.results(), node.results(), strict=True):
            self.numbers[new] = self.numbers[old]
            same_place = _lies_in_operand(node, new) == _lies_in_operand(original, old)
            is_new = not new.is_tensor or new.tensor == old.tensor or _lies_in_operand(node, new)
            sound = same_place and is_new and _looks(new) == _looks(old)
            self._require(sound, "a view lies where what it views lies", new.name)
        same = (node.target, node.unpack, frozen((node.args, node.kwargs), self.numbers)) == (
            original.target,
            original.unpack,
            frozen((original.args, original.kwargs), self.numbers),
        )
        self._require(same, "a node of backward reads the same values", detail)

    def _check_place(self, node: Node, storages: set[int]) -> None:
        """What runs again makes memory of its own, or views what it reads, as it did in forward."""
        for value in node.results():
            is_view = _lies_in_operand(node, value)
            sound = is_view == self.views[self.numbers[value]] and (is_view or value.tensor.storage not in storages)
            self._require(sound, "what runs again lies as in forward", value.name)
        storages.update(value.tensor.storage for value in node.results())

    def _check_closed(self, half: Program) -> None:
        known = set(half.inputs)
        for node in half.nodes:
            for value in node.operands():
                self._require(value in known, "a half reads only its own inputs", f"{half.name}: {value.name}")
            known.update(node.results())
        for value in values_in(half.outputs):
            self._require(value in known, "a half gives only what it has", f"{half.name}: {value.name}")

    # --- between the halves ---------------------------------------------------------------------------------

    def _check_handed(self) -> None:
        forward, backward, names = self.split.forward, self.split.backward, self.split.residuals
        roles = zip(forward.signature.outputs, forward.outputs, strict=True)
        given = {role.name: operand for role, operand in roles if isinstance(role, Residual)}
        self._require(tuple(given) == names, "forward gives each residual", ", ".join(given))
        taken = list(zip(backward.signature.inputs, backward.inputs, strict=True))
        residuals = [(role, value) for role, value in taken if isinstance(role, Residual)]
        self._require(tuple(r.name for r, _ in residuals) == names, "backward takes each residual", ", ".join(names))
        for role, value in residuals:
            same = given[role.name] is value if value.is_tensor else str(given[role.name]) == value.name
            self._require(same, "a residual is what forward gives", role.name)
        own = set(self.program.inputs)
        for kind, value in taken:
            self._require(isinstance(kind, Residual) or value in own, "a half takes only its inputs", value.name)
        inputs = zip(self.program.signature.inputs, self.program.inputs, strict=True)
        tangents = {value for role, value in inputs if isinstance(role, Tangent)}
        for value in forward.inputs:
            self._require(value in own - tangents, "a half takes only its inputs", value.name)
        self._check_written_inputs(taken)

    def _check_written_inputs(self, taken: list[tuple[InputRole, Value]]) -> None:
        written = self._written()
        late = [node for node in self.program.nodes if node.phase is Phase.BACKWARD]
        read = {v for node in late for v in node.operands()} | set(values_in(self.split.backward.outputs))
        own_results = {_names(node) for node in late}
        again = {v for n in self.split.backward.nodes if _names(n) not in own_results for v in n.operands()}
        for _, value in taken:
            if value.is_tensor and value.tensor.storage in written:
                is_read_anyway = value in read and value not in again
                self._require(is_read_anyway, "backward reads no input that is written", value.name)

    def _written(self) -> set[int]:
        """Storages of inputs whose contents the program replaces."""
        inputs = list(zip(self.program.signature.inputs, self.program.inputs, strict=True))
        found = [v for role, v in inputs if isinstance(role, SharedBytes)]
        for role in self.program.signature.outputs:
            if isinstance(role, InputMutation):
                found += [
                    v for place, (_, v) in enumerate(inputs) if role.constant in ("", v.name) and _is(role, place)
                ]
        return {value.tensor.storage for value in found if value.is_tensor}

    def _check_outputs(self) -> None:
        roles = self.split.forward.signature.outputs
        kept = [o for r, o in zip(roles, self.split.forward.outputs, strict=True) if not isinstance(r, Residual)]
        outputs = [*kept, *self.split.backward.outputs]
        same = sorted(map(id, outputs)) == sorted(map(id, self.program.outputs))
        self._require(same, "each output is given once", f"{len(outputs)} for {len(self.program.outputs)}")


def _names(node: Node) -> tuple[str | None, ...]:
    """What the results of a node are called: a value that lies elsewhere now keeps its name."""
    return tuple(None if value is None else value.name for value in node.outputs)


def _looks(value: Value) -> Hashable:
    return value.tensor.layout() if value.is_tensor else value.meta


def _is(role: InputMutation, place: int) -> bool:
    return bool(role.constant) or role.input == place


def _lies_in_operand(node: Node, value: Value) -> bool:
    storages = {operand.tensor.storage for operand in node.operands() if operand.is_tensor}
    return value.is_tensor and value.tensor.storage in storages
