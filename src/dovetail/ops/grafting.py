"""Give a tensor the gradient path of another one."""

from __future__ import annotations

from typing import Any

import torch


class _Graft(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: torch.Tensor, holder: list[torch.Tensor]) -> torch.Tensor:
        """Hand out the held tensor."""
        return holder.pop()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Pass the gradient on."""
        return grads[0], None


def graft(tensor: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
    """`tensor` itself, which must have no gradient path, as a non-leaf whose gradient flows to `path`.

    Both have the same shape. No operator runs. Requires that gradients are on.
    """
    grafted: torch.Tensor = _Graft.apply(path, [tensor])
    return grafted
