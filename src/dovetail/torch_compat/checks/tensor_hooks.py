"""Checks of `torch_compat.tensor_hooks`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import tensor_hooks
from dovetail.torch_compat.checks.difference import first_difference


def check_has_hooks() -> str | None:
    """A gradient hook is seen while it is registered."""
    x = torch.zeros(2, requires_grad=True)
    before = tensor_hooks.has_hooks(x)
    handle = x.register_hook(lambda grad: grad)
    during = tensor_hooks.has_hooks(x)
    handle.remove()
    return first_difference(("before and with a hook", (before, during), (False, True)))


def check_without_hooks() -> str | None:
    """A hook is not called meanwhile, nor is a gradient kept."""
    x, called = torch.zeros(2, requires_grad=True) * 2, list[object]()
    x.register_hook(called.append)
    x.retain_grad()
    with tensor_hooks.without_hooks(x):
        x.sum().backward(retain_graph=True)
    during, kept = len(called), x.grad
    x.sum().backward()
    return first_difference(("calls", (during, len(called)), (0, 1)), ("what is kept meanwhile", kept, None))


CHECKS = (check_has_hooks, check_without_hooks)
