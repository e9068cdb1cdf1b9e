"""What a step's code asks tensors for in Python, where that takes another answer on fakes than in eager mode.

A function mode sees such questions before torch's C++ turns them into plain numbers: the truth of a tensor becomes a
question of the program, a tensor made of traced numbers becomes an operator, and what no program can do is refused
with the user's line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from dovetail.capture.drawn_arrays import is_drawn, tensor_of_drawn
from dovetail.capture.item_log import FEW
from dovetail.capture.number_functions import (
    SIZES,
    asks_for_user,
    is_traced_place,
    keywords_of,
    makes_tensor_of_numbers,
    sizes_with_numbers,
    tensor_of_numbers,
)
from dovetail.capture.origins import OriginTracker
from dovetail.capture.places import INDEXING, indexed, selected, with_numbers
from dovetail.capture.python_objects import AS_PYTHON, listed
from dovetail.capture.step_tensors import of_graph_from_before
from dovetail.errors import DovetailError, StateChangedOtherwise, UnsupportedStep
from dovetail.ir.program import Origin
from dovetail.ir.provenance import is_library_file
from dovetail.torch_compat.autograd import asks_where_or_how_often
from dovetail.torch_compat.dispatch import is_composite, overloads, schema_of
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.traced_numbers import is_traced, number_now
from dovetail.torch_compat.view_nodes import switches_gradient

_GRADIENT = (getattr(torch.Tensor.grad, "__get__"), getattr(torch.Tensor.grad, "__set__"))  # noqa: B009
_GRAPH = frozenset(getattr(getattr(torch.Tensor, name), "__get__") for name in ("is_leaf", "grad_fn", "output_nr"))  # noqa: B009
_SET_DATA: Any = getattr(torch.Tensor.data, "__set__")  # noqa: B009
_REGISTER = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
_TRUTH = frozenset({torch.Tensor.__bool__, torch.is_nonzero, torch.Tensor.is_nonzero})
_WHOLE = frozenset({torch.int64, torch.int32, torch.bool})
_AS_TEXT = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__, torch.Tensor.__str__})
_WITH_MOMENTUM, _MOMENTUM = frozenset({torch.batch_norm, torch.nn.functional.batch_norm}), 6
_FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


class StepFunctions(TorchFunctionMode):
    """See the module docstring.

    cleared: ids of tensors whose `.grad` was set to None, each with whether the step had asked about numbers before.
    asked: ids of tensors whose `.grad` was asked for before, other than to clear it. hooked: of those that got a hook,
    with the last such line. has_made, has_views, to be set: whether the step has made a tensor's memory, or views of
    what the tensor is a view of. refusals: errors raised.
    of_graphs: labels of tensors of graphs from before, by id: what stands for them has no graph.
    """

    def __init__(
        self,
        origins: OriginTracker,
        token_for: Callable[[Any], float],
        number_for: Callable[[Any], Any],
        on_gradient: Callable[[torch.Tensor], None],
        text_of: Callable[[torch.Tensor, Callable[[Any], str]], str | None],
        set_data: Callable[[torch.Tensor, torch.Tensor], bool],
        dtype_of_numpy: Callable[[Iterable[Any]], torch.dtype | None],
        look_at: Callable[[Sequence[Any]], None] = lambda _: None,
        has_asked: Callable[[], bool] = lambda: True,
    ) -> None:
        """token_for, on_gradient: see `StepRecorder`. number_for: see `NumberTrace`.

        set_data: lets a tensor lie on the memory of another one, if it can. dtype_of_numpy: see `StepRecorder`.
        text_of: what stands for a text of a tensor, None where it is refused. look_at: gets the arguments of functions
        of torch. has_asked: whether the step has asked about numbers.
        """
        super().__init__()
        self._on_gradient = on_gradient
        self._number_for = number_for
        self._look_at = look_at
        self.has_made: Callable[[torch.Tensor], bool] = _never
        self.has_views: Callable[[torch.Tensor], bool] = _never
        self._text_of = text_of
        self._token_for = token_for
        self._has_asked = has_asked
        self._set_data = set_data
        self._dtype_of_numpy = dtype_of_numpy
        self.cleared: dict[int, bool] = {}
        self.asked: set[int] = set()
        self.hooked: dict[int, Origin] = {}
        self.refusals: list[DovetailError] = []
        self.of_graphs: Mapping[int, str] = {}
        self._origins = origins

    def end(self) -> None:
        """The step has run: forget who was to be asked."""
        self._token_for, self._text_of, self._look_at, self._has_asked = float, _no_text, do_nothing, bool
        self._number_for, self._on_gradient, self._set_data = do_nothing, do_nothing, _never
        self._dtype_of_numpy, self.has_made, self.has_views = _no_text, _never, _never
        self.refusals.clear()  # their frames hold the recording

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        self._look_at((*args, *keywords.values()))
        if func in _GRADIENT:
            self._note_gradient(args, sys._getframe(1))
            return func(*args)
        if func in _GRAPH and id(args[0]) in self.of_graphs:
            self.refusals.append(of_graph_from_before(self.of_graphs[id(args[0])], self._origins.here()))
            raise self.refusals[-1]
        if func in SIZES and asks_for_user(sys._getframe(1)):
            return sizes_with_numbers(func(*args, **keywords), self._number_for)
        if func in _REGISTER or switches_gradient(func):
            (self._note_hook if func in _REGISTER else self._note_switch)(args[0])
        if func in _TRUTH and args[0].numel() == 1:
            return bool(args[0].item() if args[0].dtype == torch.bool else args[0].ne(0).item())
        if func in INDEXING:
            tensor, index = selected(args[0], with_numbers(_with_tensors(args[1])), is_traced_place)
            return indexed(func, tensor, index, args[2:])
        if (
            func is torch.Tensor.tolist
            and args[0].dim()
            and isinstance(args[0].numel(), int)
            and args[0].numel() <= FEW
        ):
            return listed(args[0])
        if func in AS_PYTHON:
            hint = "return the tensor and convert it after the step, or do so in a dovetail.host_call"
            self._refuse("turns a tensor into Python objects", hint)
        if func in _AS_TEXT:
            return self._as_text(func, args)
        if (
            asks_where_or_how_often(func)
            and not is_library_file(sys._getframe(1).f_code.co_filename)
            and (func is torch.Tensor.data_ptr or not self.has_made(args[0]))
        ):
            self._refuse("reads a tensor's address or version counter", "do so outside the step")
        made = self._made_of_numbers(func, args, keywords)
        if made is not None:
            return made
        if func == _SET_DATA:
            self._bind_memory(*args)
            return None
        is_known = _takes_plain_floats(func, args, keywords) and not _has_gradient((*args, *keywords.values()))
        if is_known or _has_momentum(func, args, keywords):
            args = [self._plain(argument) for argument in args]
            keywords = {name: self._plain(argument) for name, argument in keywords.items()}
        return func(*args, **keywords)

    def _note_hook(self, tensor: torch.Tensor) -> None:
        """A hook is registered; of a real tensor, nothing would take it away again."""
        if not is_fake(tensor):
            self._refuse("registers a hook of a tensor that nothing shows it to reach", "register it before the step")
        self.hooked[id(tensor)] = self._origins.here()

    def _note_switch(self, tensor: torch.Tensor) -> None:
        """A tensor comes to require gradients: views of it do with it, unless it is a view of another one itself.

        A parameter is none: `torch.nn.Parameter` detaches what it is made of.
        """
        is_open = not (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter))
        if is_open and self.has_views(tensor) and not self.has_made(tensor):
            self._raise(
                UnsupportedStep,
                what="calls requires_grad_() for a tensor from before when it has made a view of it",
                why="whether the view requires gradients is for the tensor to say that both may be views of",
                hint="call it first, or make the view again",
            )

    def _note_gradient(self, args: Sequence[Any], asking: FrameType) -> None:
        """`.grad` of a tensor is asked for, or set. asking: the frame that does so."""
        tensor = args[0]
        if len(args) == 1:
            if id(tensor) not in self.cleared and not _clears(asking):
                self.asked.add(id(tensor))
            return
        self._on_gradient(tensor)
        if args[1] is None:
            self.cleared.setdefault(id(tensor), self._has_asked())

    def _made_of_numbers(self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> torch.Tensor | None:
        """The tensor that a function makes of a drawn array, or of numbers of which some are traced."""
        if func in _FROM_NUMBERS and args and is_drawn(args[0]):
            return tensor_of_drawn(args[0], **keywords, copies=func is torch.tensor)
        if not makes_tensor_of_numbers(func, args):
            return None
        keywords = keywords_of(func, keywords)
        dtype = self._dtype_of_numpy(_flat(args[0])) if keywords.get("dtype") is None else None
        return tensor_of_numbers(args[0], **(keywords if dtype is None else {**keywords, "dtype": dtype}))

    def _bind_memory(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        if not self._set_data(tensor, other):
            self._raise(
                StateChangedOtherwise,
                what="gives a tensor the memory of one of another kind (`.data = ...`)",
                why="the program follows `.data = ...` between tensors of one dtype and device, all of them known",
                hint="write the contents in place: tensor.copy_(new)",
            )

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


def _clears(frame: FrameType) -> bool:
    """Whether code is torch's that clears gradients: what it leaves is the same whether there were any."""
    return frame.f_code.co_name == "zero_grad" and is_library_file(frame.f_code.co_filename)


def _no_text(*_: Any) -> None:
    return None


def _never(*_: Any) -> bool:
    return False


def do_nothing(_: Any) -> None:
    """Nobody is told."""
    return


def _text_of_tensor(func: Any, rest: Sequence[Any], tensor: torch.Tensor) -> str:
    text: str = func(tensor, *rest)
    return text


def _takes_plain_floats(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a function is one operator, which gets traced numbers where it takes plain floats only."""
    if not any(map(is_traced, (*args, *keywords.values()))):
        return False
    return _is_kernel_of_floats(getattr(func, "__name__", ""))


def _has_momentum(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether the momentum of a batch norm is the only traced number. No formula of a gradient gets it."""
    if func not in _WITH_MOMENTUM:
        return False
    momentum = keywords.get("momentum", args[_MOMENTUM] if len(args) > _MOMENTUM else None)
    return is_traced(momentum) and not any(is_traced(x) and x is not momentum for x in (*args, *keywords.values()))


def _has_gradient(arguments: Iterable[Any]) -> bool:
    """Whether formulas of gradients get the arguments: they may compute with plain floats."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in _flat(list(arguments))
    )


@cache
def _is_kernel_of_floats(name: str) -> bool:
    """Whether torch's operators of a name are no composite ones, and one takes a plain float."""
    meant = overloads("aten", name)
    takes = any(argument.type == "float" for overload in meant for argument in schema_of(overload).arguments)
    return takes and not any(map(is_composite, meant))


def _has_few(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and type(tensor.numel()) is int and tensor.numel() <= FEW and not tensor.is_complex()


def _flat(item: Any) -> list[Any]:
    return [x for part in item for x in _flat(part)] if isinstance(item, list | tuple) else [item]


def _with_tensors(index: Any) -> Any:
    """An index with tensors in the place of drawn arrays, and of lists of traced numbers."""
    if isinstance(index, tuple):
        return tuple(map(_with_tensors, index))
    if type(index) is list and any(map(is_traced, index)) and all(type(_number_of(x)) is int for x in index):
        return tensor_of_numbers(index)
    return index.tensor() if is_drawn(index) else index


def _number_of(item: Any) -> Any:
    return number_now(item) if is_traced(item) else item
