"""Functions of torch that make tensors of Python numbers: where these are traced, operators take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dovetail.capture.places import INDEXING, indexed, selected
from dovetail.torch_compat.traced_numbers import is_traced, number_now

_FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.scalar_tensor})


class NumberFunctions(TorchFunctionMode):
    """A function mode in which `torch.tensor([1, number])` and `x[number]` keep the traced number."""

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if makes_tensor_of_numbers(func, args):
            return tensor_of_numbers(args[0], **keywords_of(func, kwargs or {}))
        if func in INDEXING and isinstance(args[0], torch.Tensor):
            return indexed(func, *selected(args[0], args[1], is_traced_place), args[2:])
        return func(*args, **(kwargs or {}))


def is_traced_place(item: Any) -> bool:
    """Whether this is a traced whole number."""
    return is_traced(item) and type(number_now(item)) is int


def makes_tensor_of_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call makes a tensor of numbers, some of them traced."""
    return func in _FROM_NUMBERS and len(args) > 0 and _holds_traced(args[0])


def keywords_of(func: Any, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keywords of a call of such a function, with the dtype of which it makes every number."""
    is_of_one_dtype = func is torch.scalar_tensor and keywords.get("dtype") is None
    return {**keywords, "dtype": torch.get_default_dtype()} if is_of_one_dtype else keywords


def _holds_traced(item: Any) -> bool:
    return is_traced(item) or (isinstance(item, list | tuple) and any(map(_holds_traced, item)))


def tensor_of_numbers(
    item: Any, dtype: torch.dtype | None = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> torch.Tensor:
    """What `torch.tensor` makes of nested lists of numbers, some of them traced."""
    if dtype is None:
        kinds = {type(number) for number in _numbers(item)}
        dtype = torch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
    with torch.no_grad():
        made = _stacked(item, lambda number: torch.full((), number, dtype=dtype, device=device))
    return made.requires_grad_(requires_grad)


def _stacked(item: Any, make: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    return torch.stack([_stacked(part, make) for part in item]) if isinstance(item, list | tuple) else make(item)


def _numbers(item: Any) -> list[Any]:
    if isinstance(item, list | tuple):
        return [number for part in item for number in _numbers(part)]
    return [number_now(item) if is_traced(item) else item]
