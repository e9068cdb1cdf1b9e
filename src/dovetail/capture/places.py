"""Indexing by numbers that only data tell: `x[n]`, `x[n, 1:]`, `x[: count]` with tensors or followed numbers as places.

Torch's C++ turns such places into plain numbers. Eager mode reads a tensor of one whole number as `.item()` does, and
takes `x[n]` as a `select`; so the same operators run here, with numbers that are followed. Truth values that C++ takes
off tensors (`torch.equal`, `torch.allclose`) and places of `narrow` and `tensor_split` are followed as well, and where
only one way of a branch does not raise, that one is taken, and checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from dovetail.capture.checked_branches import answer_that_does_not_raise, has_checks
from dovetail.capture.python_objects import asking_frame
from dovetail.errors import DataDependentControlFlow
from dovetail.torch_compat.data_sizes import asked_truths, assume, without_hint
from dovetail.torch_compat.modes import unnoticed_mode
from dovetail.torch_compat.traced_numbers import is_unknown

ALL = object()
INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
_NARROW = frozenset({torch.narrow, torch.Tensor.narrow})
_SPLIT = frozenset({torch.tensor_split, torch.Tensor.tensor_split})
_ENDS = "tensor_indices_or_sections"
_KINDS_OF_DROPOUT = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
_DROPOUTS = frozenset(getattr(torch, name + end) for name in _KINDS_OF_DROPOUT for end in ("", "_"))
_TRUTH = frozenset({torch.Tensor.__bool__, torch.is_nonzero, torch.Tensor.is_nonzero})
_EQUAL = frozenset({torch.equal, torch.Tensor.equal})
_CLOSE = frozenset({torch.allclose, torch.Tensor.allclose})
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
def followed_places(note_checks: Callable[[], None]) -> Iterator[None]:
    """While active, tensors can be indexed by numbers that torch knows nothing of.

    note_checks: called when torch has been told a fact that the program has to check from here on.
    """

    def answer(number: Any, frame: FrameType) -> bool | None:
        wanted = answer_that_does_not_raise(frame) if without_hint(number) or is_unknown(number) else None
        if wanted is not None:
            assume(number if wanted else torch.sym_not(number))
            note_checks()
        return wanted

    with UnknownPlaces(note_checks), unnoticed_mode(), asked_truths(answer):
        yield


class UnknownPlaces(TorchFunctionMode):
    """A function mode in which numbers of which torch knows nothing are places, results and checks."""

    def __init__(self, note_checks: Callable[[], None]) -> None:
        super().__init__()
        self._note_checks = note_checks
        self._followed: set[Any] = set()  # functions of torch's that run

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func in INDEXING and isinstance(args[0], torch.Tensor):
            return _indexed(func, args)
        if func in _NARROW and _is_place(start := _argument(args, keywords, 2, "start")):
            dim, length = (_argument(args, keywords, place, name) for place, name in ((1, "dim"), (3, "length")))
            return self._narrowed(args[0], dim, start, length)
        if func in _SPLIT and isinstance(ends := _argument(args, keywords, 1, _ENDS), torch.Tensor):
            return _split(args[0], ends, _argument(args, keywords, 2, "dim"))
        if func in _DROPOUTS and without_hint(args[0].numel()):
            assume(args[0].numel() != 0)  # an empty tensor is handed back as it is
            self._note_checks()
        if func == torch.Tensor.item and args[0].dtype == torch.bool:
            return truth_of(args[0])
        if func in _CLOSE:
            return truth_of(torch.isclose(*args, **keywords).all())
        if func in _EQUAL and not keywords and _are_alike(*args):
            first, second = args
            return first.shape == second.shape and truth_of((first == second).all())
        answer = answer_that_does_not_raise(asking_frame(sys._getframe(1))) if func in _TRUTH else None
        if answer is not None and args[0].numel() == 1:
            number = truth_of(args[0].detach() != 0)
            assume(number if answer else torch.sym_not(number))
            self._note_checks()
            return answer
        if isinstance(func, FunctionType) and func not in self._followed and has_checks(func.__code__):
            return self._follow(func, args, keywords)
        return func(*args, **keywords)

    def _follow(self, func: FunctionType, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Run a function of torch's with its checks. C++ that it calls may name it again (`Tensor.unflatten`)."""
        self._followed.add(func)
        try:
            with self:
                return without_modes_asked(func)(*args, **keywords)
        finally:
            self._followed.remove(func)

    def _narrowed(self, tensor: torch.Tensor, dim: int, start: Any, length: Any) -> torch.Tensor:
        """`narrow` at a place that leaves room for the length: that is checked. A number is no place from the end."""
        if isinstance(start, torch.Tensor):
            start = torch.where(start < 0, start + tensor.shape[dim], start).item()
        assume(start >= 0)
        assume(start + length <= tensor.shape[dim])
        self._note_checks()
        narrowed: torch.Tensor = torch.ops.aten.slice.Tensor(tensor, dim, start, start + length)
        return narrowed


def without_modes_asked(func: FunctionType) -> FunctionType:
    """A function of torch's that is written in Python, as it runs where no mode takes it over as a whole."""
    globals_ = {**func.__globals__, **dict.fromkeys(_ASKS_FOR_MODES & func.__globals__.keys(), _no)}
    made = FunctionType(func.__code__, globals_, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _no(*_: object) -> bool:
    return False


_ASKS_FOR_MODES = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


def _indexed(func: Any, args: Sequence[Any]) -> Any:
    tensor, index = selected(args[0], with_numbers(args[1]), _is_unknown)
    return indexed(func, tensor, index, args[2:])


def indexed(func: Any, tensor: torch.Tensor, index: Any, value: Sequence[Any]) -> Any:
    """`tensor[index]`, or `tensor[index] = value`, after `selected`."""
    if index is ALL:
        return tensor if func is torch.Tensor.__getitem__ else func(tensor, ..., *value)
    return func(tensor, index, *value)


def selected(tensor: torch.Tensor, index: Any, is_place: Callable[[Any], bool]) -> tuple[torch.Tensor, Any]:
    """A tensor and an index without numbers of a kind: what was chosen by `select` for these, in the order of torch's.

    is_place: of which kind. Those behind a tensor or a mask are left. The index of all that is chosen is `ALL`.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    basic = next((n for n, item in enumerate(items) if not (_is_basic(item) or is_place(item))), len(items))
    end = max((n + 1 for n in range(basic) if is_place(items[n])), default=0)
    if not end:
        return tensor, index
    dim = 0
    for n, item in enumerate(items[:end]):
        if is_place(item):
            tensor = tensor.select(dim, item)
        elif item is ...:
            dim = tensor.dim() - sum(map(_dimensions, items[n + 1 :]))
        elif item is None:
            tensor, dim = tensor.unsqueeze(dim), dim + 1
        else:
            is_number = isinstance(item, int)
            tensor = tensor.select(dim, item) if is_number else tensor[(*[slice(None)] * dim, item)]
            dim += not is_number
    rest = items[end:]
    return tensor, (*[slice(None)] * dim, *rest) if rest else ALL


def _dimensions(item: Any) -> int:
    """How many dimensions an item of an index chooses from."""
    if item is None or item is ... or type(item) is bool:
        return 0
    if isinstance(item, torch.Tensor | np.ndarray):
        return int(item.ndim) if item.dtype in (torch.bool, torch.uint8, np.bool_) else 1
    return 1


def _is_basic(item: Any) -> bool:
    return item is None or item is ... or isinstance(item, slice) or (isinstance(item, int) and type(item) is not bool)


def _is_unknown(item: Any) -> bool:
    return isinstance(item, torch.SymInt) and without_hint(item)


def _is_place(start: Any) -> bool:
    return isinstance(start, torch.Tensor) or without_hint(start)


def _argument(args: Sequence[Any], keywords: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else keywords.get(name)


def _split(tensor: torch.Tensor, ends: torch.Tensor, dim: int | None) -> Any:
    """`tensor_split` at places in a tensor.

    Raises: DataDependentControlFlow where data decide how many parts there are.
    """
    if ends.dim() == 0:
        raise DataDependentControlFlow(operator="torch.tensor_split(tensor, number of parts)")
    numbers: list[Any] = [end.item() for end in ends.unbind()]
    return torch.tensor_split(tensor, numbers, dim or 0)


def truth_of(tensor: torch.Tensor) -> Any:
    """The truth value of a tensor of one, in a symbol for a whole number: programs have symbols for those only."""
    number: Any = tensor.to(torch.int64).item()
    return number == 1 if isinstance(number, torch.SymInt) else bool(number)


def _are_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and first.device == second.device
