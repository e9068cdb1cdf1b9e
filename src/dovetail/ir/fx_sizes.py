"""Sizes in a `torch.fx` graph: nodes that read them off tensors, and compute with them.

A size expression is given by the node that computed it before, if there is one; otherwise it is put together from sizes
that tensors of the graph have: of inputs, read where the graph begins, or of results, read where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail.ir.program import ScalarMeta, Value
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.torch_compat.symbols import NUMBER_FUNCTIONS

_ASSOCIATIVE = frozenset({"add", "mul", "max", "min", "and", "or"})


def fold_expression(
    expr: SizeExpr, symbol: Callable[[SizeExpr], Any], apply: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
) -> Any:
    """What an expression stands for, given what a known part does, or None, and how functions are applied."""
    known = symbol(expr)
    if known is not None:
        return known
    if expr.op == "symbol":
        raise KeyError(expr.args[0])
    items = [fold_expression(arg, symbol, apply) if isinstance(arg, SizeExpr) else arg for arg in expr.args]
    function = NUMBER_FUNCTIONS[expr.op]
    if expr.op not in _ASSOCIATIVE:
        return apply(function, tuple(items))
    total = items[0]
    for item in items[1:]:
        total = apply(function, (total, item))
    return total


@dataclass(frozen=True, slots=True)
class _Read:
    """A size of a tensor: an operator that reads it, applied to these operands."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    is_input: bool


class SizeNodes:
    """The sizes that are known in a graph while it is written. `note` each value, then ask for expressions.

    taken: names that nodes will be given later.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.taken: Collection[str] = ()
        self._graph = graph
        self._nodes: dict[Scalar, fx.Node] = {}
        self._reads: dict[Scalar, _Read] = {}
        self._last_read: fx.Node | None = None

    def note(self, value: Value, node: fx.Node, is_input: bool = False) -> None:
        """The value is given by this node from here on. Inputs come first, all of them."""
        if is_input:
            self._last_read = node
        if isinstance(value.meta, ScalarMeta):
            if isinstance(value.meta.expr, SizeExpr):
                self._nodes.setdefault(value.meta.expr, node)
            return
        aten = torch.ops.aten
        for dim, size in enumerate(value.meta.shape):
            if isinstance(size, SizeExpr):
                self._reads.setdefault(size, _Read(aten.sym_size.int, (node, dim), is_input))
        for dim, stride in enumerate(value.meta.stride):
            if isinstance(stride, SizeExpr):
                self._reads.setdefault(stride, _Read(aten.sym_stride.int, (node, dim), is_input))
        if isinstance(value.meta.offset, SizeExpr):
            self._reads.setdefault(value.meta.offset, _Read(aten.sym_storage_offset.default, (node,), is_input))

    def node(self, expr: SizeExpr) -> Any:
        """The node, or number, that gives a size; it may be a new one. Raises: KeyError for an unknown symbol."""
        return fold_expression(expr, self._known, self._apply)

    def _known(self, expr: SizeExpr) -> fx.Node | None:
        read = self._reads.get(expr)
        if expr in self._nodes or read is None:
            return self._nodes.get(expr)
        if read.is_input and self._last_read is not None:
            with self._graph.inserting_after(self._last_read):
                node = self._last_read = self._apply(read.target, read.args)
        else:
            node = self._apply(read.target, read.args)
        self._nodes[expr] = node
        return node

    def _apply(self, function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        node = self._graph.call_function(function, args)
        while node.name in self.taken:
            self._graph.erase_node(node)
            node = self._graph.call_function(function, args)  # whose name is another
        node.meta["val"] = function(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
        return node
