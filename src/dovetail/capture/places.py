"""Indexing by numbers that only data tell: `x[n]`, `x[n, 1:]`, `x[: count]` with tensors or followed numbers as places.

Torch's C++ turns such places into plain numbers. Eager mode reads a tensor of one whole number as `.item()` does, and
takes `x[n]` as a `select`; so the same operators run here, with numbers that are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.modes import unnoticed_mode

INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
_PLACES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def with_numbers(index: Any) -> Any:
    """An index with `.item()` of each tensor that stands for one place."""
    if isinstance(index, tuple):
        return tuple(map(with_numbers, index))
    if isinstance(index, slice):
        return slice(*(x.item() if isinstance(x, torch.Tensor) else x for x in (index.start, index.stop, index.step)))
    is_place = isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in _PLACES
    return index.item() if is_place else index


@contextmanager
def followed_places() -> Iterator[None]:
    """While active, tensors can be indexed by numbers that torch knows nothing of."""
    with UnknownPlaces(), unnoticed_mode():
        yield


class UnknownPlaces(TorchFunctionMode):
    """A function mode in which tensors are indexed by numbers that torch knows nothing of."""

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in INDEXING or not isinstance(args[0], torch.Tensor):
            return func(*args, **(kwargs or {}))
        tensor, index, *value = args[0], with_numbers(args[1]), *args[2:]
        places = list(index) if isinstance(index, tuple) else [index]
        while places and isinstance(places[0], torch.SymInt) and without_hint(places[0]):
            tensor = tensor.select(0, places.pop(0))
        if func is torch.Tensor.__getitem__ and not places:
            return tensor
        return func(tensor, tuple(places) if isinstance(index, tuple) else places[0] if places else ..., *value)
