"""Checks of `torch_compat.swapping`."""

from __future__ import annotations

import weakref

import torch

from dovetail.torch_compat import swapping
from dovetail.torch_compat.checks.difference import first_difference


def check_exchange_tensors() -> str | None:
    """A parameter that is watched becomes another tensor, and itself again."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.mark = "mine"
    other = torch.zeros(3, dtype=torch.float64)
    watched, address = weakref.ref(parameter), parameter.data_ptr()
    parameter.grad = torch.ones(2)
    gradient = parameter.grad
    swapping.exchange_tensors(parameter, other)
    during = (tuple(parameter.shape), parameter.dtype, parameter.grad is None, hasattr(parameter, "mark"))
    swapping.exchange_tensors(parameter, other)
    after = (type(parameter), parameter.data_ptr() == address, parameter.grad is gradient, watched() is parameter)
    return first_difference(
        ("what the parameter is meanwhile", during, ((3,), torch.float64, True, False)),
        ("what it is afterwards", after, (torch.nn.Parameter, True, True, True)),
    )


def check_share_hooks() -> str | None:
    """Hooks on a leaf run for another leaf."""
    called: list[str] = []
    source = torch.ones(2, requires_grad=True)
    source.register_hook(lambda gradient: called.append("gradient"))
    source.register_post_accumulate_grad_hook(lambda tensor: called.append("accumulated"))
    target = torch.ones(2, requires_grad=True)
    swapping.share_hooks(source, target)
    with torch.enable_grad():
        target.sum().backward()
    return first_difference(("hooks that ran", called, ["gradient", "accumulated"]))


CHECKS = (check_exchange_tensors, check_share_hooks)
