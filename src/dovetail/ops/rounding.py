"""Which operators only choose and arrange numbers, so that rounding before them is rounding after them."""

from __future__ import annotations

import torch

from dovetail.ir.program import Node
from dovetail.ops.facts import is_reinterpretation

aten = torch.ops.aten

# Rounding keeps the order of numbers, and signs.
_CHOOSING = frozenset({aten.relu.default, aten.max_pool2d_with_indices.default, aten.clone.default})


def commutes_with_rounding(node: Node) -> bool:
    """Whether a node's first result, of its only operand rounded, is its result rounded, bit for bit."""
    operands, results = list(node.operands()), node.results()
    if len(operands) != 1 or not results or not operands[0].is_tensor or not results[0].is_tensor:
        return False
    is_view = results[0].tensor.storage == operands[0].tensor.storage and not is_reinterpretation(node.target)
    return is_view or node.target in _CHOOSING
