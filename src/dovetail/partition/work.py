"""What a node costs, in bytes: those it reads and writes, or those that could be moved while it computes.

A product of matrices computes longer than its bytes take to move; recomputation next to it hardly counts. So the time
of a node is the larger of two times (the roofline), both measured in bytes; nothing is timed. Each call has a fixed
cost, so that small tensors are not recomputed for nothing.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009); torch's flop formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from dovetail.ir.program import Node, Operand, Value, map_operands
from dovetail.ir.sizes import Number, OrOne, evaluate, with_numbers
from dovetail.partition.policy import is_view
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.flops import flops_of, has_formula


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes that are moved in the time of one call; and floating-point operations in the time of one byte.

    High numbers are careful: products seem cheap, and what runs again dear.
    """

    bytes_per_call: int
    flops_per_byte: int


# Orders of magnitude. A CPU: 10 bytes and 100 operations a nanosecond, 5 microseconds a call. An accelerator: 4,000
# bytes and a million operations of reduced precision a nanosecond, 5 microseconds a call.
CPU = Machine(bytes_per_call=50_000, flops_per_byte=10)
ACCELERATOR = Machine(bytes_per_call=20_000_000, flops_per_byte=250)


def work_of(node: Node, hints: Mapping[str, Number]) -> int:
    """The cost of a node, in bytes; none for a view. hints: a number for each size symbol."""
    if is_view(node):
        return 0
    values = {value for value in (*node.operands(), *node.results()) if value.is_tensor}
    known = OrOne(hints)
    moved = sum(int(evaluate(value.tensor.size_bytes(), known)) for value in values)
    is_cpu = all(value.tensor.device.type == "cpu" for value in values)
    machine = CPU if is_cpu else ACCELERATOR
    return machine.bytes_per_call + max(moved, (_flops(node, known) or 0) // machine.flops_per_byte)


def _flops(node: Node, known: Mapping[str, Number]) -> int | None:
    if not isinstance(node.target, Overload) or not has_formula(node.target) or not node.results():
        return None

    def shape(operand: Operand) -> Operand:
        if not isinstance(operand, Value):
            return operand
        meta = operand.meta
        return torch.Size(int(evaluate(size, known)) for size in operand.tensor.shape) if operand.is_tensor else meta

    args = [with_numbers(map_operands(operand, shape), known) for operand in node.args]
    kwargs = {name: with_numbers(map_operands(operand, shape), known) for name, operand in node.kwargs}
    results = [None if value is None else shape(value) for value in node.outputs]
    if not kwargs and not node.unpack and all(isinstance(arg, torch.Size) for arg in args):
        return _flops_of_shapes(node.target, tuple(args), results[0])
    return flops_of(node.target, args, kwargs, results if node.unpack else results[0])


@lru_cache(maxsize=256)
def _flops_of_shapes(target: Overload, args: tuple[torch.Size, ...], result: torch.Size) -> int | None:
    return flops_of(target, args, {}, result)
