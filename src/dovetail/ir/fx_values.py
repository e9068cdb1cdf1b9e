"""Values for the results of `torch.fx` nodes: their names, and what they look like."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from dovetail.errors import InvalidGraphModule, UnsupportedTensor
from dovetail.ir.convert import describe, scalar_of, unsupported_kind
from dovetail.ir.program import Meta, ScalarMeta, Value
from dovetail.ir.text import identifier
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES

NUMBERS = (bool, int, float, *SYMBOLIC_TYPES)


class ValueMaker:
    """Makes values with the names that nodes have; tensors of one storage get one storage number.

    storages: those numbers, by `storage_key`.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._fx_names = {identifier(node.name) for node in graph.nodes}
        self._taken: set[str] = set()
        self.storages: dict[int, int] = {}
        self._alive: list[object] = []

    def value(self, node: fx.Node, name: str, held: Any) -> Value:
        """A value called about `name` for a fake tensor or number. node: for errors. Raises: InvalidGraphModule."""
        name = identifier(name)
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return Value(name, self._meta(node, held))

    def results(self, node: fx.Node, result: Any) -> list[tuple[Value | None, fx.Node]]:
        """A value for each result of a call that is not None, and the node that gives it: `getitem`, or the call.

        Those of nested sequences come one after the other.
        """
        if not isinstance(result, tuple | list):
            return [] if result is None else [(self.value(node, node.name, result), node)]
        return self._items(node, node.name, result, node.users)

    def _items(
        self, node: fx.Node, name: str, result: Sequence[Any], readers: Iterable[fx.Node]
    ) -> list[tuple[Value | None, fx.Node]]:
        """The values in a sequence that `node` gives, or that is in what it gives, and then has no readers."""
        items = {
            reader.args[1] % len(result): reader
            for reader in readers
            if reader.target is operator.getitem and isinstance(reader.args[1], int) and result
        }
        made: list[tuple[Value | None, fx.Node]] = []
        for index, item in enumerate(result):
            by = items.get(index)
            label = f"{name}_{index}" if by is None else by.name
            if isinstance(item, tuple | list):
                made += self._items(by or node, label, item, () if by is None else by.users)
                continue
            label = self._spare_name(label) if by is None else label
            made.append((None if item is None else self.value(node, label, item), by or node))
        return made

    def _spare_name(self, wish: str) -> str:
        while identifier(wish) in self._fx_names:
            wish += "_"
        return wish

    def _meta(self, node: fx.Node, held: Any) -> Meta:
        if isinstance(held, torch.Tensor):
            unsupported = unsupported_kind(held)
            if unsupported is not None:
                kind, hint = unsupported
                raise UnsupportedTensor(name=f"the result of node {node.name}", kind=kind, hint=hint)
            key = storage_key(held)
            if key not in self.storages:
                self.storages[key] = len(self.storages)
                self._alive.append(held.untyped_storage())
            return describe(held, self.storages[key])
        if not isinstance(held, NUMBERS):
            raise InvalidGraphModule(
                node=node.name, reason=f"it gives a {type(held).__name__}, not a tensor or a number"
            )
        try:
            return ScalarMeta(scalar_of(held))
        except NotImplementedError as error:
            raise InvalidGraphModule(node=node.name, reason=f"it gives a number of unknown form: {error}") from error
