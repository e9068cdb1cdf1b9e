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
    removed = source.register_hook(lambda gradient: called.append("later"))
    with torch.enable_grad():
        target.sum().backward()
    removed.remove()
    expected = ["gradient", "accumulated", "gradient", "later", "accumulated"]
    return first_difference(("hooks that ran", called, expected))


def check_hook_tables() -> str | None:
    """Hooks that are registered are in the tables, which are None before."""
    tensor = torch.ones(2, requires_grad=True)
    before = swapping.hook_tables(tensor)
    handles = tensor.register_hook(print), tensor.register_post_accumulate_grad_hook(print)
    found = [list(table or {}) for table in swapping.hook_tables(tensor)]
    return first_difference(
        ("tables of a tensor without hooks", before, (None, None)),
        ("numbers of the hooks in the tables", found, [[handle.id] for handle in handles]),
    )


def check_put_hook_tables() -> str | None:
    """A hook that was registered while a tensor was another one is gone when the tables are put back."""
    called: list[str] = []
    tensor, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    tables = swapping.hook_tables(tensor)
    swapping.exchange_tensors(tensor, other)
    tensor.register_hook(lambda gradient: called.append("registered meanwhile"))
    swapping.exchange_tensors(tensor, other)
    swapping.put_hook_tables(tensor, tables)
    tensor.register_hook(lambda gradient: called.append("registered afterwards"))
    with torch.enable_grad():
        tensor.sum().backward()
    return first_difference(("hooks that ran", called, ["registered afterwards"]))


def check_hooks_registered() -> str | None:
    """The number is another one after each kind of hook was registered."""
    tensor, module = torch.ones(2, requires_grad=True), torch.nn.Identity()
    optimizer = torch.optim.SGD([tensor], lr=0.1)
    unnoticed = []
    for register in (
        tensor.register_hook,
        tensor.register_post_accumulate_grad_hook,
        module.register_forward_hook,
        optimizer.register_step_pre_hook,
    ):
        before = swapping.hooks_registered()
        register(print)
        if swapping.hooks_registered() == before:
            unnoticed.append(register.__name__)
    return first_difference(("hooks that are registered unnoticed", unnoticed, []))


CHECKS = (
    check_exchange_tensors,
    check_share_hooks,
    check_hook_tables,
    check_put_hook_tables,
    check_hooks_registered,
)
