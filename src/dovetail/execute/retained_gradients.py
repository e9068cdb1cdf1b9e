"""Gradients that the user keeps of results from which other results of the call were computed.

All results come from one autograd node, to which only what arrives from outside is handed: what flows from one result
to another stays within the backward program. Where the caller asked a result to keep its gradient
(`Tensor.retain_grad`), a backward program gives that out as well. Hooks run before the program does, so they are
refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dovetail.errors import GradientOfResult
from dovetail.torch_compat.tensor_hooks import has_hooks

Results: TypeAlias = "Mapping[int, weakref.ref[torch.Tensor]]"
"""Results of a call that gradients of others come by, by their number."""

_OUTSIDE = "compute the later results from it outside the compiled function, or leave this function uncompiled"
_OF_HOOKS = f"call retain_grad() on the result and read its .grad after backward; {_OUTSIDE}"


def kept_in_call(results: Results, passed: Mapping[int, Sequence[int]], arrived: Mapping[int, Any]) -> list[int]:
    """The results whose gradients a backward has to give out. Raises: GradientOfResult.

    passed: for each result, the ones that its gradient comes by. arrived: gradients by the number of their result.
    """
    found = []
    for number in sorted({k for end in arrived for k in passed.get(end, ())}):
        result = results[number]()
        if result is None:
            continue
        if has_hooks(result):
            raise GradientOfResult(reason="hooks of such a result run before the program does", hint=_OF_HOOKS)
        if result.retains_grad:
            found.append(number)
            _expect_no_other(result, arrived.get(number))
    return found


def refuse_second_order(kept: Sequence[int]) -> None:
    """Raise GradientOfResult where results keep gradients that are to be differentiated again."""
    if kept:
        raise GradientOfResult(reason="backward was called with create_graph=True", hint=_OUTSIDE)


def keep_gradient(result: torch.Tensor | None, gradient: torch.Tensor | None, *, has_arrived: bool) -> None:
    """Leave a gradient in the result, as autograd does. has_arrived: a part of it lies there already."""
    if result is None or gradient is None:
        return
    whole = gradient.clone(memory_format=torch.contiguous_format)
    result.grad = whole if result.grad is None or has_arrived else result.grad + whole


def _expect_no_other(result: torch.Tensor, arrived: torch.Tensor | None) -> None:
    """Raise where what the result holds is more than what has just arrived: both would have to be told apart."""
    if arrived is None or result.grad is None:
        return
    if not torch.allclose(result.grad, arrived, rtol=0.0, atol=0.0, equal_nan=True):
        raise GradientOfResult(
            reason="it holds the gradient of another backward",
            hint="set its .grad to None before backward, or take one backward of the sum of losses",
        )
