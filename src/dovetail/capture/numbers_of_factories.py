"""Numbers that recorded code reads off tensors which it made of nothing: masks of a known size, say.

    mask = torch.triu(torch.full((n, n), -inf), 1)
    if bool((mask == other).all()): ...

What no input and no random number is in follows from the program alone, so the nodes that made it are run, on real
tensors, and the answer is that of every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.ir.program import Node, Operand, Value, map_leaves, symbols_in
from dovetail.ops.facts import facts_of, writes_of
from dovetail.torch_compat.dispatch import Overload, has_own_kernels, without_modes

_ITEM = torch.ops.aten._local_scalar_dense.default
_LITERAL = torch.ops.aten.lift_fresh_copy.default
_MOST = 1 << 20  # elements of all that is made


def number_of_factories(
    func: Overload, operands: Sequence[Operand], nodes: Sequence[Node], constants: Sequence[tuple[torch.Tensor, Value]]
) -> bool | int | float | complex | None:
    """The number that an operator reads off a tensor; None where it reads none, or where that is not known.

    nodes: those so far, of an impure program. constants: tensors of `torch.tensor([...])` are copies of some.
    """
    value = operands[0] if func is _ITEM and operands else None
    if not isinstance(value, Value) or not value.is_tensor:
        return None
    needed = _nodes_behind(value, nodes)
    if needed is None:
        return None
    known = {value: tensor for tensor, value in constants}
    with without_modes(), torch.no_grad():
        for node in needed:
            _run(node, known)
        number: bool | int | float | complex = known[value].item()
    return number


def _nodes_behind(value: Value, nodes: Sequence[Node]) -> list[Node] | None:
    """The nodes that make a value, and write what those read; None where one reads an input, draws, or is unknown."""
    storages, found, size = {value.tensor.storage}, list[Node](), 0
    for node in reversed(nodes):
        held = [v for v in (*node.operands(), *node.results()) if v.is_tensor]
        touched = held if writes_of(node) else [v for v in node.results() if v.is_tensor]
        if storages.isdisjoint(v.tensor.storage for v in touched):
            continue
        if not _is_certain(node):
            return None
        storages.update(v.tensor.storage for v in (node.results() if node.target is _LITERAL else held))
        size += sum(v.tensor.numel() for v in node.results() if v.is_tensor)  # type: ignore[misc]
        if size > _MOST:
            return None
        found.append(node)
    made: set[int] = set()
    for node in reversed(found):
        if node.target is not _LITERAL and any(v.tensor.storage not in made for v in node.operands()):
            return None
        made.update(v.tensor.storage for v in node.results())
    return found[::-1] if value.tensor.storage in made else None


def _is_certain(node: Node) -> bool:
    """Whether a node gives the same each time, and its numbers are known."""
    if not isinstance(node.target, Overload) or not has_own_kernels(node.target):
        return False
    facts = facts_of(node.target)
    if facts.draws or facts.reads_generator or facts.effect:
        return False
    values = (*node.operands(), *node.results())
    are_plain = all(v.is_tensor and v.tensor.device.type == "cpu" for v in values)
    metas = [v.tensor for v in values if v.is_tensor]
    return are_plain and not any(symbols_in((*node.args, *node.kwargs, *((m.shape, m.stride) for m in metas))))


def _run(node: Node, known: dict[Value, torch.Tensor]) -> None:
    def real(operand: Operand) -> Any:
        return known[operand] if isinstance(operand, Value) else operand

    target: Any = node.target
    args: Any = map_leaves(node.args, real)
    result = target(*args, **{name: map_leaves(operand, real) for name, operand in node.kwargs})
    items = result if node.unpack else [result]
    known.update((value, item) for value, item in zip(node.outputs, items, strict=False) if value is not None)
