"""Run a program node by node, without making code of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.ir.program import Node, Operand, Program, ScalarMeta, Value, map_leaves, values_in
from dovetail.ir.sizes import Number, SizeExpr, evaluate
from dovetail.ops.preconditions import checked

_WORD = 1 << 63
# How often a subgraph from a file may run in one call of its operator: a loop may have no end.
MAX_TURNS = 1_000_000


def size_numbers(values: Iterable[tuple[Value, Any]]) -> dict[str, Number]:
    """The number of each size symbol that stands alone in the description of a value, given what the value is."""
    found: dict[str, Number] = {}
    for value, real in values:
        meta = value.meta
        pairs: list[tuple[object, Any]]
        if isinstance(meta, ScalarMeta):
            pairs = [(meta.expr, real)]
        else:
            described = (*meta.shape, *meta.stride, meta.offset)
            pairs = list(zip(described, (*real.shape, *real.stride(), real.storage_offset()), strict=False))
        for size, number in pairs:
            if isinstance(size, SizeExpr) and size.op == "symbol":
                found.setdefault(str(size.args[0]), number)
    return found


def real_operand(operand: Operand, held: Mapping[Value, Any], sizes: Mapping[str, Number]) -> Any:
    """What an operand is. held: what values are. sizes: a number for each size symbol."""

    def real(leaf: Operand) -> Any:
        if isinstance(leaf, Value):
            return held[leaf]
        return evaluate(leaf, sizes) if isinstance(leaf, SizeExpr) else leaf

    return map_leaves(operand, real)


def run_node(node: Node, held: Mapping[Value, Any], sizes: Mapping[str, Number]) -> list[tuple[Value, Any]]:
    """Run one node. held: what its operands are. sizes: a number for each size symbol. Raises what it raises."""
    kwargs = {name: real_operand(operand, held, sizes) for name, operand in node.kwargs}
    args = [real_operand(operand, held, sizes) for operand in node.args]
    result: Any = (checked(node.target) or node.target)(*args, **kwargs)
    items = list(result) if node.unpack else [result] if node.outputs else []
    return [(value, item) for value, item in zip(node.outputs, items, strict=True) if value is not None]


class Interpreted:
    """A subgraph as a function that runs its program node by node; values are freed after their last use.

    It gives its one result if it is bare, else a tuple. Numbers that leave it have at most 64 bits, since a loop would
    make them longer and longer, and it runs at most `MAX_TURNS` times.
    """

    def __init__(self, program: Program, is_bare: bool, dying: Mapping[int, list[Value]] | None = None) -> None:
        self._program = program
        self._is_bare = is_bare
        self._turns = 0
        self._dying = _dying(program) if dying is None else dying

    def fresh(self) -> Interpreted:
        """The same, which has not run yet."""
        return Interpreted(self._program, self._is_bare, self._dying)

    def __call__(self, *items: Any) -> Any:
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise RuntimeError(f"a subgraph runs more than {MAX_TURNS} times")
        held: dict[Value, Any] = dict(zip(self._program.inputs, items, strict=True))
        sizes = size_numbers(held.items())
        self._forget(held, -1)
        for index, node in enumerate(self._program.nodes):
            for value, item in run_node(node, held, sizes):
                held[value] = item
                sizes = {**size_numbers([(value, item)]), **sizes}
            self._forget(held, index)
        results = tuple(_short(real_operand(output, held, sizes)) for output in self._program.outputs)
        return results[0] if self._is_bare else results

    def _forget(self, held: dict[Value, Any], index: int) -> None:
        for value in self._dying.get(index, ()):
            held.pop(value, None)


def _dying(program: Program) -> dict[int, list[Value]]:
    """The values to forget after each node; -1: before the first one."""
    last = dict.fromkeys(program.inputs, -1)
    for index, node in enumerate(program.nodes):
        last.update(dict.fromkeys((*node.operands(), *node.results()), index))
    kept = set(values_in(program.outputs))
    found: dict[int, list[Value]] = {}
    for value, index in last.items():
        if value not in kept:
            found.setdefault(index, []).append(value)
    return found


def _short(item: Any) -> Any:
    if type(item) is int and not -_WORD <= item < _WORD:
        raise OverflowError(f"an integer of {item.bit_length()} bits leaves a subgraph")
    return item
