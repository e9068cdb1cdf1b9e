"""Operators whose result may lie in the memory of an operand: elementwise ones, and a few that read rows first."""

from __future__ import annotations

import torch

from dovetail.ir.program import Operand, Target, Value
from dovetail.ops.facts import facts_of, rounds_otherwise_in_place
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.over_operands import result_may_lie_over_first


def is_elementwise(target: Target, dtype: torch.dtype) -> bool:
    """Whether a result of this dtype may lie where any operand of the same layout lies, with the same bits."""
    return facts_of(target).pointwise and not rounds_otherwise_in_place(target, dtype)


def may_lie_over(target: Target, args: tuple[Operand, ...]) -> Value | None:
    """The operand in whose memory the result may lie if it is laid out alike: each row is read before it is written."""
    if not isinstance(target, Overload) or schema_of(target).namespace != "aten" or len(args) < 3:
        return None
    first, others = args[0], args[1:]
    if not isinstance(first, Value) or not first.is_tensor or any(other is first for other in others):
        return None
    meta, dim = first.tensor, next((x for x in others if isinstance(x, int) and not isinstance(x, bool)), None)
    is_last = dim is not None and dim in (-1, len(meta.shape) - 1)
    if not is_last or meta.device.type != "cpu" or not meta.is_contiguous() or not _keeps_dtype(others, first):
        return None
    return first if result_may_lie_over_first(schema_of(target).name, meta.dtype) else None


def _keeps_dtype(others: tuple[Operand, ...], first: Value) -> bool:
    """Whether nothing asks for another dtype: the last argument is that of what comes out, or whether it is wider."""
    last = others[-1]
    return last is False or last == first.tensor.dtype
