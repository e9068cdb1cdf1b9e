"""Arrays of NumPy that are drawn before each run of a program: what a step's code computes with them is computed then.

    order = np.random.permutation(8)         drawn before the run
    first = order[:4]                        computed before the run, by NumPy
    x[torch.from_numpy(first)]               an input of the program

The code gets a stand-in for such an array. It knows the array of this call, and notes each function that is applied to
it; whoever asks for what the array holds is refused, since the next call draws another one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

_FROM_NUMPY = torch.from_numpy
_METHOD_NAMES = """
all any argmax argmin argpartition argsort astype choose clip compress conj copy cumprod cumsum diagonal dot fill
flatten item max mean min nonzero partition prod ravel repeat
reshape round searchsorted sort squeeze std sum swapaxes take
tolist trace transpose var view
"""
_METHODS = frozenset(_METHOD_NAMES.split())
_CHANGING = frozenset(("fill", "sort", "partition"))
_ATTRIBUTES = frozenset(("T", "real", "imag"))
_ASKED = frozenset(("shape", "dtype", "ndim", "size", "itemsize", "nbytes"))
_CHANGING_FUNCTIONS = frozenset((np.put_along_axis, np.copyto, np.put, np.place, np.putmask, np.fill_diagonal))


class DrawnTrace(Protocol):
    """Who notes what is computed of drawn arrays."""

    def derive(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a function gives, noted, so that it is called again before each run."""

    def change(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The same for a function that changes its first argument, which is a drawn array."""

    def refuse(self, what: str) -> NoReturn:
        """Raise what is to be said of code that asks for what an array holds."""


class DrawnArray(NDArrayOperatorsMixin):
    """See the module docstring. real: the array of this call. which: its place among what is made before a run."""

    __slots__ = ("real", "trace", "which")
    __array_priority__ = 2000.0
    tells_class = True

    def __init__(self, trace: DrawnTrace, which: int, real: Any) -> None:
        self.trace, self.which, self.real = trace, which, real

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For `isinstance`."""
        return type(self.real)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        if any(isinstance(x, torch.Tensor) for x in inputs):
            self.trace.refuse("computes with an array that it draws and a tensor in one NumPy function")
        function = getattr(ufunc, method)
        if method == "at":
            return self.trace.change(function, inputs, kwargs)
        if out is None:
            return self.trace.derive(function, inputs, kwargs)
        if len(out) != 1 or type(out[0]) is not DrawnArray:
            self.trace.refuse("writes drawn numbers into an array (`out=`)")
        self.trace.change(partial(_into, function), (out[0], *inputs), kwargs)
        return out[0]

    def __array_function__(self, func: Any, types: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func in _CHANGING_FUNCTIONS and type(args[0]) is DrawnArray:
            return self.trace.change(func, args, kwargs)
        if func in _CHANGING_FUNCTIONS or "out" in kwargs:
            self.trace.refuse("writes drawn numbers into an array")
        return self.trace.derive(func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _ASKED:
            return getattr(self.real, name)
        if name in _ATTRIBUTES:
            return self.trace.derive(getattr, (self, name), {})
        if name not in _METHODS or not hasattr(self.real, name):
            raise AttributeError(name)
        note = self.trace.change if name in _CHANGING else self.trace.derive

        def method(*args: Any, **kwargs: Any) -> Any:
            return note(operator.methodcaller(name, *args, **kwargs), (self,), {})

        def with_drawn(*args: Any, **kwargs: Any) -> Any:
            if any(type(x) is DrawnArray for x in (*args, *kwargs.values())):
                return note(_called, (self, name, *args), kwargs)
            return method(*args, **kwargs)

        return with_drawn

    def __getitem__(self, index: Any) -> Any:
        return self.trace.derive(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.trace.refuse("puts a tensor into an array that it draws")
        self.trace.change(operator.setitem, (self, index, value), {})

    def __len__(self) -> int:
        if not self.real.ndim:  # which only code of C asks, that looks for numbers
            self.trace.refuse("reads an array that it draws in code of C")
        return len(self.real)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self.real)))

    def followed_number(self) -> Any:
        """The only number, which is followed; the array where it has several."""
        return self.item() if self.real.size == 1 and self.real.ndim == 0 else self

    def _only(self, convert: Callable[[Any], Any]) -> Any:
        convert(self.real)  # NumPy says what is wrong, if anything is
        return convert(self.item())

    def __float__(self) -> float:
        return float(self._only(float))

    def __int__(self) -> int:
        return int(self._only(int))

    def __index__(self) -> int:
        return int(self._only(operator.index))

    def __bool__(self) -> bool:
        return bool(self._only(bool))

    def __contains__(self, item: Any) -> Any:
        return bool(self.trace.derive(operator.contains, (self, item), {}))

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.trace.refuse("asks what an array holds that it draws")

    def __repr__(self) -> str:
        self.trace.refuse("makes a text of an array that it draws")

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return repr(self)

    def __reduce_ex__(self, _: Any) -> Any:
        self.trace.refuse("copies or pickles an array that it draws")

    def tensor(self) -> torch.Tensor:
        """A tensor on the array's memory: an input of the program."""
        made: torch.Tensor = self.trace.derive(_FROM_NUMPY, (self,), {})
        return made


def _into(function: Any, out: Any, *inputs: Any, **kwargs: Any) -> None:
    function(*inputs, out=out, **kwargs)


def _called(array: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(array, name)(*args, **kwargs)


def is_drawn(item: object) -> bool:
    """Whether something stands for an array that is drawn before each run."""
    return type(item) is DrawnArray


def tensor_of_drawn(
    array: DrawnArray,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    copies: bool,
    copy: bool | None = None,
) -> torch.Tensor:
    """What `torch.tensor` (with copies) and `torch.as_tensor` (without) make of a drawn array."""
    with torch.no_grad():
        held = array.tensor()
        if dtype is not None or device is not None:
            held = held.to(device=device or held.device, dtype=dtype or held.dtype, copy=copies or bool(copy))
        elif copies or copy:
            held = held.clone()
    return held.requires_grad_() if requires_grad else held
