"""Tensors that code turns into Python objects, past every operator: lists, arrays of NumPy, addresses.

Their C code reads the memory of a tensor. A fake has none: what is read there is whatever lies at some address. Of a
real one, which the code holds, it is read once, while the code is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dovetail.capture.asked_views import AskedViews
from dovetail.capture.origins import OriginTracker
from dovetail.errors import DataDependentControlFlow
from dovetail.ir.provenance import is_library_file
from dovetail.torch_compat.autograd import asks_where_or_how_often
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.view_nodes import asks_for_base, asks_whether_view, switches_gradient

AS_PYTHON = frozenset({torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist})
_MOST = 1_000  # elements of a tensor that the code holds, each of which becomes a number of the program
_SHARES = frozenset({torch.Tensor.__dlpack__, torch.from_dlpack})


class PythonObjects(TorchFunctionMode):
    """A function mode that refuses what the memory of a tensor would have to be read for.

    Numbers of `tolist` are those of `.item()`, one by one.
    """

    def __init__(self, origins: OriginTracker, views: AskedViews, has_views: Callable[[torch.Tensor], bool]) -> None:
        """has_views: whether there are other views of what a tensor is a view of."""
        super().__init__()
        self._origins = origins
        self._views, self._has_views = views, has_views

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.tolist and (is_fake(args[0]) or args[0].numel() <= _MOST):
            return listed(args[0]) if args[0].dim() else args[0].item()
        if func in AS_PYTHON or (func in _SHARES and is_fake(args[0])):
            raise DataDependentControlFlow(operator=f"`{func.__name__}`", origin=self._origins.here())
        if asks_where_or_how_often(func) and not is_library_file(asking_frame(sys._getframe(1)).f_code.co_filename):
            raise DataDependentControlFlow(
                operator="a tensor's address or version counter", origin=self._origins.here()
            )
        if switches_gradient(func):
            self._views.switch(args[0], self._has_views)
        if asks_whether_view(func) and not is_library_file(asking_frame(sys._getframe(1)).f_code.co_filename):
            self._views.ask(args[0], self._origins.here(), for_base=asks_for_base(func))
        return func(*args, **(kwargs or {}))


def asking_frame(frame: FrameType) -> FrameType:
    """Who asks, through modes that hand it on."""
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def listed(tensor: torch.Tensor) -> list[Any]:
    """What `tolist` gives: numbers that are traced."""
    return [part.item() if part.dim() == 0 else listed(part) for part in tensor.unbind()]
