"""What a step's code asks tensors for in Python, where that takes another answer on fakes than in eager mode.

A function mode sees such questions before torch's C++ turns them into plain numbers: the truth of a tensor becomes a
question of the program, a tensor made of traced numbers becomes an operator, and what no program can do is refused
with the user's line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from dovetail.capture.origins import OriginTracker
from dovetail.errors import DovetailError, StateChangedOtherwise, UnsupportedStep
from dovetail.ir.program import Origin
from dovetail.ir.provenance import is_library_file
from dovetail.torch_compat.autograd import asks_where_or_how_often
from dovetail.torch_compat.dispatch import is_composite, overloads, schema_of
from dovetail.torch_compat.traced_numbers import is_traced, number_now

_SET_GRAD: Any = getattr(torch.Tensor.grad, "__set__")  # noqa: B009
_SET_DATA: Any = getattr(torch.Tensor.data, "__set__")  # noqa: B009
_REGISTER = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
_TRUTH = frozenset({torch.Tensor.__bool__, torch.is_nonzero, torch.Tensor.is_nonzero})
_AS_PYTHON = frozenset({torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist})
_AS_TEXT = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__, torch.Tensor.__str__})
_FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.scalar_tensor})


class StepFunctions(TorchFunctionMode):
    """See the module docstring.

    cleared: ids of tensors whose `.grad` was set to None, each with whether numbers had been asked for before. hooked:
    of those that got a hook, with the last such line. refusals: errors raised.
    """

    def __init__(
        self,
        origins: OriginTracker,
        token_for: Callable[[Any], float],
        text_of: Callable[[torch.Tensor, Callable[[Any], str]], str | None],
        look_at: Callable[[Sequence[Any]], None] = lambda _: None,
        has_asked: Callable[[], bool] = lambda: True,
    ) -> None:
        """token_for: see `StepRecorder`. text_of: what stands for a text of a tensor, None where it is refused.

        look_at: gets the arguments of functions of torch. has_asked: whether the step has asked about numbers.
        """
        super().__init__()
        self._look_at = look_at
        self._text_of = text_of
        self._token_for = token_for
        self._has_asked = has_asked
        self.cleared: dict[int, bool] = {}
        self.hooked: dict[int, Origin] = {}
        self.refusals: list[DovetailError] = []
        self._origins = origins

    def end(self) -> None:
        """The step has run: forget who was to be asked."""
        self._token_for, self._text_of, self._look_at, self._has_asked = float, _no_text, _nothing, bool

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        self._look_at((*args, *keywords.values()))
        if func == _SET_GRAD:
            if args[1] is None:
                self.cleared.setdefault(id(args[0]), self._has_asked())
            return func(*args)
        if func in _REGISTER:
            self.hooked[id(args[0])] = self._origins.here()
        if func in _TRUTH and args[0].numel() == 1:
            return bool(args[0].item() if args[0].dtype == torch.bool else args[0].ne(0).item())
        if func in _AS_PYTHON:
            self._refuse("turns a tensor into Python objects", "return the tensor and convert it after the step")
        if func in _AS_TEXT:
            return self._as_text(func, args)
        if asks_where_or_how_often(func) and not is_library_file(sys._getframe(1).f_code.co_filename):
            self._refuse("reads a tensor's address or version counter", "do so outside the step")
        if func in _FROM_NUMBERS and args and _holds_traced(args[0]):
            return _tensor_of(args[0], **keywords)
        if func == _SET_DATA:
            self._raise(
                StateChangedOtherwise,
                what="binds a tensor to other memory (`.data = ...`)",
                why="the program uses the memory that tensors had when it was recorded",
                hint="write the contents in place: tensor.copy_(new)",
            )
        if not torch.is_grad_enabled() and _takes_plain_floats(func, args, keywords):
            args = [self._plain(argument) for argument in args]
            keywords = {name: self._plain(argument) for name, argument in keywords.items()}
        return func(*args, **keywords)

    def _as_text(self, func: Any, args: Sequence[Any]) -> str:
        """What stands for a text of a tensor; of the number, where torch formats that."""
        tensor = args[0]
        is_number = func is torch.Tensor.__format__ and tensor.dim() == 0 and not isinstance(tensor, torch.nn.Parameter)
        if is_number:
            return format(tensor.item(), *args[1:])
        made = self._text_of(tensor, partial(_text_of_tensor, func, args[1:]))
        if made is None:
            self._refuse("turns a tensor into text, in a library's code", "print it after the step")
        return made

    def _plain(self, argument: Any) -> Any:
        return self._token_for(argument) if is_traced(argument) and type(number_now(argument)) is float else argument

    def _refuse(self, what: str, hint: str) -> NoReturn:
        self._raise(UnsupportedStep, what=what, why="its data is not known while the step is captured", hint=hint)

    def _raise(self, kind: type[DovetailError], **facts: object) -> NoReturn:
        error = kind(origin=self._origins.here(), **facts)
        self.refusals.append(error)
        raise error


def _no_text(*_: Any) -> None:
    return None


def _nothing(_: Any) -> None:
    return


def _text_of_tensor(func: Any, rest: Sequence[Any], tensor: torch.Tensor) -> str:
    text: str = func(tensor, *rest)
    return text


def _takes_plain_floats(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a function is one operator, which gets traced numbers where it takes plain floats only."""
    if not any(map(is_traced, (*args, *keywords.values()))):
        return False
    meant = overloads("aten", getattr(func, "__name__", ""))
    takes = any(argument.type == "float" for overload in meant for argument in schema_of(overload).arguments)
    return takes and not any(map(is_composite, meant))


def _holds_traced(item: Any) -> bool:
    return is_traced(item) or (isinstance(item, list | tuple) and any(map(_holds_traced, item)))


def _tensor_of(
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
