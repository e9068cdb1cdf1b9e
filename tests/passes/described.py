"""Runs programs node by node and compares what they make with what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dovetail.ir.program import Node, Operand, Program, Value
from dovetail.ir.sizes import Number, SizeExpr, evaluate


def assert_described_as_made(program: Program, inputs: list[Tensor]) -> None:
    """Every dense tensor has the shape, and the strides along dimensions that matter, that its value has."""
    made: dict[Value, Any] = {}
    symbols: dict[str, Number] = {}
    for value, tensor in zip(program.inputs, inputs, strict=True):
        made[value] = tensor
        for size, number in zip(value.tensor.shape, tensor.shape, strict=True):
            if isinstance(size, SizeExpr) and size.op == "symbol":
                symbols[str(size)] = number

    def live(operand: Operand) -> Any:
        if isinstance(operand, Value):
            return made[operand]
        if isinstance(operand, SizeExpr):
            return operand.evaluate(symbols)
        return type(operand)(map(live, operand)) if isinstance(operand, tuple | list) else operand

    with torch.no_grad():
        for node in program.nodes:
            result: Any = node.target(*map(live, node.args), **{name: live(o) for name, o in node.kwargs})
            for value, item in zip(node.outputs, result if node.unpack else [result], strict=True):
                if value is not None:
                    made[value] = item
                    _compare(node, value, item, symbols)


def _compare(node: Node, value: Value, item: Any, symbols: Mapping[str, Number]) -> None:
    if not isinstance(item, Tensor) or item.layout is not torch.strided:
        return
    shape = tuple(evaluate(size, symbols) for size in value.tensor.shape)
    steps = [evaluate(step, symbols) for step in value.tensor.stride]
    assert tuple(item.shape) == shape, (node.target, value.name)
    if item.numel() == 0:
        return  # nothing lies anywhere
    wide = [dim for dim, size in enumerate(item.shape) if size != 1]
    found = [item.stride(dim) for dim in wide]
    assert found == [steps[dim] for dim in wide], (node.target, value.name, item.stride(), steps)
