"""Rewriting nodes one by one while values are replaced by equal ones.

A removed value takes its storage with it: views of it become views of the value that stands for it, and their
descriptions must say so, because every later question about memory is answered from storage numbers.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.program import Node, Operand, Value, map_operands


class Merging:
    """Which value stands for which, and which storage for which."""

    def __init__(self) -> None:
        self._values: dict[Value, Value] = {}
        self._storages: dict[int, int] = {}

    def merge(self, gone: Value, kept: Value) -> None:
        """From now on `kept` stands for `gone`; both lie at the same offset of their storages."""
        self._values[gone] = kept
        if gone.is_tensor and gone.tensor.storage != kept.tensor.storage:
            self._storages[gone.tensor.storage] = kept.tensor.storage

    def current(self, value: Value) -> Value:
        """The value that stands for `value`."""
        while value in self._values:
            value = self._values[value]
        return value

    def operand(self, operand: Operand) -> Operand:
        """An operand with each value replaced by the one that stands for it."""
        return map_operands(operand, self.current)

    def rewrite(self, node: Node) -> Node:
        """The node over current values, its results on current storages; itself when nothing changed."""
        node = node.with_operands(self.current)
        outputs = tuple(None if value is None else self._moved(value) for value in node.outputs)
        if all(new is old for new, old in zip(outputs, node.outputs, strict=True)):
            return node
        return replace(node, outputs=outputs)

    def _moved(self, value: Value) -> Value:
        if not value.is_tensor or value.tensor.storage not in self._storages:
            return value
        moved = Value(value.name, replace(value.tensor, storage=self._storages[value.tensor.storage]))
        self._values[value] = moved
        return moved
