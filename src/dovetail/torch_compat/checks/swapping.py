"""Checks of `torch_compat.swapping`."""

from __future__ import annotations

import weakref
from typing import Any

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


def check_hooks_of() -> str | None:
    """The hooks of both tables are found, of a tensor whose class gets all calls as well."""

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError

    tensor = torch.ones(2).as_subclass(Watched)
    with torch._C.DisableTorchFunction():
        tensor.requires_grad_()
        before = swapping.hooks_of(tensor)
        tensor.register_hook(print)
        tensor.register_post_accumulate_grad_hook(repr)
    return first_difference(("none", before, []), ("both", swapping.hooks_of(tensor), [print, repr]))


def check_put_hook_tables() -> str | None:
    """A hook that was registered while a tensor was another one is gone when the tables are put back."""
    called: list[str] = []
    tensor, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    tables = swapping.hook_tables(tensor)
    swapping.exchange_tensors(tensor, other)
    tensor.register_hook(lambda gradient: called.append("registered meanwhile"))
    swapping.exchange_back(tensor, other)
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
    check_exchange_back,
    check_attributes_in_common,
    check_share_hooks,
    check_hook_tables,
    check_put_hook_tables,
    check_hooks_of,
    check_hooks_registered,
)
