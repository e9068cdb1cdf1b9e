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
    vars(other)["number"] = 1
    watched, address = weakref.ref(parameter), parameter.data_ptr()
    parameter.grad = torch.ones(2)
    gradient = parameter.grad
    swapping.exchange_tensors(parameter, other)
    during = (tuple(parameter.shape), parameter.dtype, parameter.grad is None, vars(parameter)["number"])
    parameter.mark = "changed"
    swapping.exchange_back(parameter, other)
    after = (type(parameter), parameter.data_ptr() == address, parameter.grad is gradient, watched() is parameter)
    return first_difference(
        ("what the parameter is meanwhile", during, ((3,), torch.float64, True, 1)),
        ("what it is afterwards", after, (torch.nn.Parameter, True, True, True)),
        ("its attributes", vars(parameter), {"mark": "changed"}),
    )


def check_exchange_back() -> str | None:
    """See `check_exchange_tensors`; here for tensors without attributes."""
    tensor, other = torch.ones(2), torch.zeros(3)
    swapping.exchange_tensors(tensor, other)
    swapping.exchange_back(tensor, other)
    return first_difference(("the tensor", tensor.tolist(), [1.0, 1.0]), ("its attributes", vars(tensor), {}))


def check_attributes_in_common() -> str | None:
    """Attributes of one name are found."""
    tensor, other = torch.ones(2), torch.ones(2)
    vars(tensor).update(both=1, own=2)
    vars(other).update(both=3)
    return first_difference(("names", swapping.attributes_in_common(tensor, other), ["both"]))


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


CHECKS = (check_exchange_tensors, check_exchange_back, check_attributes_in_common, check_share_hooks)
