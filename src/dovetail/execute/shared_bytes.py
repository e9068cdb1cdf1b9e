"""What a wrapper does to inputs that share memory, beyond calling operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail.errors import RefusedOperands
from dovetail.torch_compat.autograd import set_version, version_of, viewed_tensor
from dovetail.torch_compat.tensor_hooks import has_hooks


def flat_bytes(leader: torch.Tensor, dtype: torch.dtype, length: int, back: int) -> torch.Tensor:
    """A flat tensor of `length` elements of `dtype` that begins `back` of them before `leader` does.

    It counts its versions with `leader`, so that a write to an input between forward and backward is noticed; except
    where bytes are asked for that no element of `leader`'s dtype begins or ends at.
    """
    source = leader.detach()
    unit = source.element_size()
    first = source.storage_offset() * unit - back * dtype.itemsize
    if length < 0 or first < 0 or first + length * dtype.itemsize > source.untyped_storage().nbytes():
        reason = f"{length} elements of {dtype} do not all lie in the memory of the input"
        raise RefusedOperands(operator="a view of memory that inputs share", reason=reason)
    if dtype == source.dtype:
        return source.as_strided((length,), (1,), source.storage_offset() - back)
    start = source.storage_offset() * unit - back * dtype.itemsize
    size = length * dtype.itemsize
    if start % unit == 0 and size % unit == 0:
        return source.as_strided((size // unit,), (1,), start // unit).view(dtype)
    flat = torch.empty(0, dtype=dtype, device=source.device)
    return flat.set_(source.untyped_storage(), start // dtype.itemsize, (length,), (1,))


def announce_write(tensor: torch.Tensor) -> None:
    """Count a write that follows once the program has run: what the program saves for backward is saved as of then.

    What autograd keeps of views goes by version numbers as well, so the count must move while no gradient function is
    looked up, and be withdrawn before the write.
    """
    torch.autograd.graph.increment_version(tensor)


def withdraw_announcement(tensor: torch.Tensor) -> None:
    """Undo `announce_write`, right before the write itself counts."""
    set_version(tensor, version_of(tensor) - 1)


def followed(tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
    """The tensor, ready for `contents` to be written to it in a way that autograd follows.

    A view of a tensor that such a write has just given a gradient passes for a leaf until its gradient function is
    looked at. A tensor's own path is cut, where nobody hooks onto it, if the contents bring one that leads there: else
    copying would send zeros down the old path, to be added to the gradients that arrive there.
    """
    path = tensor.grad_fn
    alone = viewed_tensor(tensor) is tensor and not has_hooks(tensor) and not tensor.retains_grad
    if path is not None and contents.requires_grad and alone:
        tensor.detach_()
    return tensor


def change_layout(change: Callable[..., object], tensor: torch.Tensor, *arguments: object) -> None:
    """Change a tensor's shape or strides in place. A leaf was none yet when the function did: autograd refuses it."""
    follows = torch.is_grad_enabled() and not (tensor.is_leaf and tensor.requires_grad)
    with torch.set_grad_enabled(follows):
        change(tensor, *arguments)
