"""Exchanging what two tensor objects are, so that everybody who holds one of them holds the other's contents."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from dovetail.torch_compat.autograd import profiler_is_running
from dovetail.torch_compat.fakes import is_fake

_HOOK_TABLES = ("_backward_hooks", "_post_accumulate_grad_hooks")
HookTable: TypeAlias = "dict[int, Any] | None"
_TABLES_OF: Callable[[torch.Tensor], tuple[HookTable, HookTable]] = attrgetter(*_HOOK_TABLES)


_WEAKLY = "torch holds tensors weakly: for a profile with shapes, say, as long as that is there"


class HeldWeakly(RuntimeError):
    """Something in C++ holds a tensor weakly, so that the object cannot be another one for a while."""


def exchange_tensors(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Let each of two tensor objects be what the other one was: class, data, gradient. `exchange_back` undoes it.

    References to the objects, weak ones included, stay what they are, and so does the `__dict__` of `tensor`: what the
    other one's holds is added for as long. `torch.utils.swap_tensors` does the same for tensors that nobody watches or
    uses otherwise.
    Raises: ValueError where both have an attribute of one name; HeldWeakly where something in C++ holds the tensor
    weakly, as the cache of autocast does, and a profiler that records shapes. Nothing has changed then.
    """
    if profiler_is_running() and _is_noted():  # what is exchanged now could not be exchanged back
        raise HeldWeakly(_WEAKLY)
    names = attributes_in_common(tensor, other)
    if names:
        raise ValueError(f"both tensors have attributes {names}")
    are_fake = is_fake(tensor) and is_fake(other)
    _exchange(tensor, other)
    if are_fake:
        _exchange_attributes(tensor, other)
    else:
        tensor.__dict__.update(other.__dict__)


def _is_noted() -> bool:
    """Whether what operators get is held weakly now: a profiler records shapes."""
    tensor, other = torch.zeros(1, device="cpu"), torch.zeros(1, device="cpu")
    torch.neg(tensor)
    try:
        _exchange(tensor, other)
    except HeldWeakly:
        return True
    return False


def exchange_back(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Undo `exchange_tensors`. Attributes that were set, changed or removed in between stay so."""
    if is_fake(tensor) and is_fake(other):
        _exchange(tensor, other)
        _exchange_attributes(tensor, other)
        return
    for name in other.__dict__:
        tensor.__dict__.pop(name, None)
    _exchange(tensor, other)


def attributes_in_common(tensor: torch.Tensor, other: torch.Tensor) -> list[str]:
    """Names of attributes that both have, for which the two cannot be exchanged; those of fakes can be."""
    if is_fake(tensor) and is_fake(other):
        return []
    return sorted(tensor.__dict__.keys() & other.__dict__.keys())


def _exchange_attributes(fake: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what torch notes on two fakes; what users have set on one stays there."""
    for name in fake.__dict__.keys() & other.__dict__.keys():
        fake.__dict__[name], other.__dict__[name] = other.__dict__[name], fake.__dict__[name]


def _exchange(tensor: torch.Tensor, other: torch.Tensor) -> None:
    try:
        torch._C._swap_tensor_impl(tensor, other)
    except RuntimeError as error:  # nothing has changed
        if "weakrefs" not in str(error):
            raise
        raise HeldWeakly(_WEAKLY) from error
    tensor_class: Any = type(tensor)
    other_class: Any = type(other)
    tensor.__class__, other.__class__ = other_class, tensor_class


def share_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Let autograd call the gradient hooks of one leaf for another leaf as well.

    Autograd knows the hooks of what a tensor object is, not those of the object: without this, an exchange hides them.
    Tables that are empty are shared as well: a hook that is put there later is called, too.
    """
    put_hook_tables(target, hook_tables(source))


def hook_tables(tensor: torch.Tensor) -> tuple[HookTable, HookTable]:
    """The hooks of a tensor's gradient, and those that are called once it was added to `.grad`, by their numbers.

    None where there was never a hook. Hooks of the node that adds to `.grad` are not among them: nothing shows those.
    """
    return _TABLES_OF(tensor)


def hooks_of(tensor: torch.Tensor) -> list[Any]:
    """The hooks in both tables of a tensor; no code of its class, and of no mode, is run."""
    with torch._C.DisableTorchFunction():
        return [hook for table in hook_tables(tensor) if table for hook in table.values()]


def put_hook_tables(tensor: torch.Tensor, tables: tuple[HookTable, HookTable]) -> None:
    """Let a tensor have other tables of hooks; a table that it has already is left alone."""
    for name, table, now in zip(_HOOK_TABLES, tables, hook_tables(tensor), strict=True):
        if table is not now:
            setattr(tensor, name, table)


def hooks_registered() -> int:
    """A number that is another one after a hook of a tensor, a module or an optimizer was registered."""
    return RemovableHandle.next_id
