"""Tensors of a program's as eager mode would hand them out: as parameters, leaves, or parts of graphs that are gone."""

from __future__ import annotations

import functools
from typing import Any

import torch

from dovetail.errors import FreedGraph
from dovetail.ir.calling import Look
from dovetail.torch_compat.autograd import call_node

_NEGATIVE: Any = torch.ops.aten._neg_view.default
_TOKEN = torch.zeros((), requires_grad=True)


def as_seen(tensor: Any, look: Look) -> Any:
    """The tensor, as one that requires a gradient if it did in eager; of a graph that is gone, if it was of one."""
    if look.is_parameter:
        return torch.nn.Parameter(tensor, look.is_new_leaf)
    if not (look.is_new_leaf or look.graph):
        return tensor
    # Another tensor on this memory: what other results view, or are viewed by, keeps out of it when it is written.
    tensor = _on_same_memory(tensor)
    if look.is_new_leaf:
        return tensor.requires_grad_()
    with torch.enable_grad():
        return _freed(look.graph).apply(_TOKEN, [tensor])


def _on_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    storage, layout = tensor.untyped_storage(), (tensor.storage_offset(), tensor.shape, tensor.stride())
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, *layout)
    if tensor.is_conj():
        made = made.conj()
    return _NEGATIVE(made) if tensor.is_neg() else made


@functools.lru_cache(maxsize=256)
def _freed(graph: str) -> Any:
    """A function whose node in a graph has a given name."""

    class Freed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, token: torch.Tensor, holder: list[torch.Tensor]) -> torch.Tensor:
            """Hand out the held tensor."""
            return holder.pop()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            """There is no graph."""
            raise FreedGraph

    call_node(Freed, graph)
    return Freed
