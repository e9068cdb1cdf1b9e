"""A program while it is rewritten: free names, new storages, what stands for each value, and the nodes so far.

A pass takes the nodes of a program one by one into a draft, over the values that stand for their operands by then:

    draft = Draft(program)
    for node in program.nodes:
        if is_no_op(node):
            draft.merge(node.outputs[0], draft.current(node.args[0]))
        else:
            draft.take(node)
    return draft.finish()

A value that is merged takes its storage with it: views of it become views of the value that stands for it, and their
descriptions must say so, because every later question about memory is answered from storage numbers.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from dovetail.ir.program import Node, Operand, Program, TensorMeta, Value, map_operands


def free_name(wish: str, taken: Container[str], first: int = 1) -> str:
    """The name that is wished for if it is not taken, or else with a number, the first free one from `first` on."""
    name, count = wish, first
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    return name


class Draft:
    """See the module's text. nodes: of the new program, in order; a pass may put others there."""

    def __init__(self, program: Program) -> None:
        self.nodes: list[Node] = []
        self._program = program
        self._names: set[str] | None = None  # found when a name is first asked for, as the storages are
        self._last_storage: int | None = None
        self._values: dict[Value, Value] = {}
        self._storages: dict[int, int] = {}

    # --- names and storages ---------------------------------------------------------------------------------------

    def name(self, wish: str, first: int = 1) -> str:
        """See `free_name`; it is taken from now on."""
        if self._names is None:
            self._names = {value.name for value in self._program.values()}
        name = free_name(wish, self._names, first)
        self._names.add(name)
        return name

    def storage(self) -> int:
        """The number of a new storage."""
        if self._last_storage is None:
            used = (value.tensor.storage for value in self._program.values() if value.is_tensor)
            self._last_storage = max(used, default=-1)
        self._last_storage += 1
        return self._last_storage

    def value(self, wish: str, like: TensorMeta) -> Value:
        """A new tensor like this one, at the start of a new storage."""
        return Value(self.name(wish), replace(like, storage=self.storage(), offset=0))

    # --- what stands for what -------------------------------------------------------------------------------------

    def __contains__(self, value: Value) -> bool:
        """Whether something was said to stand for the value, or to be in the new program as it is."""
        return value in self._values

    def current(self, value: Value) -> Value:
        """What stands for a value by now."""
        found = self._values.get(value, value)
        while found is not value:
            value, found = found, self._values.get(found, found)
        return value

    def operand(self, operand: Operand) -> Operand:
        """An operand over the values that stand for its own."""
        return map_operands(operand, self.current)

    def substitute(self, old: Value, new: Value) -> None:
        """From now on, `new` stands for `old`; or a value for itself, which is in the new program as it is."""
        self._values[old] = new

    def merge(self, old: Value, new: Value) -> None:
        """From now on `new` stands for `old`; both lie at the same offset of their storages, which are one now."""
        self._values[old] = new
        if old.is_tensor and new.is_tensor and old.tensor.storage != new.tensor.storage:
            self._storages[old.tensor.storage] = new.tensor.storage

    def move(self, storage: int, to: int) -> None:
        """From now on, inputs and results that lie in a storage lie in another one."""
        self._storages[storage] = to

    def placed(self, value: Value) -> Value:
        """An input or a result as it is in the new program: what stands for it, in the storage where it lies by now."""
        if value in self._values or not value.is_tensor:
            return self.current(value)
        storage = self._storages.get(value.tensor.storage, value.tensor.storage)
        if storage == value.tensor.storage:
            return value
        self._values[value] = Value(value.name, replace(value.tensor, storage=storage))
        return self._values[value]

    # --- nodes ----------------------------------------------------------------------------------------------------

    def rewritten(self, node: Node) -> Node:
        """The node over current values, its results in current storages; itself when nothing changed."""
        if self._values and not self._values.keys().isdisjoint(node.operands()):
            node = node.with_operands(self.current)
        return node.with_results(self.placed)

    def take(self, node: Node) -> None:
        """Append a node of the old program, rewritten."""
        self.nodes.append(self.rewritten(node))

    def finish(self) -> Program:
        """The program with these nodes; itself when nothing changed."""
        outputs = tuple(map(self.operand, self._program.outputs))
        program = self._program.replace_nodes(tuple(self.nodes), outputs)
        inputs = tuple(map(self.placed, program.inputs))
        return program if inputs == program.inputs else replace(program, inputs=inputs)
