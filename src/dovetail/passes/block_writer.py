"""Nodes that run on blocks of rows: operands laid out and cut, calls appended, results put together again."""

from __future__ import annotations

from itertools import pairwise

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Origin, Phase, Target, TensorMeta, Value
from dovetail.ir.sizes import product
from dovetail.ops.rows import Rows

aten = torch.ops.aten


class BlockWriter:
    """Appends nodes to a draft. origin, phase: of the nodes that come next."""

    def __init__(self, draft: Draft, infer: MetaInference) -> None:
        self.origin, self.phase = Origin(), Phase.FORWARD
        self._draft = draft
        self._make = NodeMaker(draft, infer)

    def call(
        self,
        target: Target,
        args: tuple[Operand, ...],
        kwargs: tuple[tuple[str, Operand], ...] = (),
        *,
        name: str = "block",
    ) -> Value:
        """Append the call of an operator over what stands for its operands by now. Its first result."""
        given = self._draft.operand(args)
        assert isinstance(given, tuple), "operand tuples stay tuples"
        return self._append(target, given, kwargs, name).results()[0]

    def again(self, block: Node) -> Node:
        """Append a node whose operands are those of one block, with results of their sizes."""
        return self._append(block.target, block.args, block.kwargs, block.results()[0].name)

    def flat(self, value: Value, rows: Rows, units: int) -> Value:
        """The value with its rows in one dimension."""
        value = self._draft.current(value)
        if rows.is_turned or rows.lead == 1:
            return value
        if not _collapses(value.tensor, rows.lead):
            value = self.call(aten.clone.default, (value,), (("memory_format", torch.contiguous_format),))
        shape = [size for size in value.tensor.shape if isinstance(size, int)]
        return self.call(aten.view.default, (value, rows.shape_of(shape, units)))

    def room(self, value: Value, rows: Rows, units: int) -> Value:
        """New memory for a value, with its rows in one dimension."""
        meta = value.tensor
        shape = rows.shape_of([size for size in meta.shape if isinstance(size, int)], units)
        kind = (("dtype", meta.dtype), ("device", meta.device), ("pin_memory", False))
        return self.call(aten.empty.memory_format, (shape,), kind, name=value.name)

    def cut(self, flat: Value, rows: Rows, start: int, count: int, *, name: str) -> Value:
        """The rows of some units."""
        return self.call(aten.slice.Tensor, (flat, *_place(rows, start, count)), name=name)

    def put(self, whole: Value, part: Value, rows: Rows, start: int, count: int, *, name: str) -> Value:
        """The whole with the rows of some units from one block."""
        return self.call(aten.slice_scatter.default, (whole, part, *_place(rows, start, count)), name=name)

    def joined(self, parts: list[Value], rows: Rows, *, name: str) -> Value:
        """The rows of all blocks, one after the other."""
        return self.call(aten.cat.default, (parts, int(rows.is_turned)), name=name)

    def stands_for(self, value: Value, whole: Value) -> bool:
        """Let what the blocks gave stand for a value. False where it lies otherwise."""
        if whole.tensor.shape != value.tensor.shape:
            whole = self.call(aten.view.default, (whole, list(value.tensor.shape)), name=value.name)
        if not self._make.look_alike(value, whole):
            return False
        self._draft.merge(value, whole)
        return True

    def _append(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...], name: str
    ) -> Node:
        node = self._make.call(target, args, kwargs, name=name, origin=self.origin, phase=self.phase)
        self._draft.nodes.append(node)
        return node


def _place(rows: Rows, start: int, count: int) -> tuple[int, int, int]:
    """The dimension of the rows, and from which to which row some units reach."""
    return int(rows.is_turned), start * rows.each, (start + count) * rows.each


def _collapses(meta: TensorMeta, lead: int) -> bool:
    """Whether a view can show the leading dimensions as one."""
    dims = [(size, step) for size, step in zip(meta.shape[:lead], meta.stride[:lead], strict=True) if size != 1]
    return all(outer == product((inner, size)) for (_, outer), (size, inner) in pairwise(dims))
