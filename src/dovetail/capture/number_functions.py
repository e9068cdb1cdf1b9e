"""Functions of torch that make tensors of Python numbers, or numbers of tensors: where these are traced, operators take
them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dovetail.capture.places import INDEXING, indexed, selected
from dovetail.ir.provenance import is_library_file
from dovetail.reach.stand_ins import StandIn
from dovetail.torch_compat.modes import unnoticed_mode
from dovetail.torch_compat.traced_maths import traced_maths
from dovetail.torch_compat.traced_numbers import is_traced, number_now

_FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.scalar_tensor})
_SHAPE: Any = getattr(torch.Tensor.shape, "__get__")  # noqa: B009
_STAND_INS = sys.modules[StandIn.__module__].__file__

SIZES = frozenset({_SHAPE, torch.Tensor.size, torch.Tensor.numel, torch.numel, torch.Tensor.nelement})


class NumberFunctions(TorchFunctionMode):
    """A function mode in which sizes are traced numbers; `torch.tensor([1, number])` and `x[number]` keep such."""

    def __init__(self, number_for: Callable[[Any], Any]) -> None:
        """number_for: see `NumberTrace`."""
        super().__init__()
        self._number_for = number_for

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in SIZES and asks_for_user(sys._getframe(1)):
            return sizes_with_numbers(func(*args, **(kwargs or {})), self._number_for)
        if makes_tensor_of_numbers(func, args):
            return tensor_of_numbers(args[0], **keywords_of(func, kwargs or {}))
        if func in INDEXING and isinstance(args[0], torch.Tensor):
            return indexed(func, *selected(args[0], args[1], is_traced_place), args[2:])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def numbers_traced(around: contextlib.AbstractContextManager[None], number_for: Callable[[Any], Any]) -> Iterator[None]:
    """While active, what code does with traced numbers is noted. around: held. number_for: see `NumberTrace`."""
    with around, traced_maths(number_for), NumberFunctions(number_for), unnoticed_mode():
        yield


def asks_for_user(frame: FrameType) -> bool:
    """Whether code that asks is the user's, or asks on its behalf."""
    file = frame.f_code.co_filename
    return file == _STAND_INS or not is_library_file(file)


def sizes_with_numbers(sizes: Any, number_for: Callable[[Any], Any]) -> Any:
    """What the code is told of sizes: numbers that are traced, where they are symbols."""
    if isinstance(sizes, torch.SymInt):
        return number_for(sizes)
    if isinstance(sizes, tuple) and any(isinstance(size, torch.SymInt) for size in sizes):
        return type(sizes)([number_for(x) if isinstance(x, torch.SymInt) else x for x in sizes])
    return sizes


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
