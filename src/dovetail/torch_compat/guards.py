"""Asking many tensors, or many dictionaries, whether they are as they were, in C++: what Dynamo's guards do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._C._dynamo import guards
from torch._C._dynamo.guards import TensorGuards

from dovetail.torch_compat.sparse import form_of, parts_of

# A number that changes whenever another object is put into a dictionary, or one is taken out. None from Python 3.12 on,
# which does not keep one.
version_of_dict: Callable[[dict[str, Any]], int] | None = guards.dict_version if sys.version_info < (3, 12) else None


_is_of_tensors: Callable[[Any], bool] = lru_cache(256)(lambda kind: issubclass(kind, torch.Tensor))


def may_be_asked(items: Iterable[Any]) -> bool:
    """Whether `surely_are` may be asked about these. torch's C++ ends the process at a nested tensor without strides.

    Cost: 0.1 us for each.
    """
    for item in items:  # noqa: SIM110 - half as much as `all`
        if _is_of_tensors(type(item)) and item.is_nested:  # of an object of the user's, nothing is asked
            return False
    return True


class SameTensors:
    """Recognises tensors of the same classes, dtypes, devices, sizes, strides, requires_grad and conjugate bits.

    Those that were the same object must still be; whether others are now is not asked, nor whether a tensor is a leaf.
    Sparse matrices must still be made of the same memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Remember what these are like; not the tensors themselves."""
        places = {id(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
        self._first = [places[id(tensor)] for tensor in tensors] if len(places) < len(tensors) else None
        tensors = [tensors[place] for place in sorted(places.values())]
        self._matrices = {n: _kind_of_matrix(x) for n, x in enumerate(tensors) if x.layout is not torch.strided}
        tensors = self._strided(tensors)
        self._kinds = list(map(_kind, tensors))
        sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
        strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
        self._check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        is_plain = self._first is None and not self._matrices
        self.surely_are: Callable[..., bool] = self._check if is_plain else _cannot_tell
        """Whether tensors, given one by one, are like those, asked in C++ alone; False also where only `are` tells.
        Only of those that `may_be_asked`."""

    def are(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are like those, one by one."""
        return may_be_asked(tensors) and self.still_are(tensors)

    def still_are(self, tensors: Sequence[torch.Tensor]) -> bool:
        """As `are`, of those that were remembered, which may have changed, or of others that `may_be_asked`."""
        if self._first is not None:
            if any(tensors[first] is not tensor for first, tensor in zip(self._first, tensors, strict=True)):
                return False
            tensors = [tensors[place] for place in sorted(set(self._first))]
        if self._matrices:
            if any(_kind_of_matrix(tensors[place]) != kind for place, kind in self._matrices.items()):
                return False
            tensors = self._strided(tensors)
        same: bool = self._check(*tensors)
        if (
            not same and torch._C._len_torch_dispatch_stack()
        ):  # for which every tensor is another one, to torch's guards
            return list(map(_kind, tensors)) == self._kinds
        return same

    def _strided(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [x for n, x in enumerate(tensors) if n not in self._matrices] if self._matrices else tensors


def _cannot_tell(*_: object) -> bool:
    return False


def _kind_of_matrix(tensor: Any) -> tuple[Any, ...]:
    """What a tensor that is not strided is like, and which memory its parts are in."""
    if not isinstance(tensor, torch.Tensor):
        return (type(tensor),)
    form = form_of(tensor)
    parts = [(x.data_ptr(), x.shape, x.stride()) for x in parts_of(tensor).values()] if form is not None else []
    return (type(tensor), tensor.requires_grad, tensor.layout, tensor.shape, tensor.dtype, tensor.device, form, parts)


def _kind(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor):
        return (type(tensor),)
    layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())
    return (type(tensor), tensor.requires_grad, *layout)
