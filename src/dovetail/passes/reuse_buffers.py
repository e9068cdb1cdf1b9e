"""Let an elementwise operator write into an operand that dies there.

    add = add(mul, 1)      (nobody reads mul, or a view of it, afterwards)   ->   add = add_(mul, 1)

The result takes over the operand's storage, so nothing is allocated. Conditions, all of them:

- the operator is elementwise and has an in-place twin with the same arguments, which rounds alike;
- the first operand looks exactly like the result, fills its storage, and was made by an ATen operator of this program
  (the memory of inputs belongs to somebody else);
- no value on the operand's storage is read later, or returned, and no other operand lies on it.

The same kernel runs on the same numbers, so results are the same, bit by bit. What eager ran in place (`relu_`, `+=`),
and functionalization took apart, is in place again. Source: the last-use rule of destructive updates, as in Hudak and
Bloss, "The aggregate update problem in functional programming systems" (1985). Cost: O(nodes + operands).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.analysis.region import extent_bytes
from dovetail.ir.program import Node, Program, Stage, TensorMeta, Value, map_operands, values_in
from dovetail.ops.facts import facts_of
from dovetail.ops.twins import inplace_twin
from dovetail.torch_compat.dispatch import Overload, schema_of


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """reused: (result, the operand whose buffer it takes over) names, in program order. saved_bytes: their sum."""

    reused: tuple[tuple[str, str], ...]
    saved_bytes: int

    def __str__(self) -> str:
        return f"reused {len(self.reused)} buffers, {self.saved_bytes} bytes not allocated"


def reuse_buffers(program: Program) -> tuple[Program, ReuseReport]:
    """The program with dying operands written in place; a program of stage IN_PLACE when there is one."""
    return _Reuse(program).run()


class _Reuse:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.last_read = _last_reads(program)
        self.full_bytes = _storage_extents(program)
        self.protected = set(program.input_storages() | _opaque_storages(program))
        self.returned = set(program.output_storages())
        self.moved_to: dict[int, int] = {}
        self.renewed: dict[Value, Value] = {}
        self.reused: list[tuple[str, str]] = []
        self.saved_bytes = 0

    def run(self) -> tuple[Program, ReuseReport]:
        nodes = tuple(self._rewrite(index, node) for index, node in enumerate(self.program.nodes))
        report = ReuseReport(tuple(self.reused), self.saved_bytes)
        if not self.reused:
            return self.program, report
        outputs = tuple(map_operands(operand, self._current) for operand in self.program.outputs)
        return replace(self.program, stage=Stage.IN_PLACE, nodes=nodes, outputs=outputs), report

    def _current(self, value: Value) -> Value:
        return self.renewed.get(value, value)

    def _storage(self, number: int) -> int:
        while number in self.moved_to:
            number = self.moved_to[number]
        return number

    def _rewrite(self, index: int, node: Node) -> Node:
        target = self._inplace_target(index, node)
        if target is not None:
            (result,) = node.results()
            operand = node.args[0]
            assert isinstance(operand, Value), "checked before"
            old, new = self._storage(operand.tensor.storage), result.tensor.storage
            self.moved_to[new] = old
            self.last_read[old] = self.last_read.get(new, index)
            if new in self.returned:
                self.returned.add(old)
            self.reused.append((result.name, operand.name))
            self.saved_bytes += self.full_bytes.get(new, 0)
        outputs = tuple(None if value is None else self._renew(value) for value in node.outputs)
        moved = node.with_operands(self._current)
        if target is None and outputs == node.outputs:
            return moved
        return replace(moved, target=target or node.target, outputs=outputs)

    def _renew(self, value: Value) -> Value:
        if not value.is_tensor or self._storage(value.tensor.storage) == value.tensor.storage:
            return value
        meta = replace(value.tensor, storage=self._storage(value.tensor.storage))
        self.renewed[value] = Value(value.name, meta)
        return self.renewed[value]

    def _inplace_target(self, index: int, node: Node) -> Overload | None:
        """The in-place twin to run instead, if every condition holds."""
        if not isinstance(node.target, Overload) or not facts_of(node.target).pointwise or node.unpack:
            return None
        results = list(node.results())
        operand = node.args[0] if node.args else None
        if len(results) != 1 or not isinstance(operand, Value) or not self._is_free(operand, index):
            return None
        result, storage = results[0].tensor, self._storage(operand.tensor.storage)
        others = [v for v in (*values_in(node.args[1:]), *values_in([a for _, a in node.kwargs])) if v.is_tensor]
        if any(self._storage(v.tensor.storage) == storage for v in others):
            return None
        if result.storage == operand.tensor.storage or not _is_alike(result, operand.tensor):
            return None
        return inplace_twin(node.target, result.dtype)

    def _is_free(self, operand: Value, index: int) -> bool:
        if not operand.is_tensor:
            return False
        storage = self._storage(operand.tensor.storage)
        extent = extent_bytes(operand.tensor)
        fills = extent is not None and extent == (0, self.full_bytes.get(operand.tensor.storage, -1))
        dense = isinstance(operand.tensor.size_bytes(), int) and extent == (0, operand.tensor.size_bytes())
        dies = self.last_read.get(storage, -1) <= index
        return fills and dense and dies and storage not in self.protected and storage not in self.returned


def _is_alike(a: TensorMeta, b: TensorMeta) -> bool:
    return a.layout() == b.layout() and a.offset == b.offset == 0


def _last_reads(program: Program) -> dict[int, int]:
    last: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for value in node.operands():
            if value.is_tensor:
                last[value.tensor.storage] = index
    return last


def _storage_extents(program: Program) -> dict[int, int]:
    """Bytes from the start of each storage to the end of the farthest value on it; -1 when a size is symbolic."""
    extents: dict[int, int] = {}
    for node in program.nodes:
        for value in node.results():
            if value.is_tensor:
                extent = extent_bytes(value.tensor)
                known = extents.get(value.tensor.storage, 0)
                extents[value.tensor.storage] = -1 if extent is None or known < 0 else max(known, extent[1])
    return extents


def _opaque_storages(program: Program) -> set[int]:
    """Storages of results of operators of other libraries: what they alias is not known."""
    return {
        value.tensor.storage
        for node in program.nodes
        if isinstance(node.target, Overload) and schema_of(node.target).namespace != "aten"
        for value in node.results()
        if value.is_tensor
    }
