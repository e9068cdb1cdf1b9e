"""What a node costs, in bytes: those it reads and writes, or those that could be moved while it computes.

A product of matrices computes longer than its bytes take to move; what runs again beside it hardly counts. So the time
of a node is the larger of two times (the roofline), both told in bytes, and depends on no measurement.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009); torch's flop formulas.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dovetail.ir.program import Node, Operand, Value, map_operands
from dovetail.ir.sizes import Number, SizeExpr, evaluate
from dovetail.partition.policy import is_view
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.flops import flops_of

# Floating-point operations in the time of one byte. High for a device is careful: products seem cheap, and what runs
# again dear. A CPU's core does some 50 in a nanosecond, and moves some 10 bytes; an accelerator with reduced precision
# some 250 for each byte.
_FLOPS_PER_BYTE = {"cpu": 10}
_FLOPS_PER_BYTE_ELSEWHERE = 250


def work_of(node: Node, hints: Mapping[str, Number]) -> int:
    """The cost of a node, in bytes; none for a view. hints: a number for each size symbol."""
    if is_view(node):
        return 0
    values = {value for value in (*node.operands(), *node.results()) if value.is_tensor}
    known = _Ones(hints)
    moved = sum(int(evaluate(value.tensor.size_bytes(), known)) for value in values)
    flops = _flops(node, known)
    if not flops:
        return moved
    device = next(value.tensor.device.type for value in values)
    return max(moved, flops // _FLOPS_PER_BYTE.get(device, _FLOPS_PER_BYTE_ELSEWHERE))


class _Ones(dict[str, Number]):
    """A size symbol that nobody knows counts as 1, as it does in simulated peaks."""

    def __missing__(self, key: str) -> Number:
        return 1


def _flops(node: Node, known: Mapping[str, Number]) -> int | None:
    if not isinstance(node.target, Overload) or not node.results():
        return None

    def shape(operand: Operand) -> Operand:
        if not isinstance(operand, Value):
            return operand
        meta = operand.meta
        return torch.Size(int(evaluate(size, known)) for size in operand.tensor.shape) if operand.is_tensor else meta

    args = [_with_numbers(map_operands(operand, shape), known) for operand in node.args]
    kwargs = {name: _with_numbers(map_operands(operand, shape), known) for name, operand in node.kwargs}
    results = [None if value is None else shape(value) for value in node.outputs]
    return flops_of(node.target, args, kwargs, results if node.unpack else results[0])


def _with_numbers(operand: Operand, known: Mapping[str, Number]) -> Operand:
    if isinstance(operand, SizeExpr):
        return evaluate(operand, known)
    if isinstance(operand, list):
        return [_with_numbers(item, known) for item in operand]
    return operand
