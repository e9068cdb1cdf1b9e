"""Views cut at places that only data tell: the same cut has the same size.

    a = x[: n.item()]; b = y[: n.item()]        (x and y lie alike)

Torch makes a symbol for the size of each. Here the second one gets the first one's, so that what is computed from both
fits, and what is written through one shows in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.ir.program import Operand, Value
from dovetail.ir.sizes import SizeExpr
from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.dispatch import Overload, storage_key


class Cuts:
    """The views that were cut, by operator and how their operands lie."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Any, Any, Any]] = {}

    def as_before(
        self,
        func: Overload,
        operands: tuple[Operand, ...],
        keywords: tuple[tuple[str, Operand], ...],
        args: Sequence[Any],
        result: torch.Tensor,
    ) -> torch.Tensor:
        """The result of an operator on fakes, in sizes that are known where it is a cut that was made before."""
        if not (args and isinstance(args[0], torch.Tensor) and _has_symbols(result) and without_hint(result)):
            return result
        base = args[0]
        if storage_key(base) != storage_key(result) or result is base:
            return result
        key = (func, tuple(map(_key, operands)), tuple((name, _key(operand)) for name, operand in keywords))
        known = self._known.setdefault(key, (result.shape, result.stride(), result.storage_offset()))
        if known[0] is result.shape or _is_alike(known, result):
            return result
        return base.as_strided(*known)


def _key(operand: Operand) -> object:
    if isinstance(operand, Value):
        return (operand.tensor.layout(), operand.tensor.offset) if operand.is_tensor else operand
    if isinstance(operand, tuple | list):
        return tuple(map(_key, operand))
    if isinstance(operand, SizeExpr):
        return ("size", repr(operand))
    return (type(operand).__name__, repr(operand))


def _has_symbols(tensor: torch.Tensor) -> bool:
    return any(type(number) is not int for number in _place_of(tensor))


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (*tensor.shape, *tensor.stride(), tensor.storage_offset())


def _is_alike(known: tuple[Any, Any, Any], result: torch.Tensor) -> bool:
    pairs = zip((*known[0], *known[1], known[2]), _place_of(result), strict=True)
    return all(str(a) == str(b) for a, b in pairs)
